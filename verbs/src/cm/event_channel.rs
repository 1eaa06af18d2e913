#![allow(unsafe_code)]

use std::{
    fmt,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    ptr::NonNull,
    sync::{Arc, Mutex, MutexGuard},
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use rdma_status::OsError;

use super::{
    Devices,
    devices::{WeakDevices, own_descriptors},
};
use crate::{
    sys::{self, Unshared, cvt_ptr, ffi, lock},
    verbs::Context,
};

/// A channel on which events of ids are reported.
///
/// Reading never blocks; its file descriptor is readable when there is an event.
///
/// Clones refer to the same channel. See [`rdma_create_event_channel(3)`][man].
///
/// [man]: https://man7.org/linux/man-pages/man3/rdma_create_event_channel.3.html
#[derive(Clone)]
#[doc(alias = "rdma_event_channel")]
pub struct EventChannel {
    inner: Arc<Inner>,
}

struct Inner {
    /// A child of a fork closes its copy of the descriptor, so that the kernel's connections and
    /// listeners end with the parent.
    raw: Unshared<Raw>,
    /// Held while an event is read, and during calls on an id of this channel.
    ///
    /// librdmacm writes to the id while it reads an event, and has no lock that an id's other users
    /// would take. No other lock is taken while it is held.
    lock: Mutex<()>,
    /// The devices of ids, cached while they are in use, because asking librdmacm for them is slow.
    devices: Mutex<Vec<WeakDevices>>,
}

struct Raw(NonNull<ffi::rdma_event_channel>);

// SAFETY: the structure behind the pointer is only read, and librdmacm uses it with `Inner::lock`
// held.
unsafe impl Send for Raw {}
// SAFETY: as above.
unsafe impl Sync for Raw {}

impl EventChannel {
    /// Creates a channel.
    ///
    /// # Errors
    ///
    /// Those of `rdma_create_event_channel`: `ENODEV` if there is no RDMA device, `ENOENT` if the
    /// kernel has no connection manager (module `rdma_ucm`), `EMFILE` if the process has too many
    /// open descriptors. With the feature `dlopen` also `ELIBACC` or `ELIBBAD`, of a library that
    /// is missing or a function that it lacks.
    #[doc(alias = "rdma_create_event_channel")]
    pub fn new() -> Result<Self, OsError> {
        ffi::open_libraries()?;
        own_descriptors()?;
        // SAFETY: the call has no preconditions.
        let raw = unsafe { ffi::rdma_create_event_channel() };
        let raw = cvt_ptr("rdma_create_event_channel", raw)?;
        let this = Self {
            inner: Arc::new(Inner {
                raw: Unshared::new(Raw(raw)),
                lock: Mutex::default(),
                devices: Mutex::default(),
            }),
        };
        sys::set_nonblocking(this.as_fd())?;
        Ok(this)
    }

    /// Excludes reading events, and calls on ids of this channel.
    pub(super) fn lock(&self) -> MutexGuard<'_, ()> {
        // The lock guards no data that a panic could leave inconsistent.
        lock(&self.inner.lock)
    }

    /// Returns the device that an id of this channel points to. It holds that device and no other.
    pub(super) fn device(&self, raw: *mut ffi::ibv_context) -> Result<Option<Context>, OsError> {
        let mut devices = lock(&self.inner.devices);
        // A device that is in use stays open, so its address cannot be reused for another one.
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

    /// Returns whether an event can be read.
    pub(super) fn is_readable(&self) -> bool {
        let mut fds = [PollFd::new(self.as_fd(), PollFlags::POLLIN)];
        // Interrupted: there may be one.
        matches!(
            poll(&mut fds, PollTimeout::ZERO),
            Ok(1..) | Err(Errno::EINTR)
        )
    }

    pub(super) fn as_ptr(&self) -> *mut ffi::rdma_event_channel {
        self.inner.raw.0.as_ptr()
    }

    /// Returns whether the parent of this process created it.
    pub(super) fn is_inherited(&self) -> bool {
        self.inner.raw.is_inherited()
    }
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.raw.as_fd()
    }
}

impl AsFd for Raw {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel exists, and the field does not change.
        let fd = unsafe { (*self.0.as_ptr()).fd };
        // SAFETY: it is open until the channel is destroyed, which `self` prevents.
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

impl Drop for Raw {
    fn drop(&mut self) {
        // SAFETY: every id holds its channel, so none is left, and this is the last handle.
        unsafe { ffi::rdma_destroy_event_channel(self.0.as_ptr()) };
    }
}
