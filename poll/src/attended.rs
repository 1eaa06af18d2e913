use std::{
    collections::{HashMap, HashSet},
    mem,
    time::{Duration, Instant},
};

use super::{
    poller::Poller,
    word::{Owner, OwnerCheck},
};

/// Interval at which the engine's thread checks the connections that the application polls. The
/// interval bounds the delay of messages if the application stops polling: a program that mixes
/// `recv` with `select!` may receive a message up to two intervals after its arrival. It also
/// bounds the cost of the checks: while a program polls often, the engine's thread runs once per
/// interval instead of once per message.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// Interval at which the engine's thread checks connections that hold back a message. It is shorter
/// than `CHECK_INTERVAL`, because the message is sent only when the connection is polled again.
const QUICK_CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// The connections that threads or event loops of the application poll. The engine's thread checks
/// all of them with one timer.
///
/// A connection that threads own is in the table, except while the leader of these threads sleeps
/// in the kernel. The engine need not check such a connection, because an event is certain to wake
/// the leader. A connection that an event loop owns is in the table if an event was pending at the
/// last check, or if the connection holds back a message.
#[derive(Debug, Default)]
pub struct Attended {
    /// The value of [`Poller::visits`] at the last check, by connection key.
    seen: HashMap<u64, u32>,
    /// The keys of the connections in `seen` that hold back a message.
    held_back: HashSet<u64>,
    /// The keys of connections that the engine could not poll because a thread of the application
    /// was polling them at that time.
    busy: HashSet<u64>,
    /// Whether the last check found a pending event for at least one connection that an event loop
    /// owns.
    loops: bool,
    /// The time of the next check of all connections in the table.
    next_full_check: Option<Instant>,
    /// The time of the next check of the connections in `held_back` and `busy`.
    next_quick_check: Option<Instant>,
}

/// The methods of a connection that [`Attended`] calls.
pub trait AttendedConnection {
    /// Returns the connection's poller.
    fn poller(&self) -> &Poller;

    /// Returns whether the connection holds back a message until the next poll.
    fn holds_back(&self) -> bool;
}

impl Attended {
    /// Adds a connection to the table. The engine's thread calls this method when it handles the
    /// notice from the connection's new owner.
    pub fn attend(&mut self, key: u64, connection: &impl AttendedConnection) {
        let poller = connection.poller();
        let held_back = poller.is_held_back();
        match poller.owner() {
            // The engine became the owner after the notice was sent.
            Owner::Engine => return,
            Owner::Loop if !held_back => return,
            Owner::Threads | Owner::Loop => {}
        }
        // The notice may have been sent up to 10 ms ago. Subtracting 1 ensures that the first check
        // finds a visit, so the connection stays in the table for at least one interval.
        self.seen.insert(key, poller.visits().wrapping_sub(1));
        let now = Instant::now();
        self.next_full_check.get_or_insert(now + CHECK_INTERVAL);
        if held_back {
            self.held_back.insert(key);
            self.next_quick_check
                .get_or_insert(now + QUICK_CHECK_INTERVAL);
        }
    }

    /// Schedules checks of the connections that event loops own. If a check finds no pending event,
    /// the engine's thread calls this method when the next event on such a connection arrives.
    pub fn expect_loops(&mut self) {
        self.loops = true;
        self.next_full_check
            .get_or_insert_with(|| Instant::now() + CHECK_INTERVAL);
    }

    /// Removes a connection that the engine owns or that has ended.
    pub fn forget(&mut self, key: u64) {
        self.seen.remove(&key);
        self.held_back.remove(&key);
    }

    /// Records that the engine could not poll the connection, because a thread of the application
    /// was polling it at that time. The scheduler may have preempted that thread, so the engine
    /// polls the connection again within 1 ms.
    pub fn poll_soon(&mut self, key: u64) {
        self.busy.insert(key);
        self.next_quick_check
            .get_or_insert_with(|| Instant::now() + QUICK_CHECK_INTERVAL);
    }

    /// Returns the time of the next check, or `None` if no check is scheduled.
    pub fn next(&self) -> Option<Instant> {
        [self.next_full_check, self.next_quick_check]
            .into_iter()
            .flatten()
            .min()
    }

    /// Checks the connections whose check is due. Returns the keys of the connections that the
    /// caller must arm and poll next. Some of them were passed to [`poll_soon`](Self::poll_soon).
    /// The others now belong to the engine, because their owner has not polled since the last
    /// check. `pending` returns the keys of all connections whose event loops have pending events.
    pub fn check_due<'a, A: AttendedConnection + 'a>(
        &mut self,
        now: Instant,
        find: impl Fn(u64) -> Option<&'a A>,
        pending: impl FnOnce() -> Vec<u64>,
    ) -> Vec<u64> {
        let mut expired = Vec::new();
        if self.next_quick_check.is_some_and(|at| at <= now) {
            self.check_held_back(&find, &mut expired);
            self.next_quick_check =
                (!self.held_back.is_empty()).then(|| now + QUICK_CHECK_INTERVAL);
            self.check_busy(&find, &mut expired);
        }
        if self.next_full_check.is_some_and(|at| at <= now) {
            let pending = if self.loops { pending() } else { Vec::new() };
            self.check_all(&find, &pending, &mut expired);
            let more = self.loops || !self.seen.is_empty();
            self.next_full_check = more.then(|| now + CHECK_INTERVAL);
        }
        expired
    }

    /// Returns whether the last check found a pending event for a connection that an event loop
    /// owns. If not, the caller must watch for the next such event, and then call
    /// [`expect_loops`](Self::expect_loops).
    pub fn expects_loops(&self) -> bool {
        self.loops
    }

    /// Schedules one more check, even if the table is empty.
    pub fn add_check(&mut self) {
        self.next_full_check
            .get_or_insert_with(|| Instant::now() + CHECK_INTERVAL);
    }

    fn check_held_back<'a, A: AttendedConnection + 'a>(
        &mut self,
        find: impl Fn(u64) -> Option<&'a A>,
        expired: &mut Vec<u64>,
    ) {
        let seen = &mut self.seen;
        self.held_back.retain(|key| {
            let (Some(connection), Some(count)) = (find(*key), seen.get_mut(key)) else {
                return false;
            };
            // `clear_held_back` runs before `holds_back`. If a message is held back after this
            // check, `note_held_back` therefore sets the flag again and notifies the engine.
            connection.poller().clear_held_back();
            if !connection.holds_back() {
                return false;
            }
            connection.poller().note_held_again();
            match connection.poller().check_owner(*count) {
                OwnerCheck::Visited(now) => {
                    *count = now;
                    return true;
                }
                OwnerCheck::Expired => expired.push(*key),
                OwnerCheck::Asleep | OwnerCheck::Owned => {}
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
            if let (Some(connection), false) = (find(key), self.seen.contains_key(&key)) {
                connection.poller().expire();
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
                OwnerCheck::Asleep | OwnerCheck::Owned => false,
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
