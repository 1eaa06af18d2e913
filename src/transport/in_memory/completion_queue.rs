use std::sync::Arc;

use super::wire::{Side, Wire};
use crate::transport::queues::{BATCH, Done};

/// The completions of a queue pair whose peer is in the same process.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    wire: Arc<Wire>,
    side: Side,
    batch: Vec<Done>,
    /// Whether completions remained in the queue after the last poll.
    has_more: bool,
    capacity: usize,
}

impl CompletionQueue {
    pub(super) fn new(wire: Arc<Wire>, side: Side, capacity: u32) -> Self {
        Self {
            wire,
            side,
            batch: Vec::with_capacity(BATCH),
            has_more: false,
            capacity: capacity as usize,
        }
    }

    pub(crate) fn poll(&mut self) -> usize {
        self.has_more = self.wire.poll(self.side, &mut self.batch);
        self.batch.len()
    }

    pub(crate) fn has_more(&self) -> bool {
        self.has_more
    }

    /// Returns the completion at this index in the batch of the last poll.
    pub(crate) fn done(&self, index: usize) -> Done {
        self.batch[index].clone()
    }

    /// If the completion at this index reports a received frame, returns the frame's buffer and
    /// length. Otherwise returns `None`.
    pub(crate) fn frame(&self, index: usize) -> Option<(u32, u32)> {
        self.batch[index].frame()
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }
}
