//! The account of receives that several connections share.
//!
//! A receive that is posted for all of them is either promised, to the peer of one connection, or
//! free. No more receives are ever promised than are posted, so each peer that sends finds one.
//! What was promised to a connection cannot be taken back while it is idle, so half of the receives
//! are kept for new connections: an established one draws on the other half beyond its [`FLOOR`],
//! and gives receives back as it goes when that half runs out.

use std::sync::atomic::{AtomicU32, Ordering};

use super::control_receives::CONTROL_RECEIVES;

/// The data receives that a connection always has: one for the message that is being processed, one
/// for the next.
const FLOOR: u16 = 2;

/// The number of receives of a pool, and of those that are free.
#[derive(Debug)]
pub(crate) struct Account {
    total: u32,
    free: AtomicU32,
}

impl Account {
    /// Makes the account of `total` receives, all of them posted and free.
    pub(crate) fn new(total: u32) -> Self {
        Self {
            total,
            free: AtomicU32::new(total),
        }
    }

    /// Returns the number of receives that a connection needs at least.
    pub(crate) fn least(window: u16) -> u32 {
        CONTROL_RECEIVES + u32::from(floor(window))
    }

    /// Reserves what a connection needs at least. Returns whether that much is free.
    pub(crate) fn open(&self, window: u16) -> bool {
        let need = Self::least(window);
        self.free
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| {
                free.checked_sub(need)
            })
            .is_ok()
    }

    /// Frees `count` receives that were promised, and are posted.
    pub(crate) fn give(&self, count: u32) {
        let before = self.free.fetch_add(count, Ordering::Relaxed);
        debug_assert!(
            before + count <= self.total,
            "no more is freed than was reserved"
        );
    }

    /// Frees `given` receives and reserves up to `wanted`, leaving some for other connections.
    /// Returns the number of those that were reserved.
    pub(super) fn trade(&self, given: u32, wanted: u32) -> u32 {
        let mut free = self.free.load(Ordering::Relaxed);
        loop {
            let spare = (free + given).saturating_sub(self.total / 2);
            let taken = wanted.min(spare.div_ceil(4));
            // This is what a busy connection does most of the time. It writes no cache line.
            if taken == given {
                return taken;
            }
            match self.free.compare_exchange_weak(
                free,
                free + given - taken,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => return taken,
                Err(now) => free = now,
            }
        }
    }

    /// Returns the number of receives that are not promised to any peer.
    pub(crate) fn free(&self) -> u32 {
        self.free.load(Ordering::Relaxed)
    }

    /// Returns the number of receives in all.
    pub(crate) fn total(&self) -> u32 {
        self.total
    }
}

/// Returns the data receives that a connection of this window is promised from the beginning on.
pub(super) fn floor(window: u16) -> u16 {
    window.min(FLOOR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_does_not_fit_changes_nothing() {
        let account = Account::new(32);
        assert!(account.open(64) && account.open(64));
        assert_eq!(account.free(), 4);
        assert!(!account.open(64));
        assert_eq!(account.free(), 4);
        account.give(Account::least(64));
        assert!(account.open(64));
    }

    /// The numbers of `Config::shared_receive` and of the example in the crate's documentation.
    #[test]
    fn a_connection_keeps_as_many_as_is_written() {
        assert_eq!(Account::least(2), 14);
        assert_eq!(Account::least(8192), 14);
    }

    #[test]
    fn half_is_kept_for_new_connections() {
        let account = Account::new(100);
        let mut taken = 0;
        loop {
            match account.trade(0, 64) {
                0 => break,
                more => taken += more,
            }
        }
        assert_eq!(taken, 50);
        assert!(account.open(64), "there is still room for one more");
        assert_eq!(
            account.trade(1, 1),
            0,
            "who has more than its floor gives back"
        );
    }

    #[test]
    fn what_one_takes_leaves_some_for_the_next() {
        let account = Account::new(800);
        assert_eq!(account.trade(0, 64), 64);
        assert_eq!(account.trade(0, 1000), 84);
        assert_eq!(account.trade(1, 1), 1, "steady");
        assert_eq!(account.free(), 800 - 64 - 84);
    }
}
