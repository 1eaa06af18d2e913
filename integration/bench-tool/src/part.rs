use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// One of the ways in which the tool measures.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Part {
    /// In a guest whose clock counts the instructions of both ends, their kernel included.
    Counted,
    /// By callgrind: what one process executes.
    Instructions,
    /// By the clock of the machine.
    Clock,
    /// The same with all programs on one processor.
    OneProcessor,
    /// The same beside other processes that use all processors.
    Loaded,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Counted => "counted",
            Self::Instructions => "instructions",
            Self::Clock => "clock",
            Self::OneProcessor => "one-processor",
            Self::Loaded => "loaded",
        })
    }
}
