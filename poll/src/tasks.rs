use std::task::Waker;
#[cfg(feature = "tokio")]
use std::{
    mem,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use rdmsg_os::foreign::Panicked;
#[cfg(feature = "tokio")]
use rdmsg_os::lock;

#[cfg(feature = "tokio")]
use super::runtime_watch::RuntimeWatch;
use crate::sync::{WaiterId, Wakers};
#[cfg(feature = "tokio")]
use ::tokio::runtime::Handle;

/// The event that a task waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// A completion that the application can take, or the end of the connection.
    Arrival = 1,
    /// Room for a send that was refused earlier, or the end of the connection.
    Room = 2,
    /// Any event. Tasks that wait for a reply from the peer, or for the end of the connection,
    /// check their condition after each event.
    Answer = 4,
}

/// The tasks that wait for one connection.
#[derive(Debug, Default)]
pub struct Tasks {
    wakers: Wakers,
    /// Whether `watch` is `Active`. This flag is read without the lock.
    #[cfg(feature = "tokio")]
    in_runtime: AtomicBool,
    #[cfg(feature = "tokio")]
    watch: Mutex<Watch>,
    /// Whether the runtime has woken at least one task since a task last polled. The woken task
    /// will probably poll soon, but its future may also have been dropped.
    #[cfg(feature = "tokio")]
    woken: AtomicBool,
}

/// Whether a runtime watches the connection's completion events.
#[cfg(feature = "tokio")]
#[derive(Debug, Default)]
enum Watch {
    /// No runtime watches the completion events.
    #[default]
    None,
    /// No runtime watches the events, because the connection has lost its transport, is about to
    /// lose the transport, or has no transport yet. The stored runtime will watch the events of the
    /// session's next connection.
    Paused(Handle),
    /// A runtime watches the completion events.
    Active(Arc<RuntimeWatch>),
}

impl Awaited {
    /// A set that contains all kinds of events.
    pub const ALL_EVENTS: u8 = u8::MAX;

    /// Returns the set of the events that happened, with one bit per kind. The set always contains
    /// [`Answer`](Self::Answer).
    #[inline]
    pub fn happened(arrival: bool, room: bool) -> u8 {
        let arrival = if arrival { Self::Arrival as u8 } else { 0 };
        let room = if room { Self::Room as u8 } else { 0 };
        arrival | room | Self::Answer as u8
    }

    /// Returns the waiter id shared by tasks that have no waiter id of their own.
    #[inline]
    pub const fn common(self) -> WaiterId {
        WaiterId::common(self as u8)
    }
}

impl Tasks {
    /// Returns a new waiter id, which the future of a waiting task stores.
    #[inline]
    pub fn new_waiter_id(&self) -> WaiterId {
        self.wakers.new_waiter_id()
    }

    /// Removes the waker registered under this waiter id.
    #[inline]
    pub fn unregister(&self, waiter_id: WaiterId) {
        self.wakers.unregister(waiter_id);
    }

    /// Registers the waker under this waiter id for the next event of the kind `awaited`.
    pub(super) fn wait(&self, waiter_id: WaiterId, awaited: Awaited, waker: &Waker) {
        self.wakers.wait(waiter_id, awaited as u8, waker);
    }

    /// Returns whether a task awaits an event in the set `happened`.
    #[inline]
    pub fn is_awaited(&self, happened: u8) -> bool {
        self.wakers.is_awaited(happened)
    }

    /// Wakes the tasks that await an event in the set `happened`. Returns an error if a waker
    /// panicked. The caller holds no lock.
    #[inline]
    pub fn wake(&self, happened: u8) -> Result<(), Panicked> {
        self.wakers.wake(happened)
    }

    /// Stores `watch`, the registration with the runtime that now watches the events.
    #[cfg(feature = "tokio")]
    pub fn enter_runtime(&self, watch: RuntimeWatch) {
        self.change(|_| Watch::Active(Arc::new(watch)));
    }

    /// Stores the runtime that will watch the completion events as soon as the session has its next
    /// connection.
    #[cfg(feature = "tokio")]
    pub fn await_transport(&self, runtime: Handle) {
        self.change(|_| Watch::Paused(runtime));
    }

    /// Returns the runtime that will watch the next connection's events, if there is one.
    #[cfg(feature = "tokio")]
    pub fn paused(&self) -> Option<Handle> {
        match &*lock(&self.watch) {
            Watch::Paused(runtime) => Some(runtime.clone()),
            Watch::None | Watch::Active(_) => None,
        }
    }

    /// Records that a task polls now, so no earlier wake-up by the runtime is outstanding.
    #[cfg(feature = "tokio")]
    pub(super) fn note_poll(&self) {
        self.woken.store(false, Ordering::Relaxed);
    }

    /// Wakes all tasks because the runtime has reported an event. Returns an error if a waker
    /// panicked. The caller holds no lock.
    #[cfg(feature = "tokio")]
    pub fn wake_for_runtime(&self) -> Result<(), Panicked> {
        if self.is_awaited(Awaited::ALL_EVENTS) {
            self.woken.store(true, Ordering::Relaxed);
        }
        self.wake(Awaited::ALL_EVENTS)
    }

    /// Returns true if a runtime will probably run a task that polls. This is the case if the
    /// runtime watches the events, and a task either waits, or was woken and has not polled yet.
    #[cfg(feature = "tokio")]
    pub(super) fn are_entrusted(&self) -> bool {
        self.are_in_runtime()
            && (self.woken.load(Ordering::Relaxed) || self.is_awaited(Awaited::ALL_EVENTS))
    }

    /// Removes the registration with the runtime. Returns whether a runtime was watching the
    /// events.
    #[cfg(feature = "tokio")]
    pub(super) fn leave_runtime(&self) -> bool {
        self.change(|_| Watch::None)
    }

    /// Removes the registration with the runtime, and stores the runtime for the session's next
    /// connection. Returns whether a runtime was watching the events.
    #[cfg(feature = "tokio")]
    pub(super) fn pause_runtime(&self) -> bool {
        self.change(|watch| match watch {
            Watch::None => Watch::None,
            Watch::Paused(runtime) => Watch::Paused(runtime.clone()),
            Watch::Active(watch) => Watch::Paused(watch.runtime().clone()),
        })
    }

    /// Replaces the state of the watch with the result of `next`. Returns whether a runtime was
    /// watching the events before.
    #[cfg(feature = "tokio")]
    fn change(&self, next: impl FnOnce(&Watch) -> Watch) -> bool {
        let mut watch = lock(&self.watch);
        let next = next(&watch);
        let watches = matches!(next, Watch::Active(_));
        self.in_runtime.store(watches, Ordering::Relaxed);
        let before = mem::replace(&mut *watch, next);
        drop(watch);
        // `before`, the previous registration, is dropped when this function returns, and thus
        // after the lock is released.
        matches!(before, Watch::Active(_))
    }

    /// Returns whether a runtime watches the events. The result may be outdated when the method
    /// returns.
    #[cfg(feature = "tokio")]
    #[inline]
    pub(super) fn are_in_runtime(&self) -> bool {
        self.in_runtime.load(Ordering::Relaxed)
    }

    /// Returns the registration with the runtime, if the runtime watches the events.
    #[cfg(feature = "tokio")]
    pub(super) fn watch(&self) -> Option<Arc<RuntimeWatch>> {
        match &*lock(&self.watch) {
            Watch::Active(watch) => Some(Arc::clone(watch)),
            Watch::None | Watch::Paused(_) => None,
        }
    }
}
