use std::sync::Arc;

use super::wire::{Side, Wire};
use crate::transport::queues::{BATCH, Done};

/// The completions of a queue pair whose peer is in the same process.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    wire: Arc<Wire>,
    side: Side,
    batch: Vec<Done>,
    /// Whether the last poll left completions.
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

    /// Returns the completion with this number in the last batch.
    pub(crate) fn done(&self, number: usize) -> Done {
        self.batch[number].clone()
    }

    /// Returns the buffer and the length, if this completion is that of a frame.
    pub(crate) fn frame(&self, number: usize) -> Option<(u32, u32)> {
        self.batch[number].frame()
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }
}
