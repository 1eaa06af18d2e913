use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
};

use super::message::{LONGEST_COPY, Message, MessageOwner};
use crate::{os::lock_hot, transport::Charge};

/// The received bytes of a stream that no reader has taken yet.
///
/// A short message stays in its receive buffer while the reader keeps up. If unread messages occupy
/// more than half of the receive buffers, the connection copies new messages out of their buffers.
/// While a reader waits, the limit is three quarters of the buffers. Without the copies, many short
/// writes of the peer would use up the peer's credits. Copied bytes are appended to the previous
/// copy if that copy has room.
///
/// Lock order: `core`, then `queue`, then the lock of the budget.
#[derive(Debug, Default)]
pub(crate) struct Inflow {
    queue: Mutex<VecDeque<Message>>,
    /// The length of `queue`. A reader that finds 0 takes no lock.
    count: AtomicUsize,
    /// The total length in bytes of the messages in `queue` that are in receive buffers.
    buffered: AtomicUsize,
}

impl Inflow {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Returns the number of unread bytes that are in receive buffers.
    pub(super) fn buffered(&self) -> usize {
        self.buffered.load(Ordering::Relaxed)
    }

    /// Appends a message.
    pub(super) fn put(&self, message: Message) {
        let mut queue = lock_hot(&self.queue);
        self.buffered
            .fetch_add(message.buffered(), Ordering::Relaxed);
        queue.push_back(message);
        self.count(&queue);
    }

    /// Inserts `messages` at the front of the queue. They arrived before all messages in the queue.
    pub(crate) fn put_first(&self, messages: Vec<Message>) {
        let mut queue = lock_hot(&self.queue);
        for message in messages.into_iter().rev() {
            self.buffered
                .fetch_add(message.buffered(), Ordering::Relaxed);
            queue.push_front(message);
        }
        self.count(&queue);
    }

    /// Appends `bytes` to the last message if that message is a copy with enough room. Otherwise
    /// appends a new copy if `charge` grants memory for it. Returns whether the bytes were
    /// appended.
    pub(super) fn put_copy(
        &self,
        bytes: &[u8],
        charge: impl FnOnce(u64) -> Option<Charge>,
        owner: impl FnOnce() -> Arc<dyn MessageOwner>,
    ) -> bool {
        let mut queue = lock_hot(&self.queue);
        if queue.back_mut().is_some_and(|last| last.append(bytes)) {
            return true;
        }
        let len = bytes.len().max(LONGEST_COPY);
        let Some(charge) = charge(len as u64) else {
            return false;
        };
        queue.push_back(Message::copied(owner(), bytes, charge));
        self.count(&queue);
        true
    }

    /// Takes the first message.
    pub(crate) fn take(&self) -> Option<Message> {
        if self.is_empty() {
            return None;
        }
        let mut queue = lock_hot(&self.queue);
        let message = queue.pop_front()?;
        self.buffered
            .fetch_sub(message.buffered(), Ordering::Relaxed);
        self.count(&queue);
        Some(message)
    }

    /// Copies the first unread bytes without removing them from the queue. Returns the number of
    /// bytes copied.
    pub(crate) fn copy_to(&self, to: &mut [u8]) -> usize {
        let mut copied = 0;
        for message in &*lock_hot(&self.queue) {
            let count = message.len().min(to.len() - copied);
            to[copied..copied + count].copy_from_slice(&message[..count]);
            copied += count;
        }
        copied
    }

    fn count(&self, queue: &MutexGuard<'_, VecDeque<Message>>) {
        self.count.store(queue.len(), Ordering::Release);
    }
}
