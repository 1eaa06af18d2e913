//! The vocabulary that every layer shares: status codes and operating system errors, as plain values.
//!
//! A C enumerator arrives here as a number and stays one. A number that this crate does not know is data to be logged, never
//! undefined behaviour and never a panic, so each type is an open newtype with named constants.
//! Nothing here calls into C; the unit tests of `sys` compare the numbers with the headers'.

mod cm;
mod open_enum;
mod os;
mod wc;

pub use cm::{CmEventType, CmStatus, RejectReason};
pub(crate) use open_enum::open_enum;
pub use os::OsError;
pub use wc::WcStatus;
