//! What operations fail with: the error, what it says of this machine, and what it is to programs
//! that expect `std::io`'s.

mod advice;
#[expect(clippy::module_inception, reason = "it is the folder's main type")]
mod error;
mod io_error;
#[cfg(test)]
mod texts;

pub use self::error::{Error, TrySendError};
pub use crate::{
    machine::Denied,
    proto::{Mismatch, PeerTimeout, Phase, Violation},
};
