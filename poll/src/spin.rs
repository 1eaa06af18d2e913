use std::sync::atomic::{AtomicU8, Ordering};

/// Decides whether the next waits spin before they sleep, from the results of earlier spins.
///
/// Only a spin that finds something after an empty first poll has saved a sleep. The length of a
/// sleep proves nothing, because the sleep may have given the processor to the peer. After a failed
/// spin 1 wait sleeps at once; after further failed spins 3, 7 and up to 255 waits do. So if spins
/// never succeed, one wait in 256 spins, and if they begin to succeed, the record notices.
#[derive(Debug, Default)]
pub(super) struct SpinRecord {
    /// The number of waits that sleep at once before the next spin.
    skip: AtomicU8,
    /// The same after the next failed spin.
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

    /// Counts a spin that found something.
    #[inline]
    pub(super) fn paid(&self) {
        // A store by each wait would take the cache line from other processors each time.
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

    /// The number of the next waits that sleep at once.
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
