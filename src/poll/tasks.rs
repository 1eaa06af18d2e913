use std::task::Waker;
#[cfg(feature = "tokio")]
use std::{
    mem,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

#[cfg(feature = "tokio")]
use super::runtime_watch::RuntimeWatch;
#[cfg(feature = "tokio")]
use crate::sync::lock;
use crate::{
    foreign::Panicked,
    sync::{Seat, Wakers},
};

/// What a task waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awaited {
    /// Something to take, or the end.
    Arrival = 1,
    /// Room for what was refused, or the end.
    Room = 2,
    /// That the peer has answered, or anything else: also the end.
    Answer = 4,
}

/// A connection's tasks that wait.
#[derive(Debug, Default)]
pub(crate) struct Tasks {
    wakers: Wakers,
    /// Whether there is a watch.
    #[cfg(feature = "tokio")]
    in_runtime: AtomicBool,
    #[cfg(feature = "tokio")]
    watch: Mutex<Option<Arc<RuntimeWatch>>>,
}

impl Awaited {
    pub(crate) const ANYTHING: u8 = u8::MAX;

    /// What happened, if something did.
    pub(crate) fn happened(arrival: bool, room: bool) -> u8 {
        let arrival = if arrival { Self::Arrival as u8 } else { 0 };
        let room = if room { Self::Room as u8 } else { 0 };
        arrival | room | Self::Answer as u8
    }

    /// The seat of those who have none of their own.
    pub(crate) const fn common(self) -> Seat {
        Seat::common(self as u8)
    }
}

impl Tasks {
    /// Returns a seat for a task that waits in a future of its own.
    pub(crate) fn seat(&self) -> Seat {
        self.wakers.seat()
    }

    /// The task in this seat waits no more.
    pub(crate) fn leave(&self, seat: Seat) {
        self.wakers.leave(seat);
    }

    /// The task in this seat is woken when what is awaited happens.
    pub(super) fn wait(&self, seat: Seat, awaited: Awaited, waker: &Waker) {
        self.wakers.wait(seat, awaited as u8, waker);
    }

    /// Wakes the tasks that wait for something of what `happened`. No lock is held.
    /// Fails if a waker panicked.
    pub(crate) fn wake(&self, happened: u8) -> Result<(), Panicked> {
        self.wakers.wake(happened)
    }

    /// A runtime watches from now on.
    #[cfg(feature = "tokio")]
    pub(crate) fn enter_runtime(&self, watch: RuntimeWatch) {
        let before = lock(&self.watch).replace(Arc::new(watch));
        drop(before);
        self.in_runtime.store(true, Ordering::Relaxed);
    }

    /// No runtime watches any more. Returns whether one did.
    #[cfg(feature = "tokio")]
    pub(super) fn leave_runtime(&self) -> bool {
        self.in_runtime.store(false, Ordering::Relaxed);
        let watch = mem::take(&mut *lock(&self.watch));
        watch.is_some()
    }

    /// Where a runtime watches.
    #[cfg(feature = "tokio")]
    pub(super) fn watch(&self) -> Option<Arc<RuntimeWatch>> {
        if !self.in_runtime.load(Ordering::Relaxed) {
            return None;
        }
        lock(&self.watch).clone()
    }
}
