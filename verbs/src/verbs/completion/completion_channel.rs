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

/// A channel on which completion queues signal completions. Clones refer to the same channel.
///
/// Its descriptor is non-blocking, and readable while an event can be read. To sleep without
/// missing a completion:
///
/// 1. [`CompletionQueue::req_notify`](crate::verbs::CompletionQueue::req_notify) requests one
///    event;
/// 2. poll the queue until it is empty: completions from before step 1 cause no event;
/// 3. sleep until the descriptor is readable, read with [`get_event`](Self::get_event) until it
///    returns `None`, and start again.
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
    /// The process that created it, and that alone destroys it.
    process: Process,
    context: Context,
}

// SAFETY: libibverbs allows a channel to be used and destroyed from any thread.
unsafe impl Send for Inner {}
// SAFETY: several threads may read its descriptor concurrently, and the kernel gives each event to
// one of them. libibverbs changes the count of queues in it under the context's lock.
unsafe impl Sync for Inner {}

impl CompletionChannel {
    /// Creates a channel.
    ///
    /// # Errors
    ///
    /// `EMFILE` if the process has too many open descriptors; otherwise those of
    /// `ibv_create_comp_channel(3)`.
    #[doc(alias = "ibv_create_comp_channel")]
    pub fn new(context: &Context) -> Result<Self, OsError> {
        // SAFETY: the context is open.
        let raw = unsafe { ffi::ibv_create_comp_channel(context.as_ptr()) };
        let raw = cvt_ptr("ibv_create_comp_channel", raw)?;
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

    /// Reads and acknowledges an event, if there is one. Never blocks.
    ///
    /// Returns the cookie of the queue that has completions.
    ///
    /// # Errors
    ///
    /// The errors of
    /// [`ibv_get_cq_event(3)`](https://man7.org/linux/man-pages/man3/ibv_get_cq_event.3.html).
    #[doc(alias = "ibv_get_cq_event")]
    #[doc(alias = "ibv_ack_cq_events")]
    pub fn get_event(&self) -> Result<Option<u64>, OsError> {
        let mut cq = ptr::null_mut();
        let mut cookie = ptr::null_mut();
        // SAFETY: the channel exists, and the pointers are locals. The queue of an event exists
        // until it is acknowledged.
        let ret = unsafe { ffi::ibv_get_cq_event(self.as_ptr(), &raw mut cq, &raw mut cookie) };
        match cvt("ibv_get_cq_event", ret) {
            Ok(_) => {}
            Err(error) if error.errno == libc::EAGAIN => return Ok(None),
            Err(error) => return Err(error),
        }
        // SAFETY: the queue of the event just read, which is acknowledged once.
        unsafe { ffi::ibv_ack_cq_events(cq, 1) };
        Ok(Some(cookie.addr() as u64))
    }

    /// Sleeps until there is an event, for at most `timeout`, and reads it.
    ///
    /// Returns `None` if there was no event in that time.
    ///
    /// # Errors
    ///
    /// Those of [`get_event`](Self::get_event) and
    /// [`poll(2)`](https://man7.org/linux/man-pages/man2/poll.2.html). A signal is no error.
    pub fn wait_event(&self, timeout: Duration) -> Result<Option<u64>, OsError> {
        // Another thread may take the event after `poll`: then there is none.
        wait_readable(self.as_fd(), timeout, || self.get_event())
    }

    /// Returns the device that it belongs to.
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
        // SAFETY: the channel exists, and the field does not change.
        let fd = unsafe { (*self.as_ptr()).fd };
        // SAFETY: libibverbs keeps the descriptor open until the channel ends, which `self` holds.
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
            // The object is the parent's, which has its descriptor, too.
            return;
        }
        // SAFETY: created by `new`, destroyed once, here; its queues have been destroyed, as they
        // hold the channel.
        let ret = unsafe { ffi::ibv_destroy_comp_channel(self.raw.as_ptr()) };
        log_destroy_error(cvt_errno("ibv_destroy_comp_channel", ret));
    }
}
