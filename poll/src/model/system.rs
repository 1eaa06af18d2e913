//! The system under the pollers, for the model checker.

use std::{fmt, os::fd::BorrowedFd, time::Duration};

use loom::sync::MutexGuard;
pub(crate) use loom::sync::{
    Condvar, Mutex,
    atomic::{AtomicU64, Ordering},
};
use rdma_status::OsError;

use super::connection::Mistake;
use crate::{Events, NoticeKind, Owner, Readiness};

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap()
}

/// Waits without a time limit, so that a lost wake-up is a deadlock.
pub(crate) fn park<T>(
    changed: &Condvar,
    mut guard: MutexGuard<'_, T>,
    _left: Option<Duration>,
    mut idle: impl FnMut(&mut T) -> bool,
) {
    while idle(&mut guard) {
        guard = changed.wait(guard).unwrap();
    }
}

/// The cause of the end of a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    Event,
    Alarm,
    Time,
}

loom::lazy_static! {
    /// The system of one execution.
    static ref SYSTEM: System = System {
        state: Mutex::new(State {
            alarmed: false,
            raised: false,
            owner: Owner::Threads,
            notices: Vec::new(),
            stopped: false,
        }),
        leader: Condvar::new(),
        engine: Condvar::new(),
    };
}

/// The primitives on which threads sleep.
struct System {
    state: Mutex<State>,
    leader: Condvar,
    engine: Condvar,
}

struct State {
    /// Whether the leader's alarm has rung.
    alarmed: bool,
    /// Whether the completion channel has an event.
    raised: bool,
    /// The owner of the epoll that has the completion channel.
    owner: Owner,
    /// The mailbox of the engine's thread.
    notices: Vec<NoticeKind>,
    stopped: bool,
}

impl System {
    /// Changes the state, and wakes the threads that sleep on it.
    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = lock(&self.state);
        change(&mut state);
        if state.alarmed || state.raised {
            self.leader.notify_one();
        }
        self.engine.notify_one();
    }
}

/// The eventfd that ends the leader's sleep.
#[derive(Debug)]
pub struct Alarm;

impl Alarm {
    pub(crate) fn new() -> Result<Self, OsError> {
        Ok(Self)
    }

    pub(crate) fn ring(&self) {
        SYSTEM.change(|state| state.alarmed = true);
    }

    pub(crate) fn clear(&self) {
        SYSTEM.change(|state| state.alarmed = false);
    }

    pub(crate) fn sleep_until_event(&self, left: Option<Duration>) -> Result<Woken, OsError> {
        self.sleep_until_ready(&CompletionEvents, left)
    }

    pub(crate) fn sleep_until_ready(
        &self,
        _: &CompletionEvents,
        _: Option<Duration>,
    ) -> Result<Woken, OsError> {
        let mut state = lock(&SYSTEM.state);
        loop {
            match *state {
                State { alarmed: true, .. } => return Ok(Woken::Alarm),
                State { raised: true, .. } => return Ok(Woken::Event),
                _ => state = SYSTEM.leader.wait(state).unwrap(),
            }
        }
    }
}

/// The completion channel.
#[derive(Debug)]
pub struct CompletionEvents;

impl CompletionEvents {
    pub(crate) fn raise(&self) {
        SYSTEM.change(|state| state.raised = true);
    }
}

impl Events for CompletionEvents {
    fn clear(&self) {
        SYSTEM.change(|state| state.raised = false);
    }

    fn answer(&self) {}

    fn sleep_until_event(&self, alarm: &Alarm, left: Option<Duration>) -> Result<Woken, OsError> {
        alarm.sleep_until_ready(self, left)
    }
}

/// The epolls that have the channel.
#[derive(Debug)]
pub struct Registration;

#[derive(Debug, Default)]
pub struct LoopFd;

impl Registration {
    pub(crate) fn clear(&self) {
        CompletionEvents.clear();
    }

    pub(crate) fn set(&mut self, owner: Owner, _fd: &LoopFd) -> Result<(), OsError> {
        SYSTEM.change(|state| state.owner = owner);
        Ok(())
    }
}

impl LoopFd {
    pub(crate) fn get(&self, _: &Readiness) -> Result<BorrowedFd<'_>, OsError> {
        unreachable!("no model asks for the fd")
    }
}

/// The connection's sender of notices to the engine's thread.
#[derive(Debug)]
pub struct Line(pub Option<Mistake>);

impl Line {
    pub(crate) fn send(&self, kind: NoticeKind) {
        SYSTEM.change(|state| state.notices.push(kind));
    }

    pub(crate) fn leave(&self, kind: NoticeKind) {
        if self.0 != Some(Mistake::LostRenewal) {
            self.send(kind);
        }
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("conn")
    }
}

/// An input of the engine's thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    Notices(Vec<NoticeKind>),
    /// An event in its epoll.
    Event,
    /// An event in the epoll of the loops.
    LoopEvent,
    /// A timer.
    Time,
    Stop,
}

/// Waits for the next input of the engine's thread. An event for loops counts once, until it is
/// `expected`. Timers expire at once.
pub(crate) fn next_input(expected: bool, timer: bool) -> Input {
    let mut state = lock(&SYSTEM.state);
    loop {
        if !state.notices.is_empty() {
            return Input::Notices(std::mem::take(&mut state.notices));
        }
        match (state.raised, state.owner) {
            (true, Owner::Engine) => return Input::Event,
            (true, Owner::Loop) if !expected => return Input::LoopEvent,
            (true, Owner::Loop | Owner::Threads) | (false, _) => {}
        }
        if timer {
            return Input::Time;
        }
        if state.stopped {
            return Input::Stop;
        }
        state = SYSTEM.engine.wait(state).unwrap();
    }
}

/// Whether loops have an event.
pub(crate) fn is_pending() -> bool {
    let state = lock(&SYSTEM.state);
    state.raised && state.owner == Owner::Loop
}

/// Ends the engine's thread when it has no work left.
pub(crate) fn stop() {
    SYSTEM.change(|state| state.stopped = true);
}
