//! What is taken side by side, once all is built.

use std::{
    env,
    path::Path,
    process::{Command, Stdio},
    thread::available_parallelism,
};

use anyhow::{Result, ensure};
use toolbox::{BareRoot, native_is_possible, words};

use crate::{
    programs::{self, DeviceTests, Test, tests_of},
    steps::{Place, Step, Track},
};

/// Tests of other builds, step by step: cargo takes one command at a time.
pub(crate) fn builds() -> Result<Track> {
    // With nothing in reach of what RDMA needs to be built. These builds are for few tests, which
    // take less time than the compiler needs to make them quick.
    let other = "--profile quick --locked --package rdmsg --no-default-features";
    let unlinked = |tests: &str| {
        let cargo = "env LIBCLANG_PATH=/nonexistent PKG_CONFIG=/bin/false cargo test";
        format!("{cargo} {other} {tests}")
    };
    let no_rdma = unlinked("--test conformance --test tcp");
    // What is above these layers is the same.
    let dlopen = "--features dlopen --lib --test conformance -- sys:: verbs:: cm:: error:: setup::";
    let dlopen = unlinked(dlopen);
    let models = "cargo test --manifest-path integration/models/Cargo.toml --locked --quiet";
    let native = native_is_possible()?;
    let steps = vec![
        Step::new("examples in docs", "cargo test --workspace --doc --locked"),
        Step::new("tests of a build without RDMA", &no_rdma),
        Step::new("tests of a build that opens RDMA's libraries", &dlopen),
        Step::of(
            "the same build, where these libraries are, and where not",
            move |place| {
                let options = "--features dlopen --no-run --test conformance";
                let built = tests_of(&format!("test {other} {options}"))?;
                for test in &built {
                    run_bare(&test.program, place)?;
                }
                for test in &built {
                    // These call all of it that connections take.
                    let opened = "setup:: messages:: one_sided:: shared:: ending::";
                    let program = test.program.display();
                    let line = words(&format!("{program} --test-threads=1 {opened}"));
                    place.run(lab(&one_host(), native, &line))?;
                }
                Ok(())
            },
        ),
        Step::new("models", models),
        Step::new("fuzzing, for a moment", "integration/fuzz/run all 1"),
    ];
    Ok(Track::new("builds", steps))
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
    // What it costs is a build of its own, which holds up no other.
    vec![Track::new("cost", cost), Track::new("lints", lints)]
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
pub(crate) fn anywhere(built: &[Test]) -> Result<Track> {
    let step = Step::new("tests that need no device", &programs::anywhere(built)?);
    Ok(Track::new("anywhere", vec![step]))
}

/// What takes devices of one host, the longest first.
pub(crate) fn on_one_host(tests: &DeviceTests) -> Result<Vec<Track>> {
    let native = native_is_possible()?;
    let on_one = |test: &[&Test]| in_lab("device tests on one host", &one_host(), native, test);
    let all: Vec<_> = tests.one.iter().collect();
    let iwarp = format!("--device siw {}", one_host());
    let on_iwarp = |test: &[&Test]| {
        let what = "device tests on software iWARP";
        vec![in_lab(what, &iwarp, false, test)]
    };
    let [first, second] = dealt(&tests.on_iwarp());
    let mut tracks = vec![Track::new("siw-1", on_iwarp(&first))];
    if native {
        // There is one device, of which tests count what there is.
        let steps = vec![on_one(&all), on_two(tests, true)];
        tracks.push(Track::new("device", steps));
    } else {
        let [first, second] = dealt(&all);
        tracks.push(Track::new("rxe-1", vec![on_one(&first)]));
        tracks.push(Track::new("rxe-2", vec![on_one(&second)]));
    }
    tracks.push(Track::new("siw-2", on_iwarp(&second)));
    Ok(tracks)
}

/// What takes devices of two hosts, the longest first.
pub(crate) fn on_two_hosts(tests: &DeviceTests) -> Result<Vec<Track>> {
    let tool = |what: &str, name: &str, options: &str| -> Result<Step> {
        let tool = env::current_exe()?.with_file_name(name);
        Ok(Step::new(what, &format!("{} {options}", tool.display())))
    };
    let faults = tool(
        "faults on two hosts, the quick ones",
        "faults",
        "--quick --seed 1",
    )?;
    let services = tool("services on two hosts, for a moment", "services", "--quick")?;
    let soak = "--minutes 0.1 --seed 1";
    let soak = tool("soak on two hosts, for a moment", "soak", soak)?;
    let interop = "examples against the C programs";
    let on_rxe = tool(interop, "interop", "--quick")?;
    let on_siw = tool(interop, "interop", "--quick --device siw")?;
    let mut tracks = vec![
        Track::new("faults", vec![faults]),
        Track::new("interop", vec![on_rxe]),
        Track::new("services", vec![services]),
        Track::new("ends", alone(tests)?),
        Track::new("interop-siw", vec![on_siw]),
        Track::new("soak", vec![soak]),
    ];
    if !native_is_possible()? {
        tracks.insert(0, Track::new("two", vec![on_two(tests, false)]));
    }
    Ok(tracks)
}

fn on_two(tests: &DeviceTests, native: bool) -> Step {
    let all: Vec<_> = tests.two.iter().collect();
    let options = "--hosts 2 --timeout 1200";
    in_lab("device tests on two hosts", options, native, &all)
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
        let lab = lab(options, false, &line);
        let what = format!("device test: {test}");
        Ok(Step::of(what, |place| place.run(lab)))
    });
    steps.collect()
}

/// Programs of tests where there is a device.
fn in_lab(what: &str, options: &str, native: bool, tests: &[&Test]) -> Step {
    let names: Vec<_> = tests.iter().map(|test| &*test.name).collect();
    let what = format!("{what}: {}", names.join(" "));
    let lab = lab(options, native, &on_host(tests));
    Step::of(what, |place| place.run(lab))
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

/// Runs a program of tests where the libraries that it opens are missing: it speaks TCP, and says
/// what to install where it must not.
fn run_bare(program: &Path, place: &Place) -> Result<()> {
    let root = BareRoot::new(&program.with_extension("root"), program)?;
    for library in &root.libraries {
        let name = library.to_string_lossy();
        let of_rdma = name.contains("rdmacm") || name.contains("ibverbs");
        ensure!(!of_rdma, "{} is linked with {name}", program.display());
    }
    let mut over_tcp = root.command(&[]);
    over_tcp.args(["setup::", "messages::"]);
    place.run(over_tcp)?;
    let mut over_rdma = root.command(&["RDMSG_TRANSPORT=rdma"]);
    let one = ["--exact", "setup::private_data_travels_both_ways"];
    let output = over_rdma.args(one).output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    let remedy = "apt install librdmacm1 libibverbs1 ibverbs-providers";
    let told = !output.status.success() && said.contains(remedy);
    ensure!(told, "over RDMA: {}: {said}", output.status);
    Ok(())
}
