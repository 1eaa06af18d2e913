//! Shared parts of the device tests and the tools: the environment, control of programs and hosts,
//! messages with known contents, and bounds that a busy machine does not break.
//!
//! The tests and the tools run in the lab, or on a machine with an RDMA device: see
//! `integration/test`. A test that finds no device fails. The library's timeouts bound every wait,
//! and a [`Watchdog`] ends a program that hangs nevertheless.

mod bridge;
mod device_test;
mod diagnosis;
#[allow(missing_docs, reason = "the names of its fields say it")]
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
mod watchdog;

use std::{fs, time::Duration};

/// Agents and hosts.
pub mod agent {
    pub use hosts::{
        Host, Said,
        agent::{PORT, serve},
    };
}

pub use hosts::{
    Deadline, Ended, Heard, Host, Line, Listening, Process, Said, clock_millis, slowness, words,
};
pub use pattern::{check, fill, pattern, random};

pub use crate::{
    bridge::{Bridge, BridgePair},
    device_test::{DeviceTest, applies},
    diagnosis::{Diagnosis, Finding},
    lab::Lab,
    launch::{LAB_FAILED, LAB_STOPPED, LabDevice, Launch, NO_LAB, native_is_possible},
    load::Load,
    pair::{example, pair, pair_with, reason},
    proxy::Proxy,
    shell::Shell,
    side::Side,
    watchdog::Watchdog,
};

/// The time limit of a test for an event that must arrive. It suffices on a busy machine that
/// emulates each instruction.
pub const TIME_LIMIT: Duration = Duration::from_secs(60);

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

/// Receives lines of a process up to the next one that contains this text.
///
/// # Panics
///
/// If no such line arrives within [`TIME_LIMIT`].
pub fn await_line(process: &mut Process, text: &str) {
    loop {
        match process.line(TIME_LIMIT) {
            Some(Line::Out(line) | Line::Err(line)) if line.contains(text) => return,
            Some(_) => {}
            None => panic!("it does not say {text:?}: {:?}", process.end(TIME_LIMIT)),
        }
    }
}

/// Returns the sections of a tool's table: their titles, behind `==`, and their lines but for empty
/// ones and comments.
pub fn sections(text: &str) -> impl Iterator<Item = (&str, Vec<&str>)> {
    text.split("\n== ").skip(1).map(|section| {
        let (title, lines) = section.split_once('\n').unwrap_or((section, ""));
        let is_there = |line: &&str| !line.is_empty() && !line.starts_with('#');
        (title, lines.lines().filter(is_there).collect())
    })
}
