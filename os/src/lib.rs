//! Facilities of Linux, and of the process that uses rdmsg.
//!
//! The crates of rdmsg share it: `rdma-verbs`, `rdmsg-rsocket` and `rdmsg` itself. It is no
//! interface for programs, and changes with each version.
//!
//! * [`Process`], [`PerProcess`] and [`Unshared`] distinguish the objects of this process from
//!   those that it inherited by fork(2). [`at_exit`] runs a function before the process ends.
//! * [`Mapping`] allocates memory that a device, the kernel or a peer accesses, and [`SharedBytes`]
//!   reads and writes it.
//! * [`cvt`], [`cvt_errno`] and [`cvt_ptr`] convert the results of C functions, [`failed`] converts
//!   errors of `nix` and `std`, and [`millis`] time limits.
//! * [`lock()`], [`try_lock`] and [`unpoisoned`] take locks that outlive a panic.
//! * [`foreign`] runs code of the program, its logger and its wakers. The macros [`error!`],
//!   [`warn!`], [`info!`], [`debug!`] and [`trace!`] log through it. [`error_sparsely!`] and
//!   [`warn_sparsely!`] write at most one line a second.
#![deny(unsafe_code)]
#![warn(clippy::disallowed_macros)]

// First, because the other modules use its macros.
#[macro_use]
pub mod foreign;
#[macro_use]
mod log_limit;

mod convert;
mod lock;
mod memory;
mod process;

pub use self::{
    convert::{cvt, cvt_errno, cvt_ptr, failed, log_destroy_error, millis},
    lock::{lock, try_lock, unpoisoned},
    log_limit::{LogLimit, SuppressedLines},
    memory::{Mapping, SharedBytes},
    process::{PerProcess, Process, Unshared, leak},
};
pub use crate::process::at_exit;
