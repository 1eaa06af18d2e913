//! Status codes and errors of the operating system, as plain values that every layer shares.
//!
//! A C enumerator is kept as a number. A number that this crate does not know is data to be logged,
//! never undefined behaviour and never a panic, so each type is an open newtype with named
//! constants.

// It calls no function of C and owns nothing: all types are `Copy`. The unit tests of `rdma-verbs`
// compare the numbers with the headers'.
#![forbid(unsafe_code)]

// First, because the other modules use its macro.
#[macro_use]
mod open_enum;

mod cm;
mod os;
mod wc;

pub use cm::{CmEventType, CmStatus, RejectReason};
pub use os::OsError;
pub use wc::WcStatus;
