use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
};

use super::stream::{Polled, Reserved, Stream};
use crate::{
    poll::Answers,
    transport::queues::{BATCH, Done},
};

/// The completions of a queue pair over a TCP stream. Polling the queue also drives the stream.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    stream: Arc<Stream>,
    batch: Vec<Done>,
    /// The result of the latest poll.
    polled: Polled,
    capacity: usize,
}

/// The socket of the stream. It is readable while a poll may return a completion.
#[derive(Debug)]
pub(crate) struct CompletionEvents(Arc<Stream>);

impl CompletionQueue {
    pub(super) fn new(stream: Arc<Stream>, capacity: u32) -> Self {
        Self {
            stream,
            batch: Vec::with_capacity(BATCH),
            polled: Polled::All,
            capacity: capacity as usize,
        }
    }

    pub(crate) fn poll(&mut self, answers: Answers) -> usize {
        self.polled = self.stream.poll(&mut self.batch, answers);
        self.batch.len()
    }

    /// See [`Stream::answer`].
    pub(crate) fn answer(&self) {
        self.stream.answer();
    }

    pub(crate) fn has_more(&self) -> bool {
        match self.polled {
            Polled::Some => true,
            Polled::All => self.stream.has_flushes(),
            Polled::Held => false,
        }
    }

    /// Returns true if the socket was readable, but the latest poll took no bytes, because another
    /// thread was receiving.
    pub(crate) fn is_held(&self) -> bool {
        self.polled == Polled::Held
    }

    /// Returns the completion at the given index in the batch of the latest poll.
    pub(crate) fn done(&self, number: usize) -> Done {
        self.batch[number].clone()
    }

    /// Returns the buffer and the length of the frame, if the completion at the given index reports
    /// a received frame. Otherwise returns `None`.
    pub(crate) fn frame(&self, number: usize) -> Option<(u32, u32)> {
        self.batch[number].frame()
    }

    /// Returns whether the socket stays readable because the stream has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.stream.has_ended()
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }
}

impl CompletionEvents {
    pub(super) fn new(stream: Arc<Stream>) -> Self {
        Self(stream)
    }

    /// See [`Stream::answer`].
    pub(crate) fn answer(&self) {
        self.0.answer();
    }

    /// See [`Stream::reserve`].
    pub(crate) fn reserve(&self) -> Option<Reserved<'_>> {
        self.0.reserve()
    }
}

impl AsFd for CompletionEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.ready()
    }
}
