//! Limits the number of connections that are established concurrently.
//!
//! To establish a connection, this host registers memory and creates queues, and then waits for the
//! peer's answer. If many attempts started together, none would complete before the host had
//! prepared all of them. Each connection therefore waits for its turn, and creates its device
//! objects only during the turn. Connections with the same peer host get their turns in the order
//! in which they began to wait.
//!
//! Each turn first occupies one of a limited number of slots. The turn keeps its slot for at most
//! [`CONNECT_SLOT_TIME`] (outgoing connections) or [`ACCEPT_SLOT_TIME`] (incoming connections),
//! because by then the connection usually waits for the peer and not for this host. The turn itself
//! ends when the connection is established or has failed. A free slot goes to a connection with the
//! peer host that has the fewest turns. The turns of one peer host cannot occupy all slots, so a
//! host that is down does not delay connections to other hosts.

use std::{
    collections::{BTreeMap, HashMap},
    time::{Duration, Instant},
};

use crate::proto::Host;

/// The number of slots in each direction. It is small, so that early attempts finish first, but
/// large enough to keep the host busy while some attempts wait for their peers.
pub(super) const SLOTS: usize = 8;

/// The time after which the turn of an outgoing connection releases its slot. By then, the
/// connection usually waits for the peer.
const CONNECT_SLOT_TIME: Duration = Duration::from_secs(2);

/// The time after which the turn of an incoming connection releases its slot. Once this host has
/// accepted the connection, only the peer's confirmation is missing. The time is short, so that a
/// peer that never confirms delays other connections only briefly.
const ACCEPT_SLOT_TIME: Duration = Duration::from_millis(250);

/// The connections of one direction that wait for a turn or have a turn. Connections are identified
/// by their keys.
#[derive(Debug)]
pub(super) struct Admission {
    /// The number of slots.
    slots: usize,
    /// The maximum number of slots that the turns of one peer host can occupy.
    slots_of_host: usize,
    time_limit: Duration,
    /// The turns that occupy slots.
    taken: Vec<Turn>,
    hosts: HashMap<Host, OfHost>,
    /// All connections that wait for a turn or have one.
    members: HashMap<u64, Member>,
    next_ticket: u64,
}

/// The connections with one peer host.
#[derive(Debug, Default)]
struct OfHost {
    /// The keys of waiting connections by ticket, the oldest first.
    waiting: BTreeMap<u64, u64>,
    /// The number of connections that have a turn, whether or not the turn occupies a slot.
    started: usize,
    /// The number of turns that occupy slots.
    taken: usize,
}

#[derive(Clone, Copy, Debug)]
struct Turn {
    key: u64,
    host: Host,
    /// The time at which the turn releases its slot.
    end: Instant,
}

#[derive(Clone, Copy, Debug)]
enum Member {
    Waiting { host: Host, ticket: u64 },
    Started { host: Host },
}

impl Admission {
    /// Creates the `Admission` for outgoing connections.
    pub(super) fn of_connects() -> Self {
        Self::new(SLOTS, CONNECT_SLOT_TIME)
    }

    /// Creates the `Admission` for incoming connections.
    pub(super) fn of_accepts() -> Self {
        Self::new(SLOTS, ACCEPT_SLOT_TIME)
    }

    fn new(slots: usize, time_limit: Duration) -> Self {
        Self {
            slots,
            slots_of_host: slots - slots / 4,
            time_limit,
            taken: Vec::with_capacity(slots),
            hosts: HashMap::new(),
            members: HashMap::new(),
            next_ticket: 0,
        }
    }

    /// Appends a connection with `host` to the host's waiting connections. A connection that
    /// already has a turn loses this turn, and one that already waits moves to the end.
    pub(super) fn join(&mut self, key: u64, host: Host) {
        self.leave(key);
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let waiting = &mut self.hosts.entry(host).or_default().waiting;
        waiting.insert(ticket, key);
        self.members.insert(key, Member::Waiting { host, ticket });
    }

    /// Removes a connection, whether it is waiting or has a turn.
    pub(super) fn leave(&mut self, key: u64) {
        let Some(member) = self.members.remove(&key) else {
            return;
        };
        let (Member::Waiting { host, .. } | Member::Started { host }) = member;
        let Some(entry) = self.hosts.get_mut(&host) else {
            return;
        };
        match member {
            Member::Waiting { ticket, .. } => drop(entry.waiting.remove(&ticket)),
            Member::Started { .. } => {
                entry.started -= 1;
                let before = self.taken.len();
                self.taken.retain(|turn| turn.key != key);
                entry.taken -= before - self.taken.len();
            }
        }
        if entry.waiting.is_empty() && entry.started == 0 {
            self.hosts.remove(&host);
        }
    }

    /// Ends a connection's turn. Does nothing if the connection still waits for its turn.
    pub(super) fn finish(&mut self, key: u64) {
        if let Some(Member::Started { .. }) = self.members.get(&key) {
            self.leave(key);
        }
    }

    /// Returns the keys of the connections that have a turn.
    pub(super) fn started(&self) -> impl Iterator<Item = u64> + '_ {
        let started = |member: &Member| matches!(member, Member::Started { .. });
        let members = self.members.iter();
        members.filter_map(move |(key, member)| started(member).then_some(*key))
    }

    /// Releases the slots whose time has passed. Then, if a waiting connection can get a slot,
    /// starts the connection's turn and returns the connection's key.
    pub(super) fn next(&mut self, now: Instant) -> Option<u64> {
        let hosts = &mut self.hosts;
        self.taken.retain(|turn| {
            let lasts = turn.end > now;
            if !lasts && let Some(host) = hosts.get_mut(&turn.host) {
                host.taken -= 1;
            }
            lasts
        });
        if self.taken.len() >= self.slots {
            return None;
        }
        let (_, _, host) = self
            .hosts
            .iter()
            .filter(|(_, entry)| entry.taken < self.slots_of_host)
            .filter_map(|(host, entry)| {
                let (ticket, _) = entry.waiting.first_key_value()?;
                Some((entry.started, *ticket, *host))
            })
            .min()?;
        let entry = self.hosts.get_mut(&host)?;
        let (_, key) = entry.waiting.pop_first()?;
        entry.started += 1;
        entry.taken += 1;
        self.members.insert(key, Member::Started { host });
        let end = now + self.time_limit;
        self.taken.push(Turn { key, host, end });
        Some(key)
    }

    /// Returns the time at which the caller should call [`next`](Self::next) to start a turn.
    /// Returns `None` if no connection waits.
    pub(super) fn next_at(&self, now: Instant) -> Option<Instant> {
        let mut waiting = self
            .hosts
            .values()
            .filter(|host| !host.waiting.is_empty())
            .peekable();
        waiting.peek()?;
        let has_slot =
            self.taken.len() < self.slots && waiting.any(|host| host.taken < self.slots_of_host);
        if has_slot {
            return Some(now);
        }
        self.taken.iter().map(|turn| turn.end).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME_LIMIT: Duration = Duration::from_millis(500);

    fn host(number: u8) -> Host {
        Host::of([10, 8, 0, number].into())
    }

    fn drain(turns: &mut Admission, now: Instant) -> Vec<u64> {
        std::iter::from_fn(|| turns.next(now)).collect()
    }

    #[test]
    fn oldest_attempts_get_the_limited_slots() {
        let now = Instant::now();
        let mut turns = Admission::new(3, TIME_LIMIT);
        assert_eq!(turns.next_at(now), None);
        for key in [5, 9, 2, 7, 1] {
            turns.join(key, host(1));
        }
        assert_eq!(turns.next_at(now), Some(now));
        assert_eq!(drain(&mut turns, now), [5, 9, 2]);
        assert_eq!(turns.next_at(now), Some(now + TIME_LIMIT));
        turns.finish(9);
        assert_eq!(drain(&mut turns, now), [7]);
        turns.leave(5);
        turns.leave(5);
        assert_eq!(drain(&mut turns, now), [1]);
        assert_eq!(turns.next_at(now), None, "no connection must wait");
    }

    #[test]
    fn cancelled_attempt_gets_no_turn() {
        let now = Instant::now();
        let mut turns = Admission::new(1, TIME_LIMIT);
        for key in 1..=3 {
            turns.join(key, host(1));
        }
        turns.finish(1);
        assert_eq!(
            turns.next(now),
            Some(1),
            "`finish` must not remove a connection that waits for its turn"
        );
        turns.leave(2);
        turns.finish(1);
        assert_eq!(drain(&mut turns, now), [3]);
    }

    #[test]
    fn silent_host_delays_others_by_its_limit_at_most() {
        let start = Instant::now();
        let mut turns = Admission::new(2, TIME_LIMIT);
        for key in 1..=100 {
            turns.join(key, host(1));
        }
        assert_eq!(drain(&mut turns, start), [1, 2]);
        turns.join(101, host(2));
        let later = start + TIME_LIMIT;
        assert_eq!(
            drain(&mut turns, later),
            [101, 3],
            "the host without turns must get the first slot"
        );
        // The earlier turns with the silent host are still counted, although they occupy no slots.
        turns.join(102, host(2));
        assert_eq!(drain(&mut turns, later + TIME_LIMIT), [102, 4]);
        turns.leave(1);
        let left = drain(&mut turns, later + TIME_LIMIT);
        assert!(
            left.is_empty(),
            "connection 1 must have released its slot earlier, but turns were started: {left:?}"
        );
    }

    #[test]
    fn one_host_does_not_get_all_slots() {
        let now = Instant::now();
        let mut turns = Admission::new(8, TIME_LIMIT);
        for key in 1..=100 {
            turns.join(key, host(1));
        }
        assert_eq!(drain(&mut turns, now), [1, 2, 3, 4, 5, 6]);
        assert_eq!(turns.next_at(now), Some(now + TIME_LIMIT));
        for key in 101..=110 {
            turns.join(key, host(2));
        }
        assert_eq!(drain(&mut turns, now), [101, 102]);
        turns.finish(1);
        assert_eq!(
            drain(&mut turns, now),
            [103],
            "the host with fewer turns must get the free slot"
        );
        turns.finish(103);
        assert_eq!(drain(&mut turns, now), [104]);
    }

    #[test]
    fn repeated_attempt_is_last_in_turn() {
        let now = Instant::now();
        let mut turns = Admission::new(1, TIME_LIMIT);
        turns.join(1, host(1));
        turns.join(2, host(1));
        assert_eq!(turns.next(now), Some(1));
        turns.join(1, host(1));
        assert_eq!(turns.next(now), Some(2));
        turns.finish(2);
        assert_eq!(turns.next(now), Some(1));
        turns.finish(1);
        assert!(turns.hosts.is_empty() && turns.members.is_empty() && turns.taken.is_empty());
    }
}
