//! Everything that has to pass, step by step.

mod programs;
mod steps;
mod tracks;

use std::{
    process::{Command, ExitCode, Stdio},
    thread,
};

use anyhow::{Result, ensure};
use clap::Parser;

use crate::{
    programs::{DeviceTests, NOT_ON_IWARP, tests_of},
    steps::Steps,
};

/// All tests
///
/// Runs formatting, lints and docs with warnings denied, unit, property, API and doc tests and a
/// moment of fuzzing on this machine; then the device tests on a local RDMA device where there is
/// one, otherwise in virtual machines with software RoCE, and most of them in one with software
/// iWARP, whose driver is built if it has to be; there also connections while networks,
/// processes and hosts fail, the examples against the C programs of the same names, and what paths
/// and calls cost, counted in instructions, against figures that are kept.
///
/// What does not wait for each other runs side by side, with a name before each line.
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
        let line = format!("cargo fmt --manifest-path integration/{apart}/Cargo.toml --check");
        steps.run(&format!("format of {apart}"), &line)?;
    }
    // All of it at once, so that cargo builds each crate once: by itself a package would ask for
    // fewer features of what it depends on, and have a build of its own.
    steps.begin("building all programs and tests");
    let built = tests_of("build --workspace --all-targets --locked")?;
    let (builds, anywhere) = (tracks::builds()?, tracks::anywhere(&built)?);
    let tests = DeviceTests::new(built)?;
    let (one, two) = (tracks::on_one_host(&tests)?, tracks::on_two_hosts(&tests)?);
    thread::scope(|scope| {
        let beside = scope.spawn(|| steps.take_side_by_side(vec![tracks::in_idle_time()]));
        // Compilers would hold up virtual machines with a clock, so what builds more comes first.
        let compiled = steps.take_side_by_side(vec![vec![builds], vec![anywhere]]);
        // One host leaves a third of two processors idle, and two hosts need more than one: so
        // these go together.
        let tested = steps.take_side_by_side(vec![one, two]);
        let beside = beside.join().expect("it does not panic");
        compiled.and(tested).and(beside)
    })?;
    for (name, why) in NOT_ON_IWARP {
        println!("{name} does not apply to software iWARP: {why}");
    }
    steps.begin("all tests passed");
    Ok(())
}
