//! Assigns the slots of the send ring.
//!
//! Slots are assigned in order. A slot is a part of the memory for sends, and a place in the send
//! queue. A frame takes consecutive slots whose memory suffices for it, and is named by the last
//! one. So the same memory is in use by a few long frames, or by several times that number of short
//! ones. Each work request takes at least one slot, so the send queue never overflows.
//!
//! Most sends are unsignalled: they have no completion of their own, but the completion of a later
//! signalled send also covers everything posted before it. Only a completion frees slots.
//! Therefore, if the ring has no room for a frame of the maximum length, it must contain a
//! signalled send. The unsignalled sends behind the last signalled one take fewer slots than
//! `interval`, and `interval` - 1 data slots and those of a longest frame are at most all data
//! slots. So without a signalled send the frame has room. Control frames are always signalled, and
//! have slots of their own.
//!
//! Two signalled sends are at most a quarter of the data slots apart. Over TCP, the peer's library
//! acknowledges sends, mostly in system calls that it makes anyway, and unsignalled sends complete
//! as well. The distance is therefore half of the number of data slots, and a completed send counts
//! like a signalled one.

use super::{frame::HEADER_LEN, params::Params};

/// The number of slots that are reserved for control frames, so that a grant never waits behind
/// data. Each of these frames takes one slot.
///
/// This is the maximum number of control frames that have not been reported as completed: two
/// Pings, two Pongs, two Grants, a Finish, and one of each kind of frame that ends a connection. If
/// no slot is free, a control frame waits for the next completion.
pub const CONTROL_SENDS: u32 = 10;

/// The number of slots that are reserved for reads of large messages, so that data and reads do not
/// wait for each other.
pub const READS: u32 = 4;

/// The alignment of buffers in bytes, so that no two buffers share a cache line.
const ALIGN: u32 = 64;

/// The minimum length in bytes of a slot that is a part of a buffer. Such a slot has room for each
/// control message.
const SHORTEST_PART: u32 = 1 << 10;

/// The maximum number of slots into which a buffer is divided, and of the slots of all divided
/// buffers. A deeper send queue costs memory of the driver: about 512 B for each work request of
/// software RoCE.
const MOST_PARTS: u32 = 4;
const MOST_SLOTS: u32 = 256;

/// Returns the length in bytes of a buffer for a frame with up to `eager_size` bytes of payload.
pub const fn buffer_len(eager_size: u32) -> u32 {
    (HEADER_LEN as u32 + eager_size).next_multiple_of(ALIGN)
}

/// Divides each of `depth` buffers for frames with up to `eager_size` bytes of payload into several
/// slots, so that more short frames can be in flight. Returns the number of slots and their length
/// in bytes.
pub fn divided_slots(depth: u16, eager_size: u32) -> (u32, u32) {
    let (depth, whole) = (u32::from(depth), buffer_len(eager_size));
    let most = MOST_PARTS.min(MOST_SLOTS / depth);
    let parts = most.min(whole / SHORTEST_PART).max(1);
    (depth * parts, whole.div_ceil(parts).next_multiple_of(ALIGN))
}

/// The state of the send ring.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
pub(super) struct SendRing {
    slots: u32,
    /// The length in bytes of the memory of a slot.
    slot_len: u32,
    /// The number of slots of a frame of the maximum length.
    longest: u32,
    /// The index of the next slot to assign.
    next: u32,
    /// The number of slots before `next` whose sends have not completed.
    used: u32,
    /// The number of slots assigned since the last frame that was signalled or has completed.
    unsignalled: u32,
    /// The maximum distance in slots between two signalled frames.
    interval: u32,
    /// The number of bytes of payload posted since the last signalled frame.
    unsignalled_bytes: u32,
    /// The maximum value of `unsignalled_bytes`. The frame that reaches this value is signalled. On
    /// a slow link, its completion shows the sender that the bytes arrive.
    max_unsignalled: u32,
    /// The number of slots assigned since the ring was created.
    taken: u64,
    /// The number of the last slot of the first frame in use that can hold data, or 0 if no slot in
    /// use holds data. Slots are numbered from 1 in the order in which they are assigned.
    first_data: u64,
    /// The number of the last slot that was assigned to data.
    last_data: u64,
}

impl SendRing {
    /// Creates a ring with the data slots of `params`, in addition to [`READS`] + [`CONTROL_SENDS`]
    /// other slots.
    pub(super) fn new(params: &Params) -> Self {
        let slot_len = params.slot_len;
        let longest = slots_for(params.eager_size, slot_len);
        let data = params.send_slots;
        let part = data / if params.completes_unsignalled { 2 } else { 4 };
        Self {
            slots: params.ring_slots(),
            slot_len,
            longest,
            next: 0,
            used: 0,
            unsignalled: 0,
            interval: part.min((data + 1).saturating_sub(longest)).max(1),
            unsignalled_bytes: 0,
            max_unsignalled: params.max_unsignalled,
            taken: 0,
            first_data: 0,
            last_data: 0,
        }
    }

    /// Returns the number of slots for a frame with `len` bytes of payload.
    #[inline(always)]
    pub(super) fn slots_for(&self, len: u32) -> u32 {
        slots_for(len, self.slot_len)
    }

    /// Returns the number of slots for a frame of the maximum length. A one-sided operation takes
    /// the same number.
    #[inline]
    pub(super) fn longest(&self) -> u32 {
        self.longest
    }

    /// Returns whether `count` slots for data are free.
    #[inline(always)]
    pub(super) fn has_room_for_data(&self, count: u32) -> bool {
        self.slots - self.used >= READS + CONTROL_SENDS + count
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

    /// Returns whether `count` slots for a control frame are free.
    #[inline]
    pub(super) fn has_room(&self, count: u32) -> bool {
        self.slots - self.used >= count
    }

    /// Assigns the next `count` slots. Returns the last one, and whether the send in these slots
    /// must be signalled. The caller has checked that the slots are free.
    #[inline(always)]
    pub(super) fn take(&mut self, count: u32, signalled: bool) -> (u32, bool) {
        debug_assert!(self.has_room(count), "the caller checked");
        let behind = self.next + count;
        let behind = if behind > self.slots {
            behind - self.slots
        } else {
            behind
        };
        self.next = if behind < self.slots { behind } else { 0 };
        self.used += count;
        self.taken += u64::from(count);
        self.unsignalled += count;
        let signalled = signalled || self.unsignalled >= self.interval;
        if signalled {
            self.unsignalled = 0;
            self.unsignalled_bytes = 0;
        }
        (behind - 1, signalled)
    }

    /// Assigns slots to a control frame with `len` bytes of payload, which is always signalled.
    pub(super) fn take_control(&mut self, len: u32) -> (u32, bool) {
        self.take(self.slots_for(len), true)
    }

    /// Assigns slots to a data frame with `len` bytes of payload. Returns the last slot, and
    /// whether the frame must be signalled.
    #[inline(always)]
    pub(super) fn take_data(&mut self, len: u32) -> (u32, bool) {
        self.unsignalled_bytes = self.unsignalled_bytes.saturating_add(len);
        let is_due = self.unsignalled_bytes >= self.max_unsignalled;
        let taken = self.take(self.slots_for(len), is_due);
        self.holds_data();
        taken
    }

    /// Assigns the slots of a longest frame to a one-sided operation, which is always signalled.
    pub(super) fn take_operation(&mut self) -> u32 {
        let (slot, _) = self.take(self.longest, true);
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

    /// Frees the slots of a send that has completed, and all slots that were assigned before them.
    /// Returns whether any freed slot held data. `slot` is the last slot of the send.
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
        data
    }
}

/// Returns the number of slots of `slot_len` bytes for a frame with `len` bytes of payload.
#[inline(always)]
fn slots_for(len: u32, slot_len: u32) -> u32 {
    let len = HEADER_LEN as u32 + len;
    if len <= slot_len {
        1
    } else {
        len.div_ceil(slot_len)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{connection::tests::params, testing::cases};

    #[test]
    fn buffers_are_divided_within_the_bounds() {
        // The default: a message of 4 KiB takes one slot, because a slot has room for the header.
        assert_eq!(divided_slots(16, 16 << 10), (64, 4160));
        assert_eq!(slots_for(4 << 10, 4160), 1);
        assert_eq!(slots_for(16 << 10, 4160), 4);
        // Short buffers and many buffers are not divided.
        assert_eq!(divided_slots(8, 1 << 10), (8, 1088));
        assert_eq!(divided_slots(129, 16 << 10), (129, 16_448));
        assert_eq!(divided_slots(8192, 1 << 20), (8192, (1 << 20) + 64));
        for (depth, eager_size) in [(1, 64), (3, 3000), (100, 5000), (64, 1 << 20)] {
            let (slots, slot_len) = divided_slots(depth, eager_size);
            assert!(slots >= u32::from(depth) * slots_for(eager_size, slot_len));
            assert!(slots <= MOST_SLOTS.max(u32::from(depth)));
        }
    }

    proptest! {
        #![proptest_config(cases(256))]

        /// Checks for random orders of sends and completions that no slot has two owners, and that
        /// a ring without room for the longest frame contains a signalled send.
        #[test]
        fn the_ring_is_never_full_of_unsignalled_sends(
            frames in 1_u32..20,
            parts in 1_u32..6,
            completes_unsignalled in any::<bool>(),
            ops in prop::collection::vec((0_u8..5, 0_u32..=64), 1..400),
        ) {
            let slot_len = (HEADER_LEN as u32 + 64).div_ceil(parts);
            let longest = slots_for(64, slot_len);
            let mut ring = SendRing::new(&Params {
                send_slots: frames * longest,
                slot_len,
                completes_unsignalled,
                ..params()
            });
            prop_assert_eq!(ring.longest(), longest);
            let mut posted = std::collections::VecDeque::new();
            for (op, len) in ops {
                let count = ring.slots_for(len);
                match op {
                    0 | 1 if ring.has_room_for_data(count) => {
                        posted.push_back((ring.take_data(len), count));
                    }
                    2 if ring.has_room(count) => posted.push_back((ring.take(count, true), count)),
                    3 if completes_unsignalled => {
                        if let Some(((slot, _), _)) = posted.pop_front() {
                            ring.complete(slot);
                        }
                    }
                    _ => {
                        if let Some(at) = posted.iter().position(|((_, signalled), _)| *signalled) {
                            ring.complete(posted[at].0.0);
                            posted.drain(..=at);
                        }
                    }
                }
                let used: u32 = posted.iter().map(|(_, count)| count).sum();
                prop_assert_eq!(ring.used, used);
                prop_assert!(used <= ring.slots);
                let mut first = (ring.next + ring.slots - used % ring.slots) % ring.slots;
                for ((slot, _), count) in &posted {
                    first = (first + count) % ring.slots;
                    prop_assert_eq!((slot + 1) % ring.slots, first, "the slots are consecutive");
                }
                let has_signalled = posted.iter().any(|((_, signalled), _)| *signalled);
                prop_assert!(ring.has_room_for_data(longest) || has_signalled);
                prop_assert_eq!(ring.is_unsignalled(), !(posted.is_empty() || has_signalled));
            }
        }
    }
}
