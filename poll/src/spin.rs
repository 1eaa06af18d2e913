//! Whether a waiting thread spins before it sleeps.

use std::{
    sync::atomic::{AtomicU8, Ordering},
    time::Duration,
};

/// How a thread waits for completions.
///
/// The waiting thread polls by itself, without a switch to another thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Polling {
    /// Polls for up to `spin`, then sleeps until the device raises an event.
    ///
    /// The latency is low while messages flow, and an idle connection uses no processor time. Each
    /// connection learns from its spins. Only a spin that finds a completion counts as a success.
    /// The length of a sleep does not count, because it does not show whether a spin would have
    /// succeeded. A failed spin makes the next wait sleep without spinning, and each further one
    /// the next 3, 7, 15 and up to 255 waits. A success ends this backoff. A wait whose time limit
    /// is below `spin` always spins, because a sleep ends up to a millisecond late.
    ///
    /// If one processor is available, no wait spins: the spinning thread would keep the peer or the
    /// engine from running. The engine reads that number once, when it starts, by
    /// [`available_parallelism`](std::thread::available_parallelism), which regards the affinity of
    /// the thread that starts the engine and the quota of the control group.
    Adaptive {
        /// How long to poll before sleeping. 0 to 1 s, default 200 µs.
        ///
        /// The limit is eight times higher while a message above the eager size is in flight. These
        /// longer spins have a backoff of their own.
        spin: Duration,
    },
    /// Polls until there is a result.
    ///
    /// The latency is the lowest, at the cost of one processor for each waiting thread.
    Busy,
    /// Sleeps at once.
    ///
    /// It uses the least processor time, at the cost of an interrupt and a wake-up for each
    /// message.
    Event,
}

impl Polling {
    /// Returns how a thread waits if this number of processors is available.
    pub fn on(self, processors: usize) -> Self {
        match self {
            Self::Adaptive { .. } if processors == 1 => Self::Event,
            Self::Adaptive { .. } | Self::Busy | Self::Event => self,
        }
    }
}

impl Default for Polling {
    fn default() -> Self {
        Self::Adaptive {
            spin: Duration::from_micros(200),
        }
    }
}

/// Decides whether the next waits spin before they sleep, from the results of earlier spins.
///
/// Only a spin that finds a completion after an empty first poll has saved a sleep. The length of a
/// sleep proves nothing, because the sleep may have given the processor to the peer. After a failed
/// spin 1 wait sleeps at once; after further failed spins 3, 7 and up to 255 waits do. So if spins
/// never succeed, one wait in 256 spins, and thereby detects when spins begin to succeed.
#[derive(Debug, Default)]
pub(super) struct SpinRecord {
    /// The number of waits that sleep at once before the next spin.
    skip: AtomicU8,
    /// The number of waits that sleep at once after the next failed spin.
    penalty: AtomicU8,
}

impl SpinRecord {
    /// Whether this wait spins.
    #[inline]
    pub(super) fn spins(&self) -> bool {
        // If several threads count at the same time, the count may lose one wait.
        let skip = self.skip.load(Ordering::Relaxed);
        if skip > 0 {
            self.skip.store(skip - 1, Ordering::Relaxed);
        }
        skip == 0
    }

    /// Counts a spin that found a completion.
    #[inline]
    pub(super) fn paid(&self) {
        // The store is skipped if it changes nothing, because each store would take the cache line
        // from other processors.
        if self.penalty.load(Ordering::Relaxed) != 0 {
            self.penalty.store(0, Ordering::Relaxed);
        }
    }

    /// Counts a failed spin.
    #[inline]
    pub(super) fn failed(&self) {
        let penalty = self.penalty.load(Ordering::Relaxed);
        let penalty = penalty.saturating_mul(2).saturating_add(1);
        self.penalty.store(penalty, Ordering::Relaxed);
        self.skip.store(penalty, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of next waits that sleep at once.
    fn skipped(record: &SpinRecord) -> usize {
        std::iter::repeat_with(|| record.spins())
            .take_while(|spins| !spins)
            .count()
    }

    #[test]
    fn failed_spins_back_off_exponentially() {
        let record = SpinRecord::default();
        assert!(record.spins());
        for expected in [1, 3, 7, 15, 31, 63, 127, 255, 255] {
            record.failed();
            assert_eq!(skipped(&record), expected);
        }
    }

    #[test]
    fn spin_that_pays_ends_the_backoff() {
        let record = SpinRecord::default();
        for _ in 0..5 {
            record.failed();
            skipped(&record);
        }
        record.paid();
        assert!(record.spins());
        record.failed();
        assert_eq!(skipped(&record), 1);
    }
}
