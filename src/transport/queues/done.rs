use crate::{
    proto::{DrainSide, Violation},
    status::{OsError, WcStatus},
};

/// How many completions are taken at a time.
pub(crate) const BATCH: usize = 16;

/// Something that the device has done: a completion.
#[derive(Clone, Debug)]
pub(crate) enum Done {
    /// A frame lies in this receive buffer.
    Received { buffer: u32, len: u32 },
    /// The peer wrote to a region of this side's, with immediate data, and used this buffer.
    Immediate {
        buffer: u32,
        imm_data: u32,
        len: u32,
    },
    /// The work request of this slot of the send ring is done, and all earlier ones.
    Sent { slot: u32 },
    /// A receive failed.
    ReceiveFailed {
        buffer: u32,
        status: WcStatus,
        vendor_err: u32,
    },
    /// The work request of this slot failed.
    SendFailed {
        slot: u32,
        status: WcStatus,
        vendor_err: u32,
    },
    /// Everything that was posted on this queue has come back.
    Drained(DrainSide),
    /// The peer broke a rule of the transport that this side checks. In a box, so that the others
    /// stay small.
    Violated(Box<Violation>),
    /// The system has no memory for a frame of the peer.
    OutOfMemory(Box<OsError>),
}

impl Done {
    /// The receive buffer that was used.
    #[inline]
    pub(crate) fn receive_buffer(&self) -> Option<u32> {
        match *self {
            Self::Received { buffer, .. }
            | Self::Immediate { buffer, .. }
            | Self::ReceiveFailed { buffer, .. } => Some(buffer),
            Self::Sent { .. }
            | Self::SendFailed { .. }
            | Self::Drained(_)
            | Self::Violated(_)
            | Self::OutOfMemory(_) => None,
        }
    }
}
