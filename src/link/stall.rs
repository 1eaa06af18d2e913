//! Detects sends that wait for a long time.

use std::time::{Duration, Instant};

use crate::config::Config;

/// The duration after which a stall is logged.
pub(super) const LOGGED_AFTER: Duration = Duration::from_secs(5);

/// The longest keepalive interval for which the engine's own checks for stalls suffice. The engine
/// checks twice in each interval.
const FREQUENT_KEEPALIVE: Duration = Duration::from_secs(10);

/// Detects stalls that last for [`LOGGED_AFTER`], by sampling the connection.
///
/// Because of the samples, a waiting send needs no timer of its own and need not read the time.
#[derive(Debug, Default)]
pub(super) struct StallWatch {
    /// The time of the first sample of the current stall.
    since: Option<Instant>,
    /// The number of messages and operations sent before the first sample.
    sent: u64,
    is_reported: bool,
}

impl StallWatch {
    /// Records a sample. Returns true once per stall, when the stall has lasted for
    /// [`LOGGED_AFTER`] and the caller has to log it.
    pub(super) fn sample(&mut self, is_stalled: bool, sent: u64, now: Instant) -> bool {
        if !is_stalled {
            *self = Self::default();
            return false;
        }
        match self.since {
            Some(since) if self.sent == sent => {
                let is_due =
                    !self.is_reported && now.saturating_duration_since(since) >= LOGGED_AFTER;
                self.is_reported |= is_due;
                is_due
            }
            Some(_) | None => {
                *self = Self {
                    since: Some(now),
                    sent,
                    is_reported: false,
                };
                false
            }
        }
    }
}

/// Returns true if waiting threads must check for stalls. The engine checks for stalls only when a
/// timer of the connection expires, which is too rare if the keepalive interval is long.
pub(super) fn checks(config: &Config) -> bool {
    let interval = config.keepalive_interval;
    interval.is_none_or(|interval| interval > FREQUENT_KEEPALIVE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stall_is_reported_once_after_5_s() {
        let start = Instant::now();
        let mut watch = StallWatch::default();
        let mut samples = |all: &[(bool, u64, u64)]| -> Vec<bool> {
            let sample = |&(is_stalled, sent, ms): &_| {
                watch.sample(is_stalled, sent, start + Duration::from_millis(ms))
            };
            all.iter().map(sample).collect()
        };
        let stall = [
            (true, 7, 0),
            (true, 7, 4999),
            (true, 7, 5000),
            (true, 7, 60_000),
        ];
        assert_eq!(samples(&stall), [false, false, true, false]);
        let progress = [(true, 8, 61_000), (true, 9, 66_000), (true, 9, 71_000)];
        assert_eq!(samples(&progress), [false, false, true]);
        let room = [(false, 0, 72_000), (true, 9, 73_000), (true, 9, 78_000)];
        assert_eq!(
            samples(&room),
            [false, false, true],
            "the second stall must be reported"
        );
    }
}
