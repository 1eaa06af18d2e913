use std::{
    process::Command,
    time::{Duration, Instant},
};

/// Time to start and end a trivial program in the lab on an idle machine.
const USUAL: Duration = Duration::from_millis(40);

/// Number of measurements, of which the mean counts, because other load comes and goes.
const TIMES: u32 = 10;

/// Upper bound of the factor, because on a slower machine no deadline is long enough.
const SLOWEST: f64 = 10.0;

/// Returns the factor by which programs start slower now than on an idle machine: 1 to 10.
#[must_use]
pub fn slowness() -> f64 {
    let start = Instant::now();
    for _ in 0..TIMES {
        // If there is no program `true`, the search for it takes time, which is measured instead.
        let _ = Command::new("true").status();
    }
    let mean = start.elapsed() / TIMES;
    (mean.as_secs_f64() / USUAL.as_secs_f64()).clamp(1.0, SLOWEST)
}

/// A time limit, given for an idle machine. When it has passed, the deadline measures the machine's
/// speed and extends the limit by that factor once, so that only hanging operations reach it.
#[derive(Clone, Debug)]
pub struct Deadline {
    start: Instant,
    granted: Duration,
    /// Whether more may be granted.
    extensible: bool,
}

impl Deadline {
    /// Creates a deadline in `limit`, extended on a slow machine. `From<Duration>` does the same.
    #[must_use]
    pub fn after(limit: Duration) -> Self {
        Self {
            extensible: !limit.is_zero(),
            ..Self::exactly_after(limit)
        }
    }

    /// Creates a deadline that is never extended, for waits that are repeated.
    #[must_use]
    pub fn exactly_after(limit: Duration) -> Self {
        Self {
            start: Instant::now(),
            granted: limit,
            extensible: false,
        }
    }

    /// Returns the remaining time; zero after the deadline.
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
