//! The jobs for which this program starts itself. On the command line a job is one word of JSON.

use std::{env, path::PathBuf};

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::{row::Part, traffic::Traffic};

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) enum Work {
    /// Measure, in the lab, or without it and with the results in this folder.
    Perform(Vec<Task>, Option<PathBuf>),
    /// Answer a client that measures the same.
    Serve(Traffic),
    /// Measure against that server, and print the reading.
    Measure(Traffic),
}

/// One part to measure.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(crate) struct Task {
    pub(crate) part: Part,
    pub(crate) scope: Scope,
    pub(crate) rounds: u32,
}

/// How much of a part.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) enum Scope {
    /// All sizes.
    Full,
    /// A few sizes.
    Quick,
    /// Only the ways to wait.
    Polling,
}

/// The command of [`Work`].
const COMMAND: &str = "work";

impl Work {
    /// This program's arguments for it.
    pub(crate) fn arguments(&self) -> Result<[String; 2]> {
        Ok([COMMAND.to_owned(), serde_json::to_string(self)?])
    }

    /// The whole command line.
    pub(crate) fn argv(&self) -> Result<Vec<String>> {
        let program = env::current_exe()?.to_string_lossy().into_owned();
        Ok([program].into_iter().chain(self.arguments()?).collect())
    }
}
