//! Wrappers for Linux system calls, and utilities for the process that uses rdmsg.
//!
//! The crates `rdma-verbs`, `rdmsg-rsocket` and `rdmsg` share this crate. Programs must not use
//! this crate directly, because its API may change in any version.
//!
//! * [`Process`], [`PerProcess`] and [`Unshared`] distinguish objects that this process created
//!   from objects that it inherited in a fork(2). [`at_exit`] registers a function that runs before
//!   the process ends.
//! * [`Mapping`] allocates memory that a device, the kernel or a peer accesses. [`SharedBytes`]
//!   reads and writes such memory.
//! * [`cvt`], [`cvt_errno`] and [`cvt_ptr`] call C functions and convert their results.
//!   [`cvt_post`] converts the result of a post. [`failed`] and [`failed_or`] convert errors of
//!   `nix` and `std`. [`millis`] converts time limits.
//! * [`terminal_size`] returns the size of a terminal.
//! * [`lock()`], [`lock_hot`], [`try_lock`] and [`unpoisoned`] acquire locks even if a thread
//!   panicked while it held them.
//! * [`foreign`] runs code of the application: its logger and the wakers of its tasks. The macros
//!   [`error!`], [`warn!`], [`info!`], [`debug!`] and [`trace!`] log through this module.
//!   [`error_sparsely!`], [`error_elsewhere!`], [`warn_sparsely!`] and [`info_sparsely!`] write at
//!   most one line per second for each call site.
#![deny(unsafe_code)]
#![warn(clippy::disallowed_macros)]

// Declared first because the other modules use its macros.
#[macro_use]
pub mod foreign;
#[macro_use]
mod log_limit;

mod convert;
mod lock;
mod memory;
mod process;
mod terminal;

pub use self::{
    convert::{cvt, cvt_errno, cvt_post, cvt_ptr, failed, failed_or, log_destroy_error, millis},
    lock::{Guard, lock, lock_hot, try_lock, unpoisoned},
    log_limit::{LogLimit, SuppressedLines},
    memory::{Mapping, SharedBytes},
    process::{PerProcess, Process, Unshared, leak},
    terminal::terminal_size,
};
pub use crate::process::at_exit;
