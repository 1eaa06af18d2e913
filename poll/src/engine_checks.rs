use std::{
    collections::{HashMap, HashSet},
    mem,
    time::{Duration, Instant},
};

use super::{
    poller::Poller,
    word::{Owner, OwnerCheck},
};

/// The interval at which the engine's thread checks the connections that the application polls. The
/// interval bounds the delay of messages if the application stops polling: a program that mixes
/// `recv` with `select!` may receive a message up to two intervals after its arrival. The interval
/// also bounds the cost of the checks: while a program polls often, the engine's thread runs once
/// per interval instead of once per message.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// The number of checks after which the engine becomes the owner of a connection whose event loop
/// does not handle an event. At each earlier check, the engine polls once in place of the loop, and
/// the loop stays the owner. A loop with 1000 busy connections handles most events later than
/// `CHECK_INTERVAL`. If the engine became the owner after each such delay, each message would cost
/// up to four calls to epoll_ctl.
const OVERDUE_CHECKS: u8 = if cfg!(loom) { 1 } else { 10 };

/// The interval at which the engine's thread checks connections that hold back a message, and
/// connections that it could not poll because a thread of the application was polling them. A
/// message that is held back is sent only when the connection is polled again, so this interval is
/// shorter than `CHECK_INTERVAL`.
const QUICK_CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// The connections that threads or event loops of the application poll. The engine's thread checks
/// all of them with one timer.
///
/// A connection that threads own is in the table, except while one of these threads, the leader,
/// sleeps in the kernel. No check is necessary during this sleep, because an event is certain to
/// wake the leader. A connection that an event loop owns is in the table if an event was pending at
/// the previous check, or if the connection holds back a message.
#[derive(Debug, Default)]
pub struct Attended {
    /// The result of the previous check, by connection key.
    seen: HashMap<u64, Seen>,
    /// The keys of the connections in `seen` that hold back a message.
    held_back: HashSet<u64>,
    /// The keys of connections that the engine could not poll because a thread of the application
    /// was polling them at that time.
    busy: HashSet<u64>,
    /// Whether a connection that an event loop owns had a pending event at the previous check or
    /// has had one since then.
    loops: bool,
    /// The time of the next check of all connections in the table.
    next_full_check: Option<Instant>,
    /// The time of the next check of the connections in `held_back` and `busy`.
    next_quick_check: Option<Instant>,
}

/// The result of a check of one connection.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// The value of [`Poller::visits`] at this check.
    visits: u32,
    /// The number of consecutive checks at which the event loop had not polled after an event. The
    /// number returns to 0 when the loop polls, or when the threads of the connection's group poll
    /// any member.
    overdue: u8,
    /// The value of [`Poller::group_turns`] at this check.
    turns: u32,
}

/// A poll that the engine's thread must do after a check. The number is the connection's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Request an event and poll, because the owner has stopped polling, or because the engine
    /// could not poll the connection while another thread was polling it.
    Expired(u64),
    /// Poll, because an event is pending and the event loop that owns the connection has not polled
    /// since the previous check. The loop stays the owner.
    Overdue(u64),
}

/// The methods of a connection that [`Attended`] calls.
pub trait AttendedConnection {
    /// Returns the connection's poller.
    fn poller(&self) -> &Poller;

    /// Returns true if the connection holds back a message until the next poll.
    fn holds_back(&self) -> bool;
}

impl Attended {
    /// Adds a connection to the table if the connection needs checks. The engine's thread calls
    /// this method when it handles a notice that the connection has a new owner or holds back a
    /// message.
    pub fn attend(&mut self, key: u64, connection: &impl AttendedConnection) {
        let poller = connection.poller();
        let held_back = poller.is_held_back();
        match poller.owner() {
            // The engine became the owner after the notice was sent.
            Owner::Engine => return,
            Owner::Loop if !held_back => return,
            Owner::Threads | Owner::Loop => {}
        }
        // The notice may have waited up to 10 ms in the mailbox, until the engine's thread woke for
        // a scheduled check. That check may then follow immediately. Subtract 1 from the number of
        // visits, so that the first check finds a visit, and the connection stays in the table for
        // at least one interval.
        self.seen
            .insert(key, Seen::of(poller, poller.visits().wrapping_sub(1)));
        let now = Instant::now();
        self.next_full_check.get_or_insert(now + CHECK_INTERVAL);
        if held_back {
            self.held_back.insert(key);
            self.next_quick_check
                .get_or_insert(now + QUICK_CHECK_INTERVAL);
        }
    }

    /// Schedules checks of the connections that event loops own. After a check that found no
    /// pending event, the engine's thread calls this method when the next event for an event loop
    /// arrives.
    pub fn expect_loops(&mut self) {
        self.loops = true;
        self.next_full_check
            .get_or_insert_with(|| Instant::now() + CHECK_INTERVAL);
    }

    /// Removes a connection from the table, because the engine becomes the owner or the connection
    /// has ended.
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

    /// Checks the connections whose check is due, and returns the polls that the caller must do
    /// next. A poll is due if the owner of a connection has not polled since the previous check.
    /// Each connection that was passed to [`poll_soon`](Self::poll_soon) is returned as
    /// [`Due::Expired`].
    ///
    /// `find` returns the connection with the given key. `pending` returns the keys of the
    /// connections that event loops own and that have a pending event.
    pub fn check_due<'a, A: AttendedConnection + 'a>(
        &mut self,
        now: Instant,
        find: impl Fn(u64) -> Option<&'a A>,
        pending: impl FnOnce() -> Vec<u64>,
    ) -> Vec<Due> {
        let mut due = Vec::new();
        if self.next_quick_check.is_some_and(|at| at <= now) {
            self.check_held_back(&find, &mut due);
            self.next_quick_check =
                (!self.held_back.is_empty()).then(|| now + QUICK_CHECK_INTERVAL);
            self.check_busy(&find, &mut due);
        }
        if self.next_full_check.is_some_and(|at| at <= now) {
            let pending = if self.loops { pending() } else { Vec::new() };
            self.check_all(&find, &pending, &mut due);
            let more = self.loops || !self.seen.is_empty();
            self.next_full_check = more.then(|| now + CHECK_INTERVAL);
        }
        due
    }

    /// Returns true if a connection that an event loop owns had a pending event at the previous
    /// check or has had one since then. If the result is false, the caller must watch for the next
    /// such event, and then call [`expect_loops`](Self::expect_loops).
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
        due: &mut Vec<Due>,
    ) {
        let seen = &mut self.seen;
        self.held_back.retain(|key| {
            let (Some(connection), Some(last)) = (find(*key), seen.get_mut(key)) else {
                return false;
            };
            // Clear the flag before calling `holds_back`. If a message is held back after that
            // call, `note_held_back` sets the flag again and notifies the engine.
            connection.poller().clear_held_back();
            if !connection.holds_back() {
                return false;
            }
            connection.poller().note_held_again();
            match connection.poller().check_owner(last.visits) {
                OwnerCheck::Visited(now) => {
                    *last = Seen::of(connection.poller(), now);
                    return true;
                }
                OwnerCheck::Expired => due.push(Due::Expired(*key)),
                OwnerCheck::Asleep | OwnerCheck::Owned => {}
            }
            seen.remove(key);
            false
        });
    }

    fn check_busy<'a, A: AttendedConnection + 'a>(
        &mut self,
        find: impl Fn(u64) -> Option<&'a A>,
        due: &mut Vec<Due>,
    ) {
        for key in mem::take(&mut self.busy) {
            if let (Some(connection), false) = (find(key), self.seen.contains_key(&key)) {
                connection.poller().expire();
            }
            due.push(Due::Expired(key));
        }
    }

    fn check_all<'a, A: AttendedConnection + 'a>(
        &mut self,
        find: impl Fn(u64) -> Option<&'a A>,
        pending: &[u64],
        due: &mut Vec<Due>,
    ) {
        let held_back = &self.held_back;
        let is_pending: HashSet<u64> = pending.iter().copied().collect();
        self.seen.retain(|key, last| {
            let Some(poller) = find(*key).map(AttendedConnection::poller) else {
                return false;
            };
            if poller.owner() == Owner::Loop {
                let is_pending = is_pending.contains(key);
                if !is_pending && last.overdue == 0 {
                    return held_back.contains(key);
                }
                if last.is_overdue(poller) {
                    if is_pending && last.overdue > 0 && !poller.is_entrusted() {
                        due.push(Due::Overdue(*key));
                    }
                    return true;
                }
            }
            match poller.check_owner(last.visits) {
                OwnerCheck::Visited(now) => {
                    *last = Seen::of(poller, now);
                    true
                }
                OwnerCheck::Expired => {
                    due.push(Due::Expired(*key));
                    false
                }
                OwnerCheck::Asleep | OwnerCheck::Owned => false,
            }
        });
        for key in pending {
            if let Some(poller) = find(*key).map(AttendedConnection::poller)
                && poller.owner() == Owner::Loop
            {
                self.seen
                    .entry(*key)
                    .or_insert_with(|| Seen::of(poller, poller.visits()));
            }
        }
        self.loops = !pending.is_empty();
    }
}

impl Seen {
    fn of(poller: &Poller, visits: u32) -> Self {
        Self {
            visits,
            overdue: 0,
            turns: poller.group_turns(),
        }
    }

    /// Counts a check of a connection that has, or had, a pending event for its event loop. Returns
    /// true if the loop has not polled since the previous check but may stay the owner. Returns
    /// false if the loop has polled, or if it must not stay the owner.
    fn is_overdue(&mut self, poller: &Poller) -> bool {
        if poller.visits() != self.visits {
            return false;
        }
        let turns = poller.group_turns();
        if turns != self.turns {
            // The group's threads have polled another member since the previous check. They poll
            // the members in the order in which the epoll has reported their events, so they will
            // reach this member.
            (self.turns, self.overdue) = (turns, 0);
            return true;
        }
        let is_overdue = self.overdue < OVERDUE_CHECKS;
        self.overdue += u8::from(is_overdue);
        is_overdue
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{GroupEvents, Mailbox, NoticeSender, Polling};

    const KEY: u64 = 16;

    struct Connection(Poller);

    impl AttendedConnection for Connection {
        fn poller(&self) -> &Poller {
            &self.0
        }

        fn holds_back(&self) -> bool {
            false
        }
    }

    fn poller() -> Poller {
        Poller::new(Polling::Event, NoticeSender::new(KEY, Mailbox::closed()))
    }

    /// Simulates the engine's checks of one connection, which an event loop owns.
    struct Checks {
        attended: Attended,
        connection: Connection,
        now: Instant,
    }

    impl Checks {
        fn new() -> Self {
            let connection = Connection(poller());
            assert!(connection.0.count_poll_as_loop(&[]));
            Self {
                attended: Attended::default(),
                connection,
                now: Instant::now() + CHECK_INTERVAL,
            }
        }

        /// Does the next check. It finds a pending event if `is_pending` is true.
        fn check(&mut self, is_pending: bool) -> Vec<Due> {
            self.now += CHECK_INTERVAL;
            if is_pending {
                // The engine's epoll has reported the event.
                self.attended.expect_loops();
            }
            let pending = || is_pending.then_some(KEY).into_iter().collect();
            let find = |_| Some(&self.connection);
            self.attended.check_due(self.now, find, pending)
        }

        fn group_events(&self) -> Arc<GroupEvents> {
            let events = poller().watch_members().unwrap();
            self.connection.0.enter_group(&events);
            events
        }
    }

    #[test]
    fn late_loop_is_replaced_after_ten_polls_by_the_engine() {
        let mut checks = Checks::new();
        assert_eq!(checks.check(true), []);
        for number in 0..OVERDUE_CHECKS {
            // On a TCP connection, the engine's poll consumes the event, so the next check finds no
            // event.
            let is_pending = number % 2 == 0;
            let due = is_pending.then_some(Due::Overdue(KEY));
            assert_eq!(checks.check(is_pending), Vec::from_iter(due));
            assert_eq!(checks.connection.0.owner(), Owner::Loop);
        }
        assert_eq!(checks.check(false), [Due::Expired(KEY)]);
        assert_eq!(checks.connection.0.owner(), Owner::Engine);
    }

    #[test]
    fn loop_that_polls_is_not_replaced() {
        let mut checks = Checks::new();
        for _ in 0..3 * OVERDUE_CHECKS {
            assert_eq!(checks.check(true), []);
            checks.connection.0.count_poll_as_loop(&[]);
        }
        assert_eq!(checks.check(true), []);
        assert_eq!(checks.check(true), [Due::Overdue(KEY)]);
    }

    #[test]
    fn group_that_polls_other_members_is_not_replaced() {
        let mut checks = Checks::new();
        let events = checks.group_events();
        assert_eq!(checks.check(true), []);
        for _ in 0..3 * OVERDUE_CHECKS {
            events.count_turn();
            assert_eq!(checks.check(true), []);
        }
        assert_eq!(checks.check(true), [Due::Overdue(KEY)]);
        assert_eq!(checks.connection.0.owner(), Owner::Loop);
    }
}
