use std::fs;

use crate::{Footprint, Lab};

/// How much more memory in KiB may be resident at the end than at the start. It is more than what
/// threads come and go with, and far less than what the messages of a minute come to.
const RESIDENT_SLACK: u64 = 16 << 10;

/// What this process has, and what has happened on the device, at a moment when no connection
/// exists that is to be watched: for comparing an end with a start.
#[derive(Debug)]
pub struct Health {
    resources: String,
    fds: usize,
    rnr_naks: u64,
    /// In KiB.
    pinned: u64,
    /// In KiB.
    resident: u64,
}

impl Health {
    /// What is now.
    ///
    /// # Panics
    ///
    /// Without /proc.
    #[must_use]
    pub fn now(lab: &Lab) -> Self {
        let here = Footprint::of("self").expect("/proc is mounted");
        Self {
            resources: lab.resources(),
            fds: here.fds,
            rnr_naks: lab.rnr_naks(),
            pinned: here.pinned,
            resident: here.resident,
        }
    }

    /// Compares with what was at the start: one line that says what is.
    ///
    /// # Errors
    ///
    /// What is not as it was.
    pub fn compare(&self, start: &Self) -> Result<String, String> {
        let Self {
            resources,
            fds,
            rnr_naks,
            pinned,
            resident,
        } = self;
        let fine = *resources == start.resources
            && *fds == start.fds
            && *rnr_naks == start.rnr_naks
            && *pinned == start.pinned
            && *resident <= start.resident + RESIDENT_SLACK;
        if fine {
            Ok(format!(
                "RNR NAKs 0; as at the start: {resources}; {fds} file descriptors, {pinned} KiB \
                 pinned; resident {} KiB at the start, {resident} KiB now",
                start.resident
            ))
        } else {
            Err(format!(
                "not as at the start: {self:?} instead of {start:?}"
            ))
        }
    }
}

/// How many file descriptors this process has open.
///
/// # Panics
///
/// Without /proc.
#[must_use]
pub fn open_fds() -> usize {
    fs::read_dir("/proc/self/fd")
        .expect("/proc is mounted")
        .count()
}
