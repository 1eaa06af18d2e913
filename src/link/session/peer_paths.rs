//! The paths to the peer of a session. A path ([`PeerPath`]) is an address of the peer and a
//! transport to it.

use std::{
    fmt,
    net::{Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};

use crate::transport_choice::Transport;

/// The delay before a session over TCP first tests a path over RDMA with a trial connection. The
/// delay doubles with each trial, up to [`MAX_TRIAL_DELAY`]. A connection over RDMA that lasts for
/// at least [`MAX_TRIAL_DELAY`] resets the delay.
const FIRST_TRIAL_DELAY: Duration = Duration::from_secs(1);
const MAX_TRIAL_DELAY: Duration = Duration::from_secs(60);

/// The wait between attempts to reach a busy peer grows with each round over all paths. After this
/// number of rounds, the wait stops growing.
const MAX_BUSY_ROUNDS: u32 = 4;

/// An address of the peer and a transport to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PeerPath {
    pub(crate) address: SocketAddr,
    pub(crate) transport: Transport,
}

/// The path of a connection, and its local address. Both can change when the session resumes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    pub(crate) path: PeerPath,
    pub(crate) local: SocketAddr,
}

/// The paths to the peer, on the active side of a session.
pub(crate) struct PeerPaths {
    /// The paths, at least one, in the order of attempts. The first connection uses the first path.
    all: Vec<PeerPath>,
    /// For each path, whether a connection over it has reached the peer.
    known: Vec<bool>,
    /// The index of the path that the current connection or attempt uses.
    at: usize,
    /// The time when the current connection was established.
    since: Instant,
    trial: Trial,
    /// The delay before the next trial connection.
    wait: Duration,
    /// The index of the path that the last trial tested.
    last_tried: usize,
}

/// The state of the trial of a path over RDMA, while the session's connection uses TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trial {
    No,
    Due(Instant),
    /// A trial connection is being established.
    Trying,
    /// The trial succeeded. The connection over TCP ends, and the session resumes over RDMA.
    Found,
}

impl PeerPath {
    pub(crate) fn new(address: SocketAddr, transport: Transport) -> Self {
        Self { address, transport }
    }
}

impl Route {
    /// Creates a route. A missing local address becomes `0.0.0.0:0`.
    pub(crate) fn new(path: PeerPath, local: Option<SocketAddr>) -> Self {
        let local = local.unwrap_or_else(|| (Ipv4Addr::UNSPECIFIED, 0).into());
        Self { path, local }
    }
}

impl fmt::Display for PeerPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} over {}", self.address, self.transport)
    }
}

impl PeerPaths {
    /// Creates the paths of a session whose first connection uses `first`.
    pub(crate) fn new(first: PeerPath) -> Self {
        Self {
            all: vec![first],
            known: vec![false],
            at: 0,
            since: Instant::now(),
            trial: Trial::No,
            wait: FIRST_TRIAL_DELAY,
            last_tried: 0,
        }
    }

    /// Appends further paths, before the first connection is established.
    pub(super) fn add(&mut self, others: impl IntoIterator<Item = PeerPath>) {
        for path in others {
            if !self.all.contains(&path) {
                self.all.push(path);
                self.known.push(false);
            }
        }
        // The search for a path to test begins after `last_tried`. With this value, the search for
        // the first trial begins at the first path.
        self.last_tried = self.all.len() - 1;
    }

    /// Returns the path of the current connection or attempt.
    pub(super) fn present(&self) -> PeerPath {
        self.all[self.at]
    }

    /// Returns the paths that the current connection or attempt does not use.
    pub(super) fn others(&self) -> impl Iterator<Item = PeerPath> {
        let paths = self.all.iter().enumerate();
        paths.filter_map(|(index, path)| (index != self.at).then_some(*path))
    }

    /// Returns whether an earlier connection over the current path has reached the peer.
    pub(super) fn is_known(&self) -> bool {
        self.known[self.at]
    }

    /// Records a failed attempt, and selects the next path.
    pub(super) fn failed(&mut self) {
        self.at = (self.at + 1) % self.all.len();
    }

    /// Returns the failure count that replaces `attempts` after the peer has refused an attempt as
    /// busy. The peer may be busy only because it checks whether the previous connection is still
    /// in use. The next attempt therefore uses the same path. The returned count is a multiple of
    /// the number of paths, so that a short wait precedes the next attempt.
    pub(super) fn busy(&self, attempts: u32) -> u32 {
        let len = u32::try_from(self.all.len()).unwrap_or(u32::MAX);
        attempts
            .div_ceil(len)
            .min(MAX_BUSY_ROUNDS)
            .saturating_mul(len)
    }

    /// Converts a number of `attempts` to the number of complete rounds over all paths. The second
    /// value is true if another round has begun.
    pub(super) fn rounds(&self, attempts: u32) -> (u32, bool) {
        let len = u32::try_from(self.all.len()).unwrap_or(u32::MAX);
        (attempts / len, !attempts.is_multiple_of(len))
    }

    /// Records that a connection over the current path was established. Schedules a trial if this
    /// path uses TCP and another path uses RDMA.
    pub(super) fn arrived(&mut self, now: Instant) {
        self.known[self.at] = true;
        self.since = now;
        let is_rdma = |path: &PeerPath| path.transport == Transport::Rdma;
        self.trial = if !is_rdma(&self.present()) && self.all.iter().any(is_rdma) {
            Trial::Due(now + self.wait)
        } else {
            Trial::No
        };
    }

    /// Records the loss of the connection. If this side ended the connection to switch to RDMA
    /// after a successful trial, selects the tested path and returns true.
    pub(super) fn lost(&mut self, now: Instant) -> bool {
        let is_rdma = self.present().transport == Transport::Rdma;
        if is_rdma && now.duration_since(self.since) >= MAX_TRIAL_DELAY {
            self.wait = FIRST_TRIAL_DELAY;
        }
        let found = self.trial == Trial::Found;
        if found {
            self.at = self.last_tried;
        }
        self.trial = Trial::No;
        found
    }

    /// Returns the time of the next trial; `None` if no trial is scheduled.
    pub(super) fn next_trial_at(&self) -> Option<Instant> {
        match self.trial {
            Trial::Due(at) => Some(at),
            Trial::No | Trial::Trying | Trial::Found => None,
        }
    }

    /// Begins a trial if one is due, and returns the path to test.
    pub(super) fn begin_trial(&mut self, now: Instant) -> Option<PeerPath> {
        if self.next_trial_at()? > now {
            return None;
        }
        self.wait = (self.wait * 2).min(MAX_TRIAL_DELAY);
        self.trial = Trial::Trying;
        let len = self.all.len();
        let mut later = (self.last_tried + 1..=self.last_tried + len).map(|index| index % len);
        self.last_tried = later.find(|index| self.all[*index].transport == Transport::Rdma)?;
        Some(self.all[self.last_tried])
    }

    /// Ends the current trial, if there is one. If the trial succeeded, returns true: the caller
    /// must then end the current connection, so that the session can resume over RDMA. If the trial
    /// failed, schedules another trial.
    pub(super) fn end_trial(&mut self, works: bool, now: Instant) -> bool {
        if self.trial != Trial::Trying {
            return false;
        }
        self.trial = if works {
            Trial::Found
        } else {
            Trial::Due(now + self.wait)
        };
        works
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(host: u8, transport: Transport) -> PeerPath {
        PeerPath::new(SocketAddr::from(([10, 8, 0, host], 7471)), transport)
    }

    fn of(first: PeerPath, others: &[PeerPath]) -> PeerPaths {
        let mut paths = PeerPaths::new(first);
        paths.add(others.iter().copied());
        paths
    }

    const RDMA: Transport = Transport::Rdma;
    const TCP: Transport = Transport::Tcp;

    #[test]
    fn attempts_rotate_from_the_present_way() {
        let [a, b, c] = [path(1, RDMA), path(1, TCP), path(2, RDMA)];
        let mut paths = of(a, &[b, a, c, b]);
        let mut order = Vec::new();
        for attempts in 0..7 {
            order.push(paths.present());
            let (rounds, others_left) = paths.rounds(attempts);
            assert_eq!((rounds, others_left), (attempts / 3, attempts % 3 != 0));
            paths.failed();
        }
        assert_eq!(order, [a, b, c, a, b, c, a]);
        for (attempts, rounds) in [(1, 1), (3, 1), (4, 2), (12, 4), (13, 4)] {
            assert_eq!(paths.rounds(paths.busy(attempts)), (rounds, false));
        }
        let now = Instant::now();
        paths.arrived(now);
        assert_eq!(paths.present(), b, "the path must not change");
        assert!(paths.is_known());
        assert!(!paths.lost(now));
        paths.failed();
        assert_eq!(paths.present(), c);
        assert!(!paths.is_known());
    }

    #[test]
    fn tries_rdma_while_over_tcp() {
        let [a, b, c] = [path(1, TCP), path(1, RDMA), path(2, RDMA)];
        let mut paths = of(a, &[b, c]);
        let mut now = Instant::now();
        paths.arrived(now);
        for (seconds, over) in [
            (1, b),
            (2, c),
            (4, b),
            (8, c),
            (16, b),
            (32, c),
            (60, b),
            (60, c),
        ] {
            let at = paths.next_trial_at().unwrap();
            assert_eq!(at, now + Duration::from_secs(seconds));
            assert_eq!(paths.begin_trial(at - Duration::from_millis(1)), None);
            assert_eq!(paths.begin_trial(at), Some(over));
            assert_eq!(
                paths.next_trial_at(),
                None,
                "no trial may be scheduled during a trial"
            );
            now = at;
            assert!(!paths.end_trial(false, now));
        }
        paths.begin_trial(paths.next_trial_at().unwrap()).unwrap();
        assert!(paths.end_trial(true, now));
        assert!(paths.lost(now));
        assert_eq!(paths.present(), b);
        paths.arrived(now);
        assert_eq!(paths.next_trial_at(), None);
        assert!(
            !paths.end_trial(true, now),
            "a result without a trial must be ignored"
        );
        // The wait is reset only if the connection over RDMA lasted for at least a minute.
        for (worked, wait) in [(59, 60), (60, 1)] {
            now += Duration::from_secs(worked);
            assert!(!paths.lost(now));
            while paths.present() != a {
                paths.failed();
            }
            paths.arrived(now);
            assert_eq!(paths.next_trial_at(), Some(now + Duration::from_secs(wait)));
            while paths.present() != b {
                paths.failed();
            }
            paths.arrived(now);
        }
    }

    #[test]
    fn tries_nothing_without_rdma() {
        let mut paths = of(path(1, TCP), &[path(2, TCP)]);
        paths.arrived(Instant::now());
        assert_eq!(paths.next_trial_at(), None);
    }
}
