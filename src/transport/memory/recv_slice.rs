//! A part of a receive buffer.
//!
//! This module creates references to memory that the device writes. This is sound because a
//! [`RecvSlice`] is created only after the receive has completed, and no code reads the slice after
//! the buffer was reposted. [`WorkQueues`](crate::transport::queues::WorkQueues) ensures both
//! conditions.
#![allow(unsafe_code)]

use std::{fmt, ops::Deref, slice};

use super::domain::Registration;

/// Returns the bytes of a receive buffer whose receive has completed.
pub(crate) fn received_bytes(memory: &Registration, offset: usize, len: usize) -> &[u8] {
    // SAFETY: the callers checked `offset` and `len` against the layout, so the address lies inside
    // the region's allocation.
    let start = unsafe { memory.as_ptr().add(offset) };
    // SAFETY: the bytes were zeroed at allocation, and live until the region is dropped. The device
    // does not write to them, because the receive has completed, and the buffer is reposted only
    // when no code reads the slice any more (see the top of this file).
    unsafe { slice::from_raw_parts(start, len) }
}

/// A part of a receive buffer whose receive has completed.
#[derive(Clone)]
pub(crate) struct RecvSlice {
    memory: Registration,
    offset: usize,
    /// The length in bytes. A frame is far shorter than 4 GiB, so 32 bits suffice. A slice must be
    /// small, because each slot of a queue has space for a slice.
    len: u32,
    buffer: u32,
}

impl RecvSlice {
    /// Creates a slice of `len` bytes at `offset` in `memory`. The bytes must lie inside `memory`.
    /// `buffer` is the index of the receive buffer.
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
            "the part must lie inside the slice"
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
