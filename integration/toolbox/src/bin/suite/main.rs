//! The test suite: all checks that must pass, as steps.

mod only;
mod programs;
mod steps;
mod tracks;

use std::thread;

use anyhow::{Result, bail};
use clap::Parser;
use toolbox::{Load, native_is_possible};

use crate::{
    only::Only,
    programs::{DeviceTests, NOT_ON_IWARP, SKIPPED_ON_IWARP, tests_of},
    steps::Steps,
};

/// All tests that must pass before a merge
///
/// Runs on this machine: formatting, lints and docs with warnings denied; unit, property, API and
/// doc tests. Then runs the device tests on a local RDMA device if there is one, otherwise in
/// virtual machines with software RoCE, and some of them on software iWARP as well, whose driver it
/// builds if necessary. In the lab it also runs connections while networks, processes and hosts
/// fail, and the examples against the C programs of the same names.
///
/// With --all, for a release, it also runs the models of the waiting threads, a moment of fuzzing,
/// the comparison of the bindings with the headers, a build that is linked with RDMA's libraries,
/// the tests of std and tokio with rdmsg's types, all device tests on software iWARP, the services
/// with their tests, hostile peers against a live listener, and the budget, which compares counted
/// instructions with stored figures.
///
/// Independent steps run at the same time. The name of the step stands before each line.
///
/// If a guest of the lab stops, and nothing has failed before, all of its boot runs once more; the
/// last line counts these boots. A failed test is never repeated.
///
/// Without a device and without the lab it fails. Ends 0 if everything passed.
#[derive(Parser)]
#[command(
    name = "integration/test",
    bin_name = "integration/test",
    verbatim_doc_comment
)]
struct Options {
    /// Only the steps with this name before their lines, or the test program of this name in all
    /// steps that have it; may be repeated. A name that does not exist prints all that do
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Also the steps that take long
    #[arg(long, conflicts_with = "only")]
    all: bool,
    /// Take the chosen steps N times, one after the other, while a busy process for each processor
    /// runs as well; at the end, print how many times each step passed. Without --only, take the
    /// tests, but no lints, docs, doc tests and exhaustive tests, whose outcome does not vary
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    again: Option<u32>,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let steps = Steps::new();
    let only = Only::new(&options.only, options.all);
    let native = native_is_possible()?;
    let first = tracks::listed("first", &only, &DeviceTests::default(), native)?;
    steps.take_side_by_side(vec![first])?;
    // One command builds all packages, because a command for one package enables fewer features of
    // the dependencies, so that cargo would build the dependencies again.
    steps.begin("building all programs and tests");
    let built = tests_of(&format!("build {} --all-targets --locked", only.packages()))?;
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
        steps.begin("beside a busy process for each processor");
        let mut tracks = vec![anywhere, one, two];
        if !options.only.is_empty() {
            tracks.extend([builds, beside, checks]);
        }
        return steps.take_again(&tracks.concat(), count);
    }
    let outcomes = thread::scope(|scope| {
        let beside = scope.spawn(|| steps.take_side_by_side(vec![beside]));
        let anywhere = scope.spawn(|| steps.take_side_by_side(vec![anywhere]));
        // Compilers would delay virtual machines, whose tests have timeouts, so these builds come
        // first.
        let compiled = steps.take_side_by_side(vec![builds]);
        let checks = scope.spawn(|| steps.take_side_by_side(vec![checks]));
        // A boot uses a processor for a third of its time, and waits for the rest.
        let tested = steps.take_side_by_side(vec![one, two, Vec::new()]);
        let lanes = [anywhere, beside, checks].map(|lane| lane.join().expect("it does not panic"));
        [compiled, tested].into_iter().chain(lanes)
    });
    let failures = outcomes.filter_map(Result::err);
    let failures: Vec<_> = failures.map(|error| error.to_string()).collect();
    if !failures.is_empty() {
        steps.end("not all tests passed");
        bail!(failures.join("; "));
    }
    if options.all {
        for (name, why) in NOT_ON_IWARP.iter().chain(&SKIPPED_ON_IWARP) {
            println!("{name} does not run on software iWARP: {why}");
        }
        steps.end("all tests passed");
    } else {
        steps.end("all tests passed, without those of --all");
    }
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
