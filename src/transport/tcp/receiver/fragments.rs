//! Fragments that are received directly into the memory of their message.
#![allow(unsafe_code)]

use std::sync::Mutex;

use crate::{os::lock, transport::tcp::socket::Span};

/// The memory for the rest of a message in fragments. The thread that handles the first fragment
/// sets it, possibly while another thread is receiving.
///
/// The owner of the memory takes it back as soon as all fragments have completed. So no byte may be
/// received into the memory afterwards. This holds because the memory is forgotten when the last
/// fragment [begins](Fragments::begin), and the memory of an earlier message is not used.
#[derive(Debug, Default)]
pub(in crate::transport::tcp) struct Placement(Mutex<Option<Rest>>);

#[derive(Clone, Copy, Debug)]
struct Rest {
    /// The number of messages in fragments that began before this message, modulo 2³².
    number: u32,
    memory: Span,
}

// SAFETY: the memory belongs to the queue pair until all fragments of the message have completed,
// and the queue pair may be used by any thread.
unsafe impl Send for Rest {}

impl Placement {
    /// Sets the memory for the last bytes of the message with this number.
    pub(in crate::transport::tcp) fn set(&self, number: u32, memory: Span) {
        *lock(&self.0) = Some(Rest { number, memory });
    }

    /// Forgets the memory, which may no longer exist.
    pub(in crate::transport::tcp) fn forget(&self) {
        *lock(&self.0) = None;
    }

    /// Returns the memory for the last bytes of the message with this number, if it is known.
    fn of(&self, number: u32) -> Option<Span> {
        lock(&self.0)
            .filter(|rest| rest.number == number)
            .map(|rest| rest.memory)
    }
}

/// The peer's message in fragments that is arriving.
#[derive(Debug, Default)]
pub(super) struct Fragments {
    /// The number of messages whose last fragment has begun to arrive, modulo 2³².
    ended: u32,
    next: Next,
}

/// The expected next fragment.
#[derive(Clone, Copy, Debug, Default)]
enum Next {
    /// The first fragment of a message.
    #[default]
    First,
    /// A further fragment, which begins this number of bytes before the end of its message.
    Further(u32),
    /// None: the peer has violated the protocol. The state machine ends the connection after it has
    /// received the fragments.
    Nothing,
}

impl Fragments {
    /// Records that a fragment of `len` bytes begins, `rest` bytes before the end of its message.
    /// Returns the memory for the fragment, or `None` if no memory is known for it.
    ///
    /// The peer chose both numbers. No two fragments get the same memory, and no fragment gets
    /// memory for which an earlier fragment has arrived elsewhere.
    pub(super) fn begin(&mut self, rest: u32, len: usize, placement: &Placement) -> Option<Span> {
        let follows = match self.next {
            Next::First => true,
            Next::Further(expected) => rest == expected,
            Next::Nothing => false,
        };
        let left = (rest as usize).checked_sub(len);
        let Some(left) = left.filter(|_| follows && len > 0) else {
            self.next = Next::Nothing;
            return None;
        };
        let known = placement.of(self.ended);
        if left == 0 {
            self.next = Next::First;
            self.ended = self.ended.wrapping_add(1);
            placement.forget();
        } else {
            // The cast is lossless, because the number is at most `rest`.
            self.next = Next::Further(left as u32);
        }
        let memory = known?;
        let start = memory.len.checked_sub(rest as usize)?;
        Some(Span {
            start: memory.start.wrapping_add(start),
            len,
        })
    }

    /// Returns whether memory is known for the next fragment.
    pub(super) fn has_memory(&self, placement: &Placement) -> bool {
        placement.of(self.ended).is_some()
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

    /// Begins fragments, each given by its distance from the end of the message and its length.
    /// Returns the offset and the length of the memory for the last one.
    fn begin(
        fragments: &mut Fragments,
        placement: &Placement,
        all: &[(u32, usize)],
    ) -> Option<(usize, usize)> {
        let places = all
            .iter()
            .map(|&(rest, len)| fragments.begin(rest, len, placement));
        places
            .last()
            .flatten()
            .map(|span| (span.start.addr() - 4096, span.len))
    }

    #[test]
    fn fragments_lie_at_their_distance_from_the_end() {
        let (mut fragments, placement) = (Fragments::default(), Placement::default());
        let mut begin = |rest, len| begin(&mut fragments, &placement, &[(rest, len)]);
        assert_eq!(begin(110, 10), None);
        placement.set(0, memory(100));
        assert_eq!(begin(100, 60), Some((0, 60)));
        assert_eq!(begin(40, 40), Some((60, 40)));
        assert_eq!(begin(40, 40), None);
    }

    #[test]
    fn memory_of_an_ended_message_is_not_used() {
        let (mut fragments, placement) = (Fragments::default(), Placement::default());
        begin(&mut fragments, &placement, &[(110, 10), (100, 100)]);
        placement.set(0, memory(100));
        assert!(!fragments.has_memory(&placement));
        let mut begin = |rest, len| begin(&mut fragments, &placement, &[(rest, len)]);
        assert_eq!(begin(100, 10), None);
        placement.set(1, memory(90));
        assert_eq!(begin(90, 10), Some((0, 10)));
        placement.forget();
        assert_eq!(begin(80, 10), None);
    }

    #[test]
    fn wrong_numbers_of_the_peer_name_no_memory() {
        let first = (110, 10);
        let cases: [&[(u32, usize)]; 9] = [
            &[first, (101, 10)],
            &[first, (u32::MAX, 100)],
            &[first, (10, 11)],
            &[first, (99, 10)],
            &[first, (100, 0)],
            &[first, (100, 101)],
            &[first, (100, 60), (100, 10)],
            &[first, (100, 60), (100, 60), (40, 10)],
            &[(10, 11), (100, 10)],
        ];
        for all in cases {
            let (mut fragments, placement) = (Fragments::default(), Placement::default());
            placement.set(0, memory(100));
            assert_eq!(begin(&mut fragments, &placement, all), None, "{all:?}");
        }
    }

    #[test]
    fn fragments_that_arrived_elsewhere_keep_their_memory() {
        let (mut fragments, placement) = (Fragments::default(), Placement::default());
        begin(&mut fragments, &placement, &[(110, 10), (100, 60)]);
        placement.set(0, memory(100));
        let again = begin(&mut fragments, &placement, &[(100, 60)]);
        assert_eq!(again, None, "the bytes are still copied to this memory");
    }
}
