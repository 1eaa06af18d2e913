//! Status codes and errors of the operating system, as plain values that every layer shares.
//!
//! A C enumerator is kept as a number. A number that this crate does not know is data to be logged,
//! never undefined behaviour and never a panic, so each type is an open newtype with named
//! constants.

// This layer uses no other one, calls no function of C and owns nothing: all its types are `Copy`.
// The unit tests of `sys` compare its numbers with the headers'.

mod cm;
mod open_enum;
mod os;
mod wc;

pub use cm::{CmEventType, CmStatus, RejectReason};
pub(crate) use open_enum::open_enum;
pub use os::OsError;
pub use wc::WcStatus;
