//! The paths to the peer of a session. A path ([`Way`]) is an address of the peer and a transport
//! to it.

use std::{
    fmt,
    net::{Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};

use super::{
    core::Core,
    session::{LinkSession, Side},
};
use crate::{proto::ResumeRequest, transport_choice::Transport};

/// The delay before the first trial of RDMA. It doubles after each failed trial.
const FIRST_TRIAL_DELAY: Duration = Duration::from_secs(1);
const MAX_TRIAL_DELAY: Duration = Duration::from_secs(60);

/// The number of rounds after which the wait for a busy peer no longer grows.
const MOST_BUSY_ROUNDS: u32 = 4;

/// An address of the peer and a transport to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    pub(crate) address: SocketAddr,
    pub(crate) transport: Transport,
}

/// The path of a connection, and its local address. Both can change when the session resumes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Route {
    pub(super) way: Way,
    pub(super) local: SocketAddr,
}

/// The paths to the peer, on the active side of a session.
pub(crate) struct Ways {
    /// The paths, at least one, in the order of attempts. The first connection uses the first path.
    all: Vec<Way>,
    /// For each path, whether a connection over it has reached the peer.
    known: Vec<bool>,
    /// The index of the path that the current connection or attempt uses.
    at: usize,
    /// The time when the current connection was established.
    since: Instant,
    trial: Trial,
    /// The delay before the next trial.
    wait: Duration,
    /// The index of the path that was tested last.
    last_tried: usize,
}

/// The test of a path over RDMA while the connection uses TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trial {
    No,
    Due(Instant),
    /// The engine's thread is testing the path.
    Trying,
    /// The path works, so the connection over TCP ends and the session resumes over RDMA.
    Found,
}

impl Way {
    pub(crate) fn new(address: SocketAddr, transport: Transport) -> Self {
        Self { address, transport }
    }
}

impl Route {
    /// Creates a route. A missing local address becomes `0.0.0.0:0`.
    pub(super) fn new(way: Way, local: Option<SocketAddr>) -> Self {
        let local = local.unwrap_or_else(|| (Ipv4Addr::UNSPECIFIED, 0).into());
        Self { way, local }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} over {}", self.address, self.transport)
    }
}

impl Ways {
    /// Creates the paths of a session whose first connection uses `first`.
    pub(crate) fn new(first: Way) -> Self {
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
    pub(super) fn add(&mut self, others: impl IntoIterator<Item = Way>) {
        for way in others {
            if !self.all.contains(&way) {
                self.all.push(way);
                self.known.push(false);
            }
        }
        // With this value, the first trial tests the first path over RDMA.
        self.last_tried = self.all.len() - 1;
    }

    /// Returns the path of the current connection or attempt.
    pub(super) fn present(&self) -> Way {
        self.all[self.at]
    }

    /// Returns whether an earlier connection over the current path has reached the peer.
    pub(super) fn is_known(&self) -> bool {
        self.known[self.at]
    }

    /// Records a failed attempt, and selects the next path.
    pub(super) fn failed(&mut self) {
        self.at = (self.at + 1) % self.all.len();
    }

    /// Returns the number of attempts from which the next wait is computed if the peer refused the
    /// last of `attempts` as busy. A busy peer may only be checking whether the previous connection
    /// still works. So the next attempt uses the same path, after a short wait.
    pub(super) fn busy(&self, attempts: u32) -> u32 {
        let len = u32::try_from(self.all.len()).unwrap_or(u32::MAX);
        attempts
            .div_ceil(len)
            .min(MOST_BUSY_ROUNDS)
            .saturating_mul(len)
    }

    /// Returns the number of complete rounds over all paths in `attempts`, and whether another
    /// round has begun.
    pub(super) fn rounds(&self, attempts: u32) -> (u32, bool) {
        let len = u32::try_from(self.all.len()).unwrap_or(u32::MAX);
        (attempts / len, !attempts.is_multiple_of(len))
    }

    /// Records that a connection over the current path was established.
    pub(super) fn arrived(&mut self, now: Instant) {
        self.known[self.at] = true;
        self.since = now;
        let is_rdma = |way: &Way| way.transport == Transport::Rdma;
        self.trial = if !is_rdma(&self.present()) && self.all.iter().any(is_rdma) {
            Trial::Due(now + self.wait)
        } else {
            Trial::No
        };
    }

    /// Records the loss of the connection. Returns whether this side ended it because a path over
    /// RDMA works.
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
    pub(super) fn begin_trial(&mut self, now: Instant) -> Option<Way> {
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

    /// Ends a trial. Returns whether the current connection has to end, because the path over RDMA
    /// works.
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

/// Functions for the paths of a session.
impl Core {
    /// Adds further paths to the path of the first connection.
    pub(crate) fn add_ways(&mut self, others: Vec<Way>) {
        if let Some(ways) = self.session.as_mut().and_then(|session| session.ways()) {
            ways.add(others);
        }
    }

    /// Begins a trial of RDMA if one is due. The trial sends an outdated request to resume. The
    /// peer refuses this request as stale, which proves that the path works and does not change the
    /// session.
    pub(super) fn begin_trial(&mut self, now: Instant) -> Option<(Way, ResumeRequest)> {
        let is_open = self.may_move();
        let session = self.session.as_mut().filter(|_| is_open)?;
        let id = session.id?;
        let way = session.ways()?.begin_trial(now)?;
        let request = ResumeRequest {
            id,
            epoch: session.messages.epoch(),
            received: session.messages.received(),
        };
        Some((way, request))
    }

    /// Returns whether the session may change its connection: the connection works, and neither
    /// side is ending it.
    fn may_move(&self) -> bool {
        let stays_open = |session: &LinkSession| session.closing.is_none() && !session.is_aborted;
        self.established
            && !self.blocks_new_messages()
            && self.conn.close_reason().is_none()
            && self.ended.is_none()
            && self.session.as_deref().is_some_and(stays_open)
    }

    /// Ends a trial. If the path `works`, the current connection ends, and the session resumes over
    /// the tested path.
    pub(crate) fn end_trial(&mut self, works: bool, now: Instant) {
        let may_move = self.may_move();
        let ways = self.session.as_mut().and_then(|session| session.ways());
        if ways.is_some_and(|ways| ways.end_trial(works && may_move, now)) {
            self.lose(now);
        }
    }

    /// Returns the time of the next trial of RDMA; `None` if no trial is scheduled.
    pub(super) fn next_trial_at(&self) -> Option<Instant> {
        match &self.session.as_ref()?.side {
            Side::Active(ways) if self.may_move() => ways.next_trial_at(),
            Side::Active(_) | Side::Passive => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(host: u8, transport: Transport) -> Way {
        Way::new(SocketAddr::from(([10, 8, 0, host], 7471)), transport)
    }

    fn of(first: Way, others: &[Way]) -> Ways {
        let mut ways = Ways::new(first);
        ways.add(others.iter().copied());
        ways
    }

    const RDMA: Transport = Transport::Rdma;
    const TCP: Transport = Transport::Tcp;

    #[test]
    fn attempts_rotate_from_the_present_way() {
        let [a, b, c] = [way(1, RDMA), way(1, TCP), way(2, RDMA)];
        let mut ways = of(a, &[b, a, c, b]);
        let mut order = Vec::new();
        for attempts in 0..7 {
            order.push(ways.present());
            let (rounds, others_left) = ways.rounds(attempts);
            assert_eq!((rounds, others_left), (attempts / 3, attempts % 3 != 0));
            ways.failed();
        }
        assert_eq!(order, [a, b, c, a, b, c, a]);
        for (attempts, rounds) in [(1, 1), (3, 1), (4, 2), (12, 4), (13, 4)] {
            assert_eq!(ways.rounds(ways.busy(attempts)), (rounds, false));
        }
        let now = Instant::now();
        ways.arrived(now);
        assert_eq!(ways.present(), b, "the next loss begins here");
        assert!(ways.is_known());
        assert!(!ways.lost(now));
        ways.failed();
        assert_eq!(ways.present(), c);
        assert!(!ways.is_known());
    }

    #[test]
    fn tries_rdma_while_over_tcp() {
        let [a, b, c] = [way(1, TCP), way(1, RDMA), way(2, RDMA)];
        let mut ways = of(a, &[b, c]);
        let mut now = Instant::now();
        ways.arrived(now);
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
            let at = ways.next_trial_at().unwrap();
            assert_eq!(at, now + Duration::from_secs(seconds));
            assert_eq!(ways.begin_trial(at - Duration::from_millis(1)), None);
            assert_eq!(ways.begin_trial(at), Some(over));
            assert_eq!(ways.next_trial_at(), None, "one at a time");
            now = at;
            assert!(!ways.end_trial(false, now));
        }
        ways.begin_trial(ways.next_trial_at().unwrap()).unwrap();
        assert!(ways.end_trial(true, now));
        assert!(ways.lost(now));
        assert_eq!(ways.present(), b);
        ways.arrived(now);
        assert_eq!(ways.next_trial_at(), None);
        assert!(!ways.end_trial(true, now), "a late answer");
        // The wait is reset only if the connection over RDMA lasted for at least a minute.
        for (worked, wait) in [(59, 60), (60, 1)] {
            now += Duration::from_secs(worked);
            assert!(!ways.lost(now));
            while ways.present() != a {
                ways.failed();
            }
            ways.arrived(now);
            assert_eq!(ways.next_trial_at(), Some(now + Duration::from_secs(wait)));
            while ways.present() != b {
                ways.failed();
            }
            ways.arrived(now);
        }
    }

    #[test]
    fn tries_nothing_without_rdma() {
        let mut ways = of(way(1, TCP), &[way(2, TCP)]);
        ways.arrived(Instant::now());
        assert_eq!(ways.next_trial_at(), None);
    }
}
