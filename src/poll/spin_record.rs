use std::sync::atomic::{AtomicU8, Ordering};

/// Whether the next waits spin before they sleep: learned from what spinning brought.
///
/// Only a spin that found something after it had found nothing at first has saved a sleep. What a
/// sleep took says nothing about spinning, because the peer may have got the processor by it. After
/// a spin that found nothing, 1 wait sleeps at once; after the next such spin 3 do, then 7, and up
/// to 255. So where spinning never pays, it costs less than a hundredth of the waits, and where it
/// begins to pay, that is found out.
#[derive(Debug, Default)]
pub(super) struct SpinRecord {
    /// How many waits sleep at once before the next spin.
    skip: AtomicU8,
    /// How many do so after the next spin that finds nothing.
    penalty: AtomicU8,
}

impl SpinRecord {
    /// Whether this wait spins.
    pub(super) fn spins(&self) -> bool {
        // Several threads may count at the same time. What is lost is one wait of the count.
        let skip = self.skip.load(Ordering::Relaxed);
        if skip > 0 {
            self.skip.store(skip - 1, Ordering::Relaxed);
        }
        skip == 0
    }

    /// A spin found what it waited for.
    pub(super) fn paid(&self) {
        // A store by each wait would take the cache line from other processors each time.
        if self.penalty.load(Ordering::Relaxed) != 0 {
            self.penalty.store(0, Ordering::Relaxed);
        }
    }

    /// A spin found nothing.
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

    /// How many of the next waits sleep at once.
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
