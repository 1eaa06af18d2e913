//! The tracks of the test suite. The tracks of the group `first` run before the build, and all
//! other tracks run after the build. Tracks in different lanes run concurrently.

use std::{
    cmp::Reverse,
    env,
    process::{Command, Stdio},
    thread::available_parallelism,
};

use anyhow::{Context, Result};
use toolbox::{TestProgram, sections, words};

use crate::{
    only::Only,
    programs::{self, DeviceTests},
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
    let on_one = |name, tests: &[&TestProgram]| {
        let selected = only.of(name, tests.iter().copied());
        let what = "device tests on one host";
        Track::new(name, of_tests(what, &one_host(), native, "", &selected))
    };
    let all: Vec<_> = tests.one.iter().collect();
    let mut tracks = if native {
        // All tests count the objects of the same device, so they must run one after another.
        let mut track = on_one("device", &all);
        track.steps.extend(on_two("device", tests, true, only));
        vec![track]
    } else {
        let [first, second] = split_evenly(all);
        vec![on_one("rxe-1", &first), on_one("rxe-2", &second)]
    };
    // Run all programs for iWARP in a single boot: together they take only half as long as the
    // programs for RoCE, which run in two boots.
    let on_iwarp = only.of("siw", tests.on_iwarp(only.selects_long()));
    let skipped: String = programs::listed("skipped on iwarp")
        .map(|(test, _)| format!("--skip {test} "))
        .collect();
    let options = format!("--device siw {}", one_host());
    let what = "device tests on software iWARP";
    let steps = of_tests(what, &options, false, &skipped, &on_iwarp);
    tracks.push(Track::new("siw", steps));
    tracks.retain(|track| !track.steps.is_empty());
    tracks
}

/// Returns the tracks that need two hosts with devices. The longest track is first.
pub(crate) fn on_two_hosts(tests: &DeviceTests, native: bool, only: &Only) -> Result<Vec<Track>> {
    let mut tracks = listed("two", only, tests, native)?;
    if !native {
        tracks.insert(0, Track::new("two", on_two("two", tests, false, only)));
        tracks.retain(|track| !track.steps.is_empty());
    }
    Ok(tracks)
}

fn on_two(track: &str, tests: &DeviceTests, native: bool, only: &Only) -> Vec<Step> {
    let options = "--hosts 2 --timeout 1200";
    let what = "device tests on two hosts";
    of_tests(what, options, native, "", &only.of(track, &tests.two))
}

/// Returns the step that runs test programs on a device, or no step if `tests` is empty. `options`
/// are options of the lab. `skipped` are the options of `integration/device-host` that select the
/// tests to leave out.
fn of_tests(
    what: &str,
    options: &str,
    native: bool,
    skipped: &str,
    tests: &[&TestProgram],
) -> Vec<Step> {
    if tests.is_empty() {
        return Vec::new();
    }
    let names: Vec<_> = tests.iter().map(|test| &*test.name).collect();
    let mut line = lab(options, native);
    line.extend(words(&format!("-- integration/device-host {skipped}")));
    line.extend(tests.iter().map(|test| test.program.display().to_string()));
    vec![Step::new(format!("{what}: {}", names.join(" ")), line)]
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

/// Distributes the tests over two parts of about the same duration. In each part, the longest tests
/// are first.
fn split_evenly(mut tests: Vec<&TestProgram>) -> [Vec<&TestProgram>; 2] {
    tests.sort_by_key(|test| Reverse(programs::seconds(test)));
    let (mut parts, mut seconds) = ([Vec::new(), Vec::new()], [0, 0]);
    for test in tests {
        let lighter = usize::from(seconds[1] < seconds[0]);
        seconds[lighter] += programs::seconds(test);
        parts[lighter].push(test);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_parts_take_the_same_time() {
        let tests = ["advice", "doctor", "hostile", "large", "zero"].map(programs::named);
        let [first, second] = split_evenly(tests.iter().collect());
        let names = |part: &[&TestProgram]| {
            part.iter()
                .map(|test| test.name.clone())
                .collect::<Vec<_>>()
        };
        assert_eq!(names(&first), ["hostile"]);
        assert_eq!(names(&second), ["doctor", "large", "advice", "zero"]);
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
