#![allow(unsafe_code)]

//! Tracks the devices that librdmacm has open, and releases removed devices.
//!
//! librdmacm opens a device when a program first needs it, and counts the ids and the device lists
//! that use it. librdmacm detects that a device was removed only in two cases: when it creates a
//! device list, and when an id needs a device that librdmacm does not know yet. After that,
//! librdmacm closes the device as soon as no id or list uses it. Some drivers, such as the driver
//! of software RoCE, do not support hot removal. With such a driver, the device keeps its name
//! until librdmacm closes the device, and the command that removes the device blocks until then.
//!
//! Therefore this module makes librdmacm create a new list when two conditions are met: an event
//! has reported the removal of a device, and no list of this module still contains the device.
//! If the host has no other device, librdmacm creates no list and does not detect the removal. In
//! this case, this module replaces the descriptors of the removed device with descriptors on which
//! every call fails. Then the kernel can remove the device. librdmacm frees its own objects when it
//! next creates a list.

use std::{
    any::Any,
    collections::BTreeMap,
    fmt,
    fs::File,
    io,
    mem::MaybeUninit,
    os::{fd::AsRawFd, unix::fs::OpenOptionsExt},
    ptr::{self, NonNull},
    slice,
    sync::{Arc, Mutex, Weak},
};

use nix::unistd::{Gid, Uid, getegid, geteuid};
use rdma_status::OsError;

use crate::{
    sys::{Guard, PerProcess, Process, cvt, cvt_errno, cvt_ptr, failed, ffi, lock},
    verbs::Context,
};

/// The RDMA devices that librdmacm has open.
///
/// Ids use only these devices. Create objects that several ids share, for example a protection
/// domain, on these devices.
///
/// A removed device stays in the kernel until all objects on it have been destroyed and all lists
/// that contain it have been dropped.
///
/// See [`rdma_get_devices(3)`](https://man7.org/linux/man-pages/man3/rdma_get_devices.3.html).
#[derive(Clone)]
#[doc(alias = "rdma_get_devices")]
pub struct Devices {
    inner: Arc<Inner>,
}

/// A weak reference to a [`Devices`] list, which does not keep the list's devices open.
pub(super) struct WeakDevices(Weak<Inner>);

/// A device list whose devices are counted in [`OPEN_DEVICES`].
struct Inner {
    list: List,
}

/// A librdmacm device list, which keeps its devices open.
struct List {
    start: NonNull<*mut ffi::ibv_context>,
    len: usize,
    /// The process that created the list. Only this process frees it.
    process: Process,
}

// SAFETY: the list does not change after its devices are counted in `OPEN_DEVICES`, and any thread
// may call `rdma_get_devices` and `rdma_free_devices`.
unsafe impl Send for List {}
// SAFETY: all methods of a shared `List` only read the list.
unsafe impl Sync for List {}

/// The state of a device that at least one list contains.
#[derive(Default)]
struct Held {
    /// The number of lists that contain the device.
    lists: usize,
    /// Whether an event has reported the removal of the device.
    removed: bool,
}

/// This module's record of the devices that librdmacm has open in this process.
#[derive(Default)]
struct OpenDevices {
    /// The devices that at least one list contains. The key is the address of the `ibv_context`.
    held: BTreeMap<usize, Held>,
    /// The user and group ids with which the devices' descriptors were opened, or `None` before the
    /// first use.
    credentials: Option<(Uid, Gid)>,
}

/// The record of open devices. A thread holds this lock while it creates a list and while it
/// changes [`Held::lists`], so that no other thread sees a list that is not counted yet.
static OPEN_DEVICES: PerProcess<Mutex<OpenDevices>> = PerProcess::new(Mutex::default);

fn lock_open_devices() -> Guard<'static, OpenDevices> {
    lock(OPEN_DEVICES.get())
}

/// Replaces the descriptors of software devices with descriptors that this process has opened with
/// its current credentials. Does this only in two cases:
///
/// * on the first call in a forked child;
/// * on a call after the credentials have changed, if no list contains a device.
///
/// The driver of a software device posts a work request by calling write(2) on the device's
/// descriptor. The kernel allows this call only with the credentials with which the descriptor was
/// opened, and it treats the credentials of a forked child as different. The complete state of a
/// software device's context is in the kernel. Therefore the descriptor of a context without
/// objects can be replaced.
///
/// The driver of a hardware adapter stores a part of the state in the process's memory. Therefore a
/// child continues to use the inherited descriptors of the adapter. The kernel allows this, because
/// such a driver uses ioctl(2).
pub(super) fn reopen_software_devices() -> Result<(), OsError> {
    let mut open = lock_open_devices();
    let credentials = (geteuid(), getegid());
    let must_replace = match open.credentials {
        None => Process::is_child(),
        Some(before) => before != credentials && open.held.is_empty(),
    };
    if must_replace {
        // If there is no device, `List::get` returns an error, and no descriptor needs to be
        // replaced.
        for context in List::get().iter().flat_map(List::as_slice) {
            if let Some(context) = NonNull::new(*context) {
                // SAFETY: the list keeps the device open, so `context` is valid. This process has
                // no object on the device.
                unsafe { replace_descriptors(context) }?;
            }
        }
    }
    if must_replace || open.credentials.is_none() {
        open.credentials = Some(credentials);
    }
    Ok(())
}

impl Devices {
    /// Returns the RDMA devices of this host.
    ///
    /// # Errors
    ///
    /// Returns the errors of `rdma_get_devices`, for example `ENODEV` if the kernel has no RDMA
    /// support.
    pub fn get() -> Result<Self, OsError> {
        reopen_software_devices()?;
        let mut open = lock_open_devices();
        let list = List::get()?;
        Ok(Self::new_counted(list, &mut open.held))
    }

    /// Returns a list that contains only `raw`, the device of an id. Returns `None` if the device
    /// was removed.
    ///
    /// This list does not block the removal of other devices.
    pub(super) fn get_only(raw: *mut ffi::ibv_context) -> Result<Option<Self>, OsError> {
        let mut open = lock_open_devices();
        let mut list = List::get()?;
        let found = list.keep_only(raw)?;
        Ok(found.then(|| Self::new_counted(list, &mut open.held)))
    }

    fn new_counted(list: List, held: &mut BTreeMap<usize, Held>) -> Self {
        for raw in list.as_slice() {
            held.entry(raw.addr()).or_default().lists += 1;
        }
        Self {
            inner: Arc::new(Inner { list }),
        }
    }

    /// Handles the removal of `raw`, the device of an id. If no list of this module contains the
    /// device, releases the device now. Otherwise only records the removal, and the device is
    /// released when the last list that contains it is dropped.
    ///
    /// # Safety
    ///
    /// The id exists during the call.
    pub(super) unsafe fn handle_removal(raw: *mut ffi::ibv_context) {
        let Some(context) = NonNull::new(raw) else {
            return;
        };
        let mut open = lock_open_devices();
        match open.held.get_mut(&raw.addr()) {
            Some(device) => device.removed = true,
            // SAFETY: the caller guarantees that the id exists, so librdmacm does not free the
            // context.
            None => unsafe { release(context) },
        }
    }

    /// Returns the devices. Each device stays open until its last handle is dropped.
    #[must_use]
    pub fn contexts(&self) -> Vec<Context> {
        self.inner
            .list
            .as_slice()
            .iter()
            .filter_map(|raw| NonNull::new(*raw))
            .map(|raw| self.context(raw))
            .collect()
    }

    /// Returns the device whose context has the address `raw`, or `None` if the list does not
    /// contain this device.
    pub(super) fn find(&self, raw: *mut ffi::ibv_context) -> Option<Context> {
        let raw = NonNull::new(raw)?;
        self.inner
            .list
            .as_slice()
            .contains(&raw.as_ptr())
            .then(|| self.context(raw))
    }

    pub(super) fn downgrade(&self) -> WeakDevices {
        WeakDevices(Arc::downgrade(&self.inner))
    }

    fn context(&self, raw: NonNull<ffi::ibv_context>) -> Context {
        let keep_alive: Arc<dyn Any + Send + Sync> = self.inner.clone();
        // SAFETY: the list contains `raw`, so the device is open until the list is freed. The new
        // context owns `keep_alive`, which is the list.
        unsafe { Context::borrowed(raw, keep_alive) }
    }
}

impl WeakDevices {
    /// Returns the list, or `None` if all its handles have been dropped.
    pub(super) fn upgrade(&self) -> Option<Devices> {
        self.0.upgrade().map(|inner| Devices { inner })
    }
}

impl fmt::Debug for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.contexts()).finish()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.list.process.is_this() {
            // This process is a forked child, whose `OPEN_DEVICES` does not count this list.
            return;
        }
        let OpenDevices { held, .. } = &mut *lock_open_devices();
        for raw in self.list.as_slice() {
            let Some(device) = held.get_mut(&raw.addr()) else {
                continue;
            };
            device.lists -= 1;
            let Held { lists, removed } = *device;
            if lists == 0 {
                held.remove(&raw.addr());
            }
            if let (0, true, Some(context)) = (lists, removed, NonNull::new(*raw)) {
                // SAFETY: this list contains `context` and is freed only after this call, so
                // librdmacm does not free the context earlier. No other list contains the device.
                unsafe { release(context) };
            }
        }
    }
}

impl List {
    fn get() -> Result<Self, OsError> {
        ffi::open_libraries()?;
        let mut len = 0;
        // SAFETY: `len` is a local variable that the function may write.
        let start = cvt_ptr("rdma_get_devices", || unsafe {
            ffi::rdma_get_devices(&raw mut len)
        })
        .map_err(descriptor_error)?;
        // The conversion cannot fail, because the length is never negative.
        let len = usize::try_from(len).unwrap_or(0);
        Ok(Self {
            start,
            len,
            process: Process::this(),
        })
    }

    fn as_slice(&self) -> &[*mut ffi::ibv_context] {
        // SAFETY: `start` points to `len` entries that librdmacm allocated. The list changes only
        // through `&mut self`.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// If the list contains `raw`, removes all other devices from the list and returns true. If
    /// not, returns false.
    fn keep_only(&mut self, raw: *mut ffi::ibv_context) -> Result<bool, OsError> {
        let mut others = self.as_slice().to_vec();
        others.retain(|other| *other != raw);
        let found = others.len() < self.len;
        if !found || others.is_empty() {
            return Ok(found);
        }
        others.push(ptr::null_mut());
        // SAFETY: `malloc` has no preconditions.
        let copy = cvt_ptr("malloc", || unsafe {
            libc::malloc(size_of_val(&others[..]))
        })?;
        let copy: NonNull<*mut ffi::ibv_context> = copy.cast();
        // SAFETY: `copy` has space for all entries of `others`, and no other code has its address.
        unsafe { ptr::copy_nonoverlapping(others.as_ptr(), copy.as_ptr(), others.len()) };
        // SAFETY: `rdma_free_devices` drops one reference to each device in `copy`, which ends with
        // null, and then frees `copy` with `free`. These references belong to `self`, which no
        // longer uses these devices.
        unsafe { ffi::rdma_free_devices(copy.as_ptr()) };
        // SAFETY: `start` points to at least two entries, and `&mut self` excludes other users of
        // the list.
        let kept = unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), 2) };
        kept.copy_from_slice(&[raw, ptr::null_mut()]);
        self.len = 1;
        Ok(true)
    }
}

/// Returns the error to report after `rdma_get_devices` has failed with `error`. librdmacm also
/// fails with `ENODEV` if the process or the system has too few free descriptors. In this case,
/// returns `EMFILE` or `ENFILE`.
fn descriptor_error(error: OsError) -> OsError {
    // Open four files, because librdmacm uses at most four descriptors at a time.
    let files = [(); 4].map(|()| File::open("/"));
    let errors = files.iter().filter_map(|file| file.as_ref().err());
    let mut errnos = errors.filter_map(io::Error::raw_os_error);
    let lacking = errnos.find(|errno| [libc::EMFILE, libc::ENFILE].contains(errno));
    match lacking {
        Some(errno) if error.errno == libc::ENODEV => OsError::new(error.call, errno),
        _ => error,
    }
}

impl Drop for List {
    fn drop(&mut self) {
        if !self.process.is_this() {
            // This process is a forked child. Another thread of the parent may have held
            // librdmacm's lock during the fork, so `rdma_free_devices` could block forever.
            return;
        }
        // SAFETY: `rdma_get_devices` allocated the list, and only this `drop` frees it.
        unsafe { ffi::rdma_free_devices(self.start.as_ptr()) };
    }
}

/// The vendor ids that `ibv_query_device` returns for software RoCE and software iWARP.
pub(crate) const SOFTWARE_VENDOR_IDS: [u32; 2] = [0xff_ffff, 0x62_6d74];

/// Opens the device of `context` a second time, and replaces the descriptors of `context` with the
/// new descriptors. Does nothing if the device is not a software device.
///
/// # Safety
///
/// The context is open, and this process uses no object on it.
unsafe fn replace_descriptors(context: NonNull<ffi::ibv_context>) -> Result<(), OsError> {
    let mut attr = MaybeUninit::zeroed();
    // SAFETY: the caller guarantees that `context` is open, and `attr` is a local variable.
    cvt_errno("ibv_query_device", || unsafe {
        ffi::ibv_query_device(context.as_ptr(), attr.as_mut_ptr())
    })?;
    // SAFETY: `ibv_device_attr` consists of integers. `attr` was zeroed, and the call above has
    // filled it in.
    let vendor = unsafe { attr.assume_init() }.vendor_id;
    if !SOFTWARE_VENDOR_IDS.contains(&vendor) {
        return Ok(());
    }
    // SAFETY: the caller guarantees that `context` is open.
    let device = unsafe { (*context.as_ptr()).device };
    // SAFETY: `device` belongs to an open context, so it exists.
    let new = cvt_ptr("ibv_open_device", || unsafe {
        ffi::ibv_open_device(device)
    })?;
    // SAFETY: `new` was opened above and stays open until the end of this function.
    let source = unsafe { new.as_ref() };
    // SAFETY: the caller guarantees that `context` is open.
    let target = unsafe { context.as_ref() };
    let pairs = [
        (source.cmd_fd, target.cmd_fd),
        (source.async_fd, target.async_fd),
    ];
    let replaced = pairs.into_iter().try_for_each(|(new, old)| {
        // SAFETY: `new` and `old` are descriptors of the two open contexts.
        cvt("dup3", || unsafe { libc::dup3(new, old, libc::O_CLOEXEC) }).map(drop)
    });
    // SAFETY: `new` was opened above, has no objects, and is no longer used.
    let closed = cvt_errno("ibv_close_device", || unsafe {
        ffi::ibv_close_device(new.as_ptr())
    });
    replaced.and(closed)
}

/// Makes librdmacm close a removed device. If librdmacm cannot create a list, usually because no
/// device is left, calls [`disable_descriptors`].
///
/// # Safety
///
/// librdmacm does not free the context during the call, and all objects that this crate created on
/// the context have been destroyed.
unsafe fn release(context: NonNull<ffi::ibv_context>) {
    match List::get() {
        // When librdmacm created this list, it marked the device as removed. librdmacm closes the
        // device when the last reference to it is dropped.
        Ok(list) => drop(list),
        // SAFETY: the caller of `release` guarantees the conditions of `disable_descriptors` on
        // `context`.
        Err(list_error) => match unsafe { disable_descriptors(context) } {
            Ok(()) => debug!(
                Rdma,
                "librdmacm cannot list its devices, and therefore cannot close a removed device: \
                 {list_error}; closed the descriptors of the device instead"
            ),
            Err(error) => error!(
                Rdma,
                "cannot close a removed device: {error}; the device stays open until the process \
                 ends"
            ),
        },
    }
}

/// Closes the kernel objects of a context. The descriptor numbers stay in use, but every call on
/// them fails. The state of librdmacm does not change.
///
/// # Safety
///
/// The same as for [`release`].
unsafe fn disable_descriptors(context: NonNull<ffi::ibv_context>) -> Result<(), OsError> {
    let unusable = File::options()
        .read(true)
        .custom_flags(libc::O_PATH)
        .open("/")
        .map_err(failed("open"))?;
    // SAFETY: the caller guarantees that librdmacm does not free `context` during the call.
    let context = unsafe { context.as_ref() };
    for fd in [context.cmd_fd, context.async_fd] {
        // SAFETY: `fd` belongs to the context until librdmacm frees the context. The number stays
        // in use, so no other file receives it, and every call of librdmacm on it fails.
        cvt("dup3", || unsafe {
            libc::dup3(unusable.as_raw_fd(), fd, libc::O_CLOEXEC)
        })?;
    }
    Ok(())
}
