//! Decides whether a waiting thread spins before it sleeps.

use std::{
    sync::atomic::{AtomicU8, Ordering},
    time::Duration,
};

/// How a thread waits for completions.
///
/// The waiting thread itself polls the device, so no other thread has to wake it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Polling {
    /// Polls for up to `spin`, then sleeps until the device raises an event.
    ///
    /// Latency is low while messages flow, and an idle connection uses no processor time. Each
    /// connection records whether its spins succeed, that is, whether they find a completion. The
    /// connection does not record the lengths of sleeps, because a short sleep does not mean that a
    /// spin would have succeeded. After a failed spin, the next wait sleeps without spinning. If
    /// spins keep failing, the number of waits without spinning increases from 1 to 3, 7, 15 and so
    /// on, up to 255. A successful spin ends this backoff. If the time limit of a wait is at most
    /// `spin`, the wait spins even during the backoff, because a sleep can exceed its time limit by
    /// milliseconds.
    ///
    /// All this requires at least two processors. If only one processor is available, no wait
    /// spins, because the spinning thread would keep the peer or the engine from running. The
    /// engine reads the number of processors once, when it starts, with
    /// [`available_parallelism`](std::thread::available_parallelism). That number respects the CPU
    /// affinity of the thread that starts the engine and the quota of the control group.
    Adaptive {
        /// How long to poll before sleeping. 0 to 1 s, default 200 µs.
        ///
        /// While a message larger than the eager size is in flight, the limit is eight times this
        /// value. These longer spins have their own backoff.
        spin: Duration,
    },
    /// Polls until a completion arrives.
    ///
    /// This mode has the lowest latency and occupies one processor for each waiting thread.
    Busy,
    /// Sleeps without spinning.
    ///
    /// This mode uses the least processor time. Each message costs an interrupt and a wake-up.
    Event,
}

impl Polling {
    /// Returns the mode to use if `processors` processors are available.
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

/// Decides from the results of earlier spins whether a wait spins before it sleeps.
///
/// A spin saves a sleep only if one of its polls finds nothing and a later poll finds a completion.
/// A short sleep does not prove that a spin would have succeeded: the peer may have answered early
/// only because the sleep freed the processor for the peer. After a failed spin, the next wait
/// sleeps without spinning. If spins keep failing, the number of waits without spinning increases
/// from 1 to 3, 7 and so on, up to 255. If spins never succeed, one wait in 256 still spins, to
/// find out whether spins now succeed.
#[derive(Debug, Default)]
pub(super) struct SpinRecord {
    /// The number of further waits that sleep without spinning.
    skip: AtomicU8,
    /// The value that the last failed spin assigned to `skip`, or 0 after a successful spin.
    penalty: AtomicU8,
}

impl SpinRecord {
    /// Decides whether the current wait spins, and counts the wait. Returns true if the wait spins.
    #[inline]
    pub(super) fn spins(&self) -> bool {
        // The load and the store are separate operations. If several threads call this function at
        // the same time, it can happen that only one of their waits is counted. This does no harm.
        let skip = self.skip.load(Ordering::Relaxed);
        if skip > 0 {
            self.skip.store(skip - 1, Ordering::Relaxed);
        }
        skip == 0
    }

    /// Records a spin that found a completion.
    #[inline]
    pub(super) fn succeeded(&self) {
        // Without the check, each successful spin would store 0 and thereby invalidate the cache
        // line on other processors.
        if self.penalty.load(Ordering::Relaxed) != 0 {
            self.penalty.store(0, Ordering::Relaxed);
        }
    }

    /// Records a spin that found nothing.
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

    /// Returns how many of the next waits sleep without spinning.
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
        record.succeeded();
        assert!(record.spins());
        record.failed();
        assert_eq!(skipped(&record), 1);
    }
}
