#![allow(unsafe_code)]

use std::{
    fmt,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    ptr::NonNull,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};

use super::{Devices, devices::WeakDevices};
use crate::{
    status::OsError,
    sys::{self, cvt_ptr, ffi},
    verbs::Context,
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
    /// while it reads an event, under no lock of its own that an id's other users would take. No other lock is taken under it.
    lock: Mutex<()>,
    /// The devices of ids that were looked for, while somebody uses them: asking librdmacm for them
    /// anew takes a while.
    devices: Mutex<Vec<WeakDevices>>,
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
    /// Of `rdma_create_event_channel`: `ENODEV` where there is no RDMA device, `ENOENT` where the kernel has no connection manager (module
    /// `rdma_ucm`), `EMFILE` where the process has too many files open.
    #[doc(alias = "rdma_create_event_channel")]
    pub fn new() -> Result<Self, OsError> {
        // SAFETY: it has no preconditions.
        let raw = unsafe { ffi::rdma_create_event_channel() };
        let raw = cvt_ptr("rdma_create_event_channel", raw)?;
        let this = Self {
            inner: Arc::new(Inner {
                raw,
                lock: Mutex::default(),
                devices: Mutex::default(),
            }),
        };
        sys::set_nonblocking(this.as_fd())?;
        Ok(this)
    }

    /// Keeps others from reading events, and from calls on ids of this channel.
    pub(super) fn lock(&self) -> MutexGuard<'_, ()> {
        // The lock guards no data of ours that a panic could leave half-done.
        self.inner
            .lock
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The device behind the pointer that an id of this channel has. It holds that device and no
    /// other.
    pub(super) fn device(&self, raw: *mut ffi::ibv_context) -> Result<Option<Context>, OsError> {
        let mut devices = self
            .inner
            .devices
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // What somebody uses stays open, so no other device can come to have its address.
        let used = devices.iter().filter_map(WeakDevices::upgrade);
        if let Some(found) = used.filter_map(|used| used.find(raw)).next() {
            return Ok(Some(found));
        }
        let Some(device) = Devices::only(raw)? else {
            return Ok(None);
        };
        devices.retain(|other| other.upgrade().is_some());
        devices.push(device.downgrade());
        Ok(device.find(raw))
    }

    /// Whether an event waits to be read.
    pub(super) fn is_readable(&self) -> bool {
        let mut fds = [PollFd::new(self.as_fd(), PollFlags::POLLIN)];
        // Interrupted before it could say no: it might be.
        matches!(
            poll(&mut fds, PollTimeout::ZERO),
            Ok(1..) | Err(Errno::EINTR)
        )
    }

    pub(super) fn as_ptr(&self) -> *mut ffi::rdma_event_channel {
        self.inner.raw.as_ptr()
    }
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel exists, and the field does not change.
        let fd = unsafe { (*self.as_ptr()).fd };
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
