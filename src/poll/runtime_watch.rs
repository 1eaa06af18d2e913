use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
};

use crate::{
    status::OsError,
    transport::{CompletionEvents, TaskEvents},
};

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
    pub(super) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// See [`TaskEvents::poll_with`].
    pub(super) fn poll_with(
        &self,
        poll: impl FnOnce(&CompletionEvents) -> bool,
    ) -> Poll<Result<(), OsError>> {
        let mut cx = Context::from_waker(&self.waker);
        self.events.poll_with(&mut cx, poll)
    }
}
