#![allow(unsafe_code)]

use std::{io::IoSlice, iter, ptr};

use crate::{
    error::Error,
    proto::{Capabilities, HEADER_LEN},
};

/// The address and the remote key of the peer's memory, as the peer announced them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RemoteAddr {
    pub(crate) addr: u64,
    pub(crate) rkey: u32,
}

/// The operation of a work request on the send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendOp {
    Send,
    Read(RemoteAddr),
    Write(RemoteAddr),
    WriteWithImm(RemoteAddr, u32),
    FetchAdd {
        remote: RemoteAddr,
        add: u64,
    },
    CompareSwap {
        remote: RemoteAddr,
        compare: u64,
        swap: u64,
    },
}

impl SendOp {
    pub(crate) fn is_atomic(self) -> bool {
        matches!(self, Self::FetchAdd { .. } | Self::CompareSwap { .. })
    }

    /// Returns an error for an operation that the device does not support. If such an operation
    /// were posted, some drivers would report an error that makes the queue pair unusable, and
    /// others would report nothing.
    pub(crate) fn check(
        self,
        able: Capabilities,
        device: impl FnOnce() -> String,
    ) -> Result<(), Error> {
        let (operation, able) = match self {
            Self::Send | Self::Read(_) | Self::Write(_) => return Ok(()),
            Self::WriteWithImm(..) => ("write_with_imm", able.write_with_imm),
            Self::FetchAdd { .. } => ("fetch_add", able.atomic),
            Self::CompareSwap { .. } => ("compare_swap", able.atomic),
        };
        if able {
            return Ok(());
        }
        Err(Error::NotSupported {
            operation,
            device: device(),
            because: if self.is_atomic() {
                "its driver reports no atomic operations"
            } else {
                "iWARP has no writes with immediate data"
            },
        })
    }
}

/// A part of this side's memory to which a work request refers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sge {
    pub(crate) start: *mut u8,
    pub(crate) len: u32,
    pub(crate) lkey: u32,
}

/// The header and the payload parts of a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame<'a> {
    pub(crate) header: &'a [u8; HEADER_LEN],
    pub(crate) payload: &'a [IoSlice<'a>],
    /// The length of the header and the payload in bytes.
    pub(crate) len: usize,
}

impl Frame<'_> {
    /// Copies the frame to a send buffer. `Registration::copy_in` would be half as fast, because it
    /// permits concurrent accesses to the same bytes. A send buffer has no concurrent accesses.
    ///
    /// # Safety
    ///
    /// The memory at `to` has room for the frame and does not overlap the parts of the frame, and
    /// no other code accesses it.
    #[inline]
    pub(crate) unsafe fn copy_to(&self, to: *mut u8) {
        // SAFETY: the caller guarantees that the memory has room for the frame.
        unsafe { ptr::copy_nonoverlapping(self.header.as_ptr(), to, HEADER_LEN) };
        let mut to = to.wrapping_add(HEADER_LEN);
        for part in self.payload {
            // SAFETY: as above.
            unsafe { ptr::copy_nonoverlapping(part.as_ptr(), to, part.len()) };
            to = to.wrapping_add(part.len());
        }
    }

    /// Copies the frame to a send buffer like [`copy_to`](Self::copy_to), but omits the first
    /// `skip` bytes of the frame. The corresponding bytes of the buffer stay unchanged.
    ///
    /// # Safety
    ///
    /// The conditions of [`copy_to`](Self::copy_to) hold.
    pub(crate) unsafe fn copy_rest_to(&self, mut to: *mut u8, mut skip: usize) {
        let payload = self.payload.iter().map(|part| &**part);
        for part in iter::once(&self.header[..]).chain(payload) {
            let skipped = skip.min(part.len());
            let rest = &part[skipped..];
            to = to.wrapping_add(skipped);
            // SAFETY: the caller guarantees that the memory has room for the frame.
            unsafe { ptr::copy_nonoverlapping(rest.as_ptr(), to, rest.len()) };
            to = to.wrapping_add(rest.len());
            skip -= skipped;
        }
    }
}

/// The id of a work request. The completion of the request contains the same id. The id encodes the
/// purpose of the request, because the opcode of a failed completion is not valid
/// (`ibv_poll_cq(3)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkId {
    /// The receive into this buffer.
    Recv(u32),
    /// The work request in this slot of the send ring.
    Send(u32),
    /// The invalidation of the window of a large message.
    Invalidation,
    /// The drain marker after the last receive.
    DrainRecv,
    /// The drain marker after the last send.
    DrainSend,
}

impl WorkId {
    pub(crate) const fn encode(self) -> u64 {
        match self {
            Self::Recv(buffer) => buffer as u64,
            Self::Send(slot) => 1 << 32 | slot as u64,
            Self::DrainRecv => 2 << 32,
            Self::DrainSend => 3 << 32,
            Self::Invalidation => 4 << 32,
        }
    }

    /// Decodes an id. The device returns only ids that [`encode`](Self::encode) has created.
    pub(crate) const fn decode(wr_id: u64) -> Self {
        let index = wr_id as u32;
        match wr_id >> 32 {
            0 => Self::Recv(index),
            1 => Self::Send(index),
            2 => Self::DrainRecv,
            3 => Self::DrainSend,
            _ => Self::Invalidation,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_ids_round_trip() {
        for id in [
            WorkId::Recv(0),
            WorkId::Recv(u32::MAX),
            WorkId::Send(7),
            WorkId::DrainRecv,
            WorkId::DrainSend,
            WorkId::Invalidation,
        ] {
            assert_eq!(WorkId::decode(id.encode()), id);
        }
    }
}
