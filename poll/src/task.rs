//! Implements how a task waits for a connection. The task registers a waker instead of blocking a
//! thread.
//!
//! A task polls the queue itself, as a thread does. If the queue is empty, the task registers its
//! waker. When a completion arrives, one of the following happens:
//!
//! * If a tokio runtime watches the completion events, the runtime wakes all tasks that wait for
//!   the connection. The first task that runs polls the queue. In this case the runtime owns the
//!   connection, and the owner is [`Owner::Loop`](super::word::Owner::Loop).
//! * If no runtime watches the completion events, the engine's thread polls the queue and wakes the
//!   tasks.

use std::task::{Context, Poll};

#[cfg(feature = "tokio")]
use super::completions::{Events, Progress};
use super::{
    completions::{Answers, Completions},
    poller::Poller,
    tasks::Awaited,
    word::Reliance,
};
use crate::sync::WaiterId;

/// The maximum number of queue polls in one poll of a task. The limit lets other tasks of the
/// runtime run.
#[cfg(feature = "tokio")]
const MAX_POLLS_PER_TURN: u32 = 8;

/// The users of a connection that need the engine's thread to poll even if a runtime polls.
#[cfg(feature = "tokio")]
const ENGINE_USERS: &[Reliance] = &[
    Reliance::Readable,
    Reliance::Writable,
    Reliance::Group,
    Reliance::Tasks,
];

impl Poller {
    /// The counterpart of [`wait_until`](Self::wait_until) for a task. Returns the value of `ready`
    /// if there is one. If not, registers the task's waker for the next event that may change the
    /// result of `ready`.
    pub fn poll_task<T>(
        &self,
        queue: &impl Completions,
        cx: &mut Context<'_>,
        waiter: (WaiterId, Awaited),
        mut ready: impl FnMut() -> Option<T>,
    ) -> Poll<T> {
        if let Some(value) = ready() {
            return Poll::Ready(value);
        }
        #[cfg(feature = "tokio")]
        if let Some(polled) = self.poll_in_runtime(queue, cx, waiter, &mut ready) {
            return polled;
        }
        self.rely(Reliance::Tasks);
        #[cfg(feature = "tokio")]
        if self.tasks.are_in_runtime() {
            // A runtime began to watch the events after the check in `poll_in_runtime`, so the
            // tasks do not rely on the engine's thread.
            self.stop_relying(Reliance::Tasks);
        }
        queue.poll(1, Answers::AtOnce);
        if let Some(value) = ready() {
            return Poll::Ready(value);
        }
        self.wait_as(cx, waiter, &mut ready)
    }

    /// Registers the task's waker, then calls `ready` once more. Removes the waker if `ready`
    /// returns a value.
    pub(super) fn wait_as<T>(
        &self,
        cx: &Context<'_>,
        (waiter_id, awaited): (WaiterId, Awaited),
        ready: &mut impl FnMut() -> Option<T>,
    ) -> Poll<T> {
        self.tasks.wait(waiter_id, awaited, cx.waker());
        match ready() {
            Some(value) => {
                self.tasks.unregister(waiter_id);
                Poll::Ready(value)
            }
            None => Poll::Pending,
        }
    }

    /// Makes the runtime stop watching the completion events for the connection's tasks.
    pub fn leave_runtime(&self) {
        #[cfg(feature = "tokio")]
        if self.tasks.leave_runtime() {
            self.leave_loop();
        }
    }

    /// Makes the runtime stop watching the completion events, until the session has its next
    /// connection.
    pub fn pause_runtime(&self) {
        #[cfg(feature = "tokio")]
        if self.tasks.pause_runtime() {
            self.leave_loop();
        }
    }
}

/// Methods for tasks whose tokio runtime watches the completion events.
#[cfg(feature = "tokio")]
impl Poller {
    /// Does the same as [`poll_task`](Self::poll_task) if a runtime watches the completion events.
    /// Returns `None` otherwise.
    pub(super) fn poll_in_runtime<T>(
        &self,
        queue: &impl Completions,
        cx: &Context<'_>,
        waiter: (WaiterId, Awaited),
        ready: &mut impl FnMut() -> Option<T>,
    ) -> Option<Poll<T>> {
        if !self.tasks.are_in_runtime() {
            return None;
        }
        let acquired = self.count_poll_as_loop(ENGINE_USERS);
        self.tasks.note_poll();
        // If a poll costs a system call, the task skips this first poll, and polls only after the
        // runtime has reported an event. After a poll that finds nothing, the task does not call
        // `ready` here: either another poll follows, or `wait_as` registers the waker and then
        // calls `ready`.
        let mut progress = Progress::Nothing;
        if !queue.is_level_triggered() {
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
                    // The connection is about to end, and the fd stays readable until the engine's
                    // thread ends the connection. The runtime can no longer wake the task
                    // correctly. A runtime that reports only changes may never report another
                    // event. With a runtime that reports the end of the stream at every poll, the
                    // task would never sleep. So the engine's thread must take over.
                    Poll::Ready(Ok(())) | Poll::Pending if self.flush_acks_and_check_end(queue) => {
                        self.pause_runtime();
                        return None;
                    }
                    Poll::Ready(Ok(())) => {}
                    Poll::Pending => {
                        let waits = self.wait_as(cx, waiter, ready);
                        if waits.is_ready() || watch.calls() == calls {
                            return Some(waits);
                        }
                        // The runtime called the watch's waker before this task registered its own
                        // waker, so that call did not wake this task. The task polls again.
                        self.tasks.unregister(waiter.0);
                        progress = Progress::Nothing;
                    }
                    Poll::Ready(Err(error)) => {
                        // The runtime has shut down.
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

    /// Sends the acknowledgements that [`Answers::MayWait`] has delayed, because the task is about
    /// to wait. Returns true if the connection is about to end. In that case, the connection's fd
    /// stays readable, and the runtime reports no further change. Does nothing and returns false if
    /// a poll of the transport costs no system call.
    fn flush_acks_and_check_end(&self, queue: &impl Completions) -> bool {
        if !queue.is_level_triggered() {
            return false;
        }
        let Some((events, has_ended)) = queue.events() else {
            return false;
        };
        events.answer();
        has_ended
    }
}
