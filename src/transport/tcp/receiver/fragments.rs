//! Fragments that are received directly into the memory of their message.
#![allow(unsafe_code)]

use super::Receiver;
use crate::transport::tcp::socket::Span;

/// The peer's message in fragments that is arriving, and the memory for its rest.
///
/// The owner of the memory takes it back as soon as all fragments have completed. So no byte may be
/// received into the memory afterwards. This holds because [`begin`](Self::begin) forgets the
/// memory when the last fragment begins, and [`place`](Self::place) ignores the memory of an
/// earlier message.
#[derive(Debug, Default)]
pub(super) struct Fragments {
    /// The number of messages whose last fragment has begun to arrive, modulo 2³².
    ended: u32,
    /// The memory for the last bytes of the current message, if it is known.
    memory: Option<Span>,
}

// SAFETY: the memory belongs to the queue pair until all fragments of the message have completed,
// and the queue pair may be used by any thread.
unsafe impl Send for Fragments {}

impl Fragments {
    /// Sets the memory for the last bytes of the message with this number. Has no effect if the
    /// last fragment of this message has already begun.
    pub(super) fn place(&mut self, number: u32, memory: Span) {
        if number == self.ended {
            self.memory = Some(memory);
        }
    }

    /// Records that a fragment of `len` bytes begins, `rest` bytes before the end of its message.
    /// Returns the memory for the fragment, or `None` if no memory is known for it.
    pub(super) fn begin(&mut self, rest: u32, len: usize) -> Option<Span> {
        let rest = rest as usize;
        let known = if len < rest {
            self.memory
        } else {
            self.ended = self.ended.wrapping_add(1);
            self.memory.take()
        };
        // The peer chose both numbers. If they are wrong, the state machine ends the connection
        // after it has received the fragment.
        let memory = known.filter(|memory| len <= rest && rest <= memory.len)?;
        Some(Span {
            start: memory.start.wrapping_add(memory.len - rest),
            len,
        })
    }

    /// Returns whether memory is known for the next fragment.
    pub(super) fn has_memory(&self) -> bool {
        self.memory.is_some()
    }

    /// Forgets the memory, which may no longer exist.
    pub(super) fn forget(&mut self) {
        self.memory = None;
    }
}

impl Receiver {
    /// Sets the memory for the rest of a message: see
    /// [`Stream::place_fragments`](crate::transport::tcp::stream::Stream::place_fragments).
    pub(in crate::transport::tcp) fn place_fragments(&mut self, number: u32, memory: Span) {
        self.fragments.place(number, memory);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a span of `len` bytes. The tests do not access the memory.
    fn memory(len: usize) -> Span {
        Span {
            start: std::ptr::without_provenance_mut(4096),
            len,
        }
    }

    fn place_of(memory: Option<Span>) -> Option<(usize, usize)> {
        memory.map(|span| (span.start.addr() - 4096, span.len))
    }

    #[test]
    fn fragments_lie_at_their_distance_from_the_end() {
        let mut fragments = Fragments::default();
        assert_eq!(place_of(fragments.begin(110, 10)), None);
        fragments.place(0, memory(100));
        assert_eq!(place_of(fragments.begin(100, 60)), Some((0, 60)));
        assert_eq!(place_of(fragments.begin(40, 40)), Some((60, 40)));
        assert_eq!(place_of(fragments.begin(40, 40)), None);
    }

    #[test]
    fn memory_of_an_ended_message_is_not_used() {
        let mut fragments = Fragments::default();
        fragments.begin(110, 10);
        fragments.begin(100, 100);
        fragments.place(0, memory(100));
        assert!(!fragments.has_memory());
        assert_eq!(place_of(fragments.begin(100, 10)), None);
        fragments.place(1, memory(90));
        assert_eq!(place_of(fragments.begin(90, 10)), Some((0, 10)));
        fragments.forget();
        assert_eq!(place_of(fragments.begin(80, 10)), None);
    }

    #[test]
    fn wrong_numbers_of_the_peer_name_no_memory() {
        for (rest, len) in [(101, 10), (u32::MAX, 100), (10, 11), (0, 1), (100, 101)] {
            let mut fragments = Fragments::default();
            fragments.place(0, memory(100));
            assert_eq!(place_of(fragments.begin(rest, len)), None, "{rest} {len}");
        }
    }
}
