//! Status codes and errors of the operating system, as plain values that all crates of the
//! workspace share.
//!
//! An enumerator of a C enum is stored as a number. A number that is unknown to this crate can be
//! logged, and causes neither undefined behaviour nor a panic. Therefore each type is a newtype
//! with named constants instead of an enum.

// This crate calls no C function and owns no resource: all types are `Copy`. The unit tests of
// `rdma-verbs` compare the constants with the C headers.
#![forbid(unsafe_code)]

// Declared first, because the modules below use its macro.
#[macro_use]
mod open_enum;

mod cm;
mod os;
mod wc;

pub use cm::{CmEventType, CmStatus, RejectReason};
pub use os::OsError;
pub use wc::WcStatus;
