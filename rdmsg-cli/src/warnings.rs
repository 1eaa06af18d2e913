use std::{
    fmt,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// The shortest time between two of a kind.
const PAUSE: Duration = Duration::from_secs(1);

/// Warnings of one kind, of which one a second is logged: peers may cause thousands of
/// them.
#[derive(Debug, Default)]
pub(crate) struct Warnings(Mutex<Recent>);

#[derive(Debug, Default)]
struct Recent {
    /// When the last one was logged.
    logged: Option<Instant>,
    /// How many were not, since then.
    swallowed: u64,
}

impl Warnings {
    pub(crate) fn warn(&self, warning: fmt::Arguments<'_>) {
        if let Some(swallowed) = self.turn(Instant::now()) {
            match swallowed {
                0 => log::warn!("{warning}"),
                more => log::warn!("{warning} (and {more} more since the last such warning)"),
            }
        }
    }

    /// Whether one may be logged now, and how many were not.
    fn turn(&self, now: Instant) -> Option<u64> {
        let mut recent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let soon = |logged| now.saturating_duration_since(logged) < PAUSE;
        if recent.logged.is_some_and(soon) {
            recent.swallowed += 1;
            return None;
        }
        recent.logged = Some(now);
        Some(std::mem::take(&mut recent.swallowed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_a_second_is_logged_and_the_others_are_counted() {
        let warnings = Warnings::default();
        let start = Instant::now();
        let millis = [0, 1, 999, 1000, 1500, 3000];
        let turns = millis.map(|millis| warnings.turn(start + Duration::from_millis(millis)));
        assert_eq!(turns, [Some(0), None, None, Some(2), None, Some(1)]);
    }
}
