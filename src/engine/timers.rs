use std::{
    collections::{BTreeSet, HashMap},
    time::{Duration, Instant},
};

/// The interval between the grid points to which deadlines are rounded up.
const GRID: Duration = Duration::from_millis(32);
/// A deadline is rounded only if it is at least this far in the future.
const FAR: Duration = Duration::from_millis(500);

/// A set of deadlines, at most one for each key.
#[derive(Debug)]
pub(super) struct Timers {
    queue: BTreeSet<(Instant, u64)>,
    deadlines: HashMap<u64, Instant>,
    /// The first grid point.
    origin: Instant,
}

impl Timers {
    /// Sets, replaces or removes the deadline of `key`.
    pub(super) fn set(&mut self, key: u64, deadline: Option<Instant>) {
        let old = match deadline {
            Some(at) => self.deadlines.insert(key, at),
            None => self.deadlines.remove(&key),
        };
        if old == deadline {
            return;
        }
        if let Some(at) = old {
            self.queue.remove(&(at, key));
        }
        if let Some(at) = deadline {
            self.queue.insert((at, key));
        }
    }

    /// Sets a deadline like [`set`](Self::set). If the deadline is at least [`FAR`] after `now`,
    /// rounds the deadline up to the next grid point, so that one wake-up of the thread serves many
    /// keys.
    pub(super) fn set_rounded(&mut self, key: u64, deadline: Option<Instant>, now: Instant) {
        let round_up = |at: Instant| {
            let past = at.saturating_duration_since(self.origin).as_nanos() % GRID.as_nanos();
            match past as u64 {
                0 => at,
                past => at + GRID - Duration::from_nanos(past),
            }
        };
        let is_far = |at: &Instant| at.saturating_duration_since(now) >= FAR;
        self.set(
            key,
            deadline.map(|at| if is_far(&at) { round_up(at) } else { at }),
        );
    }

    /// Returns the earliest deadline.
    pub(super) fn next(&self) -> Option<Instant> {
        self.queue.first().map(|&(at, _)| at)
    }

    /// Removes the earliest deadline if it has passed, and returns its key.
    pub(super) fn pop(&mut self, now: Instant) -> Option<u64> {
        let &(at, key) = self.queue.first()?;
        if at > now {
            return None;
        }
        self.set(key, None);
        Some(key)
    }
}

impl Default for Timers {
    fn default() -> Self {
        Self {
            queue: BTreeSet::new(),
            deadlines: HashMap::new(),
            origin: Instant::now(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn far_deadlines_share_a_wake_up() {
        let mut timers = Timers::default();
        let at = |ms| timers.origin + Duration::from_millis(ms);
        let (now, near, far) = (at(5), at(499), [at(2017), at(2040), at(2048)]);
        for (key, at) in far.into_iter().enumerate() {
            timers.set_rounded(key as u64, Some(at), now);
        }
        timers.set_rounded(9, Some(near), now);
        assert_eq!(
            timers.pop(near),
            Some(9),
            "a near deadline must not be rounded"
        );
        let shared = timers.origin + Duration::from_millis(2048);
        assert_eq!(timers.next(), Some(shared));
        let keys = [(); 3].map(|()| timers.pop(shared).unwrap());
        assert_eq!(keys, [0, 1, 2]);
    }

    #[test]
    fn keys_come_out_in_the_order_of_their_last_deadline() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut timers = Timers::default();
        timers.set(1, Some(at(10)));
        timers.set(2, Some(at(20)));
        timers.set(3, Some(at(30)));
        timers.set(1, Some(at(40)));
        timers.set(3, None);
        assert_eq!(timers.next(), Some(at(20)));
        assert_eq!(timers.pop(at(19)), None);
        assert_eq!(timers.pop(at(100)), Some(2));
        assert_eq!(timers.pop(at(100)), Some(1));
        assert_eq!(timers.pop(at(100)), None);
        assert_eq!(timers.next(), None);
    }
}
