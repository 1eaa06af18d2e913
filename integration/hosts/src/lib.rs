//! Runs programs on this host or on another one.
//!
//! A [`Process`] is a program that the [`agent`] of a [`Host`] has started. The agent of this host
//! is a thread of this process. A [`Link`] carries the frames of [`wire`] between a conductor and
//! an agent. A link is a TCP connection to another host, a virtio port to a guest of the lab, or a
//! socket pair to the agent of this host.

#![allow(clippy::exhaustive_enums, reason = "all users are built together")]

pub mod agent;
mod deadline;
mod host;
mod link;
mod listening;
mod process;
pub mod wire;

use std::{
    env, fs,
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

pub use crate::{
    agent::Program,
    deadline::{Deadline, retry, slowness},
    host::Host,
    link::Link,
    listening::Listening,
    process::{Ended, Line, Process, Unkillable},
};

/// Returns this host's current time in milliseconds since 1970.
pub fn clock_millis() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_millis() as u64)
}

/// Splits a command line at whitespace.
pub fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

/// Compares the help text of a tool with the tool's file in `integration/help`. For `--help`, the
/// tool's script prints this file, so that the script need not build the tool. If the environment
/// variable `RDMSG_RENEW_HELP` is set, first writes the help text to the file.
///
/// # Panics
///
/// If the texts differ.
pub fn check_help(name: &str, help: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../help");
    let file = folder.join(name).with_extension("txt");
    if env::var_os("RDMSG_RENEW_HELP").is_some() {
        fs::write(&file, help).expect("the folder integration/help must be writable");
    }
    let printed = fs::read_to_string(&file).unwrap_or_default();
    assert!(
        printed == help,
        "{} differs from the help of its tool. To renew the file, run this test with \
         RDMSG_RENEW_HELP=1",
        file.display()
    );
}

/// Locks a mutex, even if a thread has panicked while it held the lock.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
