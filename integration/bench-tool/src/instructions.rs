//! The instructions of single calls and of whole programs, counted by callgrind.

use std::{env, fs, process::Command};

use anyhow::{Context, Result, ensure};
use toolbox::words;

use crate::{
    callgrind::{self, Cost},
    calls,
    conduct::{Conductor, OURS},
    manner::{Manner, Way},
    measure::Measure,
    program::{Program, Run, is_installed},
    row::{Side, Target},
};

/// This program without the lines of its source, which callgrind would read for half a minute.
const STRIPPED: &str = "/tmp/bench-stripped";

/// How many calls of each kind.
const CALLS: u64 = 200;

/// More callers than any function has.
const CALLERS: u32 = 60;

/// Two numbers of round trips. The difference of both runs excludes the start of the program.
const LESS: u64 = 100;
const MORE: u64 = 300;

pub(crate) fn measure(conductor: &mut Conductor, quick: bool) -> Result<()> {
    if !is_installed("valgrind") {
        conductor.lacks("all of it: valgrind is not installed");
        return Ok(());
    }
    if let Err(error) = strip() {
        conductor.lacks(format!("all of it: {error:#}"));
        return Ok(());
    }
    conductor.say("single calls");
    if let Some(costs) = conductor.attempt("single calls", OURS, single_calls) {
        add_calls(conductor, &costs);
    }
    if quick {
        return Ok(());
    }
    let ours = Program::Rdmsg(Manner::DEFAULT.with(Way::Event));
    let mut sides = Vec::new();
    for program in [ours, Program::Perftest] {
        let run = Run {
            program,
            measure: Measure::HalfRoundTrip,
            size: calls::SIZE,
            count: 0,
        };
        conductor.say(&format!("a client's loop: {}", run.name()));
        sides.extend(conductor.attempt(&run.name(), OURS, |conductor| whole_loop(conductor, run)));
    }
    if let Ok([ours, theirs]) = <[Side; 2]>::try_from(sides) {
        conductor.add_row(Measure::Loop, calls::SIZE, ours, Some(theirs), Target::None);
    }
    Ok(())
}

fn strip() -> Result<()> {
    let program = env::current_exe()?;
    let status = Command::new("strip")
        .args(["--strip-debug", "-o", STRIPPED])
        .arg(&program)
        .status()
        .context("cannot run strip")?;
    ensure!(status.success(), "strip: {status}");
    Ok(())
}

fn single_calls(conductor: &mut Conductor) -> Result<Vec<Cost>> {
    let run = Run {
        program: Program::Rdmsg(Manner::DEFAULT.with(Way::Event)),
        measure: Measure::Call,
        size: calls::SIZE,
        count: CALLS,
    };
    let functions = calls::NAMES.map(calls::function);
    let mut options = vec![format!("--separate-callers={CALLERS}")];
    options.extend(
        functions
            .iter()
            .map(|name| format!("--toggle-collect={name}")),
    );
    let profile = run_in_callgrind(conductor, &run, &options)?;
    Ok(callgrind::costs(&profile, &functions))
}

fn add_calls(conductor: &mut Conductor, costs: &[Cost]) {
    let limits = [200.0, 200.0, 120.0];
    for ((name, cost), limit) in calls::NAMES.into_iter().zip(costs).zip(limits) {
        let side = |count: u64| Side {
            name: name.to_owned(),
            figures: vec![count as f64 / CALLS as f64],
        };
        let (size, instructions) = (calls::SIZE, side(cost.instructions));
        let target = Target::AtMost(limit);
        conductor.add_row(Measure::Call, size, instructions, None, target);
        let (allocations, target) = (side(cost.allocations), Target::AtMost(0.0));
        conductor.add_row(Measure::Allocations, size, allocations, None, target);
    }
}

fn whole_loop(conductor: &mut Conductor, run: Run) -> Result<Side> {
    let mut executed = |count| {
        let profile = run_in_callgrind(conductor, &Run { count, ..run }, &[])?;
        callgrind::total(&profile)
    };
    let (less, more) = (executed(LESS)?, executed(MORE)?);
    let each = more.saturating_sub(less) as f64 / (MORE - LESS) as f64;
    // A tenth more of the messages go ahead, unmeasured.
    let rounds = match run.program {
        Program::Rdmsg(_) => 1.1,
        _ => 1.0,
    };
    Ok(Side {
        name: run.name(),
        figures: vec![each / rounds],
    })
}

/// Runs the client under callgrind, and returns the profile.
fn run_in_callgrind(conductor: &mut Conductor, run: &Run, options: &[String]) -> Result<String> {
    let profile = conductor.profile();
    let mut argv = words("valgrind --tool=callgrind");
    argv.push(format!("--callgrind-out-file={}", profile.display()));
    argv.extend_from_slice(options);
    conductor.client_of(&run.to_string(), run, |commands| {
        if let Program::Rdmsg(_) = run.program {
            commands.client[0] = STRIPPED.to_owned();
        }
        commands.client.splice(..0, argv);
    })?;
    Ok(fs::read_to_string(profile)?)
}
