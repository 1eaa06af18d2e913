use std::{
    process::Command,
    time::{Duration, Instant},
};

/// What starting and ending a program that does nothing takes in the lab on an idle machine.
const USUAL: Duration = Duration::from_millis(40);

/// How many times it is done: the mean counts, as the machine has other things to do now and then.
const TIMES: u32 = 10;

/// No machine on which anything works is slower by more.
const SLOWEST: f64 = 10.0;

/// By how much longer everything takes at the moment than on an idle machine; at least 1.
#[must_use]
pub fn slowness() -> f64 {
    let start = Instant::now();
    for _ in 0..TIMES {
        // Where there is no such program, looking for it takes time as well.
        let _ = Command::new("true").status();
    }
    let mean = start.elapsed() / TIMES;
    (mean.as_secs_f64() / USUAL.as_secs_f64()).clamp(1.0, SLOWEST)
}

/// A bound in time of an idle machine. When that is over, the machine's speed is measured, and a
/// slower one is given as many times more: only what hangs comes to the end of it.
#[derive(Clone, Debug)]
pub struct Deadline {
    start: Instant,
    granted: Duration,
    /// Whether more may be granted.
    extensible: bool,
}

impl Deadline {
    /// A bound that ends in `limit` from now on an idle machine. It is also made from a
    /// [`Duration`].
    #[must_use]
    pub fn after(limit: Duration) -> Self {
        Self {
            extensible: !limit.is_zero(),
            ..Self::exactly_after(limit)
        }
    }

    /// A bound that is the same on every machine, for waits after which one goes on waiting.
    #[must_use]
    pub fn exactly_after(limit: Duration) -> Self {
        Self {
            start: Instant::now(),
            granted: limit,
            extensible: false,
        }
    }

    /// What is left; zero when the time is over.
    pub fn left(&mut self) -> Duration {
        let left = self.granted.saturating_sub(self.start.elapsed());
        if !left.is_zero() || !self.extensible {
            return left;
        }
        self.extensible = false;
        self.granted = self.granted.mul_f64(slowness());
        self.left()
    }

    /// Whether the time is over.
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
