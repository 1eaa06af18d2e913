use std::{
    fmt, mem,
    time::{Duration, Instant},
};

use rdmsg::Endpoint;

/// Detects and times the outages of one connection that can be resumed.
#[derive(Debug)]
pub(super) struct Outages {
    looked: Instant,
    /// The time at which a check detected the current outage, or `None` if no outage is known.
    since: Option<Instant>,
    resumes: u64,
}

/// A change in the state of the connection since the previous check.
#[derive(Debug)]
pub(super) enum Change {
    Suspended,
    Resumed(After),
}

/// The duration of an outage.
#[derive(Debug)]
pub(super) enum After {
    Exactly(Duration),
    /// The maximum duration of an outage that began and ended between two checks.
    AtMost(Duration),
}

impl Outages {
    pub(super) fn new() -> Self {
        Self {
            looked: Instant::now(),
            since: None,
            resumes: 0,
        }
    }

    /// Checks the connection. Returns the change since the previous check, or `None` if nothing has
    /// changed.
    pub(super) fn look(&mut self, endpoint: &Endpoint) -> Option<Change> {
        let resumes = endpoint.statistics().resumes;
        self.change(resumes, endpoint.info().is_suspended)
    }

    /// Returns the number of times that the connection had been resumed by the last check.
    pub(super) fn resumes(&self) -> u64 {
        self.resumes
    }

    pub(super) fn is_suspended(&self) -> bool {
        self.since.is_some()
    }

    fn change(&mut self, resumes: u64, is_suspended: bool) -> Option<Change> {
        let before = mem::replace(&mut self.looked, Instant::now());
        if resumes > self.resumes {
            self.resumes = resumes;
            return Some(Change::Resumed(match self.since.take() {
                Some(since) => After::Exactly(since.elapsed()),
                None => After::AtMost(before.elapsed()),
            }));
        }
        if is_suspended && self.since.is_none() {
            self.since = Some(self.looked);
            return Some(Change::Suspended);
        }
        None
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (most, after) = match self {
            Self::Suspended => return f.write_str("suspended: the connection is lost"),
            Self::Resumed(After::Exactly(after)) => ("", after),
            Self::Resumed(After::AtMost(after)) => ("at most ", after),
        };
        write!(f, "resumed after {most}{:.1} s", after.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_is_reported_once() {
        let mut outages = Outages::new();
        assert!(outages.change(0, false).is_none());
        let shown = |change: Option<Change>| change.unwrap().to_string();
        assert_eq!(
            shown(outages.change(0, true)),
            "suspended: the connection is lost"
        );
        assert!(outages.change(0, true).is_none());
        assert!(outages.is_suspended());
        // The connection was resumed and lost again between two checks.
        let resumed = shown(outages.change(1, true));
        assert!(resumed.starts_with("resumed after "), "{resumed}");
        assert!(!resumed.contains("at most"), "{resumed}");
        assert!(matches!(outages.change(1, true), Some(Change::Suspended)));
        outages.change(2, false);
        assert!(!outages.is_suspended());
        let short = shown(outages.change(3, false));
        assert!(short.starts_with("resumed after at most "), "{short}");
        assert!(outages.change(3, false).is_none());
    }
}
