//! What is taken side by side, once all is built.

use std::{
    env,
    process::{Command, Stdio},
    thread::available_parallelism,
};

use anyhow::Result;
use toolbox::{native_is_possible, words};

use crate::{
    only::Only,
    programs::{self, DeviceTests, Test, tests_of},
    steps::{Step, Track},
};

/// Tests of other builds, step by step: cargo takes one command at a time.
pub(crate) fn builds() -> Result<Vec<Track>> {
    // With nothing in reach of what RDMA needs to be built. These builds are for few tests, which
    // take less time than the compiler needs to make them quick.
    let other = "--profile quick --locked --package rdmsg --no-default-features";
    let unlinked = |tests: &str| {
        let cargo = "env LIBCLANG_PATH=/nonexistent PKG_CONFIG=/bin/false cargo test";
        format!("{cargo} {other} {tests}")
    };
    let no_rdma = unlinked("--test conformance --test tcp");
    let bindings = "cargo test --profile quick --locked --package rdma-verbs --features linked";
    let models = "env RUSTFLAGS=--cfg=loom CARGO_TARGET_DIR=target/loom \
                  cargo test --release --locked --quiet --package rdmsg-poll --lib";
    let native = native_is_possible()?;
    let others = Step::new("tests of std and tokio", "integration/others --quick");
    let steps = vec![
        Step::new("examples in docs", "cargo test --workspace --doc --locked"),
        Step::new("tests of a build without RDMA", &no_rdma),
        Step::new("tests of bindings, compared with the headers", bindings),
        Step::of("a build that opens RDMA's libraries, where they are not", {
            let built = format!("test {other} --features rdma --no-run --test conformance");
            move |place| {
                let built = tests_of(&built)?;
                built.iter().try_for_each(|test| {
                    let mut bare = Command::new("integration/bare");
                    place.run(bare.arg(&test.program))
                })
            }
        }),
        Step::of(
            "a build that is linked with RDMA's libraries",
            move |place| {
                let built = format!("test {other} --features linked --no-run --test conformance");
                for test in tests_of(&built)? {
                    // These call all of it that connections take.
                    let called = "setup:: messages:: one_sided:: shared:: ending::";
                    let program = test.program.display();
                    let line = words(&format!("{program} --test-threads=1 {called}"));
                    place.run(&mut lab(&one_host(), native, &line))?;
                }
                Ok(())
            },
        ),
        Step::new("models", models),
        Step::new("fuzzing, for a moment", "integration/fuzz/run all 1"),
    ];
    Ok(vec![
        Track::new("builds", steps),
        Track::new("others", vec![others]),
    ])
}

/// What has no clock to keep: it takes the processors only while nothing else wants them, which
/// virtual machines leave a good part of their time. What is counted does not depend on what else
/// this machine does.
pub(crate) fn in_idle_time() -> Vec<Track> {
    let lints = "cargo clippy --workspace --all-targets --locked -- --deny warnings";
    let docs = "env RUSTDOCFLAGS=--deny=warnings \
                cargo doc --workspace --no-deps --document-private-items --locked";
    let idly = idly();
    let step = |what: &str, line: &str| Step::new(what, &format!("{idly} {line}"));
    let cost = vec![step(
        "what paths and calls cost",
        "integration/bench budget",
    )];
    let lints = vec![step("lints", lints), step("docs", docs)];
    // Of all packages, because with fewer cargo would build again.
    let exhaustive = "cargo test --workspace --lib --locked exhaustive -- --ignored --nocapture";
    let exhaustive = vec![step(
        "every order of events, within small scopes",
        exhaustive,
    )];
    // What it costs is a build of its own, which holds up no other.
    vec![
        Track::new("cost", cost),
        Track::new("lints", lints),
        Track::new("exhaustive", exhaustive),
    ]
}

/// What runs a command while nothing else wants a processor, or hardly ever does where that is not
/// allowed.
fn idly() -> &'static str {
    let mut trial = Command::new("chrt");
    trial.args(["--idle", "0", "true"]).stderr(Stdio::null());
    match trial.status() {
        Ok(status) if status.success() => "chrt --idle 0",
        _ => "nice -n 19",
    }
}

/// What runs on this machine as it is.
pub(crate) fn anywhere(built: &[Test], only: &Only) -> Result<Vec<Track>> {
    let name = "anywhere";
    let line = programs::anywhere(built, name, only)?;
    let step = line.map(|line| Step::new("tests that need no device", &line));
    Ok(step
        .map(|step| Track::new(name, vec![step]))
        .into_iter()
        .collect())
}

/// Attacks a live listener. Other processes use the processors as well, so only a client that waits
/// for seconds counts as slow.
fn attack(name: &'static str, what: &str, transport: &str) -> Result<Track> {
    let tool = env::current_exe()?.with_file_name("scenarios");
    let options = format!("--minutes 1 --floor 500 --transport {transport}");
    let line = format!("{} attack {options}", tool.display());
    Ok(Track::new(name, vec![Step::new(what, &line)]))
}

/// What takes devices of one host, the longest first.
pub(crate) fn on_one_host(tests: &DeviceTests, only: &Only) -> Result<Vec<Track>> {
    let native = native_is_possible()?;
    let on_one = |name: &'static str, tests: &[&Test]| {
        let tests = only.of(name, tests);
        of_tests(
            name,
            "device tests on one host",
            &one_host(),
            native,
            &tests,
        )
    };
    let all: Vec<_> = tests.one.iter().collect();
    let iwarp = format!("--device siw {}", one_host());
    let on_iwarp = |name: &'static str, tests: &[&Test]| {
        let tests = only.of(name, tests);
        of_tests(
            name,
            "device tests on software iWARP",
            &iwarp,
            false,
            &tests,
        )
    };
    let [first, second] = dealt(&tests.on_iwarp());
    let mut tracks = vec![on_iwarp("siw-1", &first)];
    if native {
        // There is one device, of which tests count what there is.
        let mut track = on_one("device", &all);
        track
            .steps
            .extend(on_two("device", tests, true, only).steps);
        tracks.push(track);
    } else {
        let [first, second] = dealt(&all);
        tracks.push(on_one("rxe-1", &first));
        tracks.push(on_one("rxe-2", &second));
    }
    tracks.push(on_iwarp("siw-2", &second));
    tracks.retain(|track| !track.steps.is_empty());
    Ok(tracks)
}

/// What takes devices of two hosts, the longest first.
pub(crate) fn on_two_hosts(tests: &DeviceTests, only: &Only) -> Result<Vec<Track>> {
    let tool = |what: &str, name: &str, options: &str| -> Result<Step> {
        let tool = env::current_exe()?.with_file_name(name);
        Ok(Step::new(what, &format!("{} {options}", tool.display())))
    };
    let faults = tool(
        "faults on two hosts, the quick ones",
        "scenarios",
        "faults --quick --seed 1",
    )?;
    let services = tool("services on two hosts, for a moment", "services", "--quick")?;
    let interop = "examples against the C programs";
    let on_rxe = tool(interop, "interop", "--quick")?;
    let on_siw = tool(interop, "interop", "--quick --device siw")?;
    let mut tracks = vec![
        Track::new("faults", vec![faults]),
        Track::new("interop", vec![on_rxe]),
        Track::new("services", vec![services]),
        Track::new("ends", alone(tests)?),
        Track::new("interop-siw", vec![on_siw]),
        // Over TCP on this machine, with a clock too.
        attack("attack-tcp", "hostile peers over TCP, for a minute", "tcp")?,
        attack("attack", "hostile peers over RDMA, for a minute", "rdma")?,
    ];
    tracks = only.tracks(tracks);
    if !native_is_possible()? {
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
    of_tests(name, what, options, native, &only.of(name, &all))
}

/// Single tests, each in a boot of its own, and in virtual machines, whatever devices there are.
fn alone(tests: &DeviceTests) -> Result<Vec<Step>> {
    let two = "--hosts 2 --may-die b --timeout 240";
    let one_of = [
        (
            "removal",
            "the_only_device_may_be_removed_and_come_back",
            "--timeout 240",
        ),
        (
            "devices",
            "one_engine_serves_devices_of_both_kinds",
            "--device both --timeout 240",
        ),
        ("two_hosts", "a_cut_link_is_noticed_on_both_sides", two),
        ("two_hosts", "a_killed_host_is_noticed", two),
    ];
    let steps = one_of.into_iter().map(|(name, test, options)| {
        let program = tests.program(name)?.display();
        let line = words(&format!("{program} --ignored --exact {test}"));
        let mut lab = lab(options, false, &line);
        let what = format!("device test: {test}");
        Ok(Step::of(what, move |place| place.run(&mut lab)))
    });
    steps.collect()
}

/// Programs of tests on a device, in one step, or in none without programs.
fn of_tests(name: &'static str, what: &str, options: &str, native: bool, tests: &[&Test]) -> Track {
    if tests.is_empty() {
        return Track::new(name, Vec::new());
    }
    let names: Vec<_> = tests.iter().map(|test| &*test.name).collect();
    let what = format!("{what}: {}", names.join(" "));
    let mut lab = lab(options, native, &on_host(tests));
    let step = Step::of(what, move |place| place.run(&mut lab));
    Track::new(name, vec![step])
}

/// A command that is run where there is a device.
fn lab(options: &str, native: bool, line: &[String]) -> Command {
    let mut lab = Command::new("integration/lab");
    lab.arg("exec").args(words(options));
    if native {
        lab.arg("--native");
    }
    lab.arg("--").args(line);
    lab
}

/// The options of the lab for tests on one host.
fn one_host() -> String {
    // Emulated processors that wait for a real one hold up the others, and there are several
    // machines.
    let cpus = available_parallelism().map_or(1, |real| (real.get() / 2).clamp(1, 2));
    format!("--cpus {cpus} --memory 3072 --timeout 1800")
}

/// What a host runs for these tests.
fn on_host(tests: &[&Test]) -> Vec<String> {
    let programs = tests.iter().map(|test| test.program.display().to_string());
    let mut line = vec!["integration/device-host".to_owned()];
    line.extend(programs);
    line
}

/// Two parts of about the same weight, as far as nothing is known of it.
fn dealt<'a>(tests: &[&'a Test]) -> [Vec<&'a Test>; 2] {
    let mut parts = [Vec::new(), Vec::new()];
    for (number, test) in tests.iter().enumerate() {
        parts[number % 2].push(*test);
    }
    parts
}
