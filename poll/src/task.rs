//! Implements waiting in a task, with a waker instead of a thread.
//!
//! A task polls the queue itself, as a thread does, and registers its waker if it finds nothing.
//! The next poll is then made by:
//!
//! * in a tokio runtime, which watches the completion events: the first task that the runtime polls
//!   after it has woken them all. The runtime is a [loop](super::word::Owner::Loop);
//! * anywhere else: the engine's thread, which wakes the tasks.

use std::task::{Context, Poll};

#[cfg(feature = "tokio")]
use super::completions::{Events, Progress};
use super::{
    completions::{Answers, Completions},
    poller::Poller,
    tasks::Awaited,
    word::Reliance,
};
use crate::sync::Seat;

/// The number of polls of the queue in one poll of a task, after which other tasks have their turn.
#[cfg(feature = "tokio")]
const MAX_POLLS_PER_TURN: u32 = 8;

/// Users that need the engine's thread to poll in addition to a runtime.
#[cfg(feature = "tokio")]
const ELSEWHERE: &[Reliance] = &[
    Reliance::Readable,
    Reliance::Writable,
    Reliance::Group,
    Reliance::Tasks,
];

impl Poller {
    /// As [`wait_until`](Self::wait_until) for a task: returns the result of `ready`, or registers
    /// the waker for the next event that may change the result.
    pub fn poll_task<T>(
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
        #[cfg(feature = "tokio")]
        if self.tasks.are_in_runtime() {
            // A runtime took over in between.
            self.stop_relying(Reliance::Tasks);
        }
        queue.poll(1, Answers::AtOnce);
        if let Some(value) = ready() {
            return Poll::Ready(value);
        }
        self.wait_seated(cx, who, &mut ready)
    }

    /// Registers the task's waker, unless `ready` returns something.
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

    /// Ends a runtime's watch for the connection's tasks.
    pub fn leave_runtime(&self) {
        #[cfg(feature = "tokio")]
        if self.tasks.leave_runtime() {
            self.leave_loop();
        }
    }

    /// As [`leave_runtime`](Self::leave_runtime), until the session has its next connection.
    pub fn pause_runtime(&self) {
        #[cfg(feature = "tokio")]
        if self.tasks.pause_runtime() {
            self.leave_loop();
        }
    }
}

/// Tasks for which a tokio runtime watches the completion events.
#[cfg(feature = "tokio")]
impl Poller {
    /// As [`poll_task`](Self::poll_task), if a runtime watches the connection.
    pub(super) fn poll_in_runtime<T>(
        &self,
        queue: &impl Completions,
        cx: &Context<'_>,
        who: (Seat, Awaited),
        ready: &mut impl FnMut() -> Option<T>,
    ) -> Option<Poll<T>> {
        if !self.tasks.are_in_runtime() {
            return None;
        }
        let acquired = self.visit_as_loop(ELSEWHERE);
        // If a poll costs a system call, it waits for the runtime to report an event. After a poll
        // that finds nothing, another poll follows, or a call of `ready` after the task has
        // registered its waker.
        let mut progress = Progress::Nothing;
        if !queue.stays_readable() {
            progress = if acquired {
                queue.arm_and_poll(Answers::MayWait)
            } else {
                queue.poll(1, Answers::MayWait)
            };
            if progress != Progress::Nothing
                && let Some(value) = ready()
            {
                return Some(Poll::Ready(value));
            }
        }
        let watch = self.tasks.watch()?;
        for _ in 0..MAX_POLLS_PER_TURN {
            let calls = watch.calls();
            if progress == Progress::More {
                progress = queue.poll(1, Answers::MayWait);
            } else {
                let seen = watch.poll_with(|events| {
                    events.clear();
                    progress = queue.arm_and_poll(Answers::MayWait);
                    progress != Progress::More
                });
                match seen {
                    Poll::Ready(Ok(())) if progress != Progress::Nothing => {}
                    // The runtime reports changes of readiness, and there may be no further one. Or
                    // the stream has ended, which tokio reports at every poll, so that the task
                    // would spin until the engine's thread ends the connection.
                    Poll::Ready(Ok(())) | Poll::Pending if self.is_silent(queue) => {
                        self.pause_runtime();
                        return None;
                    }
                    Poll::Ready(Ok(())) => {}
                    Poll::Pending => {
                        let waits = self.wait_seated(cx, who, ready);
                        if waits.is_ready() || watch.calls() == calls {
                            return Some(waits);
                        }
                        // The runtime called the waker before the task had registered.
                        self.tasks.leave(who.0);
                        progress = Progress::Nothing;
                    }
                    Poll::Ready(Err(error)) => {
                        // The runtime has ended.
                        self.leave_runtime();
                        self.note(&error);
                        return None;
                    }
                }
            }
            if progress != Progress::Nothing
                && let Some(value) = ready()
            {
                return Some(Poll::Ready(value));
            }
        }
        cx.waker().wake_by_ref();
        Some(Poll::Pending)
    }

    /// Sends delayed acknowledgements, before a task waits. Returns whether the events stay
    /// readable, so that the runtime reports no further change.
    fn is_silent(&self, queue: &impl Completions) -> bool {
        if !queue.stays_readable() {
            return false;
        }
        let Some((events, has_ended)) = queue.events() else {
            return false;
        };
        events.answer();
        has_ended
    }
}
