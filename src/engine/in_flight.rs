use super::buffer::Buffer;
use crate::{completion::Completion, proto::CloseReason, verbs::MemoryRegion};

/// What goes with a work request on the send queue until it is done.
#[derive(Debug)]
pub(super) enum Posted {
    /// A frame of which nobody wants to know, copied into its slot.
    Frame,
    /// A message with what the application is to be told of, or that lies in a buffer of its own.
    Message {
        id: Option<u64>,
        /// Where the device finds it.
        _buffer: Option<Buffer>,
    },
    /// A piece of the peer's large message of this name, at this place in it.
    Piece { name: u32, offset: usize },
    /// A one-sided operation.
    Operation(Operation),
}

/// A one-sided operation under way.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) id: u64,
    pub(super) kind: OperationKind,
    /// Memory of this side that it reads or writes, or that its answer comes to. Held until the device is done with it.
    pub(super) memory: MemoryRegion,
}

/// What a one-sided operation does.
#[derive(Debug)]
pub(super) enum OperationKind {
    Read,
    Write,
    /// The device puts the old value into the operation's slot, from where it comes to this offset of the memory when the operation is done.
    /// In the memory itself it would not be safe: other operations name the same place, and the application may write there.
    Atomic {
        offset: usize,
        answer: SlotBytes,
    },
}

/// The first bytes of a slot of the send ring.
#[derive(Debug)]
pub(super) struct SlotBytes {
    pub(super) region: MemoryRegion,
    pub(super) offset: usize,
}

/// The work requests that the device has, by slot of the send ring.
#[derive(Debug)]
pub(super) struct InFlight {
    slots: Box<[Posted]>,
    /// The slot after the last one that is known to be done.
    oldest: u32,
    /// How many of them the application is to be told of.
    ids: usize,
}

impl InFlight {
    pub(super) fn new(slots: u32) -> Self {
        Self {
            slots: (0..slots).map(|_| Posted::Frame).collect(),
            oldest: 0,
            ids: 0,
        }
    }

    pub(super) fn put(&mut self, slot: u32, posted: Posted) {
        self.ids += usize::from(posted.id().is_some());
        self.slots[slot as usize] = posted;
    }

    /// How many of them the application is to be told of.
    pub(super) fn ids(&self) -> usize {
        self.ids
    }

    /// The device is done with everything up to and including `slot`: gives it out, oldest first.
    pub(super) fn done(&mut self, slot: u32, mut each: impl FnMut(Posted)) {
        let count = self.slots.len() as u32;
        loop {
            let at = self.oldest;
            self.oldest = (at + 1) % count;
            let posted = std::mem::replace(&mut self.slots[at as usize], Posted::Frame);
            self.ids -= usize::from(posted.id().is_some());
            each(posted);
            if at == slot {
                return;
            }
        }
    }

    /// The device is done with everything before `slot`, which has failed: gives that out, oldest first, then the failed one.
    pub(super) fn failed(&mut self, slot: u32, mut each: impl FnMut(Posted, bool)) {
        let oldest = self.oldest;
        let count = self.slots.len() as u32;
        let mut left = (slot + count - oldest) % count;
        self.done(slot, |posted| {
            each(posted, left == 0);
            left = left.saturating_sub(1);
        });
    }

    /// Nothing more comes back: gives out what was not given out before.
    pub(super) fn abandon(&mut self, mut each: impl FnMut(Posted)) {
        let count = self.slots.len() as u32;
        let last = (self.oldest + count - 1) % count;
        self.done(last, &mut each);
    }
}

impl Posted {
    /// The id by which the application is to be told.
    pub(super) fn id(&self) -> Option<u64> {
        match self {
            Self::Frame | Self::Piece { .. } => None,
            Self::Message { id, .. } => *id,
            Self::Operation(operation) => Some(operation.id),
        }
    }

    /// The device has done it: what the application is to be told.
    pub(super) fn succeed(&self) -> Option<Completion> {
        match self {
            Self::Frame | Self::Piece { .. } => None,
            Self::Message { id, .. } => id.map(Completion::Sent),
            Self::Operation(Operation { id, kind, memory }) => Some(match kind {
                OperationKind::Read => Completion::Read(*id),
                OperationKind::Write => Completion::Written(*id),
                OperationKind::Atomic { offset, answer } => {
                    let mut old = [0; 8];
                    answer.region.copy_out(answer.offset, &mut old);
                    memory.copy_in(*offset, &old);
                    Completion::Fetched {
                        id: *id,
                        value: u64::from_ne_bytes(old),
                    }
                }
            }),
        }
    }

    /// What the application is to be told of its failure.
    pub(super) fn failure(&self, reason: &CloseReason) -> Option<Completion> {
        let reason = reason.clone();
        self.id().map(|id| Completion::Failed { id, reason })
    }
}
