use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
};

use ::tokio::runtime::Handle;
use rdma_status::OsError;

use super::{registration::FdEvents, task_events::TaskEvents};

/// The registration of a connection's completion events with a tokio runtime.
///
/// The runtime stores only one waker for the file descriptor. Several tasks may wait on the
/// connection, and each task may be dropped at any time. The connection therefore provides a waker
/// that wakes all of these tasks.
#[derive(Debug)]
pub struct RuntimeWatch {
    runtime: Handle,
    events: TaskEvents,
    waker: Waker,
    calls: Arc<AtomicU64>,
}

impl RuntimeWatch {
    /// Registers the events with the runtime. The runtime will call `waker` after an event. `waker`
    /// must increment `calls` each time it is called.
    ///
    /// # Panics
    ///
    /// Panics if I/O is disabled in the runtime.
    #[track_caller]
    pub fn new(
        runtime: Handle,
        events: Arc<dyn FdEvents>,
        waker: Waker,
        calls: Arc<AtomicU64>,
    ) -> Result<Self, OsError> {
        let events = {
            let _entered = runtime.enter();
            TaskEvents::new(events)?
        };
        Ok(Self {
            runtime,
            events,
            waker,
            calls,
        })
    }

    pub(super) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Returns the number of times that the runtime has called the waker.
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
