//! Assigns the slots of the send ring.
//!
//! Slots are assigned in order. Most sends are unsignalled.
//!
//! Over RDMA, an unsignalled send has no completion of its own, but the completion of a later
//! signalled send also covers everything posted before that send. Only the completion of a
//! signalled send frees slots, so a full ring must contain a signalled send. Therefore the distance
//! between two signalled sends is at most a quarter of the number of data slots. The ring always
//! has more slots than this distance.
//!
//! Over TCP, unsignalled sends complete as well: the peer's library acknowledges all sends, mostly
//! in system calls that it makes anyway. Therefore fewer sends are signalled. The distance between
//! two signalled sends is at most half of the number of data slots. The distance is counted from
//! the newest send that was signalled or has completed.

/// The number of slots that are reserved for control frames, so that a grant never waits behind
/// data.
///
/// The slots suffice for two Pings, two Pongs, two Grants, a Finish, and one of each kind of frame
/// that ends a connection. If no slot is free, a control frame or a control message waits for the
/// next completion.
pub const CONTROL_SENDS: u32 = 10;

/// The number of slots that are reserved for reads of large messages, so that data and reads do not
/// wait for each other.
pub const READS: u32 = 4;

/// The state of the send ring.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
pub(super) struct SendRing {
    slots: u32,
    /// The index of the next slot to assign.
    next: u32,
    /// The number of slots before `next` whose sends have not completed.
    used: u32,
    /// The number of frames posted after the newest frame that was signalled or has completed.
    unsignalled: u32,
    /// The maximum distance in frames between two signalled frames.
    interval: u32,
    /// The number of bytes of payload posted after the newest signalled frame.
    unsignalled_bytes: u32,
    /// The maximum value of `unsignalled_bytes`. The frame that reaches this value is signalled. On
    /// a slow link, the completion of the frame shows the sender that bytes arrive.
    max_unsignalled: u32,
    /// The number of slots assigned since the ring was created.
    taken: u64,
    /// The assignments of slots are numbered from 1. Each slot that is in use and holds data has
    /// this assignment number or a higher one. 0 if no slot in use holds data.
    first_data: u64,
    /// The number of the newest assignment of a slot to data.
    last_data: u64,
}

impl SendRing {
    /// Creates a ring with `data_slots` slots for data, in addition to [`READS`] +
    /// [`CONTROL_SENDS`] other slots. `completes_unsignalled` is true if unsignalled sends can
    /// complete, as over TCP.
    pub(super) fn new(data_slots: u32, completes_unsignalled: bool, max_unsignalled: u32) -> Self {
        let slots = data_slots + READS + CONTROL_SENDS;
        Self {
            slots,
            next: 0,
            used: 0,
            unsignalled: 0,
            interval: (data_slots / if completes_unsignalled { 2 } else { 4 }).max(1),
            unsignalled_bytes: 0,
            max_unsignalled,
            taken: 0,
            first_data: 0,
            last_data: 0,
        }
    }

    /// Returns the number of free slots for data.
    #[inline]
    pub(super) fn room_for_data(&self) -> u32 {
        (self.slots - self.used).saturating_sub(READS + CONTROL_SENDS)
    }

    /// Returns whether a slot for data is free.
    #[inline]
    pub(super) fn has_room_for_data(&self) -> bool {
        self.slots - self.used > READS + CONTROL_SENDS
    }

    /// Returns whether a slot for a read is free.
    #[inline]
    pub(super) fn has_room_for_reads(&self) -> bool {
        self.slots - self.used > CONTROL_SENDS
    }

    /// Returns whether all posted work requests have completed.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Returns whether frames are in flight but none of them is signalled.
    pub(super) fn is_unsignalled(&self) -> bool {
        self.used > 0 && self.used == self.unsignalled
    }

    /// Returns whether a slot for a control frame is free.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.used < self.slots
    }

    /// Assigns the next slot. Returns the slot, and whether the send in the slot must be signalled.
    /// The caller must check that a slot is free.
    #[inline(always)]
    pub(super) fn take(&mut self, signalled: bool) -> (u32, bool) {
        debug_assert!(self.has_room(), "the caller must check for a free slot");
        let slot = self.next;
        self.next = if slot + 1 < self.slots { slot + 1 } else { 0 };
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

    /// Assigns the next slot to a data frame with `len` bytes of payload. Returns the slot, and
    /// whether the frame must be signalled.
    #[inline(always)]
    pub(super) fn take_data(&mut self, len: u32) -> (u32, bool) {
        self.unsignalled_bytes = self.unsignalled_bytes.saturating_add(len);
        let taken = self.take(self.unsignalled_bytes >= self.max_unsignalled);
        self.holds_data();
        taken
    }

    /// Assigns the next slot to a one-sided operation, which is always signalled.
    pub(super) fn take_operation(&mut self) -> u32 {
        let (slot, _) = self.take(true);
        self.holds_data();
        slot
    }

    /// Records that the last assigned slot holds the application's data.
    fn holds_data(&mut self) {
        self.last_data = self.taken;
        if self.first_data == 0 {
            self.first_data = self.taken;
        }
    }

    /// Frees the slot of a send that has completed, and all slots that were assigned before it.
    ///
    /// Returns true if a freed slot held data, unless `slot` was assigned after all data: such a
    /// completion may report data that arrived long ago. If no freed slot held data, the result can
    /// still be true, but only while a slot in use holds data.
    pub(super) fn complete(&mut self, slot: u32) -> bool {
        let after = (self.next + self.slots - slot - 1) % self.slots;
        // A slot that is not in use cannot complete. If a faulty device reports such a completion,
        // `min` keeps the ring consistent.
        self.used = self.used.min(after);
        self.unsignalled = self.unsignalled.min(self.used);
        let done = self.taken - u64::from(self.used);
        let data = self.first_data != 0 && self.first_data <= done;
        if data {
            self.first_data = if self.last_data > done { done + 1 } else { 0 };
        }
        data && done <= self.last_data
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::cases;

    proptest! {
        #![proptest_config(cases(256))]

        /// Checks that a full ring contains a signalled send, for random orders of sends and
        /// completions.
        #[test]
        fn the_ring_is_never_full_of_unsignalled_sends(
            slots in 1_u32..40,
            completes_unsignalled in any::<bool>(),
            ops in prop::collection::vec(0_u8..5, 1..400),
        ) {
            let mut ring = SendRing::new(slots, completes_unsignalled, 64 << 10);
            let mut posted = std::collections::VecDeque::new();
            for op in ops {
                match op {
                    0 | 1 if ring.has_room_for_data() => posted.push_back(ring.take(false)),
                    2 if ring.has_room() => posted.push_back(ring.take(false)),
                    3 if completes_unsignalled => {
                        if let Some((slot, _)) = posted.pop_front() {
                            ring.complete(slot);
                        }
                    }
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
                prop_assert_eq!(owned.len(), posted.len(), "no slot may be assigned twice");
                let has_signalled = posted.iter().any(|(_, signalled)| *signalled);
                prop_assert!(ring.has_room_for_data() || has_signalled);
                prop_assert_eq!(ring.is_unsignalled(), !(posted.is_empty() || has_signalled));
            }
        }
    }
}
