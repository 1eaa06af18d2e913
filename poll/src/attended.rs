use std::{
    collections::{HashMap, HashSet},
    mem,
    time::{Duration, Instant},
};

use super::{
    poller::Poller,
    word::{Owner, OwnerCheck},
};

/// The time between two checks by the engine of the connections that the application polls. A
/// program that mixes `recv` with `select!` may see a message up to twice this time after its
/// arrival. If a program polls often, the engine checks once in this time, instead of handling an
/// interrupt for each message.
const ROUND: Duration = Duration::from_millis(10);

/// The time between two checks of connections that hold a message back. It is shorter, because the
/// message is sent by the next poll.
const HELD_BACK_ROUND: Duration = Duration::from_millis(1);

/// The connections that threads or loops of the application poll, and that the engine's thread
/// checks with one table and one timer.
///
/// The table contains the connections that threads own, except those whose leader sleeps in the
/// kernel, because that leader is certain to wake up. It contains the connections that loops own if
/// they had an event at the last check, or hold a message back.
#[derive(Debug, Default)]
pub struct Attended {
    /// The count of visits at the last check, by key.
    seen: HashMap<u64, u32>,
    /// The connections among them that hold a message back.
    held_back: HashSet<u64>,
    /// Connections that the engine could not poll, because a thread of the application was polling
    /// them.
    busy: HashSet<u64>,
    /// Whether events are pending for loops.
    loops: bool,
    /// The time of the next check of all connections.
    round: Option<Instant>,
    /// The time of the next check of `held_back` and `busy`.
    soon: Option<Instant>,
}

/// A connection, as [`Attended`] uses it.
pub trait AttendedConnection {
    /// Returns the connection's poller.
    fn poller(&self) -> &Poller;

    /// Whether the connection holds a message back.
    fn holds_back(&self) -> bool;
}

impl Attended {
    /// Adds a connection to the table, after a notice from its new owner.
    pub fn attend(&mut self, key: u64, who: &impl AttendedConnection) {
        let poller = who.poller();
        let held_back = poller.is_held_back();
        match poller.owner() {
            // The engine has become the owner since.
            Owner::Engine => return,
            Owner::Loop if !held_back => return,
            Owner::Threads | Owner::Loop => {}
        }
        // The notice may be 10 ms old, so the first check counts it as a visit.
        self.seen.insert(key, poller.visits().wrapping_sub(1));
        let now = Instant::now();
        self.round.get_or_insert(now + ROUND);
        if held_back {
            self.held_back.insert(key);
            self.soon.get_or_insert(now + HELD_BACK_ROUND);
        }
    }

    /// Notes that a loop has an event, the first one since a check found none.
    pub fn expect_loops(&mut self) {
        self.loops = true;
        self.round.get_or_insert_with(|| Instant::now() + ROUND);
    }

    /// Removes a connection that the engine owns, or that has ended.
    pub fn forget(&mut self, key: u64) {
        self.seen.remove(&key);
        self.held_back.remove(&key);
    }

    /// Notes a connection that a thread of the application is polling. The engine polls it again
    /// within 1 ms, because that thread may have been preempted.
    pub fn poll_soon(&mut self, key: u64) {
        self.busy.insert(key);
        self.soon
            .get_or_insert_with(|| Instant::now() + HELD_BACK_ROUND);
    }

    /// Returns the time of the next check.
    pub fn next(&self) -> Option<Instant> {
        [self.round, self.soon].into_iter().flatten().min()
    }

    /// Checks the connections that are due. Returns the keys of the connections that the engine
    /// arms and polls now. It owns them, because their owner has not polled, or they were busy.
    /// `pending` returns the keys of all connections that have events for loops.
    pub fn check_due<'a, A: AttendedConnection + 'a>(
        &mut self,
        now: Instant,
        find: impl Fn(u64) -> Option<&'a A>,
        pending: impl FnOnce() -> Vec<u64>,
    ) -> Vec<u64> {
        let mut expired = Vec::new();
        if self.soon.is_some_and(|at| at <= now) {
            self.check_held_back(&find, &mut expired);
            self.soon = (!self.held_back.is_empty()).then(|| now + HELD_BACK_ROUND);
            self.check_busy(&find, &mut expired);
        }
        if self.round.is_some_and(|at| at <= now) {
            let pending = if self.loops { pending() } else { Vec::new() };
            self.check_all(&find, &pending, &mut expired);
            let more = self.loops || !self.seen.is_empty();
            self.round = more.then(|| now + ROUND);
        }
        expired
    }

    /// Whether loops had events at the last check. If not, the caller watches for the next one, and
    /// then calls [`expect_loops`](Self::expect_loops).
    pub fn expects_loops(&self) -> bool {
        self.loops
    }

    /// Schedules one more check, even if the table is empty.
    pub fn add_check(&mut self) {
        self.round.get_or_insert_with(|| Instant::now() + ROUND);
    }

    fn check_held_back<'a, A: AttendedConnection + 'a>(
        &mut self,
        find: impl Fn(u64) -> Option<&'a A>,
        expired: &mut Vec<u64>,
    ) {
        let seen = &mut self.seen;
        self.held_back.retain(|key| {
            let (Some(who), Some(count)) = (find(*key), seen.get_mut(key)) else {
                return false;
            };
            // The request is cleared before the check, so that a message that is held back after
            // the check makes a new request.
            who.poller().relax();
            if !who.holds_back() {
                return false;
            }
            who.poller().note_held_again();
            match who.poller().check_owner(*count) {
                OwnerCheck::Visited(now) => {
                    *count = now;
                    return true;
                }
                OwnerCheck::Expired => expired.push(*key),
                OwnerCheck::Left | OwnerCheck::Owned => {}
            }
            seen.remove(key);
            false
        });
    }

    fn check_busy<'a, A: AttendedConnection + 'a>(
        &mut self,
        find: impl Fn(u64) -> Option<&'a A>,
        due: &mut Vec<u64>,
    ) {
        for key in mem::take(&mut self.busy) {
            if let (Some(who), false) = (find(key), self.seen.contains_key(&key)) {
                who.poller().expire();
            }
            due.push(key);
        }
    }

    fn check_all<'a, A: AttendedConnection + 'a>(
        &mut self,
        find: impl Fn(u64) -> Option<&'a A>,
        pending: &[u64],
        expired: &mut Vec<u64>,
    ) {
        let held_back = &self.held_back;
        let is_pending: HashSet<u64> = pending.iter().copied().collect();
        self.seen.retain(|key, count| {
            let Some(poller) = find(*key).map(AttendedConnection::poller) else {
                return false;
            };
            if poller.owner() == Owner::Loop && !is_pending.contains(key) {
                return held_back.contains(key);
            }
            match poller.check_owner(*count) {
                OwnerCheck::Visited(now) => {
                    *count = now;
                    true
                }
                OwnerCheck::Expired => {
                    expired.push(*key);
                    false
                }
                OwnerCheck::Left | OwnerCheck::Owned => false,
            }
        });
        for key in pending {
            if let Some(poller) = find(*key).map(AttendedConnection::poller)
                && poller.owner() == Owner::Loop
            {
                self.seen.entry(*key).or_insert_with(|| poller.visits());
            }
        }
        self.loops = !pending.is_empty();
    }
}
