use std::sync::Mutex;

use super::socket::Span;
use crate::{
    os::lock,
    proto::{HEADER_LEN, NextFragment},
};

/// The memory of a message into which the payload of its next fragment is received. The header of
/// the fragment is received into a posted receive, like any frame.
///
/// The owner of the memory asks for one fragment at a time. If another frame arrives instead, the
/// memory is not used.
#[derive(Debug, Default)]
pub(crate) struct Placement(Mutex<State>);

#[derive(Debug, Default)]
enum State {
    #[default]
    Unused,
    /// The memory for the payload of this fragment.
    Expected { fragment: NextFragment, to: Span },
    /// The payload of the frame in this receive buffer is received into the memory.
    Used { buffer: u32 },
}

// SAFETY: the caller of `expect` guarantees that the memory belongs to the queue pair in any
// thread.
#[allow(unsafe_code)]
unsafe impl Send for State {}

impl Placement {
    /// Offers `len` bytes of memory for the payload of a fragment, instead of any memory that was
    /// offered before and is not used. If the payload is longer, the memory is not used.
    ///
    /// # Safety
    ///
    /// The memory stays mapped, and no code accesses it, until the receive of the fragment has
    /// completed, a later frame was received, or the queue pair is destroyed.
    #[allow(unsafe_code)]
    pub(in crate::transport) unsafe fn expect(
        &self,
        fragment: NextFragment,
        start: *mut u8,
        len: usize,
    ) {
        let to = Span { start, len };
        *lock(&self.0) = State::Expected { fragment, to };
    }

    /// Returns whether memory is offered and not used yet.
    pub(super) fn is_expecting(&self) -> bool {
        matches!(*lock(&self.0), State::Expected { .. })
    }

    /// Returns the memory for the payload of a frame, and records that the frame in the receive
    /// `buffer` uses it. Returns `None` if this is not the expected fragment.
    pub(super) fn take(
        &self,
        header: &[u8; HEADER_LEN],
        payload: usize,
        buffer: u32,
    ) -> Option<Span> {
        let mut state = lock(&self.0);
        match *state {
            State::Expected { fragment, to }
                if fragment.begins(header, payload) && payload <= to.len =>
            {
                *state = State::Used { buffer };
                let start = to.start;
                Some(Span {
                    start,
                    len: payload,
                })
            }
            State::Unused | State::Expected { .. } | State::Used { .. } => None,
        }
    }

    /// Returns whether the payload of the frame in this receive buffer was received into the
    /// memory. Withdraws the memory in any case.
    pub(in crate::transport) fn finish(&self, buffer: u32) -> bool {
        let state = std::mem::take(&mut *lock(&self.0));
        matches!(state, State::Used { buffer: used } if used == buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the header of a Fragment.
    fn header(sequence: u8, len: u8) -> [u8; HEADER_LEN] {
        let mut header = [0; HEADER_LEN];
        (header[0], header[3], header[11]) = (18, sequence, len);
        header
    }

    #[test]
    #[allow(unsafe_code)]
    fn only_the_expected_fragment_uses_the_memory() {
        let mut memory = [0; 20];
        let start = memory.as_mut_ptr();
        let placement = Placement::default();
        let fragment = NextFragment::after(&header(7, 100), 60).unwrap();
        // SAFETY: no test case writes to the memory.
        let expect = || unsafe { placement.expect(fragment, start, 20) };
        let next = header(8, 40);
        assert!(placement.take(&next, 20, 3).is_none(), "nothing is offered");
        expect();
        for (header, payload) in [(header(9, 40), 20), (header(8, 41), 20), (next, 21)] {
            assert!(placement.take(&header, payload, 3).is_none(), "{payload}");
            assert!(placement.is_expecting());
        }
        let taken = placement.take(&next, 20, 3).unwrap();
        assert_eq!((taken.start, taken.len), (start, 20));
        assert!(placement.take(&next, 20, 4).is_none(), "it is used");
        assert!(placement.finish(3));
        assert!(!placement.finish(3), "each frame uses the memory once");
        expect();
        assert!(!placement.finish(3) && !placement.is_expecting());
        expect();
        placement.take(&next, 1, 5).unwrap();
        assert!(!placement.finish(4), "another frame");
    }
}
