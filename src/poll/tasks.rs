//! How a task waits: with a waker instead of a thread.
//!
//! A task that is polled looks itself, as a thread does, and leaves its waker when there is
//! nothing. From then on these poll:
//!
//! * in a tokio runtime, which watches the completion events: the first task that is polled after
//!   the runtime has woken them all. The runtime is a [loop](super::Owner::Loop);
//! * anywhere else: the engine's thread, which wakes the tasks.

use std::task::{Context, Poll, Waker};
#[cfg(feature = "tokio")]
use std::{
    mem,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

#[cfg(feature = "tokio")]
use super::runtime::RuntimeWatch;
use super::{
    completions::{Answers, Completions},
    poller::Poller,
    word::Reliance,
};
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

impl Poller {
    /// As [`wait_until`](Self::wait_until) for a task: returns what `ready` returns, or has the
    /// task woken when that may have changed.
    pub(crate) fn poll_task<T>(
        &self,
        queue: &impl Completions,
        cx: &mut Context<'_>,
        who: (Seat, Awaited),
        mut ready: impl FnMut() -> Option<T>,
    ) -> Poll<T> {
        if let Some(value) = ready() {
            return Poll::Ready(value);
        }
        #[cfg(feature = "tokio")]
        if let Some(polled) = self.poll_in_runtime(queue, cx, who, &mut ready) {
            return polled;
        }
        self.rely(Reliance::Tasks);
        queue.poll(1, Answers::AtOnce);
        if let Some(value) = ready() {
            return Poll::Ready(value);
        }
        self.wait_seated(cx, who, &mut ready)
    }

    /// Leaves the task's waker, unless there is something now.
    pub(super) fn wait_seated<T>(
        &self,
        cx: &Context<'_>,
        (seat, awaited): (Seat, Awaited),
        ready: &mut impl FnMut() -> Option<T>,
    ) -> Poll<T> {
        self.tasks.wait(seat, awaited, cx.waker());
        match ready() {
            Some(value) => {
                self.tasks.leave(seat);
                Poll::Ready(value)
            }
            None => Poll::Pending,
        }
    }

    /// No runtime polls for the connection's tasks any more.
    pub(crate) fn leave_runtime(&self) {
        #[cfg(feature = "tokio")]
        if self.tasks.leave_runtime() {
            self.leave_loop();
        }
    }
}
