use crate::transport::memory::Registration;

/// The record of a work request on the send queue, kept until the request is done.
#[derive(Debug)]
pub(crate) enum Posted {
    /// A frame whose completion is not reported to the application.
    Frame,
    /// A message whose completion is reported to the application.
    Message,
    /// A READ of a chunk of the large message with this id, at this offset in the message.
    ReadChunk { id: u32, offset: usize },
    /// A one-sided operation.
    Operation(Operation),
}

/// A one-sided operation in flight.
#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) id: u64,
    pub(crate) kind: OperationKind,
    /// The local memory of the operation: the source of a WRITE, the target of a READ, or the
    /// memory for the result of an atomic operation. Kept until the device has completed the
    /// operation.
    pub(crate) memory: Registration,
}

/// The result of a one-sided operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Read,
    Written,
    /// The old value in the peer's memory.
    Fetched(u64),
}

/// The kind of a one-sided operation, and the location of its result.
#[derive(Debug)]
pub(crate) enum OperationKind {
    Read,
    Write,
    /// The device writes the old value to the operation's slot. When the operation is done, the
    /// value is copied to `offset` in the operation's memory. The device must not write to this
    /// memory directly, because the application and other operations may access the same bytes.
    Atomic {
        offset: usize,
        answer: SlotBytes,
    },
}

/// The first bytes of a slot of the send ring.
#[derive(Debug)]
pub(crate) struct SlotBytes {
    pub(crate) region: Registration,
    pub(crate) offset: usize,
}

/// The posted work requests, by slot of the send ring.
///
/// A completion covers all earlier work requests. But some iWARP drivers complete a send as soon as
/// TCP has accepted the bytes of the send. With these drivers, READs and atomic operations may
/// complete after later sends, because READs and atomic operations complete only when the peer's
/// device has answered them. So a READ or atomic operation is reported only when the operation
/// itself or a later READ or atomic operation has completed. Requests that were posted after the
/// operation are reported after it. As a result, all requests are reported in the order of posting.
#[derive(Debug)]
pub(crate) struct SendSlots {
    /// The slots. Empty until a request other than [`Posted::Frame`] is stored or a request fails,
    /// because most connections send only frames whose completions are not reported.
    slots: Vec<Slot>,
    /// The number of slots.
    count: u32,
    /// The oldest slot whose request is not done.
    oldest: u32,
    /// The number of consecutive slots, from `oldest` on, that completions have covered.
    covered: u32,
    /// The number of slots that contain a request other than [`Posted::Frame`].
    recorded: usize,
    /// The number of slots that contain one-sided operations.
    operations: usize,
}

#[derive(Debug)]
struct Slot {
    posted: Posted,
    /// Whether the peer's answer to the request is still outstanding.
    waits: bool,
}

impl SendSlots {
    pub(crate) fn new(count: u32) -> Self {
        Self {
            slots: Vec::new(),
            count,
            oldest: 0,
            covered: 0,
            recorded: 0,
            operations: 0,
        }
    }

    pub(crate) fn put(&mut self, slot: u32, posted: Posted) {
        self.recorded += usize::from(posted.is_recorded());
        self.operations += usize::from(posted.is_operation());
        let waits = posted.is_answered();
        self.allocate();
        self.slots[slot as usize] = Slot { posted, waits };
    }

    /// Allocates the slots at the first call.
    fn allocate(&mut self) {
        if self.slots.is_empty() {
            self.slots.resize_with(self.count as usize, || Slot {
                posted: Posted::Frame,
                waits: false,
            });
        }
    }

    /// Returns the number of one-sided operations among the recorded requests.
    pub(crate) fn operations(&self) -> usize {
        self.operations
    }

    /// If all slots contain frames whose completions are not reported, handles the completion of
    /// the request in `slot`, and returns true. Otherwise returns false, and the caller calls
    /// [`complete`](Self::complete).
    #[inline]
    pub(crate) fn complete_frames(&mut self, slot: u32) -> bool {
        let has_frames_only = self.recorded == 0 && self.covered == 0;
        if has_frames_only {
            let next = slot + 1;
            self.oldest = if next < self.count { next } else { 0 };
        }
        has_frames_only
    }

    /// Handles the completion of the request in `slot`. [`pop_done`](Self::pop_done) then returns
    /// the requests that the completion covers.
    pub(crate) fn complete(&mut self, slot: u32) {
        self.allocate();
        let ahead = self.ahead_of(slot);
        self.covered = self.covered.max(ahead + 1);
        // The peer answers requests in the order of posting, so all earlier answers have arrived
        // too.
        if self.slots[slot as usize].waits {
            for before in 0..=ahead {
                let at = self.at(before);
                self.slots[at].waits = false;
            }
        }
    }

    /// Removes the oldest request if it is done. Returns the request and its slot.
    pub(crate) fn pop_done(&mut self) -> Option<(u32, Posted)> {
        let slot = self.oldest;
        if self.covered == 0 || self.slots[slot as usize].waits {
            return None;
        }
        self.covered -= 1;
        self.oldest = self.at(1) as u32;
        Some((slot, self.take(slot)))
    }

    /// Handles the failure of the request in `slot`. Earlier requests have completed, except for
    /// those whose answers are outstanding. Requests with outstanding answers complete later, as
    /// flushed. After this call, [`pop_done`](Self::pop_done) returns the completed requests, and
    /// [`take`](Self::take) returns the failed request.
    pub(crate) fn fail(&mut self, slot: u32) {
        self.allocate();
        self.covered = self.covered.max(self.ahead_of(slot));
    }

    /// Removes and returns the request in a slot.
    pub(crate) fn take(&mut self, slot: u32) -> Posted {
        self.allocate();
        let slot = &mut self.slots[slot as usize];
        slot.waits = false;
        let posted = std::mem::replace(&mut slot.posted, Posted::Frame);
        self.recorded -= usize::from(posted.is_recorded());
        self.operations -= usize::from(posted.is_operation());
        posted
    }

    /// Returns the distance from the oldest slot to `slot`, in slots.
    fn ahead_of(&self, slot: u32) -> u32 {
        (slot + self.count - self.oldest) % self.count
    }

    /// Returns the slot that is `distance` slots after the oldest one.
    fn at(&self, distance: u32) -> usize {
        ((self.oldest + distance) % self.count) as usize
    }

    /// Returns the requests in all slots, oldest first. Free slots appear as [`Posted::Frame`]. The
    /// requests are not removed, because the device may use their memory until the queue pair is
    /// destroyed.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Posted> {
        let oldest = (self.oldest as usize).min(self.slots.len());
        let (newer, older) = self.slots.split_at(oldest);
        older.iter().chain(newer).map(|slot| &slot.posted)
    }
}

impl Posted {
    /// Returns true for all requests other than [`Posted::Frame`].
    fn is_recorded(&self) -> bool {
        match self {
            Self::Frame => false,
            Self::Message | Self::ReadChunk { .. } | Self::Operation(_) => true,
        }
    }

    fn is_operation(&self) -> bool {
        match self {
            Self::Operation(_) => true,
            Self::Frame | Self::Message | Self::ReadChunk { .. } => false,
        }
    }

    /// Returns whether the peer's device answers the request.
    fn is_answered(&self) -> bool {
        match self {
            Self::ReadChunk { .. } => true,
            Self::Operation(operation) => operation.is_answered(),
            Self::Frame | Self::Message => false,
        }
    }
}

impl Operation {
    fn is_answered(&self) -> bool {
        match self.kind {
            OperationKind::Read | OperationKind::Atomic { .. } => true,
            OperationKind::Write => false,
        }
    }

    /// Returns the result of a completed operation.
    pub(crate) fn outcome(&self) -> Outcome {
        match &self.kind {
            OperationKind::Read => Outcome::Read,
            OperationKind::Write => Outcome::Written,
            OperationKind::Atomic { offset, answer } => {
                let mut old = [0; 8];
                answer.region.copy_out(answer.offset, &mut old);
                self.memory.copy_in(*offset, &old);
                Outcome::Fetched(u64::from_ne_bytes(old))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: Posted = Posted::ReadChunk { id: 0, offset: 0 };

    fn done(slots: &mut SendSlots) -> Vec<u32> {
        std::iter::from_fn(|| slots.pop_done().map(|(slot, _)| slot)).collect()
    }

    #[test]
    fn a_completion_covers_what_was_posted_before_it() {
        let mut slots = SendSlots::new(4);
        for turn in 0..3 {
            slots.put(0, Posted::Message);
            slots.complete(1);
            assert_eq!(done(&mut slots), [0, 1], "{turn}");
            slots.complete(3);
            assert_eq!(done(&mut slots), [2, 3]);
        }
    }

    #[test]
    fn frames_complete_at_once_while_nothing_is_recorded() {
        let mut slots = SendSlots::new(4);
        assert!(slots.complete_frames(1));
        slots.put(2, Posted::Message);
        assert!(!slots.complete_frames(2));
        slots.complete(2);
        assert_eq!(done(&mut slots), [2]);
        assert!(slots.complete_frames(3));
        slots.put(1, READ);
        slots.complete(2);
        assert_eq!(done(&mut slots), [0], "slot 0 must be the oldest again");
        assert!(!slots.complete_frames(3));
    }

    #[test]
    fn late_read_completes_before_later_requests() {
        let mut slots = SendSlots::new(6);
        slots.put(1, READ);
        slots.put(3, READ);
        // The device completes the sends in slots 2 and 4 before the READs in slots 1 and 3.
        slots.complete(2);
        assert_eq!(done(&mut slots), [0]);
        slots.complete(4);
        assert!(done(&mut slots).is_empty());
        slots.complete(1);
        assert_eq!(done(&mut slots), [1, 2]);
        slots.complete(3);
        assert_eq!(done(&mut slots), [3, 4]);
        slots.complete(5);
        assert_eq!(done(&mut slots), [5]);
    }

    #[test]
    fn answer_covers_earlier_requests() {
        let mut slots = SendSlots::new(6);
        slots.put(1, READ);
        slots.put(3, READ);
        slots.complete(3);
        assert_eq!(done(&mut slots), [0, 1, 2, 3]);
    }

    #[test]
    fn later_failure_does_not_complete_pending_read() {
        let mut slots = SendSlots::new(6);
        slots.put(1, READ);
        slots.put(2, Posted::Message);
        slots.fail(2);
        assert_eq!(done(&mut slots), [0]);
        assert!(matches!(slots.take(2), Posted::Message));
        let left = slots.iter().filter(|it| it.is_answered()).count();
        assert_eq!(left, 1);
    }
}
