//! Accounting for a pool of receives that several connections share.
//!
//! Each posted receive of the pool is either promised to the peer of one connection, or free. The
//! number of promised receives never exceeds the number of posted receives, so each data frame from
//! a peer finds a receive. A promise to an idle connection cannot be revoked, so idle connections
//! could keep the receives that a new connection needs. Therefore half of the receives are reserved
//! for the minimum that each current and future connection needs. Established connections share
//! the remaining half. When few receives of that half are free, connections that have more than
//! their share return receives.

use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use super::credit::CONTROL_RECEIVES;

/// The number of data receives that are always promised to each connection: one for the message
/// that the application is processing, and one for the next message.
const FLOOR: u16 = 2;

/// The maximum number of receives that a connection can have above its minimum, as a multiple of
/// the number of spare receives in the pool. A receive is spare if it is free and not reserved. A
/// factor of 4 lets a few busy connections use most of the pool. Even if many connections are busy,
/// some receives remain free for the next connection.
const SHARE: u32 = 4;

/// The total number of receives in a pool, and the number of free ones.
#[derive(Debug)]
pub struct Account {
    total: u32,
    free: AtomicU32,
    /// The number of free receives that are reserved for future connections. The number is negative
    /// if the minimums of the current connections add up to more than half of all receives.
    reserved: AtomicI32,
}

impl Account {
    /// Creates the account of a pool of `total` receives, all of which are posted and free.
    pub fn new(total: u32) -> Self {
        Self {
            total,
            free: AtomicU32::new(total),
            reserved: AtomicI32::new((total / 2).cast_signed()),
        }
    }

    /// Returns the minimum number of receives, for control frames and data frames together, that a
    /// connection with this window needs.
    pub fn min_receives(window: u16) -> u32 {
        CONTROL_RECEIVES + u32::from(floor(window))
    }

    /// Takes free receives for a new connection with this window: the minimum number that the
    /// connection needs. Returns false, and takes nothing, if too few receives are free.
    pub fn open(&self, window: u16) -> bool {
        let need = Self::min_receives(window);
        let opened = self
            .free
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| {
                free.checked_sub(need)
            })
            .is_ok();
        // `free` decreases before `reserved` does, so a concurrent `trade` sees too few spare
        // receives, never too many.
        if opened {
            self.reserved
                .fetch_sub(need.cast_signed(), Ordering::Relaxed);
        }
        opened
    }

    /// Removes a connection from the account. Frees the `count` receives that were promised to its
    /// peer, and reserves the connection's minimum for future connections again.
    pub fn close(&self, window: u16, count: u32) {
        let need = Self::min_receives(window).cast_signed();
        // `reserved` increases before `free` does, so a concurrent `trade` sees too few spare
        // receives, never too many.
        self.reserved.fetch_add(need, Ordering::Relaxed);
        self.give(count);
    }

    /// Frees `count` posted receives that were promised to a peer.
    pub fn give(&self, count: u32) {
        let before = self.free.fetch_add(count, Ordering::Relaxed);
        debug_assert!(
            before + count <= self.total,
            "the number of free receives must not exceed the total"
        );
    }

    /// Frees `given` receives of a connection, and takes up to `wanted` free receives for the same
    /// connection. Returns the number of receives taken. `more` is the number of receives that the
    /// connection has above its [`floor`] after it has freed `given` receives and before it takes
    /// any.
    ///
    /// A connection that has more receives than [`SHARE`] permits takes fewer receives than it
    /// frees. All busy connections therefore end up with equal shares, regardless of the order in
    /// which they were established.
    pub(super) fn trade(&self, given: u32, more: u32, wanted: u32) -> u32 {
        let mut free = self.free.load(Ordering::Relaxed);
        loop {
            let reserved = self.reserved.load(Ordering::Relaxed).max(0).cast_unsigned();
            let spare = (free + given).saturating_sub(reserved);
            // Each call takes at most a quarter of `room`. Without this limit, the connection's
            // number of receives would alternate between two values.
            let room = spare.saturating_mul(SHARE).saturating_sub(more);
            let taken = wanted.min(room.div_ceil(4));
            // A busy connection usually returns here, without writing to a shared cache line.
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
    pub fn free(&self) -> u32 {
        self.free.load(Ordering::Relaxed)
    }

    /// Returns the total number of receives in the pool.
    pub fn total(&self) -> u32 {
        self.total
    }
}

#[cfg(test)]
impl Clone for Account {
    fn clone(&self) -> Self {
        Self {
            total: self.total,
            free: AtomicU32::new(self.free()),
            reserved: AtomicI32::new(self.reserved.load(Ordering::Relaxed)),
        }
    }
}

#[cfg(test)]
impl std::hash::Hash for Account {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (self.free(), self.reserved.load(Ordering::Relaxed)).hash(state);
    }
}

/// Returns the number of data receives that are always promised to a connection with this window.
pub(super) fn floor(window: u16) -> u16 {
    window.min(FLOOR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_does_not_fit_changes_nothing() {
        let account = Account::new(38);
        assert!(account.open(64) && account.open(64));
        assert_eq!(account.free(), 4);
        assert!(!account.open(64));
        assert_eq!(account.free(), 4);
        account.give(Account::min_receives(64));
        assert!(account.open(64));
    }

    /// Checks the numbers in the documentation of `Config::shared_receive` and in the example of
    /// the crate documentation.
    #[test]
    fn minimum_matches_the_documentation() {
        assert_eq!(Account::min_receives(2), 17);
        assert_eq!(Account::min_receives(8192), 17);
    }

    #[test]
    fn half_is_reserved_for_connection_minimums() {
        let account = Account::new(136);
        assert!(account.open(64));
        let mut taken = 0;
        while account.trade(0, 0, 64) > 0 {
            taken = 136 - 17 - account.free();
        }
        assert_eq!(taken, 68);
        for _ in 1..4 {
            assert!(
                account.open(64),
                "the reserved half must suffice for 4 connections"
            );
        }
        assert!(
            !account.open(64),
            "a fifth connection must find no reserved receives"
        );
        account.close(64, 17);
        assert_eq!(
            account.trade(0, 0, 64),
            0,
            "a returned minimum must be reserved again"
        );
        assert!(account.open(64));
    }

    #[test]
    fn connection_above_its_share_returns_receives() {
        let account = Account::new(112);
        assert_eq!(account.trade(0, 0, 40), 40);
        assert_eq!(
            account.trade(1, 39, 1),
            1,
            "39 is below 4 times the 17 spare receives, so none may be returned"
        );
        assert_eq!(
            account.trade(0, 0, 40),
            16,
            "another connection must get all spare receives"
        );
        assert_eq!(account.trade(1, 39, 1), 0);
        assert_eq!(
            account.trade(0, 0, 40),
            1,
            "the next connection must get the returned receive"
        );
    }

    #[test]
    fn connection_within_its_share_keeps_receives() {
        let account = Account::new(800);
        assert_eq!(account.trade(0, 0, 64), 64);
        let free = account.free();
        for _ in 0..100 {
            assert_eq!(account.trade(1, 63, 1), 1);
        }
        assert_eq!(account.free(), free);
    }
}
