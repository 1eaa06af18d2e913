use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
};

use rdma_status::OsError;

use super::{registration::FdEvents, task_events::TaskEvents};

/// A runtime's view of a connection.
///
/// The runtime keeps one waker for the descriptor, but several tasks may wait on the connection,
/// and each may be dropped at any time. So the connection provides that waker, which wakes all
/// tasks.
#[derive(Debug)]
pub struct RuntimeWatch {
    events: TaskEvents,
    waker: Waker,
    calls: Arc<AtomicU64>,
}

impl RuntimeWatch {
    /// Registers the events with the current runtime, which calls this waker. The waker counts its
    /// calls.
    ///
    /// # Panics
    ///
    /// Without a current runtime.
    #[track_caller]
    pub fn new(
        events: Arc<dyn FdEvents>,
        waker: Waker,
        calls: Arc<AtomicU64>,
    ) -> Result<Self, OsError> {
        Ok(Self {
            events: TaskEvents::new(events)?,
            waker,
            calls,
        })
    }

    /// The number of calls by the runtime.
    pub(super) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// See [`TaskEvents::poll_with`].
    pub(super) fn poll_with(
        &self,
        poll: impl FnOnce(&dyn FdEvents) -> bool,
    ) -> Poll<Result<(), OsError>> {
        let mut cx = Context::from_waker(&self.waker);
        self.events.poll_with(&mut cx, poll)
    }
}
