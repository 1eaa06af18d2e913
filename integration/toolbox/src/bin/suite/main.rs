//! The test suite: all checks that must pass before a merge. Each check is a step.

mod only;
mod programs;
mod steps;
mod tracks;

use std::thread;

use anyhow::{Result, ensure};
use clap::Parser;
use toolbox::{Load, native_is_possible, tests_of, words};

use crate::{
    only::Only,
    programs::{DeviceTests, listed},
    steps::Steps,
};

/// Runs all tests that must pass before a merge
///
/// Checks formatting, lints and docs with warnings denied, and runs unit, property, API and doc
/// tests on this machine. Then runs the device tests: on a local RDMA device if there is one,
/// otherwise in virtual machines with software RoCE, and some of them also with software iWARP,
/// whose driver is built if necessary. In the lab, also runs connections while networks, processes
/// and hosts fail, and runs the examples against the C programs of the same names.
///
/// With --all, which is meant for a release, also runs:
///
///   - models of the waiting threads, and short fuzzing
///   - a comparison of the bindings with the C headers
///   - a build that is linked with the RDMA libraries
///   - the tests of std and tokio with rdmsg's types
///   - all device tests on software iWARP
///   - the services and their tests
///   - hostile peers that attack a live listener
///   - the budget, which compares counted instructions with stored figures
///
/// A track is a sequence of steps. Independent tracks run concurrently. Each output line begins
/// with the name of the track.
///
/// If a guest of the lab stops responding before a test has failed, the step runs once more in a
/// new guest; the last line of the output contains the number of repeated boots. A failed test is
/// never repeated.
///
/// The exit status is 0 if all steps passed. If there is neither a device nor the lab, it is 1.
#[derive(Parser)]
#[command(bin_name = "integration/test", verbatim_doc_comment)]
struct Options {
    /// Run only the track with this name, or the test program with this name in all tracks; can be
    /// repeated. With an unknown name, print all names and fail
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Also run the long tracks
    #[arg(long, conflicts_with = "only")]
    all: bool,
    /// Repeat the sequence of selected steps N times, while one busy process per processor creates
    /// load; at the end, print how often each step passed. Without --only, skip lints, docs, doc
    /// tests and exhaustive tests, because their outcomes do not vary
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    again: Option<u32>,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let steps = Steps::new();
    let only = Only::new(&options.only, options.all);
    let native = native_is_possible()?;
    let first = tracks::listed("first", &only, &DeviceTests::default(), native)?;
    let failures = steps.run_concurrently(vec![first]);
    ensure!(failures.is_empty(), failures.join("; "));
    // Build all packages with one command. A command for a single package would enable fewer
    // features of the dependencies, and cargo would therefore build the dependencies again.
    steps.begin("building all programs and tests");
    let built = tests_of(&words(&format!(
        "build {} --all-targets --locked",
        only.packages()
    )))?;
    let anywhere = tracks::anywhere(&built, &only)?;
    let tests = DeviceTests::new(built)?;
    let builds = tracks::listed("builds", &only, &tests, native)?;
    let beside = tracks::listed("idle", &only, &tests, native)?;
    let checks = tracks::listed("checks", &only, &tests, native)?;
    let one = tracks::on_one_host(&tests, native, &only);
    let two = tracks::on_two_hosts(&tests, native, &only)?;
    only.check()?;
    if let Some(count) = options.again {
        let _load = Load::start(1)?;
        steps.begin("with one busy process per processor as load");
        let mut tracks = vec![anywhere, one, two];
        if !options.only.is_empty() {
            tracks.extend([builds, beside, checks]);
        }
        return steps.run_repeatedly(&tracks.concat(), count);
    }
    let failures = thread::scope(|scope| {
        let beside = scope.spawn(|| steps.run_concurrently(vec![beside]));
        let anywhere = scope.spawn(|| steps.run_concurrently(vec![anywhere]));
        // Run these builds before the tests in virtual machines. Compilers would slow down the
        // tests, whose timeouts could then expire.
        let compiled = steps.run_concurrently(vec![builds]);
        let checks = scope.spawn(|| steps.run_concurrently(vec![checks]));
        // Run three lanes concurrently, because a guest uses a processor for only a third of the
        // time. The third lane has no tracks of its own, and runs tracks of the first two lanes.
        let tested = steps.run_concurrently(vec![one, two, Vec::new()]);
        let [anywhere, beside, checks] =
            [anywhere, beside, checks].map(|lane| lane.join().expect("a lane must not panic"));
        [compiled, tested, anywhere, beside, checks].concat()
    });
    if !failures.is_empty() {
        steps.end("not all tests passed");
    } else if options.all {
        for (name, why) in ["not on iwarp", "skipped on iwarp"]
            .into_iter()
            .flat_map(listed)
        {
            println!("{name} does not run on software iWARP: {why}");
        }
        steps.end("all tests passed");
    } else {
        steps.end("all tests passed; the tests of --all did not run");
    }
    ensure!(failures.is_empty(), failures.join("; "));
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use toolbox::check_help;

    use super::*;

    #[test]
    fn script_prints_the_help_of_its_tool() {
        check_help("suite", &Options::command().render_long_help().to_string());
    }
}
