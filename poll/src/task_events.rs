#![allow(unsafe_code)]

use std::{
    fmt, io,
    os::fd::{AsFd, AsRawFd, RawFd},
    sync::Arc,
    task::{Context, Poll},
};

use ::tokio::io::{Interest, unix::AsyncFd};
use rdma_status::OsError;
use rdmsg_os::failed_or;

use super::registration::FdEvents;

/// The registration of a connection's completion events with a tokio runtime.
pub(crate) struct TaskEvents(AsyncFd<Watched>);

struct Watched(Arc<dyn FdEvents>);

impl TaskEvents {
    /// Registers the events with the current tokio runtime.
    ///
    /// # Panics
    ///
    /// Panics if the caller runs outside of a runtime, or if I/O is disabled in the runtime.
    #[track_caller]
    pub(crate) fn new(events: Arc<dyn FdEvents>) -> Result<Self, OsError> {
        // SAFETY: `Watched` owns an `Arc` of the object that owns the descriptor. `AsyncFd` owns
        // the `Watched` and drops it only after deregistering the descriptor. The descriptor
        // therefore stays open and unchanged during the registration.
        let watched =
            unsafe { AsyncFd::register_with_interest(Watched(events), Interest::READABLE) };
        match watched {
            Ok(watched) => Ok(Self(watched)),
            Err(refused) => Err(os_error(refused.into())),
        }
    }

    /// Runs `poll` if the runtime considers the fd readable. `poll` must return true if it has
    /// taken all events. In that case, the fd counts as unreadable until a new event. If `poll`
    /// returns false, the next call runs `poll` again. If the fd is not readable, this method
    /// returns `Pending`, and the runtime calls the waker of `cx` when the fd becomes readable.
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

/// Converts an error of the runtime. A runtime that is shutting down reports an error without an
/// errno. For such an error, this function returns `ESHUTDOWN`.
fn os_error(error: io::Error) -> OsError {
    failed_or("epoll_ctl", libc::ESHUTDOWN)(error)
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
