//! Everything that has to pass, step by step.

mod steps;

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    thread::available_parallelism,
};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use serde_json::Value;
use toolbox::{BareRoot, native_is_possible, words};

use crate::steps::{Step, Steps, Track};

/// All tests
///
/// Runs formatting, lints and docs with warnings denied, unit, property, API and doc tests and a
/// moment of fuzzing on this machine; then the device tests on a local RDMA device where there is
/// one, otherwise in virtual machines with software RoCE, and most of them in one with software
/// iWARP, whose driver is built if it has to be; there also connections while networks,
/// processes and hosts fail, the examples against the C programs of the same names, and what paths
/// and calls cost, counted in instructions, against figures that are kept.
///
/// Without a device and without the lab it fails. Ends 0 if everything passed.
#[derive(Parser)]
#[command(
    name = "integration/test",
    bin_name = "integration/test",
    verbatim_doc_comment
)]
struct Options {}

fn main() -> ExitCode {
    Options::parse();
    match all() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("integration/test: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn all() -> Result<()> {
    let steps = Steps::new();
    for part in ["fmt", "clippy"] {
        let there = Command::new("cargo")
            .args([part, "--version"])
            .stdout(Stdio::null())
            .status()?
            .success();
        ensure!(
            there,
            "cargo {part} is missing: rustup component add rustfmt clippy"
        );
    }
    steps.run("format", "cargo fmt --all --check")?;
    for apart in ["fuzz", "models"] {
        run(&format!(
            "cargo fmt --manifest-path integration/{apart}/Cargo.toml --check"
        ))?;
    }
    // All of it at once, so that cargo builds each crate once: by itself a package would ask for
    // fewer features of what it depends on, and have a build of its own.
    steps.begin("building all programs and tests");
    let built = tests_of("build --workspace --all-targets --locked")?;
    let lints = "cargo clippy --workspace --all-targets --locked -- --deny warnings";
    steps.run("lints", lints)?;
    let docs = "cargo doc --workspace --no-deps --document-private-items --locked";
    steps.run("docs", &format!("env RUSTDOCFLAGS=--deny=warnings {docs}"))?;
    steps.begin("tests that need no device");
    run(&anywhere(&built)?)?;
    run("cargo test --workspace --doc --locked")?;
    // With nothing in reach of what RDMA needs to be built.
    let unlinked = |tests: &str| {
        let cargo = "env LIBCLANG_PATH=/nonexistent PKG_CONFIG=/bin/false cargo test --locked";
        format!("{cargo} --package rdmsg --no-default-features {tests}")
    };
    let no_rdma = unlinked("--lib --test conformance --test tcp");
    steps.run("tests of a build without RDMA", &no_rdma)?;
    // What is above these layers is the same; the rest of the conformance suite comes in the lab.
    let dlopen = "--features dlopen --lib --test conformance -- sys:: verbs:: cm:: error:: setup::";
    let dlopen = unlinked(dlopen);
    steps.run("tests of a build that opens RDMA's libraries", &dlopen)?;
    let opening = "test --package rdmsg --no-default-features --features dlopen --no-run --locked";
    let opening = tests_of(&format!("{opening} --test conformance"))?;
    steps.begin("the same build, where these libraries are not");
    opening
        .iter()
        .try_for_each(|test| run_bare(&test.program))?;
    let models = "cargo test --manifest-path integration/models/Cargo.toml --locked --quiet";
    steps.run("models", models)?;
    steps.run("fuzzing, for a moment", "integration/fuzz/run all 3")?;

    let tests = DeviceTests::new(built, opening)?;
    let native = native_is_possible()?;
    let on_host = |tests: &[&Test]| {
        let programs = tests.iter().map(|test| test.program.display().to_string());
        let mut line = vec!["integration/device-host".to_owned()];
        line.extend(programs);
        line
    };
    let (one, two, iwarp) = (tests.on_one(), tests.on_two(), tests.on_iwarp());
    // Emulated processors that wait for a real one hold up the others, and here are two machines.
    let cpus = available_parallelism().map_or(1, |real| (real.get() / 2).clamp(1, 2));
    let one_host = format!("--cpus {cpus} --memory 3072 --timeout 1800");
    steps.take_tracks([
        Track {
            name: "rxe",
            steps: vec![Step::in_lab(
                format!("device tests on one host: {}", names(&one)),
                &one_host,
                native,
                &on_host(&one),
            )],
        },
        Track {
            name: "siw",
            steps: vec![Step::in_lab(
                format!("device tests on software iWARP: {}", names(&iwarp)),
                &format!("--device siw {one_host}"),
                false,
                &on_host(&iwarp),
            )],
        },
    ])?;
    for (name, why) in NOT_ON_IWARP {
        println!("{name} does not apply to software iWARP: {why}");
    }
    steps.take(Step::in_lab(
        "device tests on two hosts",
        "--hosts 2 --timeout 900",
        native,
        &on_host(&two),
    ))?;
    let tool = |what: &str, name: &str, options: &str| -> Result<Step> {
        let tool = env::current_exe()?.with_file_name(name);
        Ok(Step::new(what, &format!("{} {options}", tool.display())))
    };
    for (what, name, options) in [
        (
            "soak on two hosts, for a moment",
            "soak",
            "--minutes 0.25 --seed 1",
        ),
        (
            "faults on two hosts, the quick ones",
            "faults",
            "--quick --seed 1",
        ),
        ("services on two hosts, for a moment", "services", "--quick"),
    ] {
        steps.take(tool(what, name, options)?)?;
    }
    let interop = "examples against the C programs";
    steps.take_tracks([
        Track {
            name: "rxe",
            steps: vec![tool(interop, "interop", "--quick")?],
        },
        Track {
            name: "siw",
            steps: vec![tool(interop, "interop", "--quick --device siw")?],
        },
    ])?;
    // What is counted does not depend on what else this machine does.
    steps.take_tracks([
        Track {
            name: "cost",
            steps: vec![Step::new(
                "what paths and calls cost",
                "integration/bench budget",
            )],
        },
        Track {
            name: "ends",
            steps: tests.alone()?,
        },
    ])?;
    steps.begin("all tests passed");
    Ok(())
}

/// The command that runs the tests that need no device, of all packages: with fewer cargo would ask
/// for fewer features, and build again.
fn anywhere(built: &[Test]) -> Result<String> {
    let mut line = "cargo test --workspace --locked --lib --bins".to_owned();
    for test in built.iter().filter(|test| !test.is_of_device) {
        let same = |other: &&Test| other.is_of_device && other.name == test.name;
        if built.iter().any(|other| same(&other)) {
            bail!("{} names tests with a device and without", test.name);
        }
        line += &format!(" --test {}", test.name);
    }
    Ok(line)
}

/// A program of tests.
struct Test {
    /// Of the package whose tests need a device.
    is_of_device: bool,
    name: String,
    program: PathBuf,
}

/// The programs with device tests.
struct DeviceTests {
    one: Vec<Test>,
    two: Vec<Test>,
}

impl DeviceTests {
    /// Those of all that was built, and of what was built so that it opens RDMA's libraries.
    fn new(built: Vec<Test>, opening: Vec<Test>) -> Result<Self> {
        // These run without a device as well, over TCP.
        let anywhere = [
            "conformance",
            "behaviour",
            "tasks",
            "task_leaks",
            "services",
        ];
        let (mut one, mut two) = (Vec::new(), Vec::new());
        for test in built {
            if test.is_of_device && test.name.ends_with("two_hosts") {
                two.push(test);
            } else if test.is_of_device || anywhere.contains(&&*test.name) {
                one.push(test);
            }
        }
        ensure!(
            !one.is_empty() && !two.is_empty(),
            "cargo built no device tests"
        );
        one.extend(opening);
        Ok(Self { one, two })
    }

    fn on_one(&self) -> Vec<&Test> {
        self.one.iter().collect()
    }

    fn on_two(&self) -> Vec<&Test> {
        self.two.iter().collect()
    }

    /// Those of one host that run on software iWARP as well: of programs that were built twice, the
    /// first.
    fn on_iwarp(&self) -> Vec<&Test> {
        let mut tests: Vec<&Test> = Vec::new();
        for test in &self.one {
            let applies = NOT_ON_IWARP.iter().all(|(name, _)| *name != test.name);
            if applies && tests.iter().all(|known| known.name != test.name) {
                tests.push(test);
            }
        }
        tests
    }

    /// Single tests, each in a boot of its own, and in virtual machines, whatever devices there
    /// are.
    fn alone(&self) -> Result<Vec<Step>> {
        let two = "--hosts 2 --may-die b --timeout 240";
        [
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
        ]
        .into_iter()
        .map(|(name, test, options)| {
            let mut tests = self.one.iter().chain(&self.two);
            let tests = tests
                .find(|test| test.name == name)
                .with_context(|| format!("there are no tests {name}"))?;
            let mut line = vec![tests.program.display().to_string()];
            line.extend(words("--ignored --exact"));
            line.push(test.to_owned());
            let what = format!("device test: {test}");
            Ok(Step::in_lab(what, options, false, &line))
        })
        .collect()
    }
}

/// The programs of tests that do not run on software iWARP, and why: what they take that it does
/// not have. Where one test of another program does not apply, it says so itself.
const NOT_ON_IWARP: [(&str, &str); 4] = [
    (
        "verbs",
        "the device lacks queue pairs that a program connects by ibv_modify_qp(3)",
    ),
    (
        "cm",
        "the device lacks datagrams, and connect requests with the parameters of InfiniBand's",
    ),
    (
        "storms",
        "the device lacks hundreds of queue pairs in a process, and an rdma_connect(3) that does \
         not wait",
    ),
    (
        "doctor",
        "the device lacks RoCE's GIDs, UDP port and modules",
    ),
];

fn names(tests: &[&Test]) -> String {
    let names: Vec<_> = tests.iter().map(|test| &*test.name).collect();
    names.join(" ")
}

/// Runs a program of tests where the libraries that it opens are missing: it speaks TCP, and says
/// what to install where it must not.
fn run_bare(program: &Path) -> Result<()> {
    let root = BareRoot::new(&program.with_extension("root"), program)?;
    for library in &root.libraries {
        let name = library.to_string_lossy();
        let of_rdma = name.contains("rdmacm") || name.contains("ibverbs");
        ensure!(!of_rdma, "{} is linked with {name}", program.display());
    }
    let status = root.command(&[]).args(["setup::", "messages::"]).status()?;
    ensure!(status.success(), "over TCP: {status}");
    let mut over_rdma = root.command(&["RDMSG_TRANSPORT=rdma"]);
    let one = ["--exact", "setup::private_data_travels_both_ways"];
    let output = over_rdma.args(one).output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    let remedy = "apt install librdmacm1 libibverbs1 ibverbs-providers";
    let told = !output.status.success() && said.contains(remedy);
    ensure!(told, "over RDMA: {}: {said}", output.status);
    Ok(())
}

/// Builds, and returns the programs of tests among what was built.
fn tests_of(build: &str) -> Result<Vec<Test>> {
    let output = Command::new("cargo")
        .args(words(build))
        .arg("--message-format=json-render-diagnostics")
        .stderr(Stdio::inherit())
        .output()?;
    ensure!(output.status.success(), "cargo {build}: {}", output.status);
    let said = String::from_utf8(output.stdout)?;
    Ok(said.lines().filter_map(test_of).collect())
}

/// The program of integration tests that a message of cargo's tells of, and not one that tests run.
fn test_of(message: &str) -> Option<Test> {
    let message: Value = serde_json::from_str(message).ok()?;
    let is_test = message["target"]["kind"][0] == "test";
    let program = message["executable"].as_str().filter(|_| is_test)?;
    Some(Test {
        is_of_device: message["manifest_path"]
            .as_str()?
            .ends_with("/device/Cargo.toml"),
        name: message["target"]["name"].as_str()?.to_owned(),
        program: program.into(),
    })
}

fn run(line: &str) -> Result<()> {
    let line_words = words(line);
    let status = Command::new(&line_words[0])
        .args(&line_words[1..])
        .status()
        .with_context(|| format!("cannot run {}", line_words[0]))?;
    ensure!(status.success(), "{line}: {status}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_tests_are_told_from_those_that_they_run() {
        let message = |kind: &str, program: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/x/device/Cargo.toml",
                "target":{{"kind":["{kind}"],"name":"broker","test":true}},
                "profile":{{"opt_level":"0","test":true}},"features":["tokio"],
                "filenames":["/x/broker"],"executable":{program},"fresh":true}}"#
            )
        };
        let test = test_of(&message("test", "\"/x/deps/broker-1a\"")).unwrap();
        assert_eq!(test.program, Path::new("/x/deps/broker-1a"));
        assert_eq!(test.name, "broker");
        assert!(test.is_of_device);
        assert!(test_of(&message("bin", "\"/x/broker\"")).is_none());
        assert!(test_of(&message("test", "null")).is_none());
        assert!(test_of(r#"{"reason":"build-finished","success":true}"#).is_none());
    }
}
