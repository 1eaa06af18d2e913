//! Everything that has to pass, step by step.

use std::{
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    time::Instant,
};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use toolbox::{BareRoot, LAB_FAILED, NO_LAB, native_is_possible, words};

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
    let opening = "--package rdmsg --no-default-features --features dlopen --test conformance";
    let opening = programs_of(opening)?;
    steps.begin("the same build, where these libraries are not");
    opening.iter().try_for_each(|program| run_bare(program))?;
    let models = "cargo test --manifest-path integration/models/Cargo.toml --locked --quiet";
    steps.run("models", models)?;
    steps.run("fuzzing, for a moment", "integration/fuzz/run all 3")?;

    steps.begin("building the device tests");
    let programs = "--package cm-examples --package services --package rdmsg-cli";
    run(&format!("cargo build {programs} --bins --locked"))?;
    let tests = DeviceTests::build(opening)?;
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
            "services on two hosts, for a moment",
            "integration/tool debug services toolbox --quick",
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
    fn build(opening: Vec<PathBuf>) -> Result<Self> {
        let mut programs = programs_of("--package device")?;
        // Those that run without a device as well, over TCP; one also so built that it opens the
        // libraries.
        programs.extend(programs_of(
            "--package rdmsg --features tokio --test conformance --test behaviour --test tasks \
             --test task_leaks",
        )?);
        programs.extend(programs_of("--package services --test services")?);
        programs.extend(opening);
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

/// Builds tests, and returns their programs.
fn programs_of(tests: &str) -> Result<Vec<PathBuf>> {
    let build = format!("test {tests} --no-run --locked --message-format=json");
    let output = Command::new("cargo")
        .args(words(&build))
        .stderr(Stdio::inherit())
        .output()?;
    ensure!(output.status.success(), "cargo {build}: {}", output.status);
    let said = String::from_utf8(output.stdout)?;
    Ok(said.lines().filter_map(program_of).collect())
}

/// The program of tests that a message of cargo's tells of, and not one that tests run.
fn program_of(message: &str) -> Option<PathBuf> {
    let (_, profile) = message.split_once(r#""profile":{"#)?;
    let (profile, rest) = profile.split_once('}')?;
    let (_, path) = rest.split_once(r#""executable":""#)?;
    let tests = profile.contains(r#""test":true"#);
    tests.then(|| PathBuf::from(path.split('"').next().unwrap_or_default()))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_tests_are_told_from_those_that_they_run() {
        let message = |tests: bool, program: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","target":{{"name":"broker","test":true}},
                "profile":{{"opt_level":"0","test":{tests}}},"features":["tokio"],
                "filenames":["/x/broker"],"executable":{program},"fresh":true}}"#
            )
        };
        let services = message(true, "\"/x/deps/services-1a\"");
        assert_eq!(program_of(&services), Some("/x/deps/services-1a".into()));
        assert_eq!(program_of(&message(false, "\"/x/broker\"")), None);
        assert_eq!(program_of(&message(true, "null")), None);
        assert_eq!(
            program_of(r#"{"reason":"build-finished","success":true}"#),
            None
        );
    }
}
