//! Replaces the crate's system calls with loom's primitives when the model checker runs.

use std::{fmt, os::fd::BorrowedFd, time::Duration};

use loom::sync::MutexGuard;
pub(crate) use loom::sync::{
    Condvar, Mutex,
    atomic::{AtomicU64, Ordering},
};
use rdma_status::OsError;

use super::connection::{KEY, Mistake};
use crate::{Events, NoticeKind, Owner, Readiness};

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap()
}

/// Waits without a time limit, so that a lost wake-up causes a deadlock, which loom reports.
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

/// The event that ended a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    Event,
    Alarm,
    Time,
}

loom::lazy_static! {
    /// The state of one execution of the model. Loom creates a new state for each execution.
    static ref SYSTEM: System = System {
        state: Mutex::new(State {
            alarmed: false,
            raised: false,
            owner: Owner::Threads,
            in_group: false,
            ready: false,
            absent: true,
            notices: Vec::new(),
            stopped: false,
        }),
        leader: Condvar::new(),
        engine: Condvar::new(),
    };
}

/// The state of the simulated kernel, and the condition variables on which the leader and the
/// engine's thread sleep.
struct System {
    state: Mutex<State>,
    leader: Condvar,
    engine: Condvar,
}

struct State {
    /// Whether the leader's alarm has been rung and not yet cleared.
    alarmed: bool,
    /// Whether the completion channel has a pending event.
    raised: bool,
    /// The owner whose epoll contains the completion channel.
    owner: Owner,
    /// Whether the epoll of the group contains the completion channel.
    in_group: bool,
    /// Whether the group's leader has taken an event from the group's epoll and has not handled it
    /// yet.
    ready: bool,
    /// Whether the group's threads must take the connection over.
    absent: bool,
    /// The mailbox of the engine's thread.
    notices: Vec<NoticeKind>,
    stopped: bool,
}

impl System {
    /// Changes the state, and wakes the threads that wait for a change of the state.
    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = lock(&self.state);
        change(&mut state);
        if state.alarmed || state.raised {
            self.leader.notify_one();
        }
        self.engine.notify_one();
    }
}

/// Replaces the type of an alarm's descriptor. In the model, an alarm has no descriptor.
pub type AlarmFd = ();

/// Ends the leader's sleep. Outside of the model, an eventfd does this.
#[derive(Debug)]
pub struct Alarm;

impl Alarm {
    pub(crate) fn new(_: Option<AlarmFd>) -> Result<Self, OsError> {
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

/// The registration of the completion channel with epolls. In the model, `State` records which
/// epoll contains the channel.
#[derive(Debug)]
pub struct Registration;

#[derive(Debug, Default)]
pub(crate) struct LoopFd;

/// The completion events of a group, whose only member is the connection.
#[derive(Debug)]
pub struct GroupEvents;

impl Registration {
    pub(crate) fn clear(&self) {
        CompletionEvents.clear();
    }

    pub(crate) fn set(
        &mut self,
        owner: Owner,
        _fd: &LoopFd,
        group: Option<&std::sync::Arc<GroupEvents>>,
    ) -> Result<(), OsError> {
        SYSTEM.change(|state| {
            let in_group = owner == Owner::Loop && group.is_some();
            state.absent |= state.in_group && !in_group;
            state.in_group = in_group;
            state.owner = owner;
        });
        Ok(())
    }

    pub(crate) fn key(&self) -> u64 {
        KEY
    }
}

impl GroupEvents {
    pub(crate) fn new(_: &Alarm) -> Result<Self, OsError> {
        Ok(Self)
    }

    pub(crate) fn mark_absent(&self, _: u64) {
        SYSTEM.change(|state| state.absent = true);
    }

    pub(crate) fn take_absent(&self) -> bool {
        std::mem::take(&mut lock(&SYSTEM.state).absent)
    }

    pub(crate) fn next_ready(&self) -> bool {
        std::mem::take(&mut lock(&SYSTEM.state).ready)
    }

    pub(crate) fn turns(&self) -> u32 {
        0
    }
}

impl Events for GroupEvents {
    fn clear(&self) {}

    fn answer(&self) {}

    fn sleep_until_event(&self, _: &Alarm, _: Option<Duration>) -> Result<Woken, OsError> {
        let mut state = lock(&SYSTEM.state);
        loop {
            if state.ready {
                return Ok(Woken::Event);
            }
            state.ready = state.raised && state.in_group;
            match *state {
                State { alarmed: true, .. } => return Ok(Woken::Alarm),
                State { ready: true, .. } => return Ok(Woken::Event),
                _ => state = SYSTEM.leader.wait(state).unwrap(),
            }
        }
    }
}

impl LoopFd {
    pub(crate) fn get(&self, _: &Readiness) -> Result<BorrowedFd<'_>, OsError> {
        unreachable!("a model must not request the fd of a loop")
    }
}

/// Sends notices to the engine's thread.
#[derive(Debug)]
pub struct NoticeSender(pub(crate) Option<Mistake>);

impl NoticeSender {
    pub(crate) fn send(&self, kind: NoticeKind) {
        SYSTEM.change(|state| state.notices.push(kind));
    }

    pub(crate) fn send_deferrable(&self, kind: NoticeKind) {
        if self.0 != Some(Mistake::LostRenewal) {
            self.send(kind);
        }
    }

    /// Returns `left` unchanged, because the model's engine has its own thread.
    pub(crate) fn shorten(&self, left: Option<Duration>) -> Option<Duration> {
        left
    }

    pub(crate) fn serve_due(&self) {}
}

impl fmt::Display for NoticeSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("conn")
    }
}

/// An input of the engine's thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    Notices(Vec<NoticeKind>),
    /// An event in the engine's own epoll.
    Event,
    /// An event in the epoll of the event loops.
    LoopEvent,
    /// A timer has expired.
    Time,
    Stop,
}

/// Waits for the next input of the engine. While an event loop owns the connection, a completion
/// event is an input only if `expected` is false. If `timer` is true, a timer is running. It
/// expires as soon as there is no other input.
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

/// Returns whether an event is pending for an event loop.
pub(crate) fn is_pending() -> bool {
    let state = lock(&SYSTEM.state);
    state.raised && state.owner == Owner::Loop
}

/// Makes the engine's thread end as soon as it has no more input.
pub(crate) fn stop() {
    SYSTEM.change(|state| state.stopped = true);
}
