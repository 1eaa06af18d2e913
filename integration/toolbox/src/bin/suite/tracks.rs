//! The tracks of the test suite. The tracks of the group `first` run before the build, and all
//! other tracks run after the build. Tracks in different lanes run concurrently.

use std::{
    cmp::Reverse,
    collections::BTreeSet,
    env,
    process::{Command, Stdio},
    thread::available_parallelism,
};

use anyhow::{Context, Result};
use toolbox::{TestProgram, sections, words};

use crate::{
    only::Only,
    programs::{self, DeviceTests, SKIPPED_ON_IWARP},
    steps::{Step, Track},
};

/// Returns the selected tracks of one group in `steps.txt`. `native` states whether this machine
/// has an RDMA device.
pub(crate) fn listed(
    group: &str,
    only: &Only,
    tests: &DeviceTests,
    native: bool,
) -> Result<Vec<Track>> {
    let mut tracks = Vec::new();
    for (title, lines) in sections(include_str!("steps.txt")) {
        let (of, name) = title.split_once(' ').context(title)?;
        if of != group {
            continue;
        }
        let steps = lines
            .into_iter()
            .map(|line| step(line, only.packages(), tests, native));
        let mut track = Track::new(name, steps.collect::<Result<_>>()?);
        if let Some(name) = name.strip_suffix(" long") {
            (track.name, track.is_long) = (name, true);
        }
        tracks.push(track);
    }
    Ok(only.tracks(tracks))
}

fn step(line: &str, packages: &str, tests: &DeviceTests, native: bool) -> Result<Step> {
    let (what, command) = line.split_once(" | ").context(line.to_owned())?;
    let (build, command) = match command.split_once(" => ") {
        Some((build, command)) => (Some(build.to_owned()), command),
        None => (None, command),
    };
    let mut line = Vec::new();
    for word in words(command) {
        match (&*word, word.strip_prefix("PROGRAM:")) {
            (_, Some(name)) => line.push(tests.program(name)?.display().to_string()),
            ("LAB", _) => line.extend(lab(&one_host(), native)),
            ("PACKAGES", _) => line.extend(words(packages)),
            ("IDLY", _) => line.extend(words(idle_prefix())),
            _ => line.push(word),
        }
    }
    let tool = env::current_exe()?.with_file_name(&line[0]);
    if tool.exists() {
        line[0] = tool.display().to_string();
    }
    let what = what.to_owned();
    Ok(Step { what, build, line })
}

/// Returns a prefix for commands that should run only on idle processors. If the kernel refuses
/// idle scheduling, the prefix sets the lowest priority.
fn idle_prefix() -> &'static str {
    let mut trial = Command::new("chrt");
    trial.args(["--idle", "0", "true"]).stderr(Stdio::null());
    match trial.status() {
        Ok(status) if status.success() => "chrt --idle 0",
        _ => "nice -n 19",
    }
}

/// Returns the tracks that need no device.
pub(crate) fn anywhere(built: &[TestProgram], only: &Only) -> Result<Vec<Track>> {
    let name = "anywhere";
    let line = programs::anywhere(built, name, only)?.into_iter();
    let step = line.map(|line| Step::new("tests that need no device", words(&line)));
    Ok(step.map(|step| Track::new(name, vec![step])).collect())
}

/// Returns the tracks that need one host with a device. The longest track is first. If `native` is
/// true, the track `device` also runs the tests for two hosts.
pub(crate) fn on_one_host(tests: &DeviceTests, native: bool, only: &Only) -> Vec<Track> {
    let all: Vec<_> = tests.one.iter().collect();
    let on_one = |name, tests: &[&TestProgram]| {
        let what = "device tests on one host";
        of_tests(name, what, &one_host(), native, &only.of(name, tests), &[])
    };
    let mut tracks = if native {
        // All tests count the objects of the same device, so they must run one after another.
        let mut track = on_one("device", &all);
        track
            .steps
            .extend(on_two("device", tests, true, only).steps);
        vec![track]
    } else {
        let [first, second] = split_evenly(&all);
        vec![on_one("rxe-1", &first), on_one("rxe-2", &second)]
    };
    // Run all programs for iWARP in a single boot: together they take only half as long as the
    // programs for RoCE, which run in two boots.
    let on_iwarp = only.of("siw", &tests.on_iwarp(only.selects_long()));
    let (what, options) = (
        "device tests on software iWARP",
        format!("--device siw {}", one_host()),
    );
    tracks.push(of_tests(
        "siw",
        what,
        &options,
        false,
        &on_iwarp,
        &SKIPPED_ON_IWARP,
    ));
    tracks.retain(|track| !track.steps.is_empty());
    tracks
}

/// Returns the tracks that need two hosts with devices. The longest track is first.
pub(crate) fn on_two_hosts(tests: &DeviceTests, native: bool, only: &Only) -> Result<Vec<Track>> {
    let mut tracks = listed("two", only, tests, native)?;
    if !native {
        let two = on_two("two", tests, false, only);
        if !two.steps.is_empty() {
            tracks.insert(0, two);
        }
    }
    Ok(tracks)
}

fn on_two(name: &'static str, tests: &DeviceTests, native: bool, only: &Only) -> Track {
    let all: Vec<_> = tests.two.iter().collect();
    let options = "--hosts 2 --timeout 1200";
    let what = "device tests on two hosts";
    of_tests(name, what, options, native, &only.of(name, &all), &[])
}

/// Returns a track with one step that runs test programs on a device. The step leaves out the tests
/// in `skipped`. If `tests` is empty, the track has no steps.
fn of_tests(
    name: &'static str,
    what: &str,
    options: &str,
    native: bool,
    tests: &[&TestProgram],
    skipped: &[(&str, &str)],
) -> Track {
    if tests.is_empty() {
        return Track::new(name, Vec::new());
    }
    let names: Vec<_> = tests.iter().map(|test| &*test.name).collect();
    let what = format!("{what}: {}", names.join(" "));
    let mut line = lab(options, native);
    line.extend(["--", "integration/device-host"].map(str::to_owned));
    for (test, _) in skipped {
        line.extend(["--skip", *test].map(str::to_owned));
    }
    line.extend(tests.iter().map(|test| test.program.display().to_string()));
    Track::new(name, vec![Step::new(what, line)])
}

/// Returns a command prefix that runs the rest of the command on a host with a device.
fn lab(options: &str, native: bool) -> Vec<String> {
    let native = if native { "--native" } else { "" };
    words(&format!("integration/lab exec {options} {native}"))
}

/// Returns the options of the lab for tests on one host.
fn one_host() -> String {
    // Divide this machine's processors between two guests, with at most two processors per guest.
    // If a virtual processor had to wait for a real one, it would delay the guest's other
    // processors.
    let cpus = available_parallelism().map_or(1, |real| (real.get() / 2).clamp(1, 2));
    format!("--cpus {cpus} --memory 3072 --timeout 1800")
}

/// The programs that take longest on software RoCE, with their durations in seconds on a machine
/// with two processors.
const LONG: [(&str, u32); 14] = [
    ("hostile", 110),
    ("services", 85),
    ("doctor", 50),
    ("large", 50),
    ("waiting", 35),
    ("behaviour", 30),
    ("bridged", 30),
    ("shortage", 30),
    ("tasks", 25),
    ("conformance", 20),
    ("fork", 20),
    ("rsocket", 20),
    ("exits", 10),
    ("storms", 10),
];

/// Returns the expected duration of a program in seconds: the value in [`LONG`], or 5 for other
/// programs.
fn weight(test: &TestProgram) -> u32 {
    let known = LONG.iter().find(|(name, _)| *name == test.name);
    known.map_or(5, |(_, seconds)| *seconds)
}

/// Distributes the tests over two parts of about the same duration. Within each part, the tests
/// keep their order.
fn split_evenly<'a>(tests: &[&'a TestProgram]) -> [Vec<&'a TestProgram>; 2] {
    let mut longest_first: Vec<_> = (0..tests.len()).collect();
    longest_first.sort_by_key(|&number| Reverse(weight(tests[number])));
    let mut parts = [(0, BTreeSet::new()), (0, BTreeSet::new())];
    for number in longest_first {
        let lighter = usize::from(parts[1].0 < parts[0].0);
        parts[lighter].0 += weight(tests[number]);
        parts[lighter].1.insert(number);
    }
    parts.map(|(_, numbers)| numbers.into_iter().map(|number| tests[number]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_parts_take_the_same_time() {
        let tests = ["advice", "doctor", "hostile", "large", "zero"].map(programs::named);
        let [first, second] = split_evenly(&tests.each_ref());
        let names = |part: &[&TestProgram]| {
            part.iter()
                .map(|test| test.name.clone())
                .collect::<Vec<_>>()
        };
        assert_eq!(names(&first), ["hostile"]);
        assert_eq!(names(&second), ["advice", "doctor", "large", "zero"]);
    }

    #[test]
    fn listed_steps_are_commands() {
        let named = |name| {
            let mut test = programs::named(name);
            test.program = format!("/built/{name}").into();
            test
        };
        let tests = DeviceTests {
            one: ["removal", "devices", "shortage"].map(named).into(),
            two: vec![named("two_hosts")],
        };
        let tracks = |group| listed(group, &Only::new(&[], true), &tests, true).unwrap();
        let counts = |group| {
            let tracks = tracks(group).into_iter();
            let counts = tracks.map(|track| (track.name, track.is_long, track.steps.len()));
            counts.collect::<Vec<_>>()
        };
        assert_eq!(
            counts("builds"),
            [
                ("builds", false, 2),
                ("linked", true, 3),
                ("models", true, 1),
                ("fuzz", true, 1),
                ("others", true, 1),
            ]
        );
        assert_eq!(counts("idle"), [("cost", true, 1)]);
        assert_eq!(
            counts("checks"),
            [("lints", false, 3), ("exhaustive", false, 1)]
        );
        let (two, names) = (counts("two"), ["faults", "interop", "services", "ends"]);
        assert_eq!(two.iter().map(|(_, _, count)| count).sum::<usize>(), 11);
        assert!(names.iter().zip(&two).all(|(name, two)| *name == two.0));
        let ends = &tracks("two")[3].steps[3];
        let line = "integration/lab exec --hosts 2 --may-die b --timeout 240 -- /built/two_hosts \
                    --ignored --exact a_cut_link_is_noticed_on_both_sides";
        assert_eq!(ends.line, words(line));
        let linked = &tracks("builds")[1].steps[2];
        assert!(linked.build.as_ref().unwrap().ends_with("conformance"));
        assert_eq!(linked.line[..3], words("integration/lab exec --cpus"));
        assert!(linked.line.contains(&"--native".to_owned()));
        assert!(linked.line.ends_with(&words("shared:: ending::")));
    }
}
