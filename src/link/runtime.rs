//! Tasks for which a tokio runtime watches the completion events.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering, fence},
    },
    task::{Context, Poll, Wake, Waker},
};

use super::{
    handoff::Handoff, link::Link, polling::Progress, task_watch::TaskWatch, tasks::Awaited,
};
use crate::{
    status::OsError,
    sync::{Seat, lock},
    transport::Answers,
};

/// How often a task looks again before others have their turn.
const LOOKS: u32 = 8;

/// What the runtime calls.
#[derive(Debug)]
struct Alarm {
    link: Weak<Link>,
    calls: Arc<AtomicU64>,
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        if let Some(link) = self.link.upgrade() {
            // Whoever wakes up polls. If nobody does, because those who waited are gone, the lease
            // expires.
            link.end_sleep();
            fence(Ordering::SeqCst);
            link.wake_tasks(Awaited::ANYTHING);
        }
    }
}

impl Link {
    /// Has the runtime in whose context this is called watch the connection.
    ///
    /// # Panics
    ///
    /// Where there is none.
    #[track_caller]
    pub(crate) fn enter_runtime(self: &Arc<Self>) -> Result<(), OsError> {
        // A watch of another runtime ends first: it may be the same, which watches nothing twice.
        self.tasks.leave_runtime();
        let Some(events) = lock(&self.poll)
            .as_ref()
            .map(|side| Arc::clone(side.events()))
        else {
            // It has ended, which needs no watching.
            return Ok(());
        };
        let calls = Arc::new(AtomicU64::new(0));
        let alarm = Alarm {
            link: Arc::downgrade(self),
            calls: Arc::clone(&calls),
        };
        let watch = TaskWatch::new(events, Waker::from(Arc::new(alarm)), calls)?;
        self.tasks.enter_runtime(watch);
        if self.is_over() {
            // Its transport may have gone meanwhile, which nothing is to hold.
            self.tasks.leave_runtime();
        }
        Ok(())
    }

    /// Where a runtime watches: as [`poll_task`](Self::poll_task), which looked before.
    pub(super) fn poll_in_runtime<T>(
        self: &Arc<Self>,
        cx: &Context<'_>,
        who: (Seat, Awaited),
        handoff: Option<&Handoff>,
        ready: &mut impl FnMut() -> Option<T>,
    ) -> Option<Poll<T>> {
        let watch = self.tasks.watch()?;
        self.renew_lease();
        // Where a look costs a system call, it waits until the runtime has seen something.
        let mut progress = Progress::Nothing;
        if !self.stays_readable() {
            progress = self.poll_budgeted(1, handoff, Answers::MayWait);
            if let Some(value) = ready() {
                return Some(Poll::Ready(value));
            }
        }
        for _ in 0..LOOKS {
            let calls = watch.calls();
            if progress != Progress::More {
                let seen = watch.poll_with(|events| {
                    events.clear();
                    self.arm();
                    progress = self.poll_budgeted(1, handoff, Answers::MayWait);
                    progress != Progress::More
                });
                match seen {
                    Poll::Ready(Ok(())) => {}
                    Poll::Pending if self.is_silent() => {
                        // The runtime tells of changes, and there may be none any more.
                        self.tasks.leave_runtime();
                        return None;
                    }
                    Poll::Pending => {
                        self.lease.fall_asleep();
                        let waits = self.wait_seated(cx, who, ready);
                        if waits.is_ready() {
                            self.end_sleep();
                            return Some(waits);
                        }
                        if watch.calls() == calls {
                            return Some(waits);
                        }
                        // It called before the task was there to be woken.
                        self.tasks.leave(who.0);
                        self.end_sleep();
                        progress = Progress::Nothing;
                    }
                    Poll::Ready(Err(error)) => {
                        debug!("{self}: the engine polls from now on: {error}");
                        self.tasks.leave_runtime();
                        return None;
                    }
                }
            } else {
                progress = self.poll_budgeted(1, handoff, Answers::MayWait);
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
    fn is_silent(&self) -> bool {
        if !self.stays_readable() {
            return false;
        }
        let side = lock(&self.poll);
        let Some(side) = &*side else { return false };
        side.events().answer();
        side.has_ended()
    }

    fn end_sleep(&self) {
        self.lease.wake_up();
        self.renew_lease();
    }
}
