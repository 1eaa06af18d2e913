//! The errors of operations: their type, the parts of their texts that depend on this machine, and
//! their conversion into [`std::io::Error`].

#[expect(clippy::module_inception, reason = "it is the folder's main type")]
mod error;
mod io_error;
mod local_remedies;
#[cfg(test)]
mod troubleshooting_page;

pub use self::error::{Error, TrySendError};
pub use crate::{
    machine::Denied,
    proto::{DeviceFault, Mismatch, PeerTimeout, Phase, Violation},
};
