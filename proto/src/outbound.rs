//! Outgoing large messages. The memory of each message is exposed to the peer until the peer
//! reports that it has read the message.

use std::collections::VecDeque;

use super::reason::Violation;

/// The maximum number of large messages in flight in one direction.
///
/// The number is greater than 1, so that the next messages are already announced while the receiver
/// reads one. The number is small, because the sender needs a receive for each message in flight:
/// the Grant that reports the message as *taken* arrives in this receive. See
/// [`CONTROL_RECEIVES`](crate::CONTROL_RECEIVES).
pub(crate) const LARGE_IN_FLIGHT: u32 = 4;

/// The large messages that are exposed to the peer: those that the peer has not reported as read.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
pub(super) struct Outbound {
    /// The lengths of the messages in bytes, oldest first.
    lengths: VecDeque<u64>,
    /// The total length in bytes: the sum of `lengths`.
    bytes: u64,
    /// The maximum of `bytes`. A single message may exceed this maximum.
    limit: u64,
    /// The number of large messages that the peer has reported as read, modulo 2³².
    taken: u32,
}

impl Outbound {
    pub(super) fn new(limit: u64) -> Self {
        Self {
            lengths: VecDeque::new(),
            bytes: 0,
            limit,
            taken: 0,
        }
    }

    pub(super) fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// Returns whether this side may expose another large message of `len` bytes now.
    #[inline]
    pub(super) fn has_room_for(&self, len: u64) -> bool {
        self.lengths.is_empty()
            || (self.lengths.len() < LARGE_IN_FLIGHT as usize
                && self.bytes.saturating_add(len) <= self.limit)
    }

    /// Returns the number of exposed large messages.
    #[inline]
    pub(super) fn untaken(&self) -> u32 {
        self.lengths.len() as u32
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.lengths.is_empty()
    }

    /// Records that this side exposes a large message of `len` bytes to the peer.
    pub(super) fn expose(&mut self, len: u64) {
        debug_assert!(
            self.has_room_for(len),
            "the limits must permit another message"
        );
        self.lengths.push_back(len);
        self.bytes = self.bytes.saturating_add(len);
    }

    /// Returns the total length in bytes of the exposed messages.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the number of large messages exposed since the connection was established, modulo
    /// 2³².
    pub(super) fn exposed(&self) -> u32 {
        self.taken.wrapping_add(self.lengths.len() as u32)
    }

    /// Returns whether the peer has reported the first `count` large messages of the connection as
    /// read.
    pub(super) fn has_taken(&self, count: u32) -> bool {
        // The counts wrap around. If `count` exceeds `taken`, the difference is at most
        // `LARGE_IN_FLIGHT`, the maximum number of messages in flight. A larger wrapped difference
        // `count` − `taken` therefore means that `taken` exceeds `count`.
        count.wrapping_sub(self.taken) == 0 || count.wrapping_sub(self.taken) > LARGE_IN_FLIGHT
    }

    /// Returns true if `taken` equals the number of large messages that the peer has reported as
    /// read.
    #[inline]
    pub(super) fn is_reported(&self, taken: u32) -> bool {
        self.taken == taken
    }

    /// Applies a report from the peer. `taken` is the total number of large messages that the peer
    /// has read. Returns the number of messages that the peer has read since its previous report.
    pub(super) fn apply_taken(&mut self, taken: u32) -> Result<u32, Violation> {
        let more = taken.wrapping_sub(self.taken);
        //= PROTOCOL.md#large-messages
        //# The count is in `argument` (see [Frames](#frames)), and must not decrease,
        //# nor exceed the number announced.
        if more as usize > self.lengths.len() {
            return Err(Violation::new(
                "arg",
                taken.into(),
                "no fewer large messages taken than before, and no more than were sent",
            ));
        }
        self.taken = taken;
        for len in self.lengths.drain(..more as usize) {
            self.bytes = self.bytes.saturating_sub(len);
        }
        Ok(more)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exposed_messages_are_bounded_in_number_and_bytes() {
        let mut outbound = Outbound::new(100);
        assert!(
            outbound.has_room_for(1000),
            "a single message may exceed the limit"
        );
        outbound.expose(60);
        assert!(!outbound.has_room_for(41));
        outbound.expose(10);
        outbound.expose(10);
        outbound.expose(10);
        assert!(!outbound.has_room_for(1), "the maximum number is in flight");
        assert_eq!(outbound.apply_taken(1), Ok(1));
        assert_eq!(
            outbound.apply_taken(1),
            Ok(0),
            "a repeated report changes nothing"
        );
        assert!(outbound.has_room_for(70));
        assert!(!outbound.has_room_for(71));
        assert_eq!(outbound.apply_taken(5).unwrap_err().field(), "arg");
        assert_eq!(outbound.apply_taken(0).unwrap_err().field(), "arg");
        assert_eq!(outbound.apply_taken(4), Ok(3));
        assert!(outbound.is_empty());
    }
}
