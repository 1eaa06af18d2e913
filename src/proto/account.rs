//! The account of receives that several connections share.
//!
//! A receive that is posted for all of them is either promised, to the peer of one connection, or free. No more is ever promised than is
//! posted, so whichever peer sends finds a receive. What a connection was promised cannot be taken back from it while it is idle, so
//! half of the receives are kept for new connections: an established one draws on the other half beyond its [`FLOOR`], and gives back
//! as it goes when that runs out.

use std::sync::atomic::{AtomicU32, Ordering};

use super::control_receives::CONTROL_RECEIVES;

/// Data receives that a connection is never without: one for the message that is looked at, one for the next.
const FLOOR: u16 = 2;

/// See the top of this file.
#[derive(Debug)]
pub(crate) struct Account {
    total: u32,
    free: AtomicU32,
}

impl Account {
    /// The account of `total` receives, all of them posted.
    pub(crate) fn new(total: u32) -> Self {
        Self {
            total,
            free: AtomicU32::new(total),
        }
    }

    /// As many receives as a connection needs at least.
    pub(crate) fn least(window: u16) -> u32 {
        CONTROL_RECEIVES + u32::from(floor(window))
    }

    /// Reserves what a connection needs at least, if so much is left.
    pub(crate) fn open(&self, window: u16) -> bool {
        let need = Self::least(window);
        self.free
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| {
                free.checked_sub(need)
            })
            .is_ok()
    }

    /// So many receives that were promised are posted and not promised any more.
    pub(crate) fn give(&self, count: u32) {
        let before = self.free.fetch_add(count, Ordering::Relaxed);
        debug_assert!(
            before + count <= self.total,
            "no more is given than was taken"
        );
    }

    /// Gives `given` and takes up to `wanted`, with regard to others who want some. Returns how many were taken.
    pub(super) fn trade(&self, given: u32, wanted: u32) -> u32 {
        let mut free = self.free.load(Ordering::Relaxed);
        loop {
            let spare = (free + given).saturating_sub(self.total / 2);
            let taken = wanted.min(spare.div_ceil(4));
            // What a busy connection does most of the time. It needs no turn at the cache line.
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

    /// How many receives are not promised to anybody.
    pub(crate) fn free(&self) -> u32 {
        self.free.load(Ordering::Relaxed)
    }

    /// How many receives there are.
    pub(crate) fn total(&self) -> u32 {
        self.total
    }
}

/// What a connection of this window is promised from the beginning, and never has less of.
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
        assert_eq!(account.free(), 6);
        assert!(!account.open(64));
        assert_eq!(account.free(), 6);
        account.give(Account::least(64));
        assert!(account.open(64));
    }

    /// What `Config::shared_receive` promises its readers, and the example of the crate's documentation counts on.
    #[test]
    fn a_connection_keeps_as_many_as_is_written() {
        assert_eq!(Account::least(2), 13);
        assert_eq!(Account::least(8192), 13);
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
