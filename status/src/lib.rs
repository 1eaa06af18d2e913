//! Status codes and errors of the operating system, as plain values that all crates of the
//! workspace share.
//!
//! The types for C enums are newtypes around integers with named constants, instead of Rust enums.
//! A value that is unknown to this crate can therefore be stored and logged, without undefined
//! behaviour or a panic.

// This crate calls no C function and owns no resource: all types are `Copy`. The unit tests of
// `rdma-verbs` compare the constants with the C headers.
#![forbid(unsafe_code)]

// Declared first, because the modules below use the macro that it defines.
#[macro_use]
mod open_enum;

mod cm;
mod os;
mod wc;

pub use cm::{CmEventType, CmStatus, RejectReason};
pub use os::OsError;
pub use wc::WcStatus;
