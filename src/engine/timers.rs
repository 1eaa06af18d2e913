use std::{
    collections::{BTreeSet, HashMap},
    time::Instant,
};

/// A set of deadlines, at most one for each key.
#[derive(Debug, Default)]
pub(super) struct Timers {
    queue: BTreeSet<(Instant, u64)>,
    deadlines: HashMap<u64, Instant>,
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

    /// Returns the earliest deadline.
    pub(super) fn next(&self) -> Option<Instant> {
        self.queue.first().map(|&(at, _)| at)
    }

    /// Removes a deadline that has passed, and returns its key.
    pub(super) fn pop(&mut self, now: Instant) -> Option<u64> {
        let &(at, key) = self.queue.first()?;
        if at > now {
            return None;
        }
        self.set(key, None);
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

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
