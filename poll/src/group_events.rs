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

/// The number of events that one call of epoll_wait returns at most.
const EVENTS: usize = 64;

/// The key of the alarm. Connections have smaller keys.
const ALARM: u64 = u64::MAX;

/// The completion events of a group's members, on which one thread at a time sleeps: the leader of
/// the threads that wait for the group.
///
/// A member's events are in this epoll while the group's threads own the member. After the engine
/// has become the owner of a member, the next thread that waits for the group takes the member
/// back.
#[derive(Debug)]
pub struct GroupEvents {
    epoll: Epoll,
    /// The keys of the members with an event that the leader has not handled yet.
    ready: Mutex<VecDeque<u64>>,
    /// The keys of the members whose events are not in the epoll.
    absent: Mutex<Vec<u64>>,
    /// Whether `absent` may contain a key.
    has_absent: AtomicBool,
    /// The number of members that the group's threads have polled, modulo 2³².
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

    /// Makes the next thread that waits for the group take over this member.
    pub fn give_back(&self, key: u64) {
        lock(&self.absent).push(key);
        self.has_absent.store(true, Ordering::Release);
    }

    /// Returns the keys of the members that the calling thread must take over.
    pub fn take_absent(&self) -> Vec<u64> {
        if !self.has_absent.swap(false, Ordering::Acquire) {
            return Vec::new();
        }
        mem::take(&mut *lock(&self.absent))
    }

    /// Returns the key of the next member that the leader must poll.
    pub fn next_ready(&self) -> Option<u64> {
        let key = lock(&self.ready).pop_front()?;
        self.count_turn();
        Some(key)
    }

    pub(super) fn count_turn(&self) {
        self.turns.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of polls of members, modulo 2³².
    pub(super) fn turns(&self) -> u32 {
        self.turns.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, events: &dyn FdEvents, key: u64) -> Result<(), OsError> {
        add(&self.epoll, events, key)
    }

    /// Removes the events of a member.
    pub(super) fn remove(&self, events: &dyn FdEvents, key: u64) {
        // The call cannot fail, because the descriptor is open and the epoll contains it.
        let _ = self.epoll.delete(events);
        self.give_back(key);
    }
}

impl Events for GroupEvents {
    fn clear(&self) {}

    fn answer(&self) {}

    fn sleep_until_event(&self, _: &Alarm, left: Option<Duration>) -> Result<Woken, OsError> {
        // Without this case, a continuous stream of events could delay the end of the wait.
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
