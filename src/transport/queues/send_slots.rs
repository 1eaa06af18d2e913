use crate::transport::memory::Registration;

/// What goes with a work request on the send queue until it is done.
#[derive(Debug)]
pub(crate) enum Posted {
    /// A frame of which nobody wants to know.
    Frame,
    /// A message whose end is reported.
    Message,
    /// A read of a chunk of the peer's large message of this id, at this offset in it.
    ReadChunk { id: u32, offset: usize },
    /// A one-sided operation.
    Operation(Operation),
}

/// A one-sided operation in flight.
#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) id: u64,
    pub(crate) kind: OperationKind,
    /// Memory of this side that it reads or writes, or that its answer comes to. Held until the
    /// device is done with it.
    pub(crate) memory: Registration,
}

/// What a one-sided operation came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Read,
    Written,
    /// What the peer's memory held before.
    Fetched(u64),
}

/// What a one-sided operation does.
#[derive(Debug)]
pub(crate) enum OperationKind {
    Read,
    Write,
    /// The device puts the old value into the operation's slot, from where it comes to this offset
    /// of the memory when the operation is done. In the memory itself it would not be safe: other
    /// operations name the same place, and the application may write there.
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

/// The work requests that the device has, by slot of the send ring.
#[derive(Debug)]
pub(crate) struct SendSlots {
    slots: Box<[Posted]>,
    /// The slot after the last one that is known to be done.
    oldest: u32,
    /// How many of them are one-sided operations.
    operations: usize,
}

impl SendSlots {
    pub(crate) fn new(slots: u32) -> Self {
        Self {
            slots: (0..slots).map(|_| Posted::Frame).collect(),
            oldest: 0,
            operations: 0,
        }
    }

    pub(crate) fn put(&mut self, slot: u32, posted: Posted) {
        self.operations += usize::from(posted.is_operation());
        self.slots[slot as usize] = posted;
    }

    /// How many of them are one-sided operations.
    pub(crate) fn operations(&self) -> usize {
        self.operations
    }

    /// The device is done with everything up to and including `slot`: gives it out, oldest first.
    pub(crate) fn done(&mut self, slot: u32, mut each: impl FnMut(Posted)) {
        let count = self.slots.len() as u32;
        loop {
            let at = self.oldest;
            self.oldest = (at + 1) % count;
            let posted = std::mem::replace(&mut self.slots[at as usize], Posted::Frame);
            self.operations -= usize::from(posted.is_operation());
            each(posted);
            if at == slot {
                return;
            }
        }
    }

    /// The device is done with everything before `slot`, which has failed: gives that out, oldest
    /// first, then the failed one.
    pub(crate) fn failed(&mut self, slot: u32, mut each: impl FnMut(Posted, bool)) {
        let oldest = self.oldest;
        let count = self.slots.len() as u32;
        let mut left = (slot + count - oldest) % count;
        self.done(slot, |posted| {
            each(posted, left == 0);
            left = left.saturating_sub(1);
        });
    }

    /// All that the device has, oldest first. It stays: until its queue pair is destroyed the
    /// device may still use what goes with it.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Posted> {
        let (newer, older) = self.slots.split_at(self.oldest as usize);
        older.iter().chain(newer)
    }
}

impl Posted {
    fn is_operation(&self) -> bool {
        match self {
            Self::Operation(_) => true,
            Self::Frame | Self::Message | Self::ReadChunk { .. } => false,
        }
    }
}

impl Operation {
    /// The device has done it: returns what it came to.
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
