use std::{
    mem,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use super::stream::Stream;
use crate::{os::Unshared, status::OsError};

/// What a connection goes by.
#[derive(Debug)]
pub(super) enum Carrier {
    /// Before the first attempt, and between two.
    Nothing,
    /// Until there are queues.
    Socket(Unshared<OwnedFd>),
    /// With queues, or what of them could be made.
    Stream(Arc<Stream>),
}

/// The id's socket is missing between two attempts.
const NO_SOCKET: OsError = OsError::new("socket", libc::ENOTSOCK);

impl Carrier {
    /// Makes a stream of the socket. It stays when more than that fails, so that the peer can be
    /// told.
    pub(super) fn open(
        &mut self,
        open: impl FnOnce(Unshared<OwnedFd>) -> Arc<Stream>,
    ) -> Result<&Arc<Stream>, OsError> {
        if let Self::Socket(socket) = mem::replace(self, Self::Nothing) {
            *self = Self::Stream(open(socket));
        }
        self.stream()
    }

    pub(super) fn stream(&self) -> Result<&Arc<Stream>, OsError> {
        match self {
            Self::Stream(stream) => Ok(stream),
            Self::Nothing | Self::Socket(_) => Err(NO_SOCKET),
        }
    }

    pub(super) fn fd(&self) -> Result<BorrowedFd<'_>, OsError> {
        match self {
            Self::Nothing => Err(NO_SOCKET),
            Self::Socket(socket) => Ok(socket.as_fd()),
            Self::Stream(stream) => Ok(stream.fd()),
        }
    }
}
