use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
};

use super::stream::Stream;
use crate::transport::queues::{BATCH, Done};

/// What a queue pair over a TCP stream has done. Polling it is what moves the stream on.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    stream: Arc<Stream>,
    batch: Vec<Done>,
    capacity: usize,
}

/// Readable as long as polling may bring something.
#[derive(Debug)]
pub(crate) struct CompletionEvents(Arc<Stream>);

impl CompletionQueue {
    pub(super) fn new(stream: Arc<Stream>, capacity: u32) -> Self {
        Self {
            stream,
            batch: Vec::with_capacity(BATCH),
            capacity: capacity as usize,
        }
    }

    pub(crate) fn poll(&mut self) -> usize {
        self.stream.poll(&mut self.batch);
        self.batch.len()
    }

    /// The completion with this number, of those that were taken last.
    pub(crate) fn done(&self, number: usize) -> Done {
        self.batch[number].clone()
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }
}

impl CompletionEvents {
    pub(super) fn new(stream: Arc<Stream>) -> Self {
        Self(stream)
    }
}

impl AsFd for CompletionEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.ready()
    }
}
