//! Status codes and errors of the operating system and of the RDMA libraries, as plain values. The
//! crates of the workspace share these types.
//!
//! A C enum is represented by a newtype around an integer, with named constants, and not by a Rust
//! enum. A program can therefore store and log a value that this crate does not know, without
//! undefined behaviour or a panic.

// This crate calls no C function and owns no resource: all types are `Copy`. The unit tests of
// `rdma-verbs` compare the constants with the C headers.
#![forbid(unsafe_code)]

// This module must precede the modules below, because they use its macro.
#[macro_use]
mod open_enum;

mod cm;
mod os;
mod remedies;
mod wc;

pub use cm::{CmEventType, CmStatus, RejectReason};
pub use os::OsError;
pub use wc::WcStatus;
