use std::sync::atomic::{AtomicU8, Ordering};

/// After so many waits in a row that spinning did not shorten, the next ones sleep at once.
const ENOUGH: u8 = 3;

/// What waits before tell of the next: whether to spin before it sleeps, where the policy is to
/// find out.
///
/// A peer that answers in less time than may be spun does so again, most of the time. One that
/// takes longer costs a processor for nothing, which it may need itself.
#[derive(Debug, Default)]
pub(super) struct SpinRecord {
    /// How many waits in a row were longer than they may spin.
    in_vain: AtomicU8,
}

impl SpinRecord {
    /// Whether the next wait is to spin.
    pub(super) fn tells_to_spin(&self) -> bool {
        self.in_vain.load(Ordering::Relaxed) < ENOUGH
    }

    /// A wait was, or would have been, over before its spinning was.
    pub(super) fn was_short(&self) {
        // Written by each wait, it would be another processor's each time.
        if self.in_vain.load(Ordering::Relaxed) != 0 {
            self.in_vain.store(0, Ordering::Relaxed);
        }
    }

    /// A wait that did spin was longer.
    pub(super) fn was_long(&self) {
        let in_vain = self.in_vain.load(Ordering::Relaxed);
        self.in_vain
            .store(in_vain.saturating_add(1), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spinning_stops_where_it_is_in_vain_and_begins_again_where_it_would_not_be() {
        let record = SpinRecord::default();
        record.was_long();
        record.was_long();
        assert!(record.tells_to_spin());
        record.was_short();
        for _ in 0..ENOUGH {
            assert!(record.tells_to_spin());
            record.was_long();
        }
        assert!(!record.tells_to_spin());
        record.was_short();
        assert!(record.tells_to_spin());
    }
}
