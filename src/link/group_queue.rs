use std::sync::{Arc, Mutex};

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::{completion::Completion, taker::Taker};
use crate::os::lock;

/// What happens on the connections of a group, each with its key, for one receiver.
///
/// It is unbounded, as connections come and go. What they put here is bounded as in channels of
/// their own: a message by its place in the window, an operation by its id.
///
/// Its lock is taken with a connection's locks held, and held for putting alone.
#[derive(Debug)]
pub(crate) struct GroupQueue {
    tail: Mutex<Option<Tail>>,
    pub(crate) taker: Taker,
}

/// Where the connections put; `None` when the group is gone. Unread messages hold their
/// connections and those hold the queue, so it must not hold its other end.
#[derive(Debug)]
struct Tail {
    sender: Sender<(u64, Completion)>,
    /// How many were put here.
    put: u64,
}

impl GroupQueue {
    pub(crate) fn new() -> (Arc<Self>, Receiver<(u64, Completion)>) {
        let (sender, receiver) = unbounded();
        let tail = Tail { sender, put: 0 };
        let queue = Self {
            tail: Mutex::new(Some(tail)),
            taker: Taker::default(),
        };
        (Arc::new(queue), receiver)
    }

    /// Puts something behind what is there, and returns how many were put before. Gives it back
    /// when the group is gone.
    pub(super) fn put(&self, key: u64, completion: Completion) -> Result<u64, Completion> {
        let mut tail = lock(&self.tail);
        let Some(tail) = &mut *tail else {
            return Err(completion);
        };
        let at = tail.put;
        tail.sender
            .send((key, completion))
            .map_err(|refused| refused.into_inner().1)?;
        tail.put += 1;
        Ok(at)
    }

    /// How many were taken of those that were put here.
    pub(super) fn taken(&self) -> u64 {
        match &*lock(&self.tail) {
            Some(tail) => tail.put - tail.sender.len() as u64,
            None => u64::MAX,
        }
    }

    /// The group is gone.
    pub(crate) fn close(&self) {
        // What is dropped with it is dropped without the lock.
        let tail = lock(&self.tail).take();
        drop(tail);
    }

    pub(super) fn is_closed(&self) -> bool {
        lock(&self.tail).is_none()
    }
}
