//! Fault injection, for tests that use in-memory connections.

use std::{
    fmt, ptr,
    sync::{Arc, Mutex},
};

use super::{
    link::Link,
    message::{MessageOwner, Storage},
};
use crate::{
    os::lock,
    transport::{WireControl, WorkQueues},
    transport_choice::Transport,
};

/// A message owner that can withhold the credit of released messages.
pub(crate) struct Withholding {
    /// The owner that receives the released messages once their credit is no longer withheld.
    owner: Arc<dyn MessageOwner>,
    /// The released messages whose credit is withheld. `None` after
    /// [`return_credit`](Link::return_credit).
    kept: Mutex<Option<Vec<Storage>>>,
}

impl Link {
    /// Returns whether the connection uses the in-memory transport. The result is the same for all
    /// connections of a session.
    pub(crate) fn is_in_memory(&self) -> bool {
        self.first.transport == Transport::Memory
    }

    /// Returns the fault control of the current connection. Returns `None` over RDMA and TCP, and
    /// while the connection has no transport.
    pub(crate) fn wire(&self) -> Option<WireControl> {
        self.core().queues.as_ref().and_then(WorkQueues::control)
    }

    /// Lets an engine without a thread do its pending work. Called after the fault control has
    /// changed.
    pub(crate) fn serve(&self) {
        self.notices().serve();
    }

    /// Withholds the credit of messages that arrive after this call, until
    /// [`return_credit`](Self::return_credit).
    pub(crate) fn withhold_credit(self: &Arc<Self>) -> Arc<Withholding> {
        let mut core = self.core();
        let owner = core.ring.clone();
        let withholding = Arc::new(Withholding {
            owner: owner.unwrap_or_else(|| Arc::<Self>::clone(self)),
            kept: Mutex::new(Some(Vec::new())),
        });
        core.ring = Some(Arc::<Withholding>::clone(&withholding));
        withholding
    }

    /// Returns the withheld credit to the peer. The credit of later messages is returned when they
    /// are released.
    pub(crate) fn return_credit(&self, withholding: &Arc<Withholding>) {
        // From here on, each release of a message returns its credit immediately.
        let kept = lock(&withholding.kept).take();
        for storage in kept.into_iter().flatten() {
            withholding.owner.reclaim(storage);
        }
        let mut core = self.core();
        let last = core.ring.as_ref().map(Arc::as_ptr);
        if last.is_some_and(|last| ptr::addr_eq(last, Arc::as_ptr(withholding))) {
            // `ring` becomes `None` if the link itself is the owner.
            let owner = Arc::clone(&withholding.owner);
            core.ring = Some(owner).filter(|owner| !ptr::addr_eq(Arc::as_ptr(owner), self));
        }
    }
}

impl MessageOwner for Withholding {
    fn is_inherited(&self) -> bool {
        self.owner.is_inherited()
    }

    fn reclaim(&self, storage: Storage) {
        if let Some(kept) = &mut *lock(&self.kept) {
            return kept.push(storage);
        }
        self.owner.reclaim(storage);
    }
}

impl fmt::Display for Withholding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.owner.fmt(f)
    }
}

impl fmt::Debug for Withholding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Withholding").finish_non_exhaustive()
    }
}
