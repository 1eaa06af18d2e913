//! The parts, as they are measured in the lab, or on this machine without it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};
use toolbox::{Lab, Load};

use crate::{
    conduct::{Conductor, Outcome},
    connections, instructions,
    plan::Plan,
    row::Part,
    work::Task,
};

/// The number of other processes for each processor, where there is other load.
const LOAD: usize = 4;

/// Where the outcomes are, in the folder for results.
pub(crate) const OUTCOMES: &str = "bench.json";

/// Does one thing after the other, and writes the outcomes to the folder for results.
pub(crate) fn perform(tasks: &[Task], here: Option<&Path>) -> Result<()> {
    let results = here.map(Path::to_owned);
    let results: PathBuf = results.map_or_else(|| Lab::find().map(|lab| lab.results), Ok)?;
    let mut outcomes: Vec<Outcome> = Vec::new();
    for task in tasks {
        let mut conductor = Conductor::new(*task, here)?;
        measure(&mut conductor)?;
        outcomes.push(conductor.outcome);
        // With what is there if a later one fails.
        fs::write(results.join(OUTCOMES), serde_json::to_string(&outcomes)?)?;
    }
    Ok(())
}

fn measure(conductor: &mut Conductor) -> Result<()> {
    let Task {
        part,
        quick,
        polling,
        ..
    } = conductor.task;
    let _load = match part {
        Part::Loaded => Some(Load::start(LOAD)?),
        Part::OneProcessor => {
            stay_on_one_processor()?;
            None
        }
        _ => None,
    };
    match part {
        Part::Instructions => instructions::measure(conductor, quick)?,
        Part::Counted if !polling => {
            conductor.run_plan(&Plan::counted(quick));
            connections::open_and_close(conductor);
        }
        _ => conductor.run_plan(&Plan::polling(part, conductor.device.is_some())),
    }
    Ok(())
}

/// Leaves this thread, and all that it starts, the last of its processors: the first one has most
/// of the interrupts.
fn stay_on_one_processor() -> Result<()> {
    let this = Pid::from_raw(0);
    let all = sched_getaffinity(this)?;
    let is_ours = |cpu: &usize| all.is_set(*cpu).unwrap_or(false);
    let last = (0..CpuSet::count()).rfind(is_ours);
    let mut one = CpuSet::new();
    one.set(last.context("this process has no processor")?)?;
    Ok(sched_setaffinity(this, &one)?)
}
