#![allow(unsafe_code)]

use std::{
    fmt,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    ptr::{self, NonNull},
    sync::Arc,
    time::Duration,
};

use rdma_status::OsError;

use crate::{
    sys::{
        Process, cvt, cvt_errno, cvt_ptr, ffi, log_destroy_error, set_nonblocking, wait_readable,
    },
    verbs::device::Context,
};

/// A channel on which completion queues raise events. Clones refer to the same channel.
///
/// The channel's file descriptor is non-blocking, and readable while an event is pending. To sleep
/// without missing a completion:
///
/// 1. call [`CompletionQueue::req_notify`](crate::verbs::CompletionQueue::req_notify), which
///    requests one event;
/// 2. poll the queue until it is empty, because completions that arrived before step 1 raise no
///    event;
/// 3. sleep until the descriptor is readable, call [`get_event`](Self::get_event) until it returns
///    `None`, and start again.
///
/// See [`ibv_create_comp_channel(3)`][man].
///
/// [man]: https://man7.org/linux/man-pages/man3/ibv_create_comp_channel.3.html
#[derive(Clone)]
#[doc(alias = "ibv_comp_channel")]
pub struct CompletionChannel {
    inner: Arc<Inner>,
}

struct Inner {
    raw: NonNull<ffi::ibv_comp_channel>,
    /// The process that created the channel. Only this process destroys it.
    process: Process,
    context: Context,
}

// SAFETY: libibverbs allows any thread to use and to destroy a channel.
unsafe impl Send for Inner {}
// SAFETY: several threads may read the channel's descriptor concurrently; the kernel delivers each
// event to one of them. libibverbs changes the channel's count of queues only while it holds the
// context's lock.
unsafe impl Sync for Inner {}

impl CompletionChannel {
    /// Creates a channel.
    ///
    /// # Errors
    ///
    /// Returns `EMFILE` if the process has too many open descriptors. Otherwise returns the errors
    /// of `ibv_create_comp_channel(3)`.
    #[doc(alias = "ibv_create_comp_channel")]
    pub fn new(context: &Context) -> Result<Self, OsError> {
        // SAFETY: the handle `context` keeps the device's context open.
        let raw = cvt_ptr("ibv_create_comp_channel", || unsafe {
            ffi::ibv_create_comp_channel(context.as_ptr())
        })?;
        let channel = Self {
            inner: Arc::new(Inner {
                raw,
                process: Process::this(),
                context: context.clone(),
            }),
        };
        set_nonblocking(channel.as_fd())?;
        Ok(channel)
    }

    /// Reads and acknowledges an event. Never blocks.
    ///
    /// Returns the cookie of the completion queue that raised the event, or `None` if no event is
    /// pending.
    ///
    /// # Errors
    ///
    /// Returns the errors of
    /// [`ibv_get_cq_event(3)`](https://man7.org/linux/man-pages/man3/ibv_get_cq_event.3.html).
    #[doc(alias = "ibv_get_cq_event")]
    #[doc(alias = "ibv_ack_cq_events")]
    pub fn get_event(&self) -> Result<Option<u64>, OsError> {
        let mut cq = ptr::null_mut();
        let mut cookie = ptr::null_mut();
        // SAFETY: the channel exists, and `cq` and `cookie` are local variables. The queue that
        // raised an event exists until the event is acknowledged.
        let result = cvt("ibv_get_cq_event", || unsafe {
            ffi::ibv_get_cq_event(self.as_ptr(), &raw mut cq, &raw mut cookie)
        });
        match result {
            Ok(_) => {}
            Err(error) if error.errno == libc::EAGAIN => return Ok(None),
            Err(error) => return Err(error),
        }
        // SAFETY: `cq` is the queue that raised the event. The event is acknowledged only here.
        unsafe { ffi::ibv_ack_cq_events(cq, 1) };
        Ok(Some(cookie.addr() as u64))
    }

    /// Waits up to `timeout` for the next event, and reads it.
    ///
    /// Returns `None` if no event was raised in time.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`get_event`](Self::get_event) and of
    /// [`poll(2)`](https://man7.org/linux/man-pages/man2/poll.2.html). A signal does not cause an
    /// error.
    pub fn wait_event(&self, timeout: Duration) -> Result<Option<u64>, OsError> {
        // Another thread may read the event after `poll` returns. Then `get_event` returns `None`,
        // and the wait continues.
        wait_readable(self.as_fd(), timeout, || self.get_event())
    }

    /// Returns the channel's device.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// Returns the C object, which exists until the last clone of this handle is dropped.
    pub(crate) fn as_ptr(&self) -> *mut ffi::ibv_comp_channel {
        self.inner.raw.as_ptr()
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel exists, and its field `fd` does not change.
        let fd = unsafe { (*self.as_ptr()).fd };
        // SAFETY: libibverbs keeps `fd` open until the channel is destroyed, and `self` keeps the
        // channel alive.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}

impl fmt::Debug for CompletionChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionChannel")
            .field("fd", &self.as_fd().as_raw_fd())
            .finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.process.is_this() {
            // This process is a forked child, and the channel belongs to the parent.
            return;
        }
        // SAFETY: `new` created the channel, and only this `drop` destroys it. All queues of the
        // channel have been destroyed, because each of them owned a handle to the channel.
        log_destroy_error(cvt_errno("ibv_destroy_comp_channel", || unsafe {
            ffi::ibv_destroy_comp_channel(self.raw.as_ptr())
        }));
    }
}
