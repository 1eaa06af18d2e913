#![allow(unsafe_code)]

use std::{
    fmt,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    ptr::{self, NonNull},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::CmEvent;
use crate::{
    status::OsError,
    sys::{self, cvt, cvt_ptr, ffi},
};

/// Where the events of ids come in. Reading never blocks; its file descriptor is readable when there is an event.
///
/// Clones are handles of the same channel. See
/// [`rdma_create_event_channel(3)`](https://man7.org/linux/man-pages/man3/rdma_create_event_channel.3.html).
#[derive(Clone)]
#[doc(alias = "rdma_event_channel")]
pub struct EventChannel {
    inner: Arc<Inner>,
}

struct Inner {
    raw: NonNull<ffi::rdma_event_channel>,
    /// Taken by whoever reads an event and by whoever calls something on an id of this channel: librdmacm writes into the id
    /// while it reads an event, under no lock of its own that an id's other users would take.
    lock: Mutex<()>,
}

// SAFETY: the structure behind the pointer is only read, and what librdmacm does through it happens under `lock`.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl EventChannel {
    /// Makes a channel.
    ///
    /// # Errors
    ///
    /// Of `rdma_create_event_channel`: `ENODEV` or `ENOENT` where the kernel has no connection manager (module `rdma_ucm`).
    #[doc(alias = "rdma_create_event_channel")]
    pub fn new() -> Result<Self, OsError> {
        // SAFETY: it has no preconditions.
        let raw = unsafe { ffi::rdma_create_event_channel() };
        let raw = cvt_ptr("rdma_create_event_channel", raw)?;
        let this = Self {
            inner: Arc::new(Inner {
                raw,
                lock: Mutex::new(()),
            }),
        };
        sys::set_nonblocking(this.as_fd())?;
        Ok(this)
    }

    /// Takes the next event, if there is one. It is acknowledged already.
    ///
    /// # Errors
    ///
    /// Of `rdma_get_cm_event`; what goes wrong with a single connection is an event, not an error.
    #[doc(alias = "rdma_get_cm_event")]
    #[doc(alias = "rdma_ack_cm_event")]
    pub fn poll_event(&self) -> Result<Option<CmEvent>, OsError> {
        let _lock = self.lock();
        let mut raw = ptr::null_mut();
        // SAFETY: the channel exists, the out pointer is a local, and the lock keeps others from the ids that are written.
        let ret = unsafe { ffi::rdma_get_cm_event(self.as_ptr(), &raw mut raw) };
        match cvt("rdma_get_cm_event", ret) {
            Ok(_) => {}
            Err(OsError {
                errno: libc::EAGAIN | libc::EINTR,
                ..
            }) => return Ok(None),
            Err(error) => return Err(error),
        }
        // SAFETY: the call succeeded, so it is an event that is ours until it is acknowledged, of an id of this channel.
        let event = unsafe { CmEvent::copy(raw, self) };
        // SAFETY: it is acknowledged once, and the copy does not point into it.
        let ret = unsafe { ffi::rdma_ack_cm_event(raw) };
        cvt("rdma_ack_cm_event", ret)?;
        Ok(Some(event))
    }

    /// Takes the next event, waiting for it until `timeout` is over: then `None`.
    ///
    /// # Errors
    ///
    /// As [`poll_event`](Self::poll_event).
    pub fn wait_event(&self, timeout: Duration) -> Result<Option<CmEvent>, OsError> {
        sys::wait_readable(self.as_fd(), timeout, || self.poll_event())
    }

    /// Keeps others from reading events, and from calls on ids of this channel.
    pub(super) fn lock(&self) -> MutexGuard<'_, ()> {
        // The lock guards no data of ours that a panic could leave half-done.
        self.inner
            .lock
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn as_ptr(&self) -> *mut ffi::rdma_event_channel {
        self.inner.raw.as_ptr()
    }

    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel exists, and the field does not change.
        let fd = unsafe { self.inner.raw.as_ref() }.fd;
        // SAFETY: it is open until the channel is destroyed, which `self` keeps from happening.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}

impl fmt::Debug for EventChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventChannel")
            .field("fd", &self.as_fd().as_raw_fd())
            .finish()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: every id holds its channel, so there is none left, and this is the last handle.
        unsafe { ffi::rdma_destroy_event_channel(self.raw.as_ptr()) };
    }
}
