use std::sync::{Arc, atomic::Ordering};

use super::Endpoint;
use crate::{
    error::Error,
    link::{Completion, GroupQueue},
};

/// What a [`Group`](crate::Group) asks of its members.
impl Endpoint {
    /// Has everything that waits to be taken, and then everything that happens, go to a group.
    pub(crate) fn join(&self, queue: &Arc<GroupQueue>, key: u64) -> Result<(), Error> {
        let unread = || {
            self.take_aside()
                .or_else(|| self.inner.completions.try_recv().ok())
        };
        self.inner.link.join(queue, key, unread)?;
        self.update_readiness();
        Ok(())
    }

    /// Has everything that happens come through this endpoint again.
    pub(crate) fn leave(&self, queue: &Arc<GroupQueue>) -> bool {
        self.inner.link.leave(queue)
    }

    /// Keeps a completion that came before a message, for `next_completion`.
    pub(super) fn set_aside(&self, completion: Completion) {
        self.inner.link.set_aside.fetch_add(1, Ordering::Relaxed);
        self.aside().push_back(completion);
        if self.inner.link.is_grouped() {
            // It joined while this thread had it.
            self.inner.link.put_late(|| self.take_aside());
        }
    }
}
