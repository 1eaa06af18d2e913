#![allow(unsafe_code)]

use std::{cell::Cell, ptr};

use super::{
    scratch::{Scratch, Spare},
    socket::{Moved, Socket, Span},
};
use crate::{
    proto::tcp::{Header, LONGEST_HEADER},
    transport::queues::Frame,
};

/// The size in bytes of the buffer in which short PDUs are gathered for one call.
const GATHERED: usize = 4 << 10;
/// The maximum length in bytes of a payload that is copied behind its header, because a call with
/// several memory ranges costs more than the copy.
const SHORT: usize = 1 << 10;

thread_local! {
    static SPARE: Spare = const { Cell::new(None) };
}

/// The bytes that are being written to the socket: short PDUs in order, and the payload of the last
/// PDU if it is long.
#[derive(Debug)]
pub(super) struct Writing {
    gathered: Scratch,
    len: usize,
    payload: Payload,
    then: Then,
    /// The total number of bytes of `gathered` and `payload` that the socket has taken.
    taken: usize,
}

/// The step that follows after the socket has taken all gathered bytes and the whole payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    Nothing,
    /// Count the next request as sent.
    RequestSent,
    /// Count a part of the oldest answer as sent.
    AnswerPartSent,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Payload {
    None,
    /// Bytes of the next request.
    Request {
        at: Span,
    },
    /// Bytes of the oldest answer, starting at this offset.
    Answer {
        offset: usize,
        len: usize,
    },
}

// SAFETY: the memory belongs to a `Request`. The caller that posts the request guarantees that only
// the queue uses this memory, in any thread, until the request completes.
unsafe impl Send for Payload {}

impl Writing {
    pub(super) fn new() -> Self {
        Self {
            gathered: Scratch::new(&SPARE, GATHERED),
            len: 0,
            payload: Payload::None,
            then: Then::Nothing,
            taken: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns whether there is room for two headers and a short payload.
    pub(super) fn has_room(&self) -> bool {
        matches!(self.payload, Payload::None)
            && self.len + 2 * LONGEST_HEADER + SHORT <= self.gathered.capacity()
    }

    pub(super) fn push(&mut self, header: &Header) {
        self.push_bytes(header.bytes());
    }

    fn push_bytes(&mut self, bytes: &[u8]) {
        self.gathered.take();
        self.gathered[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    /// Copies the header and payload of a short frame. Returns `false` if the frame is too long.
    ///
    /// # Safety
    ///
    /// The bytes are initialised, and do not change during the call.
    pub(super) unsafe fn push_short(&mut self, frame: Span) -> bool {
        if frame.len > SHORT {
            return false;
        }
        self.gathered.take();
        let to = &mut self.gathered[self.len..self.len + frame.len];
        // SAFETY: the caller guarantees the conditions on the frame, which does not overlap the
        // memory of this object.
        unsafe { ptr::copy_nonoverlapping(frame.start, to.as_mut_ptr(), to.len()) };
        self.len += frame.len;
        true
    }

    /// Copies the header and payload of a short frame. Returns `false` if the frame is too long.
    pub(super) fn push_short_frame(&mut self, frame: Frame<'_>) -> bool {
        if frame.len > SHORT {
            return false;
        }
        self.push_bytes(frame.header);
        for part in frame.payload {
            self.push_bytes(part);
        }
        true
    }

    /// Sets the payload that follows the last gathered header. The caller must not add further
    /// bytes before it calls [`clear`](Self::clear).
    pub(super) fn put(&mut self, payload: Payload, then: Then) {
        self.payload = payload;
        self.then = then;
    }

    pub(super) fn payload(&self) -> Payload {
        self.payload
    }

    pub(super) fn then(&self) -> Then {
        self.then
    }

    pub(super) fn clear(&mut self) {
        self.gathered.put_back();
        self.len = 0;
        self.payload = Payload::None;
        self.then = Then::Nothing;
        self.taken = 0;
    }

    /// Sends the remaining bytes of the gathered PDUs and of `payload`. `more` tells the socket
    /// whether further bytes follow immediately.
    ///
    /// # Safety
    ///
    /// The payload is mapped memory, which may change during the call.
    pub(super) unsafe fn send(
        &mut self,
        socket: &Socket,
        payload: Option<Span>,
        more: bool,
    ) -> Moved {
        let gathered = Span {
            start: self.gathered.as_mut_ptr(),
            len: self.len,
        };
        let skip = |span: Span, taken: usize| {
            let taken = taken.min(span.len);
            Span {
                start: span.start.wrapping_add(taken),
                len: span.len - taken,
            }
        };
        let head = skip(gathered, self.taken);
        let moved = match payload.map(|at| skip(at, self.taken_of_payload())) {
            // SAFETY: this object owns the gathered bytes, and the caller guarantees the conditions
            // on the payload.
            None => unsafe { socket.send(&[head], more) },
            // SAFETY: as above.
            Some(rest) if head.len == 0 => unsafe { socket.send(&[rest], more) },
            // SAFETY: as above.
            Some(rest) => unsafe { socket.send(&[head, rest], more) },
        };
        if let Moved::Some(count) = moved {
            self.taken += count;
        }
        moved
    }

    /// Sends the gathered bytes and a frame with at most one payload part.
    pub(super) fn send_frame(&mut self, socket: &Socket, frame: Frame<'_>) -> Moved {
        let span = |bytes: &[u8]| Span {
            start: bytes.as_ptr().cast_mut(),
            len: bytes.len(),
        };
        let gathered = span(&self.gathered[..self.len]);
        let payload = frame.payload.first().map_or(&[][..], |part| part);
        let parts = [gathered, span(frame.header), span(payload)];
        // SAFETY: the parts are borrowed during the call, which only reads them.
        let moved = unsafe { socket.send(&parts, false) };
        if let Moved::Some(count) = moved {
            self.taken += count;
        }
        moved
    }

    /// Sends the gathered bytes, and then the frames, each preceded by its PDU header. Returns the
    /// number of bytes of the frames and their PDU headers that the socket has taken. If this
    /// number is not 0, all gathered bytes were sent.
    pub(super) fn send_frames(
        &mut self,
        socket: &Socket,
        frames: &[(Header, Frame<'_>)],
    ) -> (usize, Moved) {
        let span = |bytes: &[u8]| Span {
            start: bytes.as_ptr().cast_mut(),
            len: bytes.len(),
        };
        let mut parts = Vec::with_capacity(1 + 3 * frames.len());
        parts.push(span(&self.gathered[..self.len]));
        for (header, frame) in frames {
            parts.extend([span(header.bytes()), span(frame.header)]);
            parts.extend(frame.payload.iter().map(|part| span(part)));
        }
        // SAFETY: the parts are borrowed during the call, which only reads them.
        let moved = unsafe { socket.send_many(&parts) };
        let count = match moved {
            Moved::Some(count) => count,
            Moved::Blocked | Moved::Ended => 0,
        };
        if count < self.len {
            self.taken = count;
            return (0, moved);
        }
        let taken = count - self.len;
        self.clear();
        (taken, moved)
    }

    /// Continues to write a PDU header and its payload after the socket has taken their first
    /// `taken` bytes.
    pub(super) fn resume(&mut self, header: &Header, at: Span, taken: usize) {
        self.push(header);
        self.put(Payload::Request { at }, Then::RequestSent);
        self.taken = taken;
    }

    /// Returns the number of bytes of the payload that the socket has taken.
    pub(super) fn taken_of_payload(&self) -> usize {
        self.taken.saturating_sub(self.len)
    }

    /// Returns true if the socket has taken all gathered bytes and the whole payload.
    pub(super) fn is_taken(&self) -> bool {
        self.taken == self.len + self.payload.len()
    }
}

impl Payload {
    fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Request { at } => at.len,
            Self::Answer { len, .. } => *len,
        }
    }
}
