//! The parts, as they are measured in the lab, or on this machine without it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Result;
use toolbox::{Lab, Load};

use crate::{
    conduct::{Conductor, Outcome},
    connections, instructions,
    plan::Plan,
    row::Part,
    work::{Scope, Task},
};

/// The number of other processes for each processor, for other load.
const LOAD: usize = 4;

/// The file of the outcomes, in the folder for results.
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
        // A later part may fail.
        fs::write(results.join(OUTCOMES), serde_json::to_string(&outcomes)?)?;
    }
    Ok(())
}

fn measure(conductor: &mut Conductor) -> Result<()> {
    let Task { part, scope, .. } = conductor.task;
    let quick = scope == Scope::Quick;
    let _load = (part == Part::Loaded)
        .then(|| Load::start(LOAD))
        .transpose()?;
    match part {
        Part::Instructions => instructions::measure(conductor, quick)?,
        Part::Counted if scope != Scope::Polling => {
            conductor.run_plan(&Plan::counted(quick));
            connections::open_and_close(conductor);
        }
        _ => conductor.run_plan(&Plan::polling(part, conductor.device.is_some())),
    }
    Ok(())
}
