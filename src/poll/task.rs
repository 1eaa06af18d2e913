//! How a task waits: with a waker instead of a thread.
//!
//! A task that is polled looks itself, as a thread does, and leaves its waker when there is
//! nothing. From then on these poll:
//!
//! * in a tokio runtime, which watches the completion events: the first task that is polled after
//!   the runtime has woken them all. The runtime is a [loop](super::Owner::Loop);
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

/// How often a task looks again before others have their turn.
#[cfg(feature = "tokio")]
const LOOKS: u32 = 8;

/// Those who rely on the engine's thread whatever a runtime does.
#[cfg(feature = "tokio")]
const ELSEWHERE: &[Reliance] = &[
    Reliance::Readable,
    Reliance::Writable,
    Reliance::Group,
    Reliance::Tasks,
];

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

/// Tasks for which a tokio runtime watches the completion events.
#[cfg(feature = "tokio")]
impl Poller {
    /// Where a runtime watches: as [`poll_task`](Self::poll_task), which looked before.
    pub(super) fn poll_in_runtime<T>(
        &self,
        queue: &impl Completions,
        cx: &Context<'_>,
        who: (Seat, Awaited),
        ready: &mut impl FnMut() -> Option<T>,
    ) -> Option<Poll<T>> {
        let watch = self.tasks.watch()?;
        self.visit_as_loop(ELSEWHERE);
        // Where a look costs a system call, it waits until the runtime has seen something.
        let mut progress = Progress::Nothing;
        if !queue.stays_readable() {
            progress = queue.poll(1, Answers::MayWait);
            if let Some(value) = ready() {
                return Some(Poll::Ready(value));
            }
        }
        for _ in 0..LOOKS {
            let calls = watch.calls();
            if progress == Progress::More {
                progress = queue.poll(1, Answers::MayWait);
            } else {
                let seen = watch.poll_with(|events| {
                    events.clear();
                    queue.arm();
                    progress = queue.poll(1, Answers::MayWait);
                    progress != Progress::More
                });
                match seen {
                    Poll::Ready(Ok(())) => {}
                    Poll::Pending if self.is_silent(queue) => {
                        // The runtime tells of changes, and there may be none any more.
                        self.leave_runtime();
                        return None;
                    }
                    Poll::Pending => {
                        let waits = self.wait_seated(cx, who, ready);
                        if waits.is_ready() || watch.calls() == calls {
                            return Some(waits);
                        }
                        // It called before the task was there to be woken.
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
            if let Some(value) = ready() {
                return Some(Poll::Ready(value));
            }
        }
        cx.waker().wake_by_ref();
        Some(Poll::Pending)
    }

    /// Before a task waits: sends what the peer waits for. Returns whether nothing tells of what
    /// comes from now on, since what is watched stays readable.
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
