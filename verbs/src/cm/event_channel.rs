#![allow(unsafe_code)]

use std::{
    fmt,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    ptr::NonNull,
    sync::{Arc, Mutex},
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use rdma_status::OsError;

use super::{
    Devices,
    devices::{WeakDevices, reopen_software_devices},
};
use crate::{
    sys::{self, Guard, Unshared, cvt_ptr, ffi, lock},
    verbs::Context,
};

/// A channel that reports the events of its ids.
///
/// Reading an event never blocks. The channel's file descriptor is readable while an event is
/// pending.
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
    /// The C object. A forked child immediately replaces its copy of the descriptor, because that
    /// copy would keep the kernel's connections and listeners alive after the parent has closed
    /// them.
    raw: Unshared<Raw>,
    /// librdmacm writes to an event's id without a lock while it reads the event. Therefore a
    /// thread holds this lock while it reads an event, and during each call on an id of this
    /// channel.
    ///
    /// A thread that holds this lock acquires only two other locks: the lock of
    /// `devices::OPEN_DEVICES` and, when it migrates an id, the lock of the other channel.
    lock: Mutex<()>,
    /// The devices that this channel's ids use. They are cached because librdmacm needs a long time
    /// to list devices.
    devices: Mutex<Vec<WeakDevices>>,
}

struct Raw(NonNull<ffi::rdma_event_channel>);

// SAFETY: from the creation of the channel until the drop of its last handle, librdmacm and this
// crate only read the structure behind the pointer.
unsafe impl Send for Raw {}
// SAFETY: from the creation of the channel until the drop of its last handle, librdmacm and this
// crate only read the structure behind the pointer.
unsafe impl Sync for Raw {}

impl EventChannel {
    /// Creates a channel.
    ///
    /// # Errors
    ///
    /// Returns the errors of `rdma_create_event_channel`: `ENODEV` if there is no RDMA device,
    /// `ENOENT` if the kernel has no connection manager (module `rdma_ucm`), and `EMFILE` if the
    /// process has too many open descriptors. Without the feature `linked`, also returns `ELIBACC`
    /// if a library is missing, and `ELIBBAD` if a library lacks a function.
    #[doc(alias = "rdma_create_event_channel")]
    pub fn new() -> Result<Self, OsError> {
        ffi::open_libraries()?;
        reopen_software_devices()?;
        // SAFETY: `rdma_create_event_channel` has no preconditions.
        let raw = cvt_ptr("rdma_create_event_channel", || unsafe {
            ffi::rdma_create_event_channel()
        })?;
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

    /// Acquires the channel's lock. While a thread holds the lock, no other thread reads an event
    /// of this channel or makes a call on one of its ids.
    pub(super) fn lock(&self) -> Guard<'_, ()> {
        // The mutex guards no data, so a panic of a previous holder leaves no inconsistent state.
        lock(&self.inner.lock)
    }

    /// Returns a handle to `raw`, the device of an id on this channel. The handle keeps only this
    /// device open. Returns `None` if `raw` is null, or if the device was removed.
    pub(super) fn device(&self, raw: *mut ffi::ibv_context) -> Result<Option<Context>, OsError> {
        let mut devices = lock(&self.inner.devices);
        // Each element refers to a list of devices. A list that still exists keeps its devices
        // open. Two open devices have different addresses, so the device with the address `raw` in
        // such a list is the id's device.
        let lists = devices.iter().filter_map(WeakDevices::upgrade);
        if let Some(found) = lists.filter_map(|list| list.find(raw)).next() {
            return Ok(Some(found));
        }
        let Some(device) = Devices::get_only(raw)? else {
            return Ok(None);
        };
        devices.retain(|other| other.upgrade().is_some());
        devices.push(device.downgrade());
        Ok(device.find(raw))
    }

    /// Returns whether an event is pending.
    pub(super) fn is_readable(&self) -> bool {
        let mut fds = [PollFd::new(self.as_fd(), PollFlags::POLLIN)];
        // If a signal interrupts the call, the result is true, because an event may be pending.
        matches!(
            poll(&mut fds, PollTimeout::ZERO),
            Ok(1..) | Err(Errno::EINTR)
        )
    }

    pub(super) fn as_ptr(&self) -> *mut ffi::rdma_event_channel {
        self.inner.raw.0.as_ptr()
    }

    /// Returns true if this process inherited the channel from its parent.
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
        // SAFETY: the channel exists, and its field `fd` does not change.
        let fd = unsafe { (*self.0.as_ptr()).fd };
        // SAFETY: `fd` is open until the channel is destroyed, and `self` keeps the channel alive.
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
        // SAFETY: this is the last handle of the channel. Each id owns a handle, so the channel has
        // no id.
        unsafe { ffi::rdma_destroy_event_channel(self.0.as_ptr()) };
    }
}
