#![allow(unsafe_code)]

use std::{
    fmt, io,
    os::fd::{AsFd, AsRawFd, RawFd},
    sync::Arc,
    task::{Context, Poll},
};

use ::tokio::io::{Interest, unix::AsyncFd};
use rdma_status::OsError;

use super::registration::FdEvents;

/// Completion events that a tokio runtime watches.
pub(crate) struct TaskEvents(AsyncFd<Watched>);

struct Watched(Arc<dyn FdEvents>);

impl TaskEvents {
    /// Registers these events with the current runtime.
    ///
    /// # Panics
    ///
    /// Outside of a runtime.
    #[track_caller]
    pub(crate) fn new(events: Arc<dyn FdEvents>) -> Result<Self, OsError> {
        // SAFETY: the descriptor belongs to an object inside the registered value, which keeps it
        // open and unchanged until then.
        let watched =
            unsafe { AsyncFd::register_with_interest(Watched(events), Interest::READABLE) };
        match watched {
            Ok(watched) => Ok(Self(watched)),
            Err(refused) => Err(os_error(refused.into())),
        }
    }

    /// Runs `poll` if the fd may be readable. If `poll` returns true, it has taken everything: the
    /// next call waits for a new event. If it returns false, the next call runs `poll` at once. If
    /// the fd is not readable, the runtime wakes the task when it is.
    pub(crate) fn poll_with(
        &self,
        cx: &mut Context<'_>,
        poll: impl FnOnce(&dyn FdEvents) -> bool,
    ) -> Poll<Result<(), OsError>> {
        let ready = self.0.poll_read_ready(cx).map_err(os_error);
        ready.map_ok(|mut guard| {
            if poll(&*guard.get_inner().0) {
                guard.clear_ready();
            }
        })
    }
}

/// The error of a runtime that shuts down has no error number.
fn os_error(error: io::Error) -> OsError {
    OsError::new("epoll_ctl", error.raw_os_error().unwrap_or(libc::ESHUTDOWN))
}

impl AsRawFd for Watched {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl fmt::Debug for TaskEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TaskEvents")
            .field(&self.0.get_ref().0)
            .finish()
    }
}
