//! Errors of operations: their type, their texts with the facts about this machine, and their
//! conversion into [`std::io::Error`].

mod advice;
#[expect(clippy::module_inception, reason = "it is the folder's main type")]
mod error;
mod io_error;
#[cfg(test)]
mod troubleshooting_page;

pub use self::error::{Error, TrySendError};
pub use crate::{
    machine::Denied,
    proto::{DeviceFault, Mismatch, PeerTimeout, Phase, Violation},
};
