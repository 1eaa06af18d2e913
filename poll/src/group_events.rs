use std::{
    collections::VecDeque,
    mem,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags, EpollTimeout};
use rdma_status::OsError;
use rdmsg_os::{failed, lock};

use super::{
    completions::Events,
    registration::{FdEvents, add, epoll},
    sys::{Alarm, Woken, back_off, sleep_limit},
};

/// The maximum number of events that one call of epoll_wait returns.
const EVENTS: usize = 64;

/// The key of the alarm in the epoll. Connections have smaller keys.
const ALARM: u64 = u64::MAX;

/// An epoll with the completion events of a group's members. Several threads may wait for the
/// group, but only one of them, the leader, sleeps on this epoll.
///
/// A member's events are in this epoll while the group's threads own the member. After the engine
/// has become the owner of a member, the next thread that waits for the group takes the member
/// back.
#[derive(Debug)]
pub struct GroupEvents {
    epoll: Epoll,
    /// The keys of the members with an event that the leader has not handled yet.
    ready: Mutex<VecDeque<u64>>,
    /// The keys of the members whose events are not in the epoll. The next thread that waits for
    /// the group must take these members over.
    absent: Mutex<Vec<u64>>,
    /// Whether `absent` may contain a key.
    has_absent: AtomicBool,
    /// The number of times that the group's threads have polled any member, modulo 2³².
    turns: AtomicU32,
}

impl GroupEvents {
    /// Creates an epoll that contains only the alarm of the group's poller.
    pub(super) fn new(alarm: &Alarm) -> Result<Self, OsError> {
        let epoll = epoll()?;
        epoll
            .add(alarm, EpollEvent::new(EpollFlags::EPOLLIN, ALARM))
            .map_err(failed("epoll_ctl"))?;
        Ok(Self {
            epoll,
            ready: Mutex::default(),
            absent: Mutex::default(),
            has_absent: AtomicBool::new(false),
            turns: AtomicU32::new(0),
        })
    }

    /// Marks the member `key`, so that the next thread that waits for the group takes the member
    /// over.
    pub fn mark_absent(&self, key: u64) {
        lock(&self.absent).push(key);
        self.has_absent.store(true, Ordering::Release);
    }

    /// Removes and returns the keys of the members that the calling thread must take over.
    pub fn take_absent(&self) -> Vec<u64> {
        if !self.has_absent.swap(false, Ordering::Acquire) {
            return Vec::new();
        }
        mem::take(&mut *lock(&self.absent))
    }

    /// Removes and returns the key of the next member that the leader must poll, if there is one.
    /// Counts the poll.
    pub fn next_ready(&self) -> Option<u64> {
        let key = lock(&self.ready).pop_front()?;
        self.count_turn();
        Some(key)
    }

    pub(super) fn count_turn(&self) {
        self.turns.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of times that the group's threads have polled any member, modulo 2³².
    pub(super) fn turns(&self) -> u32 {
        self.turns.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, events: &dyn FdEvents, key: u64) -> Result<(), OsError> {
        add(&self.epoll, events, key)
    }

    /// Removes the events of a member from the epoll. The next thread that waits for the group
    /// takes over the member.
    pub(super) fn remove(&self, events: &dyn FdEvents, key: u64) {
        // The call cannot fail, because the descriptor is open and the epoll contains it.
        let _ = self.epoll.delete(events);
        self.mark_absent(key);
    }
}

impl Events for GroupEvents {
    fn clear(&self) {}

    fn answer(&self) {}

    fn sleep_until_event(&self, _: &Alarm, left: Option<Duration>) -> Result<Woken, OsError> {
        // A continuous stream of events must not delay the end of the wait. So if no time is left,
        // the result is `Woken::Time` even if there are events.
        let is_over = left.is_some_and(|left| left.is_zero());
        if !lock(&self.ready).is_empty() {
            return Ok(if is_over { Woken::Time } else { Woken::Event });
        }
        let timeout = EpollTimeout::try_from(sleep_limit(left)).unwrap_or(EpollTimeout::MAX);
        let mut events = [EpollEvent::empty(); EVENTS];
        let events = match self.epoll.wait(&mut events, timeout) {
            Ok(0) => return Ok(Woken::Time),
            Ok(count) => &events[..count],
            Err(nix::Error::EINTR) => return Ok(Woken::Event),
            Err(errno) => {
                back_off();
                return Err(failed("epoll_wait")(errno));
            }
        };
        let is_alarm = |key: &u64| *key == ALARM;
        let keys = || events.iter().map(EpollEvent::data);
        lock(&self.ready).extend(keys().filter(|key| !is_alarm(key)));
        Ok(match keys().any(|key| is_alarm(&key)) {
            _ if is_over => Woken::Time,
            true => Woken::Alarm,
            false => Woken::Event,
        })
    }
}
