//! Everything that has to pass, step by step.

use std::{
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    time::Instant,
};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use toolbox::{LAB_FAILED, NO_LAB, native_is_possible, words};

/// All tests
///
/// Runs formatting, lints and docs with warnings denied, unit, property, API and doc tests and a
/// moment of fuzzing on this machine; then the device tests on a local RDMA device where there is
/// one, otherwise in virtual machines with software RoCE; there also connections while networks,
/// processes and hosts fail, and the examples against the C programs of the same names.
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
    let steps = Steps(Instant::now());
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
    let lints = "cargo clippy --workspace --all-targets --locked -- --deny warnings";
    steps.run("lints", lints)?;
    let docs = "cargo doc --workspace --no-deps --document-private-items --locked";
    steps.run("docs", &format!("env RUSTDOCFLAGS=--deny=warnings {docs}"))?;
    let tests = "cargo test --workspace --exclude device --locked";
    steps.run("tests that need no device", tests)?;
    // With nothing in reach of what RDMA needs to be built.
    let no_rdma = "env LIBCLANG_PATH=/nonexistent PKG_CONFIG=/bin/false cargo test --package rdmsg \
                   --no-default-features --lib --test conformance --test tcp --locked";
    steps.run("tests of a build without RDMA", no_rdma)?;
    let models = "cargo test --manifest-path integration/models/Cargo.toml --locked --quiet";
    steps.run("models", models)?;
    steps.run("fuzzing, for a moment", "integration/fuzz/run all 3")?;

    steps.begin("building the device tests");
    run("cargo build --package cm-examples --bins --locked")?;
    let tests = DeviceTests::build()?;
    let native = native_is_possible()?;
    let one = format!("device tests on one host: {}", tests.names());
    let on_host = |programs: &[PathBuf]| {
        let programs = programs.iter().map(|path| path.display().to_string());
        let mut line = vec!["integration/device-host".to_owned()];
        line.extend(programs);
        line
    };
    steps.in_lab(
        &one,
        "--memory 3072 --timeout 1800",
        native,
        &on_host(&tests.one),
    )?;
    steps.in_lab(
        "device tests on two hosts",
        "--hosts 2 --timeout 900",
        native,
        &on_host(&tests.two),
    )?;
    for (what, line) in [
        (
            "soak on two hosts, for a moment",
            "integration/tool debug soak soak --minutes 0.25 --seed 1",
        ),
        (
            "faults on two hosts, the quick ones",
            "integration/faults --quick --seed 1",
        ),
        (
            "examples against the C programs",
            "integration/interop --quick",
        ),
    ] {
        steps.run(what, line)?;
    }

    // Each in a boot of its own, and in virtual machines, whatever devices there are.
    let alone = |programs: &[PathBuf], name: &str, test: &str| -> Result<Vec<String>> {
        let mut programs = programs.iter();
        let program = programs
            .find(|path| test_name(path) == name)
            .with_context(|| format!("there are no tests {name}"))?;
        let mut line = vec![program.display().to_string()];
        line.extend(words("--ignored --exact"));
        line.push(test.to_owned());
        Ok(line)
    };
    let test = "the_only_device_may_be_removed_and_come_back";
    let line = alone(&tests.one, "removal", test)?;
    let what = format!("device test on one host: {test}");
    steps.in_lab(&what, "--timeout 240", false, &line)?;
    for test in [
        "a_cut_link_is_noticed_on_both_sides",
        "a_killed_host_is_noticed",
    ] {
        let line = alone(&tests.two, "two_hosts", test)?;
        let what = format!("device test on two hosts: {test}");
        steps.in_lab(&what, "--hosts 2 --may-die b --timeout 240", false, &line)?;
    }
    steps.begin("all tests passed");
    Ok(())
}

/// The programs with device tests.
struct DeviceTests {
    one: Vec<PathBuf>,
    two: Vec<PathBuf>,
}

impl DeviceTests {
    fn build() -> Result<Self> {
        let mut programs = programs_of("--package device")?;
        // The one that runs without a device as well, over TCP.
        programs.extend(programs_of("--package rdmsg --test conformance")?);
        let (two, one): (Vec<_>, Vec<_>) = programs
            .into_iter()
            .partition(|path| test_name(path) == "two_hosts");
        ensure!(
            !one.is_empty() && !two.is_empty(),
            "cargo built no device tests"
        );
        Ok(Self { one, two })
    }

    fn names(&self) -> String {
        let names: Vec<_> = self.one.iter().map(|path| test_name(path)).collect();
        names.join(" ")
    }
}

/// Builds tests, and returns their programs.
fn programs_of(tests: &str) -> Result<Vec<PathBuf>> {
    let build = format!("test {tests} --no-run --locked --message-format=json");
    let output = Command::new("cargo")
        .args(words(&build))
        .stderr(Stdio::inherit())
        .output()?;
    ensure!(output.status.success(), "cargo {build}: {}", output.status);
    let said = String::from_utf8(output.stdout)?;
    let programs = said.split(r#""executable":""#).skip(1);
    let programs = programs.filter_map(|rest| Some(PathBuf::from(rest.split('"').next()?)));
    Ok(programs.collect())
}

/// What the program of tests is called, without the hash behind it.
fn test_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.rsplit_once('-')
        .map_or(&*name, |(name, _)| name)
        .to_owned()
}

/// Says what is done, and since when.
struct Steps(Instant);

impl Steps {
    fn begin(&self, what: &str) {
        println!("\n=== {what} (after {} s)", self.0.elapsed().as_secs());
    }

    fn run(&self, what: &str, line: &str) -> Result<()> {
        self.begin(what);
        run(line)
    }

    /// Runs a command where there is a device.
    fn in_lab(&self, what: &str, options: &str, native: bool, line: &[String]) -> Result<()> {
        self.begin(what);
        let mut lab = Command::new("integration/lab");
        lab.arg("exec").args(words(options));
        if native {
            lab.arg("--native");
        }
        let status = lab.arg("--").args(line).status()?;
        if status.code() == Some(LAB_FAILED) {
            bail!("the device tests did not run. {NO_LAB}");
        }
        ensure!(status.success(), "{what}: {status}");
        Ok(())
    }
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
