use std::{collections::VecDeque, sync::Mutex};

use super::socket::Span;
use crate::{sync::lock, transport::queues::WorkId};

/// Receives that were posted and have not completed, oldest first.
#[derive(Debug, Default)]
pub(crate) struct ReceiveQueue {
    posted: Mutex<VecDeque<Receive>>,
}

/// A receive that was posted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Receive {
    pub(super) id: WorkId,
    /// Of no bytes for a drain marker.
    pub(super) to: Span,
}

// SAFETY: whoever posts it says that the memory is the queue's until the receive completes, in
// whichever thread.
#[allow(unsafe_code)]
unsafe impl Send for Receive {}

impl ReceiveQueue {
    pub(super) fn post(&self, receive: Receive) {
        lock(&self.posted).push_back(receive);
    }

    pub(super) fn take(&self) -> Option<Receive> {
        lock(&self.posted).pop_front()
    }
}
