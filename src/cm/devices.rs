#![allow(unsafe_code)]

//! The devices as librdmacm has them, and how a device that was removed is let go of.
//!
//! librdmacm opens a device when it is first needed and counts who uses it: ids, and lists of
//! devices. It closes only those that it knows to be gone, which it learns while it makes a list. A
//! driver without hot removal, such as that of software RoCE, waits for that: until then the device
//! keeps its name, and whoever removes it waits. So when a device was removed, which an id's event
//! tells, and the last list of this crate's with it goes, librdmacm is asked for a list once more.
//! It makes none, and learns nothing, while there is no device left at all. Then the descriptors
//! behind the open device are replaced by ones that lead nowhere: the kernel has its device back,
//! and librdmacm closes what it still has when there is a device again.

use std::{
    any::Any,
    collections::BTreeMap,
    fmt,
    fs::File,
    os::{fd::AsRawFd, unix::fs::OpenOptionsExt},
    ptr::{self, NonNull},
    slice,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use crate::{
    status::OsError,
    sys::{cvt, cvt_ptr, ffi},
    verbs::Context,
};

/// The RDMA devices, opened by librdmacm. Ids use these and no others, so what is shared by several ids is made on them.
///
/// A device that is removed stays, for the kernel as well, until everything made on it is gone and
/// every list that has it.
///
/// See [`rdma_get_devices(3)`](https://man7.org/linux/man-pages/man3/rdma_get_devices.3.html).
#[derive(Clone)]
#[doc(alias = "rdma_get_devices")]
pub struct Devices {
    inner: Arc<Inner>,
}

/// A [`Devices`] that does not keep its devices open.
pub(super) struct WeakDevices(Weak<Inner>);

/// A list that is entered in [`HELD`].
struct Inner {
    list: List,
}

/// What librdmacm gave. It keeps its devices open.
struct List {
    start: NonNull<*mut ffi::ibv_context>,
    len: usize,
}

// SAFETY: the list does not change once it is entered, and `rdma_get_devices` and
// `rdma_free_devices` may be called by any thread.
unsafe impl Send for List {}
// SAFETY: as above.
unsafe impl Sync for List {}

/// A device that some list has.
#[derive(Default)]
struct Held {
    /// In how many lists it is.
    lists: usize,
    /// Whether it was removed.
    removed: bool,
}

/// The devices that lists have, by the address of their context. Held while lists are made and
/// freed, so that it is exact.
static HELD: Mutex<BTreeMap<usize, Held>> = Mutex::new(BTreeMap::new());

fn held() -> MutexGuard<'static, BTreeMap<usize, Held>> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Devices {
    /// The devices that there are now.
    ///
    /// # Errors
    ///
    /// `ENODEV` and the like from `rdma_get_devices` where the kernel has no RDMA.
    pub fn get() -> Result<Self, OsError> {
        let mut held = held();
        let list = List::get()?;
        Ok(Self::enter(list, &mut held))
    }

    /// One device alone, behind a pointer that librdmacm gave: the list keeps no other one from
    /// being removed. `None` for one that is not among those that there are now.
    pub(super) fn only(raw: *mut ffi::ibv_context) -> Result<Option<Self>, OsError> {
        let mut held = held();
        let mut list = List::get()?;
        let found = list.keep_only(raw)?;
        Ok(found.then(|| Self::enter(list, &mut held)))
    }

    fn enter(list: List, held: &mut BTreeMap<usize, Held>) -> Self {
        for raw in list.all() {
            held.entry(raw.addr()).or_default().lists += 1;
        }
        Self {
            inner: Arc::new(Inner { list }),
        }
    }

    /// The device behind a pointer of an id's was removed.
    ///
    /// # Safety
    ///
    /// The id exists until this returns.
    pub(super) unsafe fn removed(raw: *mut ffi::ibv_context) {
        let Some(context) = NonNull::new(raw) else {
            return;
        };
        let mut held = held();
        match held.get_mut(&raw.addr()) {
            Some(device) => device.removed = true,
            // SAFETY: the id, which exists, keeps librdmacm from freeing it.
            None => unsafe { let_go(context) },
        }
    }

    /// The devices, open for as long as one of their handles lives.
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

    /// The device behind a pointer that librdmacm gave.
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
        // SAFETY: the pointer is in the list, whose devices are open until it is freed, and the context holds the list.
        unsafe { Context::borrowed(raw, keep_alive) }
    }
}

impl WeakDevices {
    /// The list, if somebody still holds it.
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
        let mut held = held();
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
                // SAFETY: this list, which goes after this, keeps librdmacm from freeing it, and it
                // was the last.
                unsafe { let_go(context) };
            }
        }
    }
}

impl List {
    fn get() -> Result<Self, OsError> {
        let mut len = 0;
        // SAFETY: the count is a local.
        let start = unsafe { ffi::rdma_get_devices(&raw mut len) };
        let start = cvt_ptr("rdma_get_devices", start)?;
        // A list has no negative length.
        let len = usize::try_from(len).unwrap_or(0);
        Ok(Self { start, len })
    }

    fn all(&self) -> &[*mut ffi::ibv_context] {
        // SAFETY: librdmacm gave a list of this many entries, and whoever changes it has it to
        // itself.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// Gives all devices but one back. Says whether that one is there.
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
        // SAFETY: the copy has room for as many, and is nobody else's.
        unsafe { ptr::copy_nonoverlapping(others.as_ptr(), copy.as_ptr(), others.len()) };
        // SAFETY: it gives back one use of each device in the list, which ends with null, and frees
        // the list with `free`. This list has counted them, and names them no more from here on.
        unsafe { ffi::rdma_free_devices(copy.as_ptr()) };
        // SAFETY: the list, which nobody else looks at, has more than one entry.
        let kept = unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), 2) };
        kept.copy_from_slice(&[raw, ptr::null_mut()]);
        self.len = 1;
        Ok(true)
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: `rdma_get_devices` gave it, and nobody has it any more.
        unsafe { ffi::rdma_free_devices(self.start.as_ptr()) };
    }
}

/// Has librdmacm close a device that was removed.
///
/// # Safety
///
/// librdmacm does not free the context before this returns, and nothing of this crate's that was
/// made on it is left.
unsafe fn let_go(context: NonNull<ffi::ibv_context>) {
    match List::get() {
        // While it made the list it has marked the device: it closes it with the last use.
        Ok(list) => drop(list),
        // SAFETY: the caller vouches for the context.
        Err(none_left) => match unsafe { lead_nowhere(context) } {
            Ok(()) => log::debug!("{none_left}: the last device was let go of"),
            Err(error) => log::error!("a device that was removed stays open: {error}"),
        },
    }
}

/// Closes what the kernel has open for a context, without librdmacm's knowledge: its descriptors
/// stay, and lead nowhere.
///
/// # Safety
///
/// As [`let_go`].
unsafe fn lead_nowhere(context: NonNull<ffi::ibv_context>) -> Result<(), OsError> {
    let nowhere = File::options()
        .read(true)
        .custom_flags(libc::O_PATH)
        .open("/")
        .map_err(|error| OsError::new("open", error.raw_os_error().unwrap_or(0)))?;
    // SAFETY: the caller vouches for the context.
    let context = unsafe { context.as_ref() };
    for fd in [context.cmd_fd, context.async_fd] {
        // SAFETY: the number is the context's for as long as it exists. It stays open, so that
        // nobody else is given it, and whatever is tried with it fails.
        cvt("dup3", unsafe {
            libc::dup3(nowhere.as_raw_fd(), fd, libc::O_CLOEXEC)
        })?;
    }
    Ok(())
}
