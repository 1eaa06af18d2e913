use std::io;

use thiserror::Error;

/// A protocol violation by the peer, which ends the connection.
///
/// An [`io::Error`] of the kind `InvalidData` contains this error:
///
/// ```
/// use rdmsg_valkey::ProtocolError;
///
/// fn violation(error: &std::io::Error) -> Option<&ProtocolError> {
///     error.get_ref()?.downcast_ref()
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// A command whose length is not 32 bytes.
    #[error("the peer sent a command of {len} bytes instead of 32")]
    Length {
        /// The length in bytes.
        len: usize,
    },
    /// A command with an opcode that the protocol does not define.
    #[error("the peer sent a command with the unknown opcode {opcode}")]
    Opcode {
        /// The opcode.
        opcode: u16,
    },
    /// A command that the peer must not send at all, or not at this time.
    #[error("the peer sent the command {command}, which it must not send {when}")]
    Unexpected {
        /// The name of the command.
        command: &'static str,
        /// The reason why the peer must not send the command: its role, or the state of the
        /// connection.
        when: &'static str,
    },
    /// The server replied with a different feature set than this side requested.
    #[error("the server replied with feature set {select}, but this side requested set 0")]
    Select {
        /// The number of the set.
        select: u16,
    },
    /// The client selected features that this side does not offer.
    #[error("the client selected the features {features:#x}, which were not offered")]
    Features {
        /// The bits of the features that were not offered.
        features: u64,
    },
    /// An announced buffer that cannot exist: its length or its key is 0, or it extends beyond the
    /// 64-bit address space.
    #[error(
        "the peer announced an invalid buffer: {length} bytes at {addr:#x} with the key {key:#x}"
    )]
    Memory {
        /// The address of the first byte.
        addr: u64,
        /// The length in bytes.
        length: u32,
        /// The remote key.
        key: u32,
    },
    /// A buffer that the peer announced before this side had filled the previous one.
    #[error("the peer announced a buffer, but {left} bytes of its previous buffer are free")]
    NotFull {
        /// The number of free bytes in the previous buffer.
        left: u32,
    },
    /// A write of more bytes than are free in the announced buffer.
    #[error("the peer wrote {len} bytes, but {free} bytes of the announced buffer are free")]
    Overrun {
        /// The number of bytes that the peer reported for the write.
        len: u32,
        /// The number of free bytes, or 0 if no buffer was announced.
        free: u32,
    },
    /// The peer sends requests faster than it receives the replies.
    #[error("the peer sent a command while {pending} replies were pending")]
    Flood {
        /// The number of replies.
        pending: usize,
    },
}

impl From<ProtocolError> for io::Error {
    fn from(error: ProtocolError) -> Self {
        Self::new(io::ErrorKind::InvalidData, error)
    }
}
