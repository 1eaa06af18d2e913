use std::fs;

use anyhow::{Context, Result};

/// The resources of a process at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Footprint {
    /// The number of open file descriptors.
    pub fds: usize,
    /// The number of threads.
    pub threads: usize,
    /// Pinned memory in KiB.
    pub pinned: u64,
    /// Resident memory in KiB.
    pub resident: u64,
}

impl Footprint {
    /// Reads the resources of a process: its id, or `self`.
    ///
    /// # Errors
    ///
    /// When there is no such process, or no /proc.
    pub fn of(process: &str) -> Result<Self> {
        let folder = format!("/proc/{process}");
        let status = fs::read_to_string(format!("{folder}/status"))?;
        let kib = |name| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let number = line.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse().ok());
            number.with_context(|| format!("{folder}/status has no line {name} in kB"))
        };
        let count = |entries: &str| Ok(fs::read_dir(format!("{folder}/{entries}"))?.count());
        let (fds, threads): (Result<_>, Result<_>) = (count("fd"), count("task"));
        Ok(Self {
            fds: fds?,
            threads: threads?,
            pinned: kib("VmPin:")?,
            resident: kib("VmRSS:")?,
        })
    }
}
