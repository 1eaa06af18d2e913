use std::{
    cell::Cell,
    time::{Duration, Instant},
};

/// The time limit of a wait. The clock is read at the first check of the deadline, and not at its
/// creation, because a clock read takes several times longer than a poll. A wait whose first poll
/// succeeds usually reads no clock.
#[derive(Debug)]
pub struct Deadline(Cell<End>);

#[derive(Clone, Copy, Debug)]
enum End {
    Never,
    In(Duration),
    At(Instant),
}

impl Deadline {
    /// Returns a deadline that never passes.
    #[inline]
    pub fn never() -> Self {
        Self(Cell::new(End::Never))
    }

    /// Returns a deadline that passes when the time `timeout` has elapsed since its first check.
    /// The first check reads the clock.
    #[inline]
    pub fn after(timeout: Duration) -> Self {
        Self(Cell::new(End::In(timeout)))
    }

    /// Returns the time at which the deadline passes, or `None` if the deadline never passes.
    #[inline]
    pub(super) fn at(&self) -> Option<Instant> {
        if let End::In(timeout) = self.0.get() {
            // If the sum exceeds the clock's range, the deadline never passes.
            let end = Instant::now().checked_add(timeout);
            self.0.set(end.map_or(End::Never, End::At));
        }
        match self.0.get() {
            End::At(at) => Some(at),
            End::Never | End::In(_) => None,
        }
    }

    /// Returns the time left until the deadline, or `None` if the deadline never passes.
    #[inline]
    pub fn left(&self) -> Option<Duration> {
        if let End::In(timeout) = self.0.get() {
            self.at();
            return Some(timeout);
        }
        let left = |at: Instant| at.saturating_duration_since(Instant::now());
        self.at().map(left)
    }

    /// Returns true if the deadline will not pass within the time `wait`.
    #[inline]
    pub fn is_beyond(&self, wait: Duration) -> bool {
        self.left().is_none_or(|left| left > wait)
    }

    /// Returns a new deadline: this deadline or the time `most` from now, whichever is earlier.
    #[inline]
    pub fn at_most(&self, most: Duration) -> Self {
        Self::after(self.left().map_or(most, |left| left.min(most)))
    }

    /// Returns true if the deadline has passed. Does not read the clock if the deadline never
    /// passes.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.at().is_some_and(|at| Instant::now() >= at)
    }

    /// Returns true if the deadline is not later than `now`.
    #[inline]
    pub fn is_past(&self, now: Instant) -> bool {
        self.at().is_some_and(|at| now >= at)
    }
}
