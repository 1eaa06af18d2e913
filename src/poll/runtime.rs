//! Tasks for which a tokio runtime watches the completion events.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
};

use super::{
    completions::{Answers, Completions, Events, Progress},
    poller::Poller,
    tasks::Awaited,
    word::Reliance,
};
use crate::{
    status::OsError,
    sync::Seat,
    transport::{CompletionEvents, TaskEvents},
};

/// How often a task looks again before others have their turn.
const LOOKS: u32 = 8;

/// Those who rely on the engine's thread whatever a runtime does.
const ELSEWHERE: &[Reliance] = &[
    Reliance::Readable,
    Reliance::Writable,
    Reliance::Group,
    Reliance::Tasks,
];

/// A runtime's view of a connection.
///
/// The runtime keeps one waker for the descriptor, while several tasks may wait on the connection,
/// and each may be dropped at any time. So that waker is the connection's: it wakes all of them.
#[derive(Debug)]
pub(crate) struct RuntimeWatch {
    events: TaskEvents,
    waker: Waker,
    calls: Arc<AtomicU64>,
}

impl RuntimeWatch {
    /// Has the runtime in whose context this is called watch these, and call this waker, which
    /// counts its calls.
    ///
    /// # Panics
    ///
    /// Where there is none.
    #[track_caller]
    pub(crate) fn new(
        events: Arc<CompletionEvents>,
        waker: Waker,
        calls: Arc<AtomicU64>,
    ) -> Result<Self, OsError> {
        Ok(Self {
            events: TaskEvents::new(events)?,
            waker,
            calls,
        })
    }

    /// How often the runtime has called.
    fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// See [`TaskEvents::poll_with`].
    fn poll_with(&self, poll: impl FnOnce(&CompletionEvents) -> bool) -> Poll<Result<(), OsError>> {
        let mut cx = Context::from_waker(&self.waker);
        self.events.poll_with(&mut cx, poll)
    }
}

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
