//! Large messages on their way out: memory that is lent to the peer until it has read it.

use std::collections::VecDeque;

use super::reason::Violation;

/// How many large messages may be on their way in one direction. So many that the next is known to the receiver while it reads one,
/// and so few that their acknowledgements need few receives: see `credit`.
pub(crate) const LARGE_IN_FLIGHT: u32 = 4;

/// What was lent and not yet taken.
#[derive(Debug)]
pub(super) struct Outbound {
    /// The lengths in bytes, oldest first.
    lent: VecDeque<u64>,
    /// Their sum.
    bytes: u64,
    /// How many bytes may be lent at a time. One message alone may be longer.
    limit: u64,
    /// Large messages that the peer has read, in all.
    taken: u32,
}

impl Outbound {
    pub(super) fn new(limit: u64) -> Self {
        Self {
            lent: VecDeque::with_capacity(LARGE_IN_FLIGHT as usize),
            bytes: 0,
            limit,
            taken: 0,
        }
    }

    pub(super) fn has_room_for(&self, len: u64) -> bool {
        self.lent.is_empty()
            || (self.lent.len() < LARGE_IN_FLIGHT as usize
                && self.bytes.saturating_add(len) <= self.limit)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lent.is_empty()
    }

    pub(super) fn expose(&mut self, len: u64) {
        debug_assert!(self.has_room_for(len), "the caller looked");
        self.lent.push_back(len);
        self.bytes = self.bytes.saturating_add(len);
    }

    /// Bytes that are lent now.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many were lent in all.
    pub(super) fn exposed(&self) -> u32 {
        self.taken.wrapping_add(self.lent.len() as u32)
    }

    /// Whether so many of all that were lent have been taken.
    pub(super) fn has_taken(&self, count: u32) -> bool {
        // What is ahead of what was taken is on its way, and that is little.
        count.wrapping_sub(self.taken) == 0 || count.wrapping_sub(self.taken) > LARGE_IN_FLIGHT
    }

    /// Whether the peer says what it said before: it has read so many in all.
    pub(super) fn is_reported(&self, taken: u32) -> bool {
        self.taken == taken
    }

    /// The peer has read so many in all. Says how many more that is than it had said before.
    pub(super) fn apply_taken(&mut self, taken: u32) -> Result<u32, Violation> {
        let more = taken.wrapping_sub(self.taken);
        if more as usize > self.lent.len() {
            return Err(Violation::new(
                "arg",
                taken.into(),
                "no fewer large messages taken than before, and no more than were sent",
            ));
        }
        self.taken = taken;
        for len in self.lent.drain(..more as usize) {
            self.bytes = self.bytes.saturating_sub(len);
        }
        Ok(more)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lent_is_bounded_in_number_and_bytes() {
        let mut outbound = Outbound::new(100);
        assert!(outbound.has_room_for(1000), "alone it may be longer");
        outbound.expose(60);
        assert!(!outbound.has_room_for(41));
        outbound.expose(10);
        outbound.expose(10);
        outbound.expose(10);
        assert!(!outbound.has_room_for(1), "as many as there may be");
        assert_eq!(outbound.apply_taken(1), Ok(1));
        assert_eq!(outbound.apply_taken(1), Ok(0), "once more is no more");
        assert!(outbound.has_room_for(70));
        assert!(!outbound.has_room_for(71));
        assert_eq!(outbound.apply_taken(5).unwrap_err().field(), "arg");
        assert_eq!(outbound.apply_taken(0).unwrap_err().field(), "arg");
        assert_eq!(outbound.apply_taken(4), Ok(3));
        assert!(outbound.is_empty());
    }
}
