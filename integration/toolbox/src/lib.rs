//! Code that the device tests and the tools share: the lab's environment, control of programs and
//! hosts, messages with known contents, and time limits that are longer on a busy machine.
//!
//! The tests and the tools run in the lab, or on a machine with an RDMA device: see
//! `integration/test`. A test fails if there is no device. The library's timeouts limit every wait.
//! If a program hangs nevertheless, a [`Watchdog`] aborts it.

#![allow(clippy::exhaustive_enums, reason = "all users are built together")]

mod bridge;
mod cargo;
mod device_test;
mod diagnosis;
#[allow(missing_docs, reason = "the names explain the fields")]
pub mod frames;
mod lab;
mod launch;
mod load;
pub mod network;
mod pair;
mod proxy;
mod resources;
mod shell;
mod side;

use std::{fmt::Display, fs, time::Duration};

use anyhow::{Context, Result};

/// Control of other hosts. An agent on each host executes the commands of a conductor.
pub mod agent {
    pub use hosts::{
        Host,
        agent::{PORT, serve},
    };
}

pub use hosts::{
    Deadline, Ended, Host, Line, Listening, Process, Unkillable, check_help, clock_millis, lock,
    retry, slowness, words,
};
pub use pattern::{check, pattern, random, read_sequence, sequence, write_sequence};

pub use crate::{
    bridge::{Bridge, BridgePair},
    cargo::{TestProgram, tests_of},
    device_test::{DeviceTest, Stop, Watchdog, applies},
    diagnosis::{DOCTOR, Diagnosis, Finding},
    lab::{Lab, Usage},
    launch::{LAB_FAILED, LAB_STOPPED, LabDevice, Launch, NO_LAB, native_is_possible},
    load::Load,
    pair::{connect, example, pair, pair_with, patient, reason},
    proxy::Proxy,
    shell::Shell,
    side::Side,
};

/// The time limit for events that must occur. It is long enough for a busy machine that emulates
/// each instruction.
pub const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Returns the number of open file descriptors of this process.
///
/// # Panics
///
/// If /proc is not mounted.
pub fn open_fds() -> usize {
    let fds = fs::read_dir("/proc/self/fd").expect("/proc must be mounted");
    fds.count()
}

/// Reads the value `name`, for instance "RssAnon", from `/proc/PROCESS/status`. Returns the value
/// in KiB. `process` is a process id or "self".
///
/// # Errors
///
/// If the file cannot be read, or if it does not contain this value in kB.
pub fn status_kib(process: impl Display, name: &str) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let mut lines = status.lines().filter_map(|line| line.split_once(':'));
    let value = lines.find(|(found, _)| *found == name);
    let value = value.and_then(|(_, rest)| rest.trim().strip_suffix(" kB")?.parse().ok());
    value.with_context(|| format!("/proc/{process}/status has no line {name} in kB"))
}

/// Reads lines of a process until a line contains `text`.
///
/// # Panics
///
/// If the process ends, or prints nothing for [`TIME_LIMIT`], before it prints such a line.
pub fn await_line(process: &mut Process, text: &str) {
    loop {
        match process.line(TIME_LIMIT) {
            Some(Line::Out(line) | Line::Err(line)) if line.contains(text) => return,
            Some(_) => {}
            None => panic!("no line contains {text:?}: {:?}", process.end(TIME_LIMIT)),
        }
    }
}

/// Returns the sections of a tool's text file. A section consists of its title, which follows `==`,
/// and its lines. Empty lines and comments, which begin with `#`, are omitted.
pub fn sections(text: &str) -> impl Iterator<Item = (&str, Vec<&str>)> {
    text.split("\n== ").skip(1).map(|section| {
        let (title, lines) = section.split_once('\n').unwrap_or((section, ""));
        let is_there = |line: &&str| !line.is_empty() && !line.starts_with('#');
        (title, lines.lines().filter(is_there).collect())
    })
}
