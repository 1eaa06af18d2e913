use std::{
    collections::VecDeque,
    mem,
    sync::{Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use tokio::sync::Notify;

/// The limits of a subscriber's queue.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "these are all")]
pub struct QueueLimits {
    /// The maximum number of messages, at least one.
    pub messages: usize,
    /// The maximum number of bytes. An empty queue accepts even a message that exceeds this limit.
    pub bytes: usize,
}

/// The pending messages of one subscriber. When a new message would exceed a limit, the queue drops
/// its oldest messages.
#[derive(Debug)]
pub struct Queue {
    limits: QueueLimits,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    messages: VecDeque<Bytes>,
    bytes: usize,
    missed: u64,
    has_ended: bool,
}

/// The next item of a subscriber's queue.
#[derive(Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "callers handle each of them")]
pub enum Next {
    /// The number of messages dropped since the previous item.
    Missed(u64),
    /// The oldest message in the queue.
    Message(Bytes),
    /// The queue is empty and has ended.
    End,
}

impl Queue {
    /// Creates an empty queue.
    #[must_use]
    pub fn new(limits: QueueLimits) -> Self {
        Self {
            limits,
            state: Mutex::default(),
            changed: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The state is consistent even if a thread panicked while it held the lock, so ignore the
        // poisoning.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a message. First drops the oldest messages until the new message fits within the limits
    /// or the queue is empty. Returns the number of dropped messages.
    pub fn push(&self, message: Bytes) -> u64 {
        let mut state = self.state();
        let mut dropped = 0;
        while state.messages.len() >= self.limits.messages
            || state.bytes + message.len() > self.limits.bytes
        {
            let Some(oldest) = state.messages.pop_front() else {
                break;
            };
            state.bytes -= oldest.len();
            dropped += 1;
        }
        state.missed += dropped;
        state.bytes += message.len();
        state.messages.push_back(message);
        drop(state);
        self.changed.notify_one();
        dropped
    }

    /// Waits for the next item. Must not be called by two tasks concurrently, because a new message
    /// wakes only one task.
    pub async fn next(&self) -> Next {
        loop {
            if let Some(next) = self.take() {
                return next;
            }
            self.changed.notified().await;
        }
    }

    fn take(&self) -> Option<Next> {
        let mut state = self.state();
        let missed = mem::take(&mut state.missed);
        if missed > 0 {
            return Some(Next::Missed(missed));
        }
        match state.messages.pop_front() {
            Some(message) => {
                state.bytes -= message.len();
                Some(Next::Message(message))
            }
            None => state.has_ended.then_some(Next::End),
        }
    }

    /// Ends the queue: `next` returns the remaining messages, and then [`Next::End`].
    pub fn end(&self) {
        self.state().has_ended = true;
        self.changed.notify_one();
    }

    /// Returns the number of messages in the queue, and the number of bytes in these messages.
    pub fn len(&self) -> (usize, usize) {
        let state = self.state();
        (state.messages.len(), state.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn oldest_messages_are_dropped_and_counted() {
        let limits = QueueLimits {
            messages: 3,
            bytes: 10,
        };
        let queue = Queue::new(limits);
        for number in b'0'..b'5' {
            queue.push(Bytes::copy_from_slice(&[number]));
        }
        assert_eq!(queue.len(), (3, 3));
        assert_eq!(queue.next().await, Next::Missed(2));
        assert_eq!(queue.next().await, Next::Message("2".into()));
        assert_eq!(
            queue.push("123456789".into()),
            1,
            "the queue must drop one message to stay within its byte limit"
        );
        assert_eq!(queue.len(), (2, 10));
        assert_eq!(queue.next().await, Next::Missed(1));
        assert_eq!(queue.next().await, Next::Message("4".into()));
        assert_eq!(queue.push("0123456789ab".into()), 1);
        assert_eq!(queue.next().await, Next::Missed(1));
        assert_eq!(queue.next().await, Next::Message("0123456789ab".into()));
        queue.push("last".into());
        queue.end();
        assert_eq!(queue.next().await, Next::Message("last".into()));
        assert_eq!(queue.next().await, Next::End);
    }
}
