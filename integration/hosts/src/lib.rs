//! Runs programs on this host or on another one.
//!
//! A [`Process`] is one program. The [`agent`] of a [`Host`] starts the program. A [`Link`] carries
//! the frames of [`wire`] to the agent: over TCP to another host, over a virtio port to a guest of
//! the lab, or over a socket pair to the agent of this host, which is a thread of this process.

pub mod agent;
mod deadline;
mod host;
mod link;
mod listening;
mod process;
pub mod wire;

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

pub use crate::{
    agent::Program,
    deadline::{Deadline, slowness},
    host::{Host, Said},
    link::Link,
    listening::Listening,
    process::{Ended, Heard, Line, Process},
};

/// Returns the time of this host's clock in milliseconds since 1970.
#[must_use]
pub fn clock_millis() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_millis() as u64)
}

/// Splits a command line at whitespace.
#[must_use]
pub fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
