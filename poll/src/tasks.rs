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
    watch: Mutex<Option<Arc<RuntimeWatch>>>,
}

impl Awaited {
    /// The bits of all events.
    pub const ANYTHING: u8 = u8::MAX;

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

    /// Leaves the waker of the task in this seat for the next event that it awaits.
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
        let before = lock(&self.watch).replace(Arc::new(watch));
        drop(before);
        self.in_runtime.store(true, Ordering::Relaxed);
    }

    /// Removes the watch of a runtime. Returns whether there was one.
    #[cfg(feature = "tokio")]
    pub(super) fn leave_runtime(&self) -> bool {
        self.in_runtime.store(false, Ordering::Relaxed);
        let watch = mem::take(&mut *lock(&self.watch));
        watch.is_some()
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
        lock(&self.watch).clone()
    }
}
