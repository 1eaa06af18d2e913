use super::{
    pdu::{Header, LONGEST_HEADER},
    socket::{Moved, Socket, Span},
};

/// A PDU, or an acknowledgement with one behind it, on its way to the socket.
#[derive(Debug)]
pub(super) struct Writing {
    pub(super) headers: Headers,
    pub(super) payload: Payload,
    /// How much of both was taken.
    pub(super) taken: usize,
    pub(super) then: Then,
}

/// What the socket's taking all of it means.
#[derive(Clone, Copy, Debug)]
pub(super) enum Then {
    Nothing,
    /// The next request is on the wire.
    RequestSent,
    /// So is a part of the oldest answer.
    AnswerPartSent,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Headers {
    pub(super) bytes: [u8; 2 * LONGEST_HEADER],
    pub(super) len: usize,
}

#[derive(Debug)]
pub(super) enum Payload {
    None,
    /// Bytes of the next request.
    Request {
        at: Span,
    },
    /// Bytes of the oldest answer, from this offset on.
    Answer {
        offset: usize,
        len: usize,
    },
}

// SAFETY: as for `Request`, of which it is a part.
#[allow(unsafe_code)]
unsafe impl Send for Payload {}

/// Sends a header and what is behind it, without the first `taken` bytes.
pub(super) fn send_behind(
    socket: &Socket,
    header: Span,
    payload: Option<Span>,
    taken: usize,
) -> Moved {
    let skip = |span: Span, taken: usize| {
        let taken = taken.min(span.len);
        Span {
            start: span.start.wrapping_add(taken),
            len: span.len - taken,
        }
    };
    let payload = payload.unwrap_or(Span {
        start: header.start,
        len: 0,
    });
    let spans = [
        skip(header, taken),
        skip(payload, taken.saturating_sub(header.len)),
    ];
    let spans = match spans {
        [Span { len: 0, .. }, _] => &spans[1..],
        [_, Span { len: 0, .. }] => &spans[..1],
        [_, _] => &spans[..],
    };
    // SAFETY: the header lies on the caller's stack; the payload is a request's, which is the
    // queue's until it completes, or exposed memory whose lock the caller holds.
    #[allow(unsafe_code)]
    unsafe {
        socket.send(spans)
    }
}

impl Payload {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Request { at } => at.len,
            Self::Answer { len, .. } => *len,
        }
    }
}

impl Default for Headers {
    fn default() -> Self {
        Self {
            bytes: [0; 2 * LONGEST_HEADER],
            len: 0,
        }
    }
}

impl Headers {
    pub(super) fn push(&mut self, header: &Header) {
        let header = header.bytes();
        self.bytes[self.len..self.len + header.len()].copy_from_slice(header);
        self.len += header.len();
    }
}
