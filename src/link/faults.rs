//! Fault injection, for tests that use in-memory connections.

use std::{
    fmt, ptr,
    sync::{Arc, Mutex},
};

use super::{
    link::Link,
    message::{MessageOwner, Storage},
};
use crate::os::lock;

/// A message owner that can withhold the credit of released messages.
pub(crate) struct Withholding {
    /// The owner that receives the released messages once their credit is no longer withheld.
    owner: Arc<dyn MessageOwner>,
    /// The released messages whose credit is withheld. `None` after
    /// [`return_credit`](Self::return_credit).
    kept: Mutex<Option<Vec<Storage>>>,
}

impl Withholding {
    /// Withholds the credit of messages that arrive after this call, until
    /// [`return_credit`](Self::return_credit).
    pub(crate) fn begin(link: &Arc<Link>) -> Arc<Self> {
        let mut core = link.core();
        let owner = core.ring.clone();
        let withholding = Arc::new(Self {
            owner: owner.unwrap_or_else(|| Arc::<Link>::clone(link)),
            kept: Mutex::new(Some(Vec::new())),
        });
        core.ring = Some(Arc::<Self>::clone(&withholding));
        withholding
    }

    /// Returns the withheld credit to the peer. The credit of later messages is returned when they
    /// are released.
    pub(crate) fn return_credit(self: &Arc<Self>, link: &Link) {
        // From here on, each release of a message returns its credit immediately.
        let kept = lock(&self.kept).take();
        for storage in kept.into_iter().flatten() {
            self.owner.reclaim(storage);
        }
        let mut core = link.core();
        let last = core.ring.as_ref().map(Arc::as_ptr);
        if last.is_some_and(|last| ptr::addr_eq(last, Arc::as_ptr(self))) {
            // `ring` becomes `None` if the link itself is the owner.
            let owner = Arc::clone(&self.owner);
            core.ring = Some(owner).filter(|owner| !ptr::addr_eq(Arc::as_ptr(owner), link));
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
