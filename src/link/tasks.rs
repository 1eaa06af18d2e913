//! A connection's tasks that wait, and who polls for them.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    task::Waker,
};

#[cfg(feature = "tokio")]
use {
    super::task_watch::TaskWatch,
    crate::sync::lock,
    std::sync::{Arc, Mutex},
};

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

/// A connection's tasks that wait, and who polls for them.
#[derive(Debug, Default)]
pub(crate) struct Tasks {
    wakers: Wakers,
    left_to_engine: AtomicBool,
    /// Whether there is a watch.
    in_runtime: AtomicBool,
    #[cfg(feature = "tokio")]
    watch: Mutex<Option<Arc<TaskWatch>>>,
}

impl Awaited {
    pub(super) const ANYTHING: u8 = u8::MAX;

    /// What happened, where something did.
    pub(super) fn happened(arrival: bool, room: bool) -> u8 {
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
    /// A seat for a task that waits in a future of its own.
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

    /// Leaves polling to the engine's thread, which is to be told if this is the first time.
    pub(super) fn leave_to_engine(&self) -> bool {
        !self.left_to_engine.swap(true, Ordering::Relaxed)
    }

    /// See [`Wakers::wake_behind_fence`].
    pub(super) fn wake_behind_fence(&self, happened: u8) -> Result<(), Panicked> {
        self.wakers.wake_behind_fence(happened)
    }

    /// Whether the engine's thread polls for tasks.
    pub(super) fn are_left_to_engine(&self) -> bool {
        self.left_to_engine.load(Ordering::Relaxed)
    }

    /// Whether a runtime polls for tasks.
    pub(super) fn are_in_runtime(&self) -> bool {
        self.in_runtime.load(Ordering::Relaxed)
    }

    /// A runtime watches from now on.
    #[cfg(feature = "tokio")]
    pub(super) fn enter_runtime(&self, watch: TaskWatch) {
        *lock(&self.watch) = Some(Arc::new(watch));
        self.in_runtime.store(true, Ordering::Relaxed);
    }

    /// No runtime watches any more.
    pub(crate) fn leave_runtime(&self) {
        self.in_runtime.store(false, Ordering::Relaxed);
        #[cfg(feature = "tokio")]
        {
            let watch = lock(&self.watch).take();
            drop(watch);
        }
    }

    /// Where a runtime watches.
    #[cfg(feature = "tokio")]
    pub(super) fn watch(&self) -> Option<Arc<TaskWatch>> {
        if !self.are_in_runtime() {
            return None;
        }
        lock(&self.watch).clone()
    }
}
