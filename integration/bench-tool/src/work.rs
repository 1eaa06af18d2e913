//! The jobs for which this program starts itself again. The command line contains the job as one
//! argument, in JSON.

use std::{env, path::PathBuf};

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::{row::Part, traffic::Traffic};

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) enum Work {
    /// Measure the parts of a task. The path is the results folder if the task runs on this
    /// machine. It is `None` in the lab, which sets its own results folder.
    Perform(Task, Option<PathBuf>),
    /// Run a server for one client. The client's job contains the same traffic.
    Serve(Traffic),
    /// Run a client against a server that is already listening, and print the reading.
    Measure(Traffic),
}

/// A task: the parts to measure one after the other.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Task {
    pub(crate) parts: Vec<Part>,
    pub(crate) scope: Scope,
    pub(crate) rounds: u32,
    /// A comparison is measured if its name contains one of these texts. If there are no texts, all
    /// comparisons are measured.
    pub(crate) only: Vec<String>,
}

/// The selection of comparisons.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) enum Scope {
    /// All comparisons.
    Full,
    /// Only the comparisons that are marked with a star in `rows.txt`.
    Quick,
    /// Only comparisons of the ways to wait.
    Polling,
    /// Only comparisons with many connections over TCP.
    Many,
    /// Only comparisons between two hosts.
    Hosts,
    /// Only the sweeps, including those of the programs to compare with.
    Sweep,
}

impl Work {
    /// Returns the command line that runs this job.
    pub(crate) fn argv(&self) -> Result<Vec<String>> {
        let program = env::current_exe()?.to_string_lossy().into_owned();
        let json = serde_json::to_string(self)?;
        Ok(vec![program, "work".to_owned(), json])
    }
}
