//! The two completion queues of a side. The search polls each queue in order, and switches between
//! the queues arbitrarily.

use std::sync::Arc;

use crate::{
    Account, DrainSide, Work,
    connection::tests::side::{Completion, Side},
};

impl Completion {
    /// Returns the queue in which this completion is reported.
    pub(super) fn queue(&self) -> DrainSide {
        match self {
            Self::Recv { .. } | Self::Failed(Work::Recv { .. }, _) => DrainSide::Recv,
            Self::Sent { .. }
            | Self::Read { .. }
            | Self::Failed(Work::Send { .. } | Work::Read { .. } | Work::Invalidation, _) => {
                DrainSide::Send
            }
            Self::Drained(queue) => *queue,
        }
    }
}

impl Side {
    /// Returns the next completion in this queue.
    pub(super) fn front(&self, queue: DrainSide) -> Option<&Completion> {
        let is_of_queue = |completion: &&Completion| completion.queue() == queue;
        self.cq.iter().find(is_of_queue)
    }

    /// Moves the next completion of this queue to the front of all completions. The queue must not
    /// be empty.
    pub(super) fn move_to_front(&mut self, queue: DrainSide) {
        let is_of_queue = |completion: &Completion| completion.queue() == queue;
        let at = self
            .cq
            .iter()
            .position(is_of_queue)
            .expect("the queue is not empty");
        let completion = self.cq.remove(at).expect("the index is valid");
        self.cq.push_front(completion);
    }

    /// Sorts the completions by queue, and keeps the order within each queue. Two states then
    /// become equal if they differ only in the order of completions in different queues.
    pub(super) fn sort_queues(&mut self) {
        let cq = self.cq.make_contiguous();
        cq.sort_by_key(|completion| completion.queue() == DrainSide::Send);
    }

    /// Replaces the account of shared receives with a copy, because copies of a side must not share
    /// one account.
    pub(super) fn own_account(&mut self) {
        if let Some(shared) = &mut self.shared {
            shared.account = Arc::new(Account::clone(&shared.account));
            self.conn.use_account(Arc::clone(&shared.account));
        }
    }
}
