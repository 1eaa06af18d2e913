use std::{fs, thread, time::Duration};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use toolbox::{Deadline, TIME_LIMIT};

/// The thread that an engine starts with its first log line, and keeps.
const RELIEF: usize = 1;

/// Permitted growth of resident memory in KiB, because allocators keep some memory of ended threads
/// and connections.
const RESIDENT_SLACK: u64 = 16 << 10;

/// Permitted growth in KiB for each simultaneous connection: remaining allocations lie between
/// freed ones.
const SLACK_OF_CONNECTION: u64 = 16;

/// The resources of this process, for a comparison of the end with the start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Health {
    /// Objects on the device, of all processes.
    objects: String,
    /// RNR NAKs of all processes. Each is a fault of the library.
    rnr_naks: u64,
    descriptors: usize,
    threads: usize,
    pinned_kib: u64,
    resident_kib: u64,
    /// Connections of the engine, and bytes of its budget, in a victim.
    pub(crate) connections: u64,
    pub(crate) budget: u64,
}

impl Health {
    pub(crate) fn now(objects: String, rnr_naks: u64) -> Result<Self> {
        let status = fs::read_to_string("/proc/self/status")?;
        let kib = |name| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let number = line.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse().ok());
            number.with_context(|| format!("/proc/self/status has no line {name} in kB"))
        };
        Ok(Self {
            objects,
            rnr_naks,
            descriptors: fs::read_dir("/proc/self/fd")?.count(),
            threads: fs::read_dir("/proc/self/task")?.count(),
            pinned_kib: kib("VmPin:")?,
            resident_kib: kib("VmRSS:")?,
            connections: 0,
            budget: 0,
        })
    }

    /// Returns whether nothing has leaked since `before`, if the program had up to `most`
    /// connections at a time.
    pub(crate) fn has_no_leak_since(&self, before: &Self, most: u64) -> bool {
        let slack = RESIDENT_SLACK + most * SLACK_OF_CONNECTION;
        self.objects == before.objects
            && self.rnr_naks == before.rnr_naks
            && self.descriptors <= before.descriptors
            && self.threads <= before.threads + RELIEF
            && self.pinned_kib <= before.pinned_kib
            && self.connections == before.connections
            && self.budget <= before.budget
            && self.resident_kib <= before.resident_kib + slack
    }
}

/// Repeats the count until no leak is left, and returns the last count.
pub(crate) fn settle(
    before: &Health,
    mut now: impl FnMut() -> Result<Health>,
    mut has_no_leak_since: impl FnMut(&Health, &Health) -> bool,
) -> Result<Health> {
    let mut deadline = Deadline::after(TIME_LIMIT / 2);
    loop {
        let state = now()?;
        if has_no_leak_since(&state, before) {
            return Ok(state);
        }
        ensure!(
            !deadline.is_over(),
            "left behind: {state:?} instead of {before:?}"
        );
        thread::sleep(Duration::from_millis(100));
    }
}
