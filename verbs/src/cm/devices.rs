#![allow(unsafe_code)]

//! The devices that librdmacm has open, and the release of one that was removed.
//!
//! librdmacm opens a device when it is first needed, and counts its users: ids, and lists of
//! devices. It closes only devices that it knows to have been removed, which it detects when it
//! creates a list. A driver without hot removal, such as that of software RoCE, waits for the
//! close: until then the device keeps its name, and its removal blocks.
//!
//! So once an event of an id has reported the removal of a device, and this crate drops its last
//! list that contains the device, this module asks librdmacm for another list. While there is no
//! device at all, librdmacm creates no list, and so detects no removal. In that case the
//! descriptors of the open device are replaced by ones that refer to nothing: the kernel can remove
//! the device, and librdmacm closes its part of it once there is a device again.

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
    sync::{Arc, Mutex, MutexGuard, Weak},
};

use nix::unistd::{Gid, Uid, getegid, geteuid};
use rdma_status::OsError;

use crate::{
    sys::{PerProcess, Process, cvt, cvt_errno, cvt_ptr, failed, ffi, lock},
    verbs::Context,
};

/// The RDMA devices that librdmacm has open.
///
/// Ids use these and no others, so objects that several ids share must be created on them.
///
/// A device that is removed remains, for the kernel as well, until everything created on it has
/// been destroyed and every list that contains it has been dropped.
///
/// See [`rdma_get_devices(3)`](https://man7.org/linux/man-pages/man3/rdma_get_devices.3.html).
#[derive(Clone)]
#[doc(alias = "rdma_get_devices")]
pub struct Devices {
    inner: Arc<Inner>,
}

/// A [`Devices`] that does not keep its devices open.
pub(super) struct WeakDevices(Weak<Inner>);

/// A list that is counted in [`OPEN`].
struct Inner {
    list: List,
    /// The process that created it.
    process: Process,
}

/// A list from librdmacm. It keeps its devices open.
struct List {
    start: NonNull<*mut ffi::ibv_context>,
    len: usize,
}

// SAFETY: the list does not change once it is counted in `OPEN`, and any thread may call
// `rdma_get_devices` and `rdma_free_devices`.
unsafe impl Send for List {}
// SAFETY: as above.
unsafe impl Sync for List {}

/// A device that is in at least one list.
#[derive(Default)]
struct Held {
    /// The number of lists that contain it.
    lists: usize,
    /// Whether it was removed.
    removed: bool,
}

/// The state of librdmacm's devices in this process.
#[derive(Default)]
struct Open {
    /// The devices in lists, by the address of their context.
    held: BTreeMap<usize, Held>,
    /// The user and group that the kernel knows the descriptors by; `None` before the first use.
    credentials: Option<(Uid, Gid)>,
}

/// Locked while lists are created and freed, so that the counts are exact.
static OPEN: PerProcess<Mutex<Open>> = PerProcess::new(Mutex::default);

fn open() -> MutexGuard<'static, Open> {
    lock(OPEN.get())
}

/// Makes sure that the descriptors of software devices are of this process and its credentials.
///
/// To post, the drivers of software devices write(2) to the descriptor of the device, which the
/// kernel allows only with the credentials that opened it; a forked child has others. With these
/// drivers all state of a context is in the kernel, so a context without objects works as well on
/// another descriptor. A driver of an adapter has state in memory, so a
/// child uses its parent's descriptors, by ioctl(2), which the kernel allows.
pub(super) fn own_descriptors() -> Result<(), OsError> {
    let mut open = open();
    let credentials = (geteuid(), getegid());
    let are_foreign = match open.credentials {
        None => Process::is_child(),
        Some(before) => before != credentials && open.held.is_empty(),
    };
    if are_foreign {
        // Without devices there are no descriptors.
        for context in List::get().iter().flat_map(List::all) {
            if let Some(context) = NonNull::new(*context) {
                // SAFETY: the list keeps the device open, and this process has no object on it.
                unsafe { renew(context) }?;
            }
        }
    }
    if are_foreign || open.credentials.is_none() {
        open.credentials = Some(credentials);
    }
    Ok(())
}

impl Devices {
    /// Returns the devices that are present now.
    ///
    /// # Errors
    ///
    /// Those of `rdma_get_devices`: for instance `ENODEV` if the kernel has no RDMA support.
    pub fn get() -> Result<Self, OsError> {
        own_descriptors()?;
        let mut open = open();
        let list = List::get()?;
        Ok(Self::enter(list, &mut open.held))
    }

    /// Returns a list of one device only, by the pointer that an id has.
    ///
    /// Such a list does not block the removal of other devices. `None` if the device is gone.
    pub(super) fn only(raw: *mut ffi::ibv_context) -> Result<Option<Self>, OsError> {
        let mut open = open();
        let mut list = List::get()?;
        let found = list.keep_only(raw)?;
        Ok(found.then(|| Self::enter(list, &mut open.held)))
    }

    fn enter(list: List, held: &mut BTreeMap<usize, Held>) -> Self {
        for raw in list.all() {
            held.entry(raw.addr()).or_default().lists += 1;
        }
        Self {
            inner: Arc::new(Inner {
                list,
                process: Process::this(),
            }),
        }
    }

    /// Records that the device that an id points to was removed.
    ///
    /// # Safety
    ///
    /// The id exists during the call.
    pub(super) unsafe fn removed(raw: *mut ffi::ibv_context) {
        let Some(context) = NonNull::new(raw) else {
            return;
        };
        let mut open = open();
        match open.held.get_mut(&raw.addr()) {
            Some(device) => device.removed = true,
            // SAFETY: the id, which exists, prevents librdmacm from freeing it.
            None => unsafe { release(context) },
        }
    }

    /// Returns the devices, which stay open until their last handle is dropped.
    #[must_use]
    pub fn contexts(&self) -> Vec<Context> {
        self.inner
            .list
            .all()
            .iter()
            .filter_map(|raw| NonNull::new(*raw))
            .map(|raw| self.context(raw))
            .collect()
    }

    /// Returns the device that a pointer of librdmacm's refers to.
    pub(super) fn find(&self, raw: *mut ffi::ibv_context) -> Option<Context> {
        let raw = NonNull::new(raw)?;
        self.inner
            .list
            .all()
            .contains(&raw.as_ptr())
            .then(|| self.context(raw))
    }

    pub(super) fn downgrade(&self) -> WeakDevices {
        WeakDevices(Arc::downgrade(&self.inner))
    }

    fn context(&self, raw: NonNull<ffi::ibv_context>) -> Context {
        let keep_alive: Arc<dyn Any + Send + Sync> = self.inner.clone();
        // SAFETY: the pointer is in the list, whose devices are open until it is freed; the context
        // holds the list.
        unsafe { Context::borrowed(raw, keep_alive) }
    }
}

impl WeakDevices {
    /// Returns the list, if there is still a handle of it.
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
        if !self.process.is_this() {
            // librdmacm's lock may be held by a thread that this process does not have.
            return;
        }
        let Open { held, .. } = &mut *open();
        for raw in self.list.all() {
            let Some(device) = held.get_mut(&raw.addr()) else {
                continue;
            };
            device.lists -= 1;
            let Held { lists, removed } = *device;
            if lists == 0 {
                held.remove(&raw.addr());
            }
            if let (0, true, Some(context)) = (lists, removed, NonNull::new(*raw)) {
                // SAFETY: this list, which is freed after this call, prevents librdmacm from
                // freeing the context, and was the last list.
                unsafe { release(context) };
            }
        }
    }
}

impl List {
    fn get() -> Result<Self, OsError> {
        ffi::open_libraries()?;
        let mut len = 0;
        // SAFETY: the count is a local.
        let start = unsafe { ffi::rdma_get_devices(&raw mut len) };
        let start = cvt_ptr("rdma_get_devices", start).map_err(of_descriptors)?;
        // The length is never negative.
        let len = usize::try_from(len).unwrap_or(0);
        Ok(Self { start, len })
    }

    fn all(&self) -> &[*mut ffi::ibv_context] {
        // SAFETY: librdmacm allocated a list of `len` entries, which is changed through `&mut self`
        // only.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// Releases all devices but one. Returns whether that one is in the list.
    fn keep_only(&mut self, raw: *mut ffi::ibv_context) -> Result<bool, OsError> {
        let mut others = self.all().to_vec();
        others.retain(|other| *other != raw);
        let found = others.len() < self.len;
        if !found || others.is_empty() {
            return Ok(found);
        }
        others.push(ptr::null_mut());
        // SAFETY: it has no preconditions.
        let copy = unsafe { libc::malloc(size_of_val(&others[..])) };
        let copy: NonNull<*mut ffi::ibv_context> = cvt_ptr("malloc", copy.cast())?;
        // SAFETY: the copy has room for all entries, and is used here only.
        unsafe { ptr::copy_nonoverlapping(others.as_ptr(), copy.as_ptr(), others.len()) };
        // SAFETY: it releases one use of each device in the list, which is terminated by null, and
        // frees the list with `free`. `self` held these uses, and has lost the devices.
        unsafe { ffi::rdma_free_devices(copy.as_ptr()) };
        // SAFETY: the list, which is borrowed mutably, has more than one entry.
        let kept = unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), 2) };
        kept.copy_from_slice(&[raw, ptr::null_mut()]);
        self.len = 1;
        Ok(true)
    }
}

/// Returns the error that caused `ENODEV` if librdmacm lacked the descriptors to search for
/// devices.
fn of_descriptors(error: OsError) -> OsError {
    // Opens the number of files that librdmacm uses at a time.
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
        // SAFETY: `rdma_get_devices` allocated it, and it is freed once.
        unsafe { ffi::rdma_free_devices(self.start.as_ptr()) };
    }
}

/// The vendors of software RoCE and software iWARP, as `ibv_query_device` returns them.
pub(crate) const SOFTWARE: [u32; 2] = [0xff_ffff, 0x62_6d74];

/// Replaces the descriptors of a software device by new ones.
///
/// # Safety
///
/// The context is open, and this process uses no object on it.
unsafe fn renew(context: NonNull<ffi::ibv_context>) -> Result<(), OsError> {
    let mut attr = MaybeUninit::zeroed();
    // SAFETY: the caller guarantees the conditions on the context, and the structure is a local.
    let ret = unsafe { ffi::ibv_query_device(context.as_ptr(), attr.as_mut_ptr()) };
    cvt_errno("ibv_query_device", ret)?;
    // SAFETY: a structure of integers: zeroed, then filled in.
    let vendor = unsafe { attr.assume_init() }.vendor_id;
    if !SOFTWARE.contains(&vendor) {
        return Ok(());
    }
    // SAFETY: the caller guarantees the conditions on the context, whose device exists.
    let device = unsafe { (*context.as_ptr()).device };
    // SAFETY: the device of an open context exists.
    let new = cvt_ptr("ibv_open_device", unsafe { ffi::ibv_open_device(device) })?;
    // SAFETY: just opened.
    let source = unsafe { new.as_ref() };
    // SAFETY: the caller guarantees the conditions on the context.
    let target = unsafe { context.as_ref() };
    let pairs = [
        (source.cmd_fd, target.cmd_fd),
        (source.async_fd, target.async_fd),
    ];
    let replaced = pairs.into_iter().try_for_each(|(new, old)| {
        // SAFETY: the numbers belong to the two contexts.
        cvt("dup3", unsafe { libc::dup3(new, old, libc::O_CLOEXEC) }).map(drop)
    });
    // SAFETY: opened here, and used for its descriptors alone, which were duplicated.
    let ret = unsafe { ffi::ibv_close_device(new.as_ptr()) };
    let closed = cvt_errno("ibv_close_device", ret);
    replaced.and(closed)
}

/// Has librdmacm close a device that was removed.
///
/// # Safety
///
/// librdmacm does not free the context during the call, and all objects that this crate created on
/// it have been destroyed.
unsafe fn release(context: NonNull<ffi::ibv_context>) {
    match List::get() {
        // librdmacm has marked the device while it created the list, and closes it with its last
        // use.
        Ok(list) => drop(list),
        // SAFETY: the caller guarantees the conditions on the context.
        Err(none_left) => match unsafe { detach(context) } {
            Ok(()) => debug!(Rdma, "{none_left}: the last device was released"),
            Err(error) => error!(
                Rdma,
                "cannot close a removed device, which stays open until the process ends: {error}"
            ),
        },
    }
}

/// Closes the kernel's objects of a context without librdmacm's knowledge.
///
/// The numbers of its descriptors stay in use, and refer to nothing.
///
/// # Safety
///
/// As [`release`].
unsafe fn detach(context: NonNull<ffi::ibv_context>) -> Result<(), OsError> {
    let nowhere = File::options()
        .read(true)
        .custom_flags(libc::O_PATH)
        .open("/")
        .map_err(failed("open"))?;
    // SAFETY: the caller guarantees the conditions on the context.
    let context = unsafe { context.as_ref() };
    for fd in [context.cmd_fd, context.async_fd] {
        // SAFETY: the number belongs to the context until that ends. It stays open, so that it is
        // not reused, and every call on it fails.
        cvt("dup3", unsafe {
            libc::dup3(nowhere.as_raw_fd(), fd, libc::O_CLOEXEC)
        })?;
    }
    Ok(())
}
