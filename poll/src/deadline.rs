use std::{
    cell::Cell,
    time::{Duration, Instant},
};

/// The end of a wait. The clock is read only after the first empty poll, because reading it costs
/// several polls.
#[derive(Debug)]
pub struct Deadline(Cell<End>);

#[derive(Clone, Copy, Debug)]
enum End {
    Never,
    In(Duration),
    At(Instant),
}

impl Deadline {
    /// Creates a deadline that never passes.
    #[inline]
    pub fn never() -> Self {
        Self(Cell::new(End::Never))
    }

    /// Creates a deadline `timeout` from now.
    #[inline]
    pub fn after(timeout: Duration) -> Self {
        Self(Cell::new(End::In(timeout)))
    }

    /// Returns the end, if there is one.
    #[inline]
    pub(super) fn at(&self) -> Option<Instant> {
        if let End::In(timeout) = self.0.get() {
            // A time beyond the range of the clock means no end.
            let end = Instant::now().checked_add(timeout);
            self.0.set(end.map_or(End::Never, End::At));
        }
        match self.0.get() {
            End::At(at) => Some(at),
            End::Never | End::In(_) => None,
        }
    }

    /// Returns the remaining time, if there is an end.
    #[inline]
    pub fn left(&self) -> Option<Duration> {
        if let End::In(timeout) = self.0.get() {
            self.at();
            return Some(timeout);
        }
        let left = |at: Instant| at.saturating_duration_since(Instant::now());
        self.at().map(left)
    }

    /// Whether the deadline is more than `wait` away.
    #[inline]
    pub fn is_beyond(&self, wait: Duration) -> bool {
        self.left().is_none_or(|left| left > wait)
    }

    /// Returns the earlier one of this deadline and of the end of `most` from now.
    #[inline]
    pub fn at_most(&self, most: Duration) -> Self {
        Self::after(self.left().map_or(most, |left| left.min(most)))
    }

    /// Whether the deadline has passed. Without an end it does not read the clock.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.at().is_some_and(|at| Instant::now() >= at)
    }

    /// Returns whether the time has passed at `now`.
    #[inline]
    pub fn is_past(&self, now: Instant) -> bool {
        self.at().is_some_and(|at| now >= at)
    }
}
