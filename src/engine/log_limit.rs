use std::time::{Duration, Instant};

/// How often the log says that something goes on.
const PERIOD: Duration = Duration::from_secs(1);

/// Keeps what somebody else can cause at will from filling the log: the first of a burst is told,
/// the others are counted, and the count is told with the next one after a second.
#[derive(Debug, Default)]
pub(crate) struct LogLimit {
    told: Option<Instant>,
    /// How many were not told since.
    silent: u64,
}

impl LogLimit {
    /// It has happened. Whether to tell, and of how many others that were not told.
    pub(crate) fn report(&mut self, now: Instant) -> Option<u64> {
        if self.told.is_some_and(|told| now < told + PERIOD) {
            self.silent += 1;
            return None;
        }
        self.told = Some(now);
        Some(std::mem::take(&mut self.silent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_a_burst_is_told_and_the_others_are_counted_once_a_second() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut limit = LogLimit::default();
        assert_eq!(limit.report(start), Some(0));
        for ms in [0, 1, 500, 999] {
            assert_eq!(limit.report(at(ms)), None);
        }
        assert_eq!(limit.report(at(1000)), Some(4));
        assert_eq!(limit.report(at(1001)), None);
        assert_eq!(limit.report(at(60_000)), Some(1));
        assert_eq!(limit.report(at(61_000)), Some(0));
    }
}
