//! Converts errors into [`std::io::Error`]s of the kinds that a program written for TCP expects.

use std::io;

use super::error::{Error, TrySendError};
use crate::proto::CloseReason;

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::InvalidConfig { .. }
            | Error::MessageTooLong { .. }
            | Error::OutOfBounds { .. }
            | Error::Misaligned { .. }
            | Error::ForeignMemory
            | Error::StaleRegion
            | Error::Grouped
            | Error::ControlMessageTooLong { .. }
            | Error::PrivateDataTooLong { .. } => io::ErrorKind::InvalidInput,
            Error::AddressLookup { .. } | Error::Loopback { .. } => io::ErrorKind::AddrNotAvailable,
            Error::NoRdma(_) | Error::RdmaNotBuilt | Error::NotSupported { .. } => {
                io::ErrorKind::Unsupported
            }
            // A TCP listener that is closed resets its unaccepted sockets, so this error has the
            // same kind as such a reset.
            Error::Disconnected(CloseReason::PeerBusy)
            | Error::Undelivered(CloseReason::PeerBusy) => io::ErrorKind::ConnectionReset,
            Error::Connect { reason, .. }
            | Error::Disconnected(reason)
            | Error::Undelivered(reason)
            | Error::ListenerEnded { reason, .. } => reason.io_kind(),
            Error::TimedOut => io::ErrorKind::TimedOut,
            Error::CompletionsNotTaken
            | Error::ControlMessagesNotTaken { .. }
            | Error::WindowFull => io::ErrorKind::WouldBlock,
            Error::NotAllowed { .. } | Error::PermissionDenied { .. } => {
                io::ErrorKind::PermissionDenied
            }
            Error::LockedMemory { .. } | Error::SharedReceivesExhausted { .. } => {
                io::ErrorKind::OutOfMemory
            }
            Error::Os(error) | Error::Bind { error, .. } | Error::Source { error, .. } => {
                Self::from_raw_os_error(error.errno).kind()
            }
            Error::Finished => io::ErrorKind::BrokenPipe,
            Error::PeerFinished => io::ErrorKind::UnexpectedEof,
            Error::NotConnected | Error::ListenerClosed | Error::EngineShutDown | Error::Forked => {
                io::ErrorKind::NotConnected
            }
        };
        Self::new(kind, error)
    }
}

impl From<TrySendError> for io::Error {
    fn from(error: TrySendError) -> Self {
        Error::from(error).into()
    }
}
