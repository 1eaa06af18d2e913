use crate::{
    proto::{DrainSide, Violation},
    status::{OsError, WcStatus},
};

/// The maximum number of completions that one poll removes from the queue.
pub(crate) const BATCH: usize = 16;

/// A completion that a poll of the completion queue has returned.
#[derive(Clone, Debug)]
pub(crate) enum Done {
    /// A frame of `len` bytes was received in this receive buffer.
    Received { buffer: u32, len: u32 },
    /// A Fragment frame of `len` bytes was received. Its header is in this receive buffer, and its
    /// payload is in the memory of its message: see
    /// [`QueuePair::place_fragments`](super::queue_pair::QueuePair::place_fragments).
    ReceivedInPlace { buffer: u32, len: u32 },
    /// The peer has sent a WRITE of `len` bytes with immediate data. The bytes are in a region of
    /// this side. The immediate data consumed this receive buffer.
    Immediate {
        buffer: u32,
        imm_data: u32,
        len: u32,
    },
    /// The work requests in this slot of the send ring and in all earlier slots have completed.
    Sent { slot: u32 },
    /// A receive failed.
    ReceiveFailed {
        buffer: u32,
        status: WcStatus,
        vendor_err: u32,
    },
    /// The work request in this slot failed.
    SendFailed {
        slot: u32,
        status: WcStatus,
        vendor_err: u32,
    },
    /// The oldest pending invalidation of a memory window has completed. The peer can no longer
    /// read the message of this window.
    Invalidated,
    /// The invalidation of a memory window failed.
    InvalidationFailed { status: WcStatus, vendor_err: u32 },
    /// All work requests that were posted on one queue have completed. The value names this queue:
    /// the send queue or the receive queue.
    Drained(DrainSide),
    /// The peer has ended the TCP stream, or the stream has failed. All completions of received
    /// frames precede this completion.
    Disconnected,
    /// The peer violated a transport rule that this side checks. The violation is boxed to keep the
    /// enum small.
    Violated(Box<Violation>),
    /// The operating system has no memory for a frame of the peer.
    OutOfMemory(Box<OsError>),
}

impl Done {
    /// If the completion reports a received frame, returns the frame's receive buffer and length.
    /// Otherwise returns `None`.
    #[inline]
    pub(crate) fn frame(&self) -> Option<(u32, u32)> {
        match *self {
            Self::Received { buffer, len } => Some((buffer, len)),
            Self::ReceivedInPlace { .. }
            | Self::Immediate { .. }
            | Self::Sent { .. }
            | Self::ReceiveFailed { .. }
            | Self::SendFailed { .. }
            | Self::Invalidated
            | Self::InvalidationFailed { .. }
            | Self::Drained(_)
            | Self::Disconnected
            | Self::Violated(_)
            | Self::OutOfMemory(_) => None,
        }
    }

    /// Returns the receive buffer that the completion consumed, if any.
    #[inline]
    pub(crate) fn receive_buffer(&self) -> Option<u32> {
        match *self {
            Self::Received { buffer, .. }
            | Self::ReceivedInPlace { buffer, .. }
            | Self::Immediate { buffer, .. }
            | Self::ReceiveFailed { buffer, .. } => Some(buffer),
            Self::Sent { .. }
            | Self::SendFailed { .. }
            | Self::Invalidated
            | Self::InvalidationFailed { .. }
            | Self::Drained(_)
            | Self::Disconnected
            | Self::Violated(_)
            | Self::OutOfMemory(_) => None,
        }
    }
}
