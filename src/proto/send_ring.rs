//! Which slots of the send ring are the device's.
//!
//! Slots are used in turn. Most sends are unsignalled: nothing tells of their end but a later signalled one's completion, which covers
//! everything posted before it. Every so many frames one is signalled, so that the ring can never be full without a signalled
//! send in it: the distance between two signalled ones is at most a quarter of the ring, and one more frame than that can
//! always be posted.

/// Slots that are kept for control frames beside those for data, so that a grant never waits behind data: as many as there
/// can be control frames whose completion is not known, two pings, two pongs and one of each that ends a connection, and two grants. A
/// control frame that finds none waits for the next completion.
pub(crate) const CONTROL_SENDS: u32 = 9;

/// Slots that are kept for reading the peer's large messages, so that neither data nor reading waits for the other.
pub(crate) const READS: u32 = 4;

/// The ring's books.
#[derive(Debug)]
pub(super) struct SendRing {
    slots: u32,
    /// The slot that is used next.
    next: u32,
    /// The slots before `next` that are the device's.
    used: u32,
    /// Frames posted since the last signalled one.
    unsignalled: u32,
    /// So many frames at most are posted from one signalled one to the next.
    interval: u32,
    /// Bytes of payload posted since the last signalled frame.
    unsignalled_bytes: u32,
    /// Slots taken, in all.
    taken: u64,
    /// The number, among those taken, of the first slot in use that may hold data, and of the last
    /// one that does. 0: there is none.
    first_data: u64,
    last_data: u64,
}

/// A frame behind so many bytes of payload is signalled, so that a sender on a slow link sees that
/// its bytes arrive: on one of 1 Mbit/s twice a second.
const SIGNALLED_BYTES: u32 = 64 << 10;

impl SendRing {
    /// A ring with `data_slots` slots for data, and [`READS`] and [`CONTROL_SENDS`] more.
    pub(super) fn new(data_slots: u32) -> Self {
        let slots = data_slots + READS + CONTROL_SENDS;
        Self {
            slots,
            next: 0,
            used: 0,
            unsignalled: 0,
            interval: (data_slots / 4).max(1),
            unsignalled_bytes: 0,
            taken: 0,
            first_data: 0,
            last_data: 0,
        }
    }

    /// Whether there is a slot for data.
    pub(super) fn has_room_for_data(&self) -> bool {
        self.slots - self.used > READS + CONTROL_SENDS
    }

    /// Whether there is a slot for a read.
    pub(super) fn has_room_for_reads(&self) -> bool {
        self.slots - self.used > CONTROL_SENDS
    }

    /// Whether everything that was posted is known to be done.
    pub(super) fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Whether there is a slot at all.
    pub(super) fn has_room(&self) -> bool {
        self.used < self.slots
    }

    /// Takes the next slot; says which, and whether its send is to be signalled. The caller looked for room.
    pub(super) fn take(&mut self, signalled: bool) -> (u32, bool) {
        debug_assert!(self.has_room(), "the caller looked");
        let slot = self.next;
        self.next = (self.next + 1) % self.slots;
        self.used += 1;
        self.taken += 1;
        self.unsignalled += 1;
        let signalled = signalled || self.unsignalled >= self.interval;
        if signalled {
            self.unsignalled = 0;
            self.unsignalled_bytes = 0;
        }
        (slot, signalled)
    }

    /// As `take`, for a frame of the application's with so many bytes of payload.
    pub(super) fn take_data(&mut self, len: u32) -> (u32, bool) {
        self.unsignalled_bytes = self.unsignalled_bytes.saturating_add(len);
        let taken = self.take(self.unsignalled_bytes >= SIGNALLED_BYTES);
        self.holds_data();
        taken
    }

    /// Takes the next slot for a one-sided operation, which is signalled.
    pub(super) fn take_operation(&mut self) -> u32 {
        let (slot, _) = self.take(true);
        self.holds_data();
        slot
    }

    /// The slot taken last holds what the application sends.
    fn holds_data(&mut self) {
        self.last_data = self.taken;
        if self.first_data == 0 {
            self.first_data = self.taken;
        }
    }

    /// A signalled send has completed: its slot and all that were taken before it are free. Says
    /// whether some of them held data.
    pub(super) fn complete(&mut self, slot: u32) -> bool {
        let after = (self.next + self.slots - slot - 1) % self.slots;
        // A completion of a slot that is not the device's does not happen; the books stay sound all the same.
        self.used = self.used.min(after);
        let done = self.taken - u64::from(self.used);
        let data = self.first_data != 0 && self.first_data <= done;
        if data {
            self.first_data = if self.last_data > done { done + 1 } else { 0 };
        }
        data
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::proto::testing::cases;

    proptest! {
        #![proptest_config(cases(256))]

        /// Whatever is sent and whenever completions come, the ring never holds only sends of whose end nothing would tell.
        #[test]
        fn the_ring_is_never_full_of_unsignalled_sends(slots in 1_u32..40, ops in prop::collection::vec(0_u8..4, 1..400)) {
            let mut ring = SendRing::new(slots);
            let mut posted = std::collections::VecDeque::new();
            for op in ops {
                match op {
                    0 | 1 if ring.has_room_for_data() => posted.push_back(ring.take(false)),
                    2 if ring.has_room() => posted.push_back(ring.take(false)),
                    _ => {
                        if let Some(at) = posted.iter().position(|(_, signalled)| *signalled) {
                            ring.complete(posted[at].0);
                            posted.drain(..=at);
                        }
                    }
                }
                prop_assert_eq!(ring.used as usize, posted.len());
                let mut owned: Vec<_> = posted.iter().map(|(slot, _)| *slot).collect();
                owned.dedup();
                prop_assert_eq!(owned.len(), posted.len(), "no slot twice");
                if !ring.has_room_for_data() {
                    prop_assert!(posted.iter().any(|(_, signalled)| *signalled));
                }
            }
        }
    }
}
