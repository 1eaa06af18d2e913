#![allow(unsafe_code)]

use std::ptr::{self, NonNull};

use super::{keys::ExposedPart, receive_queue::Receive, socket::Span};
use crate::os::SharedBytes;

/// The payload of the current PDU, and its destination.
#[derive(Debug)]
pub(super) struct IncomingPayload {
    pub(super) left: usize,
    pub(super) to: Place,
}

#[derive(Debug)]
pub(super) enum Place {
    /// A receive buffer.
    Receive {
        receive: Receive,
        len: u32,
        signalled: bool,
    },
    /// The memory of a message, for the payload of a frame with a fragment. The frame's header is
    /// already in the receive buffer.
    Fragment {
        receive: Receive,
        to: Span,
        signalled: bool,
    },
    /// A part of a WRITE to this side's memory.
    Exposed {
        part: Option<ExposedPart>,
        /// The total length in bytes of this part and of all earlier parts of the WRITE.
        written: u32,
        last: bool,
        signalled: bool,
        /// The receive that the immediate data consumed, and the immediate data. Set only for the
        /// last part of a WRITE with immediate data.
        imm: Option<(Receive, u32)>,
    },
    /// The target memory of a READ that this side has posted.
    Answer { to: Span, len: u32, last: bool },
}

// SAFETY: `to` points to memory of a work request or of a fragment. Until the request or the
// receive of the fragment completes, this memory belongs to the queue pair and not to one thread.
unsafe impl Send for Place {}

impl IncomingPayload {
    /// Returns whether the destination still exists.
    pub(super) fn is_open(&self) -> bool {
        match &self.to {
            Place::Exposed {
                part: Some(part), ..
            } => part.start().is_some(),
            Place::Exposed { part: None, .. }
            | Place::Receive { .. }
            | Place::Fragment { .. }
            | Place::Answer { .. } => true,
        }
    }

    /// Calls `f` with the part of the destination that is still unfilled. The memory stays mapped
    /// during the call. If the destination no longer exists, calls `f` with `None`.
    pub(super) fn with_rest<T>(&self, f: impl FnOnce(Option<Span>) -> T) -> T {
        let rest = |start: *mut u8, len: usize| Span {
            start: start.wrapping_add(len - self.left),
            len: self.left,
        };
        match &self.to {
            Place::Receive { receive, len, .. } => f(Some(rest(receive.to.start, *len as usize))),
            Place::Fragment { to, .. } | Place::Answer { to, .. } => {
                f(Some(rest(to.start, to.len)))
            }
            Place::Exposed {
                part: Some(part), ..
            } => match part.start() {
                Some(start) => f(Some(rest(start.get().as_ptr(), part.len()))),
                None => f(None),
            },
            Place::Exposed { part: None, .. } => f(Some(Span {
                start: NonNull::dangling().as_ptr(),
                len: 0,
            })),
        }
    }

    /// Copies bytes to the destination, if the destination still exists.
    pub(super) fn copy(&self, bytes: &[u8]) {
        self.with_rest(|rest| {
            if let Some(rest) = rest {
                let count = bytes.len().min(rest.len);
                let bytes = &bytes[..count];
                if let Place::Receive { .. } | Place::Fragment { .. } = self.to {
                    // SAFETY: only the queue pair accesses the memory of the receive or of the
                    // message until the receive completes.
                    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), rest.start, count) };
                } else {
                    // SAFETY: the destination is either memory of a work request, which belongs to
                    // the queue pair until the request completes, or exposed memory, whose lock is
                    // held.
                    unsafe { copy_shared(bytes, rest.start) };
                }
            }
        });
    }
}

/// Copies bytes to memory that other threads may read at the same time.
///
/// # Safety
///
/// `to` points to `bytes.len()` bytes in the mapped pages of a [`Mapping`](crate::os::Mapping), and
/// there is no reference to these bytes.
pub(super) unsafe fn copy_shared(bytes: &[u8], to: *mut u8) {
    // Accesses whole words, as the memory's owner does, because all `SharedBytes` for the same
    // memory must use the same word boundaries.
    let before = to.addr() % size_of::<u64>();
    let len = (before + bytes.len()).next_multiple_of(size_of::<u64>());
    let Some(start) = NonNull::new(to.wrapping_sub(before)) else {
        return;
    };
    // SAFETY: the words lie in the mapped pages that the caller guarantees.
    let words = unsafe { SharedBytes::new(start, len) };
    words.write(before, bytes);
}
