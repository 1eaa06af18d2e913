//! What the device tests and the tools share: where they run, programs and hosts that they control,
//! messages whose every byte is known, and bounds that a busy machine does not break.
//!
//! The tests and the tools run in the lab, or on a machine with an RDMA device: see
//! `integration/test`. A test that finds no device fails. Every wait is bounded: by the library's
//! own timeouts, and by a [`Watchdog`] that ends a program which hangs all the same.

pub mod agent;
mod bare_root;
mod bridge;
mod deadline;
mod device_test;
mod diagnosis;
mod lab;
mod launch;
mod listening;
mod load;
pub mod network;
mod pair;
mod process;
mod resources;
mod shell;
mod side;
mod watchdog;
mod wire;

use std::{
    fs,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

pub use pattern::{check, fill, pattern, random};

pub use crate::{
    bare_root::BareRoot,
    bridge::{Bridge, BridgePair},
    deadline::{Deadline, slowness},
    device_test::{DeviceTest, applies},
    diagnosis::{Diagnosis, Finding},
    lab::Lab,
    launch::{LAB_FAILED, LAB_STOPPED, LabDevice, Launch, NO_LAB, native_is_possible},
    listening::Listening,
    load::Load,
    pair::{example, pair, pair_with, reason},
    process::{Ended, Heard, Line, Process, words},
    shell::Shell,
    side::Side,
    watchdog::Watchdog,
};

/// How long a test waits for something that comes: longer than it can take, even where each
/// instruction is emulated and the machine is busy.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The number of file descriptors that this process has open.
///
/// # Panics
///
/// Without /proc.
#[must_use]
pub fn open_fds() -> usize {
    let fds = fs::read_dir("/proc/self/fd").expect("/proc is mounted");
    fds.count()
}

/// Milliseconds of this host's clock, which all of its processes share and nobody sets.
#[must_use]
pub fn clock_millis() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_millis() as u64)
}
