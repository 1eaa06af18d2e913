//! The jobs for which this program starts itself. On the command line a job is one word of JSON.

use std::{env, path::PathBuf};

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::{row::Part, traffic::Traffic};

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) enum Work {
    /// Measure in the lab, or without it and with the results in this folder.
    Perform(Task, Option<PathBuf>),
    /// Answer a client with the same traffic.
    Serve(Traffic),
    /// Measure against a server that is already running, and print the reading.
    Measure(Traffic),
}

/// Parts to measure, one after the other.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Task {
    pub(crate) parts: Vec<Part>,
    pub(crate) scope: Scope,
    pub(crate) rounds: u32,
}

/// The extent of a measurement.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) enum Scope {
    /// All sizes.
    Full,
    /// A few sizes.
    Quick,
    /// Only the ways to wait.
    Polling,
}

impl Work {
    /// Returns the command line that starts this job.
    pub(crate) fn argv(&self) -> Result<Vec<String>> {
        let program = env::current_exe()?.to_string_lossy().into_owned();
        let json = serde_json::to_string(self)?;
        Ok(vec![program, "work".to_owned(), json])
    }
}
