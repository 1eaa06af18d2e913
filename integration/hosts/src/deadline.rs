use std::{
    process::Command,
    thread,
    time::{Duration, Instant},
};

/// The time that a trivial program takes to start and end in a lab guest on an idle machine.
const USUAL: Duration = Duration::from_millis(40);

/// The number of measurements. `slowness` uses their mean, because other load on the machine varies
/// over time.
const TIMES: u32 = 10;

/// The maximum value of [`slowness`]. This maximum also limits the time after which a hanging
/// operation fails.
const SLOWEST: f64 = 10.0;

/// Measures the time that a trivial program takes now, and divides it by the time on an idle
/// machine. Returns this factor, limited to the range from 1 to 10.
pub fn slowness() -> f64 {
    let start = Instant::now();
    for _ in 0..TIMES {
        // Ignore the error: if the program `true` does not exist, searching for it also takes time.
        let _ = Command::new("true").status();
    }
    let mean = start.elapsed() / TIMES;
    (mean.as_secs_f64() / USUAL.as_secs_f64()).clamp(1.0, SLOWEST)
}

/// A time limit for an operation on an idle machine, which is extended on a slow machine. When the
/// limit expires, the deadline measures the [`slowness`] of the machine once, and multiplies the
/// limit by this factor. An operation that exceeds the extended limit probably hangs.
#[derive(Clone, Debug)]
pub struct Deadline {
    start: Instant,
    granted: Duration,
    /// Whether the limit may still be extended.
    extensible: bool,
}

impl Deadline {
    /// Creates a deadline that expires after `limit`, or later on a slow machine. A limit of zero
    /// is never extended. `Deadline::from` is equivalent.
    pub fn after(limit: Duration) -> Self {
        Self {
            extensible: !limit.is_zero(),
            ..Self::exactly_after(limit)
        }
    }

    /// Creates a deadline that is never extended, for callers that wait repeatedly with a short
    /// limit.
    pub fn exactly_after(limit: Duration) -> Self {
        Self {
            start: Instant::now(),
            granted: limit,
            extensible: false,
        }
    }

    /// Returns the remaining time, or zero if the deadline has passed. If the limit has expired for
    /// the first time and may be extended, first measures the slowness and extends the limit.
    pub fn left(&mut self) -> Duration {
        let left = self.granted.saturating_sub(self.start.elapsed());
        if !left.is_zero() || !self.extensible {
            return left;
        }
        self.extensible = false;
        self.granted = self.granted.mul_f64(slowness());
        self.left()
    }

    /// Returns whether the deadline has passed.
    pub fn is_over(&mut self) -> bool {
        self.left().is_zero()
    }
}

impl From<Duration> for Deadline {
    fn from(limit: Duration) -> Self {
        Self::after(limit)
    }
}

/// Repeats `attempt` until it succeeds or `limit` has expired, with a pause after each failure. A
/// [`Deadline`] extends the limit on a slow machine. Returns the result of the final attempt.
///
/// # Errors
///
/// If no attempt has succeeded within the limit.
pub fn retry<T, E>(
    limit: Duration,
    pause: Duration,
    mut attempt: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    let mut deadline = Deadline::after(limit);
    loop {
        match attempt() {
            Err(_) if !deadline.is_over() => thread::sleep(pause),
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_ends_and_not_before_its_limit() {
        const LIMIT: Duration = Duration::from_millis(20);
        let start = Instant::now();
        let mut deadline = Deadline::after(LIMIT);
        while !deadline.is_over() {}
        assert!(start.elapsed() >= LIMIT);
        assert!(deadline.granted <= LIMIT.mul_f64(SLOWEST));
        assert!(Deadline::after(Duration::ZERO).is_over());
        let mut exact = Deadline::exactly_after(LIMIT);
        while !exact.is_over() {}
        assert_eq!(exact.granted, LIMIT);
    }
}
