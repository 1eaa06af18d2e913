//! A part of a receive buffer. This module creates references to memory that the device writes.
//! This is sound because a [`RecvSlice`] is created only after the receive has completed, and no
//! code reads the slice after the buffer was reposted: see
//! [`WorkQueues`](crate::transport::queues::WorkQueues).
#![allow(unsafe_code)]

use std::{fmt, ops::Deref, slice};

use super::domain::Registration;

/// Returns the bytes of a receive buffer whose receive has completed.
pub(crate) fn received_bytes(memory: &Registration, offset: usize, len: usize) -> &[u8] {
    // SAFETY: the callers checked `offset` and `len` against the layout, so the address lies inside
    // the region's allocation.
    let start = unsafe { memory.as_ptr().add(offset) };
    // SAFETY: the bytes were zeroed at allocation, and live until the region is dropped. The device
    // does not write to them, because the receive has completed and is reposted only after the last
    // read of the slice (see the top of this file).
    unsafe { slice::from_raw_parts(start, len) }
}

/// A part of a receive buffer whose receive has completed.
#[derive(Clone)]
pub(crate) struct RecvSlice {
    memory: Registration,
    offset: usize,
    /// The length in bytes. The field has only 32 bits, because each slot of a queue has space
    /// for a slice. A frame is far shorter than 4 GiB.
    len: u32,
    buffer: u32,
}

impl RecvSlice {
    /// Creates a slice of `len` bytes at `offset` of the region `memory`, which must be long
    /// enough. `buffer` is the index of the receive buffer.
    #[inline]
    pub(crate) fn new(memory: Registration, buffer: u32, offset: usize, len: u32) -> Self {
        Self {
            memory,
            offset,
            len,
            buffer,
        }
    }

    /// Returns the index of the receive buffer.
    pub(crate) fn buffer(&self) -> u32 {
        self.buffer
    }

    /// Narrows the slice to a part. The state machine has checked that the part lies inside the
    /// slice.
    #[inline(always)]
    pub(crate) fn part(self, offset: u32, len: u32) -> Self {
        assert!(
            offset <= self.len && len <= self.len - offset,
            "the state machine names a part of the frame"
        );
        Self {
            offset: self.offset + offset as usize,
            len,
            ..self
        }
    }
}

impl Deref for RecvSlice {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        received_bytes(&self.memory, self.offset, self.len as usize)
    }
}

impl fmt::Debug for RecvSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvSlice")
            .field("offset", &self.offset)
            .field("len", &self.len)
            .finish()
    }
}
