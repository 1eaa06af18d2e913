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
use crate::sync::{Seat, Wakers};
#[cfg(feature = "tokio")]
use ::tokio::runtime::Handle;

/// The event that a task waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// A completion to take, or the end.
    Arrival = 1,
    /// Room for a refused send, or the end.
    Room = 2,
    /// Any event: the answer of the peer, or the end.
    Answer = 4,
}

/// A connection's tasks that wait.
#[derive(Debug, Default)]
pub struct Tasks {
    wakers: Wakers,
    /// Whether there is a watch.
    #[cfg(feature = "tokio")]
    in_runtime: AtomicBool,
    #[cfg(feature = "tokio")]
    watch: Mutex<Watch>,
}

/// The runtime that watches the completion events, if there is one.
#[cfg(feature = "tokio")]
#[derive(Debug, Default)]
enum Watch {
    /// No runtime watches the completion events.
    #[default]
    None,
    /// No runtime watches now. This runtime watches the completion events of the session's next
    /// connection.
    Paused(Handle),
    /// A runtime watches the completion events.
    Active(Arc<RuntimeWatch>),
}

impl Awaited {
    /// The bits of all events.
    pub const ALL_EVENTS: u8 = u8::MAX;

    /// Returns the bits of the events that happened.
    #[inline]
    pub fn happened(arrival: bool, room: bool) -> u8 {
        let arrival = if arrival { Self::Arrival as u8 } else { 0 };
        let room = if room { Self::Room as u8 } else { 0 };
        arrival | room | Self::Answer as u8
    }

    /// The seat of tasks without a seat of their own.
    #[inline]
    pub const fn common(self) -> Seat {
        Seat::common(self as u8)
    }
}

impl Tasks {
    /// Returns a seat for a task that waits in a future of its own.
    #[inline]
    pub fn seat(&self) -> Seat {
        self.wakers.seat()
    }

    /// Removes the waker of this seat.
    #[inline]
    pub fn leave(&self, seat: Seat) {
        self.wakers.leave(seat);
    }

    /// Registers the waker of the task in this seat for the next event that it awaits.
    pub(super) fn wait(&self, seat: Seat, awaited: Awaited, waker: &Waker) {
        self.wakers.wait(seat, awaited as u8, waker);
    }

    /// Whether a task awaits an event in `happened`.
    #[inline]
    pub fn is_awaited(&self, happened: u8) -> bool {
        self.wakers.is_awaited(happened)
    }

    /// Wakes the tasks that await an event in `happened`. The caller holds no lock.
    /// Fails if a waker panicked.
    #[inline]
    pub fn wake(&self, happened: u8) -> Result<(), Panicked> {
        self.wakers.wake(happened)
    }

    /// Sets the watch of a runtime.
    #[cfg(feature = "tokio")]
    pub fn enter_runtime(&self, watch: RuntimeWatch) {
        self.change(|_| Watch::Active(Arc::new(watch)));
    }

    /// Lets this runtime watch the completion events of the next connection.
    #[cfg(feature = "tokio")]
    pub fn await_transport(&self, runtime: Handle) {
        self.change(|_| Watch::Paused(runtime));
    }

    /// Returns the runtime whose watch was paused.
    #[cfg(feature = "tokio")]
    pub fn paused(&self) -> Option<Handle> {
        match &*lock(&self.watch) {
            Watch::Paused(runtime) => Some(runtime.clone()),
            Watch::None | Watch::Active(_) => None,
        }
    }

    /// Removes the watch of a runtime. Returns whether there was one.
    #[cfg(feature = "tokio")]
    pub(super) fn leave_runtime(&self) -> bool {
        self.change(|_| Watch::None)
    }

    /// Removes the watch of a runtime, and keeps the runtime. Returns whether there was one.
    #[cfg(feature = "tokio")]
    pub(super) fn pause_runtime(&self) -> bool {
        self.change(|watch| match watch {
            Watch::None => Watch::None,
            Watch::Paused(runtime) => Watch::Paused(runtime.clone()),
            Watch::Active(watch) => Watch::Paused(watch.runtime().clone()),
        })
    }

    /// Returns whether a runtime watched before.
    #[cfg(feature = "tokio")]
    fn change(&self, next: impl FnOnce(&Watch) -> Watch) -> bool {
        let mut watch = lock(&self.watch);
        let next = next(&watch);
        let watches = matches!(next, Watch::Active(_));
        self.in_runtime.store(watches, Ordering::Relaxed);
        let before = mem::replace(&mut *watch, next);
        drop(watch);
        // The watch is dropped without the lock.
        matches!(before, Watch::Active(_))
    }

    /// Whether there is a watch of a runtime, which may end at any time.
    #[cfg(feature = "tokio")]
    #[inline]
    pub(super) fn are_in_runtime(&self) -> bool {
        self.in_runtime.load(Ordering::Relaxed)
    }

    /// Returns the watch of the runtime, if there is one.
    #[cfg(feature = "tokio")]
    pub(super) fn watch(&self) -> Option<Arc<RuntimeWatch>> {
        match &*lock(&self.watch) {
            Watch::Active(watch) => Some(Arc::clone(watch)),
            Watch::None | Watch::Paused(_) => None,
        }
    }
}
