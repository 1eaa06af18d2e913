use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use nix::sys::eventfd::EventFd;

use super::{eventfd::eventfd, lock::lock};
use crate::status::OsError;

/// A queue that one thread reads, and the eventfd that wakes it. The queue keeps the memory that it
/// once needed, so that waking the thread allocates nothing.
#[derive(Debug)]
pub(crate) struct Mailbox<T> {
    /// `None` when the reading thread has ended.
    queue: Mutex<Option<VecDeque<T>>>,
    waker: EventFd,
}

/// Asks the engine's thread to do something for one connection. It may come after the connection's
/// end, and then means nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Notice {
    /// The connection's number in its engine.
    pub(crate) key: u64,
    pub(crate) kind: NoticeKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoticeKind {
    /// Execute what the state machine has queued, and set its timer.
    Drive,
    /// The memory that the connection waits for is available, or may be.
    Feed,
    /// Threads of the application poll the completion queue: stay away until they stop.
    Polled,
    /// Something is held back: see soon whether they stop.
    Held,
    /// No thread of the application polls the completion queue any more.
    Watch,
    /// Reject the connection's request, without private data.
    Reject,
    /// Reject it because there is no listener for it any more.
    TurnAway,
}

impl<T> Mailbox<T> {
    /// # Errors
    ///
    /// When the process has no file descriptor left.
    pub(crate) fn new() -> Result<Arc<Self>, OsError> {
        Ok(Arc::new(Self {
            queue: Mutex::new(Some(VecDeque::with_capacity(64))),
            waker: eventfd()?,
        }))
    }

    /// Queues a letter and wakes the reading thread. Returns `false` if that has ended.
    pub(crate) fn send(&self, letter: T) -> bool {
        match &mut *lock(&self.queue) {
            Some(queue) => queue.push_back(letter),
            None => return false,
        }
        // It fails only when the counter is full, and then the thread is awake anyway.
        let _ = self.waker.write(1);
        true
    }

    /// Takes the next letter.
    pub(crate) fn take(&self) -> Option<T> {
        lock(&self.queue).as_mut()?.pop_front()
    }

    /// Whether the reading thread still runs.
    pub(crate) fn is_read(&self) -> bool {
        lock(&self.queue).is_some()
    }

    /// Drops all letters, these and later ones. Threads that wait for a reply learn from that that
    /// none comes.
    pub(crate) fn abandon(&self) {
        let left = lock(&self.queue).take();
        drop(left);
    }

    pub(crate) fn waker(&self) -> &EventFd {
        &self.waker
    }
}
