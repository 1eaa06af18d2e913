//! Counts the instructions of single calls and of whole programs with callgrind.

use std::{env, fs, process::Command};

use anyhow::{Context, Result, ensure};
use toolbox::words;

use crate::{
    callgrind, calls,
    conduct::{Conductor, OURS},
    manner::{Manner, Way},
    measure::Measure,
    program::{Program, Run},
    row::{Row, Side, Target},
};

/// The path of a copy of this program without debug information. Callgrind would need half a minute
/// to read this information.
const STRIPPED: &str = "/tmp/bench-stripped";

/// The number of measured calls of each function.
const CALLS: u64 = 200;

/// The maximum number of callers that callgrind records after a function's name. No call chain in
/// this program is longer.
const CALLERS: u32 = 60;

/// Creates the copy of this program without debug information.
pub(crate) fn prepare() -> Result<()> {
    let installed = Command::new("valgrind").arg("--version").output();
    installed.context("valgrind is not installed")?;
    let status = Command::new("strip")
        .args(["--strip-debug", "-o", STRIPPED])
        .arg(env::current_exe()?)
        .status()
        .context("cannot run strip")?;
    ensure!(status.success(), "strip failed: {status}");
    Ok(())
}

/// Measures single calls, and adds a row for each.
pub(crate) fn add_calls(conductor: &mut Conductor) {
    let plain = Manner::DEFAULT.with(Way::Event);
    add_calls_of(conductor, plain, "", [200.0, 200.0, 120.0]);
    // With `resume`, each send also saves a copy of the message, so the limit for a send is 30
    // instructions higher.
    let resuming = plain.with(Way::Resume);
    add_calls_of(conductor, resuming, " with resume", [230.0, 200.0, 120.0]);
}

fn add_calls_of(conductor: &mut Conductor, manner: Manner, suffix: &str, limits: [f64; 3]) {
    let run = Run {
        program: Program::Rdmsg(manner),
        measure: Measure::Call,
        size: calls::SIZE,
        count: CALLS,
    };
    let functions = calls::NAMES.map(calls::function);
    let mut options = format!("--compress-strings=no --separate-callers={CALLERS}");
    for function in &functions {
        options += &format!(" --toggle-collect={function}");
    }
    conductor.begin(format!("single calls{suffix}"));
    let profile = conductor.attempt(OURS, |this| run_in_callgrind(this, &run, &options));
    let costs = profile.map(|profile| callgrind::costs(&profile, &functions));
    let costs = costs.into_iter().flatten();
    for ((name, cost), limit) in calls::NAMES.into_iter().zip(costs).zip(limits) {
        for (measure, count, limit) in [
            (Measure::Call, cost.instructions, limit),
            (Measure::Allocations, cost.allocations, 0.0),
        ] {
            conductor.report.rows.push(Row {
                part: conductor.part,
                measure,
                size: calls::SIZE,
                ours: Side {
                    name: format!("{name}{suffix}"),
                    figures: vec![count as f64 / CALLS as f64],
                },
                theirs: None,
                target: Target::AtMost(limit),
            });
        }
    }
}

/// Returns the number of instructions that a client executes.
pub(crate) fn executed(conductor: &mut Conductor, run: &Run) -> Result<f64> {
    Ok(callgrind::total(&run_in_callgrind(conductor, run, "")?)? as f64)
}

/// Runs the client under callgrind. Returns callgrind's output.
fn run_in_callgrind(conductor: &mut Conductor, run: &Run, options: &str) -> Result<String> {
    let profile = conductor.profile.clone();
    let mut valgrind = words(&format!("valgrind --tool=callgrind {options}"));
    valgrind.push(format!("--callgrind-out-file={}", profile.display()));
    conductor.client_of(run, |commands| {
        if let Program::Rdmsg(_) = run.program {
            commands.client[0] = STRIPPED.to_owned();
        }
        commands.client.splice(..0, valgrind);
    })?;
    Ok(fs::read_to_string(profile)?)
}
