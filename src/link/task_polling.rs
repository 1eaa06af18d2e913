//! How a task waits on a connection: with a waker instead of a thread.
//!
//! A task that is polled looks itself, as a thread does, and leaves its waker where there is
//! nothing. Who looks after the connection from then on depends on where it is:
//!
//! * in a tokio runtime, which watches the completion events for it: the runtime wakes the tasks,
//!   and the first that is polled polls the completion queue. No other thread stands between. The
//!   engine stays away as long as a task waits so ([`poll_lease`](super::poll_lease)).
//! * anywhere else: the engine's thread polls, and wakes the tasks.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use super::{handoff::Handoff, link::Link, tasks::Awaited};
use crate::{
    sync::{NoticeKind, Seat},
    transport::Answers,
};

impl Link {
    /// As [`wait_until`](Self::wait_until) for a task: returns what `ready` returns, or has the
    /// task woken when that may have changed.
    pub(crate) fn poll_task<T>(
        self: &Arc<Self>,
        cx: &mut Context<'_>,
        (seat, awaited): (Seat, Awaited),
        handoff: Option<&Handoff>,
        mut ready: impl FnMut() -> Option<T>,
    ) -> Poll<T> {
        if let Some(value) = ready() {
            return Poll::Ready(value);
        }
        #[cfg(feature = "tokio")]
        if let Some(polled) = self.poll_in_runtime(cx, (seat, awaited), handoff, &mut ready) {
            return polled;
        }
        if self.tasks.leave_to_engine() {
            self.notify(NoticeKind::Watch);
        }
        self.poll_budgeted(1, handoff, Answers::AtOnce);
        if let Some(value) = ready() {
            return Poll::Ready(value);
        }
        self.wait_seated(cx, (seat, awaited), &mut ready)
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
}
