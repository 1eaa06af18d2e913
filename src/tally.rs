//! Counters of this process's connection events, by reason, and a histogram of round-trip times.
//!
//! The engine and the connections increment the counters, and must not depend on the module
//! `observe`. Therefore the counters are in a separate module. All of them are atomic, so no lock
//! is needed.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use crate::{error::Error, os::PerProcess, proto::CloseReason};

/// Whether the program has enabled statistics.
static ENABLED: AtomicBool = AtomicBool::new(false);

static TALLY: PerProcess<Tally> = PerProcess::new(Tally::new);

/// Enables the counters.
pub(crate) fn enable() {
    ENABLED.store(true, Ordering::Relaxed);
}

/// Returns true if the program has enabled statistics. The end of a connection is counted only if
/// statistics were enabled when the connection was created.
pub(crate) fn is_enabled() -> bool {
    ENABLED.load(Ordering::Relaxed)
}

/// Returns the counters of this process.
pub(crate) fn tally() -> &'static Tally {
    TALLY.get()
}

/// The counters of a process.
#[derive(Debug)]
pub(crate) struct Tally {
    /// The number of established connections that ended.
    pub(crate) ended: ByReason,
    /// The number of connect calls that returned an error or were cancelled.
    pub(crate) connects_failed: ByReason,
    /// The number of requests that listeners received and did not accept.
    pub(crate) requests_refused: ByReason,
    /// The round-trip times of pings.
    pub(crate) round_trips: RoundTripTally,
}

/// Counters of events by name. Each name states why a connection ended, a connect call failed, or a
/// request was refused.
#[derive(Debug)]
pub(crate) struct ByReason(BTreeMap<&'static str, AtomicU64>);

/// A histogram of round-trip times. Each bound in [`BOUNDS`] has a counter. A round trip increments
/// the counter of the lowest bound that it did not exceed. If it exceeded all bounds, it increments
/// an additional counter.
#[derive(Debug)]
pub(crate) struct RoundTripTally {
    counts: [AtomicU64; BOUNDS.len() + 1],
    /// The sum of all round-trip times in nanoseconds.
    sum: AtomicU64,
}

/// The inclusive upper bounds of the counters in the histogram, from 10 µs to 5 s.
const BOUNDS: [Duration; 18] = [
    Duration::from_micros(10),
    Duration::from_micros(20),
    Duration::from_micros(50),
    Duration::from_micros(100),
    Duration::from_micros(200),
    Duration::from_micros(500),
    Duration::from_millis(1),
    Duration::from_millis(2),
    Duration::from_millis(5),
    Duration::from_millis(10),
    Duration::from_millis(20),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(5),
];

/// The reason why a listener does not accept a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Refusal {
    /// The backlog is full.
    Backlog,
    /// The listener is already establishing too many connections.
    HalfOpen,
    /// The hello of the peer is malformed or incompatible.
    Hello,
    /// The session that the peer tried to resume is unknown.
    Session,
    /// The program rejected or dropped the request.
    Program,
    /// The listener was closed before the connection was established.
    Closed,
}

impl Refusal {
    const NAMES: [&'static str; 6] = [
        "backlog",
        "half_open",
        "hello",
        "session",
        "program",
        "closed",
    ];

    const fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

/// The names of connect failures that have no [`CloseReason`].
const FAILURES: [&str; 11] = [
    "address_lookup",
    "engine_shut_down",
    "given_up",
    "invalid_config",
    "locked_memory",
    "loopback",
    "no_rdma",
    "other",
    "permission_denied",
    "shared_receives",
    "source",
];

/// Returns the name of a connect failure.
fn failure(error: &Error) -> &'static str {
    match error {
        Error::Connect { reason, .. } | Error::Disconnected(reason) => reason.name(),
        Error::Os(error) => CloseReason::Os(*error).name(),
        Error::Forked => CloseReason::Forked.name(),
        Error::AddressLookup { .. } => "address_lookup",
        Error::EngineShutDown => "engine_shut_down",
        Error::InvalidConfig { .. } | Error::PrivateDataTooLong { .. } => "invalid_config",
        Error::LockedMemory { .. } => "locked_memory",
        Error::Loopback { .. } => "loopback",
        Error::NoRdma(_) | Error::RdmaNotBuilt => "no_rdma",
        Error::PermissionDenied { .. } => "permission_denied",
        Error::SharedReceivesExhausted { .. } => "shared_receives",
        Error::Source { .. } => "source",
        _ => "other",
    }
}

impl Tally {
    fn new() -> Self {
        let reasons = || CloseReason::NAMES.iter().copied();
        Self {
            ended: ByReason::new(reasons()),
            connects_failed: ByReason::new(reasons().chain(FAILURES)),
            requests_refused: ByReason::new(Refusal::NAMES.into_iter()),
            round_trips: RoundTripTally {
                counts: Default::default(),
                sum: AtomicU64::new(0),
            },
        }
    }
}

impl ByReason {
    fn new(names: impl Iterator<Item = &'static str>) -> Self {
        Self(names.map(|name| (name, AtomicU64::new(0))).collect())
    }

    fn add(&self, name: &str) {
        if let Some(counter) = self.0.get(name) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the counts by name, with an entry for every name.
    pub(crate) fn counts(&self) -> BTreeMap<&'static str, u64> {
        let counts = self.0.iter();
        counts
            .map(|(name, counter)| (*name, counter.load(Ordering::Relaxed)))
            .collect()
    }
}

impl RoundTripTally {
    fn add(&self, time: Duration) {
        let at = BOUNDS.partition_point(|bound| *bound < time);
        self.counts[at].fetch_add(1, Ordering::Relaxed);
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.sum.fetch_add(nanos, Ordering::Relaxed);
    }

    /// Returns three values: for each bound, the number of round trips that did not exceed it; the
    /// number of all round trips; and the sum of their times.
    pub(crate) fn counts(&self) -> (Vec<(Duration, u64)>, u64, Duration) {
        let mut count = 0;
        let mut up_to = |at: usize| {
            count += self.counts[at].load(Ordering::Relaxed);
            count
        };
        let buckets = BOUNDS.iter().enumerate();
        let buckets = buckets.map(|(at, bound)| (*bound, up_to(at))).collect();
        let count = up_to(BOUNDS.len());
        let sum = Duration::from_nanos(self.sum.load(Ordering::Relaxed));
        (buckets, count, sum)
    }
}

/// Counts the end of an established connection.
pub(crate) fn count_end(reason: &CloseReason) {
    tally().ended.add(reason.name());
}

/// Counts a connect call that failed with this error.
pub(crate) fn count_failure(error: &Error) {
    if is_enabled() {
        tally().connects_failed.add(failure(error));
    }
}

/// Counts a connect call that the program cancelled by dropping its future.
pub(crate) fn count_given_up() {
    if is_enabled() {
        tally().connects_failed.add("given_up");
    }
}

/// Counts a request that was not accepted.
pub(crate) fn count_refusal(refusal: Refusal) {
    if is_enabled() {
        tally().requests_refused.add(refusal.name());
    }
}

/// Records the round-trip time of a ping.
pub(crate) fn count_round_trip(time: Duration) {
    if is_enabled() {
        tally().round_trips.add(time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{proto::Phase, status::OsError};

    #[test]
    fn failures_are_counted_by_their_names() {
        let tally = Tally::new();
        let peer = ([10, 8, 0, 1], 7471).into();
        let reason = CloseReason::TimedOut(Phase::Connecting);
        for error in [
            Error::Connect { peer, reason },
            Error::NoRdma(OsError::new("open", 2)),
            Error::RdmaNotBuilt,
            Error::TimedOut,
        ] {
            tally.connects_failed.add(failure(&error));
        }
        let mut counts = tally.connects_failed.counts();
        assert_eq!(counts.len(), CloseReason::NAMES.len() + FAILURES.len());
        counts.retain(|_, count| *count > 0);
        let expected = [("timed_out", 1), ("no_rdma", 2), ("other", 1)];
        assert_eq!(counts, BTreeMap::from(expected));
        assert!(FAILURES.is_sorted());
    }

    #[test]
    fn refusals_have_names_of_their_own() {
        assert_eq!(Refusal::Backlog.name(), "backlog");
        assert_eq!(Refusal::Closed.name(), "closed");
        assert_eq!(Refusal::Closed as usize + 1, Refusal::NAMES.len());
    }

    #[test]
    fn round_trip_counts_up_to_its_bound() {
        let tally = Tally::new().round_trips;
        for micros in [1, 10, 11, 5_000_000, 5_000_001] {
            tally.add(Duration::from_micros(micros));
        }
        let (buckets, count, sum) = tally.counts();
        assert_eq!((buckets[0].1, buckets[1].1), (2, 3));
        assert_eq!(buckets.last(), Some(&(Duration::from_secs(5), 4)));
        assert_eq!((count, sum), (5, Duration::from_micros(10_000_023)));
        assert!(BOUNDS.is_sorted());
    }
}
