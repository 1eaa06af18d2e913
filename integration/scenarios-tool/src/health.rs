use std::{fs, time::Duration};

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use toolbox::{TIME_LIMIT, open_fds, retry, status_kib};

/// The number of relief threads per engine. An engine starts its relief thread when it first writes
/// a log line, and the thread then runs until the engine ends.
const RELIEF: usize = 1;

/// The permitted growth of resident memory in KiB. Memory grows even without a leak, because the
/// allocator retains some memory of threads and connections that have ended.
const RESIDENT_SLACK: u64 = 16 << 10;

/// The additional permitted growth of resident memory per simultaneous connection, in KiB. A page
/// with freed memory stays resident while it also contains an allocation in use.
const SLACK_OF_CONNECTION: u64 = 16;

/// The resources of this process and of the RDMA device. The values at the end are compared with
/// those at the start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Health {
    /// The objects that all processes together have on the device.
    objects: String,
    /// The number of RNR NAKs that all processes have caused. Each RNR NAK indicates a bug in the
    /// library. The victim of an attack always sets this field to 0, because attackers ignore the
    /// victim's credits, and can therefore cause RNR NAKs.
    rnr_naks: u64,
    descriptors: usize,
    threads: usize,
    pinned_kib: u64,
    resident_kib: u64,
    /// The number of connections of the engine. Only a victim sets this field.
    pub(crate) connections: u64,
    /// The number of bytes charged to the budget of the engine. Only a victim sets this field.
    pub(crate) budget: u64,
}

impl Health {
    pub(crate) fn now(objects: String, rnr_naks: u64) -> Result<Self> {
        let kib = |name| status_kib("self", name);
        Ok(Self {
            objects,
            rnr_naks,
            descriptors: open_fds(),
            threads: fs::read_dir("/proc/self/task")?.count(),
            pinned_kib: kib("VmPin")?,
            resident_kib: kib("VmRSS")?,
            connections: 0,
            budget: 0,
        })
    }

    /// Returns true if nothing has leaked and no RNR NAK has occurred since `before`. `most` is the
    /// largest number of simultaneous connections so far.
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

/// Calls `now` until [`Health::has_no_leak_since`] returns true. Returns the last result of `now`.
/// Fails after half of [`TIME_LIMIT`].
pub(crate) fn settle(
    before: &Health,
    most: u64,
    mut now: impl FnMut() -> Result<Health>,
) -> Result<Health> {
    retry(TIME_LIMIT / 2, Duration::from_millis(100), || {
        let state = now()?;
        let is_well = state.has_no_leak_since(before, most);
        ensure!(is_well, "resources leaked: {state:?} instead of {before:?}");
        Ok(state)
    })
}
