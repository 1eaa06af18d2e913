#![allow(unsafe_code)]

use std::{
    fmt,
    mem::ManuallyDrop,
    ops::Range,
    ptr::{self, NonNull},
    sync::Arc,
};

use super::{
    AccessFlags, DeviceMemory, ProtectionDomain, mapping::Mapping, shared_bytes::SharedBytes,
};
use crate::{
    status::OsError,
    sys::{
        consts::{IBV_ACCESS_OPTIONAL_RANGE, IBV_ADVISE_MR_FLAG_FLUSH},
        cvt_errno, cvt_ptr, ffi, log_destroy_error, verbs_ext,
    },
};

/// Memory that a device may use. Clones are the same one.
///
/// The device, and any peer that knows [`rkey`](Self::rkey) and was given the right, may read or change the bytes at any time. So no
/// reference into them is given out: they are copied in and out. Which bytes are whose when is for the program's protocol to
/// say, as a completion, which orders the device's writes before a later [`copy_out`](Self::copy_out).
///
/// The last handle deregisters the memory, and then unmaps it. Queue pairs and shared receive queues hold a handle of each region
/// that was posted on them.
///
/// See [`ibv_reg_mr(3)`](https://man7.org/linux/man-pages/man3/ibv_reg_mr.3.html).
#[derive(Clone)]
#[doc(alias = "ibv_mr")]
pub struct MemoryRegion {
    inner: Arc<Inner>,
}

/// What a device is to be ready for: `enum ibv_advise_mr_advice`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[doc(alias = "ibv_advise_mr_advice")]
pub enum Advice {
    /// That it reads the memory.
    Prefetch,
    /// That it writes it.
    PrefetchWrite,
}

/// How many bytes one piece of an advice covers at most.
const ADVICE_STEP: usize = 1 << 30;

struct Inner {
    raw: NonNull<ffi::ibv_mr>,
    lkey: u32,
    rkey: u32,
    start: NonNull<u8>,
    len: usize,
    /// The address of the first byte in work requests.
    addr: u64,
    /// Where the bytes are, if not in the memory of the process.
    device_memory: Option<DeviceMemory>,
    /// How much from `start` belongs to the region's [`SharedBytes`]: the whole mapping, or what was registered.
    reach: usize,
    /// Unmapped after the region is deregistered; never, when that fails. `None` for memory that is somebody else's.
    mapping: ManuallyDrop<Option<Mapping>>,
    /// Whose bytes these are, where they are a part of another region's.
    _part_of: Option<MemoryRegion>,
    /// Freed last.
    pd: ProtectionDomain,
}

// SAFETY: libibverbs allows a region to be deregistered from any thread; the memory belongs to the process.
unsafe impl Send for Inner {}
// SAFETY: nothing of it changes after it is made but the bytes, and those are accessed as `SharedBytes`.
unsafe impl Sync for Inner {}

impl MemoryRegion {
    /// Allocates `len` bytes, zeroed and page aligned, and registers them.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a `len` of zero, and for `REMOTE_WRITE` or `REMOTE_ATOMIC` without `LOCAL_WRITE`; `ENOMEM` most often means that the
    /// limit on locked memory (`ulimit -l`) is reached. Otherwise what
    /// [`ibv_reg_mr(3)`](https://man7.org/linux/man-pages/man3/ibv_reg_mr.3.html) and
    /// [`mmap(2)`](https://man7.org/linux/man-pages/man2/mmap.2.html) answer.
    #[doc(alias = "ibv_reg_mr")]
    pub fn new(pd: &ProtectionDomain, len: usize, access: AccessFlags) -> Result<Self, OsError> {
        let mapping = Mapping::new(len)?;
        let start = mapping.start();
        // SAFETY: the mapping is at least as long, and goes into the region below, which keeps it until it is deregistered.
        let raw = unsafe { register(pd, start, len, access) }?;
        let reach = mapping.len();
        // SAFETY: registered just now, and the mapping is initialised up to its end.
        Ok(unsafe { Self::from_raw(raw, pd, start, len, reach, Some(mapping), None) })
    }

    /// Registers a part of the region once more, with other access flags.
    ///
    /// # Panics
    ///
    /// When the part goes beyond the end, or the bytes are in the device.
    pub(crate) fn again(&self, part: Range<usize>, access: AccessFlags) -> Result<Self, OsError> {
        let len = part.end.saturating_sub(part.start);
        self.check(part.start, len);
        // SAFETY: the part lies inside of the region.
        let start = unsafe { self.inner.start.add(part.start) };
        let (pd, reach) = (self.pd(), self.inner.reach - part.start);
        // SAFETY: the region keeps the bytes, and is kept below until they are deregistered. As it
        // does, the new one gives out no reference to them.
        let raw = unsafe { register(pd, start, len, access) }?;
        // SAFETY: registered just now, and the bytes are the region's, which accesses them as
        // `SharedBytes`.
        Ok(unsafe { Self::from_raw(raw, pd, start, len, reach, None, Some(self.clone())) })
    }

    /// Registers memory that somebody else owns.
    ///
    /// # Safety
    ///
    /// Until the last handle is gone, handles held by queue pairs and shared receive queues included:
    ///
    /// * the `len` bytes at `start` stay allocated, initialised, and at this address;
    /// * no Rust reference to them is used while the device or a peer may access them, except that the device only reads what is posted to be
    ///   sent;
    /// * nobody accesses them other than through this handle while another thread does so through it.
    ///
    /// # Errors
    ///
    /// What [`ibv_reg_mr(3)`](https://man7.org/linux/man-pages/man3/ibv_reg_mr.3.html) answers; `EINVAL` for null.
    pub unsafe fn register(
        pd: &ProtectionDomain,
        start: *mut u8,
        len: usize,
        access: AccessFlags,
    ) -> Result<Self, OsError> {
        let start = NonNull::new(start).ok_or(OsError::new("ibv_reg_mr", libc::EINVAL))?;
        // SAFETY: the caller vouches for the memory.
        let raw = unsafe { register(pd, start, len, access) }?;
        // SAFETY: registered just now, and the caller vouches for the bytes.
        Ok(unsafe { Self::from_raw(raw, pd, start, len, len, None, None) })
    }

    /// Allocates `len` bytes, zeroed and page aligned, behind a registration of all memory of the process, of which the device takes pages
    /// when it needs them. There is no pinning, and no registration for each buffer.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a `len` of zero, and for an `access` that lets peers in: they would have the whole process.
    /// [`OdpCaps::SUPPORT_IMPLICIT`](crate::verbs::OdpCaps::SUPPORT_IMPLICIT) tells whether the device can do it; otherwise as [`new`](Self::new).
    pub fn new_implicit(
        pd: &ProtectionDomain,
        len: usize,
        access: AccessFlags,
    ) -> Result<Self, OsError> {
        const CALL: &str = "ibv_reg_mr";
        let allowed = AccessFlags::LOCAL_WRITE | AccessFlags::ON_DEMAND;
        if !allowed.contains(access) {
            return Err(OsError::new(CALL, libc::EINVAL));
        }
        let mapping = Mapping::new(len)?;
        let (start, reach) = (mapping.start(), mapping.len());
        let access = (access | AccessFlags::ON_DEMAND).bits().cast_signed();
        // SAFETY: the domain exists. Nothing but the mapping is ever named with the key: pieces of the region lie inside of it.
        let raw = unsafe { ffi::ibv_reg_mr(pd.as_ptr(), ptr::null_mut(), usize::MAX, access) };
        let raw = cvt_ptr(CALL, raw)?;
        // SAFETY: registered just now, and the mapping is initialised up to its end.
        Ok(unsafe { Self::from_raw(raw, pd, start, len, reach, Some(mapping), None) })
    }

    /// Registers memory of the device. Its addresses count from 0, and its bytes are copied with
    /// [`DeviceMemory::copy_in`] and [`DeviceMemory::copy_out`].
    ///
    /// # Errors
    ///
    /// `EINVAL` when it belongs to another device; what [`ibv_reg_dm_mr(3)`](https://man7.org/linux/man-pages/man3/ibv_alloc_dm.3.html)
    /// answers.
    #[doc(alias = "ibv_reg_dm_mr")]
    pub fn of_device(
        pd: &ProtectionDomain,
        memory: &DeviceMemory,
        access: AccessFlags,
    ) -> Result<Self, OsError> {
        const CALL: &str = "ibv_reg_dm_mr";
        if !memory.context().is(pd.context()) {
            return Err(OsError::new(CALL, libc::EINVAL));
        }
        let access = access.bits() | ffi::ibv_access_flags::IBV_ACCESS_ZERO_BASED.0;
        let len = memory.len();
        // SAFETY: domain and memory exist, on the same device, and the memory is as long.
        let raw = unsafe { verbs_ext::ibv_reg_dm_mr(pd.as_ptr(), memory.as_ptr(), len, access) };
        let raw = cvt_ptr(CALL, raw)?;
        // SAFETY: just registered; the field does not change.
        let lkey = unsafe { (*raw.as_ptr()).lkey };
        // SAFETY: just registered; the field does not change.
        let rkey = unsafe { (*raw.as_ptr()).rkey };
        Ok(Self {
            inner: Arc::new(Inner {
                raw,
                lkey,
                rkey,
                // There is nothing that the processor could reach.
                start: NonNull::dangling(),
                reach: 0,
                len,
                addr: 0,
                device_memory: Some(memory.clone()),
                mapping: ManuallyDrop::new(None),
                _part_of: None,
                pd: pd.clone(),
            }),
        })
    }

    /// Tells the device what it will need of a region of on-demand paging. It waits until the pages are there.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` when the driver takes no advice; others of
    /// [`ibv_advise_mr(3)`](https://man7.org/linux/man-pages/man3/ibv_advise_mr.3.html).
    #[doc(alias = "ibv_advise_mr")]
    pub fn advise(&self, advice: Advice) -> Result<(), OsError> {
        use ffi::ib_uverbs_advise_mr_advice as c;
        let advice = match advice {
            Advice::Prefetch => c::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH,
            Advice::PrefetchWrite => c::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE,
        };
        // Scatter/gather elements have 32 bits for a length.
        let mut list: Vec<_> = (0..self.len())
            .step_by(ADVICE_STEP)
            .map(|offset| ffi::ibv_sge {
                addr: self.addr() + offset as u64,
                length: (self.len() - offset).min(ADVICE_STEP) as u32,
                lkey: self.lkey(),
            })
            .collect();
        let pd = self.pd().as_ptr();
        // SAFETY: the domain exists, and the elements are of a region of it.
        let ret =
            unsafe { verbs_ext::ibv_advise_mr(pd, advice, IBV_ADVISE_MR_FLAG_FLUSH, &mut list) };
        cvt_errno("ibv_advise_mr", ret)
    }

    /// # Safety
    ///
    /// `raw` is the registration of `len` bytes at `start` in `pd`, and nobody else's. `reach` bytes there, at least `len`, satisfy
    /// `SharedBytes::new` until the region is deregistered.
    unsafe fn from_raw(
        raw: NonNull<ffi::ibv_mr>,
        pd: &ProtectionDomain,
        start: NonNull<u8>,
        len: usize,
        reach: usize,
        mapping: Option<Mapping>,
        part_of: Option<Self>,
    ) -> Self {
        // SAFETY: just registered; the field does not change.
        let lkey = unsafe { (*raw.as_ptr()).lkey };
        // SAFETY: just registered; the field does not change.
        let rkey = unsafe { (*raw.as_ptr()).rkey };
        let mapping = ManuallyDrop::new(mapping);
        Self {
            inner: Arc::new(Inner {
                raw,
                lkey,
                rkey,
                start,
                len,
                addr: start.addr().get() as u64,
                device_memory: None,
                reach,
                mapping,
                _part_of: part_of,
                pd: pd.clone(),
            }),
        }
    }

    /// The length in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "no region is empty")]
    pub fn len(&self) -> usize {
        self.inner.len
    }

    /// The address of the first byte, as a peer names it in one-sided operations.
    #[must_use]
    pub fn addr(&self) -> u64 {
        self.inner.addr
    }

    /// The key of local operations.
    #[must_use]
    pub fn lkey(&self) -> u32 {
        self.inner.lkey
    }

    /// The key that a peer needs for one-sided operations.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        self.inner.rkey
    }

    /// The protection domain that it belongs to.
    #[must_use]
    pub fn pd(&self) -> &ProtectionDomain {
        &self.inner.pd
    }

    /// Copies `src` into the region, from byte `offset` on.
    ///
    /// # Panics
    ///
    /// When that goes beyond the end.
    pub fn copy_in(&self, offset: usize, src: &[u8]) {
        self.check(offset, src.len());
        self.bytes().write(offset, src);
    }

    /// Copies bytes out of the region, from byte `offset` on, until `dst` is full.
    ///
    /// # Panics
    ///
    /// When that goes beyond the end.
    pub fn copy_out(&self, offset: usize, dst: &mut [u8]) {
        self.check(offset, dst.len());
        self.bytes().read(offset, dst);
    }

    /// The first byte. Valid for as long as this handle or a clone lives; what may be done with it, the documentation of the
    /// type says.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.inner.start.as_ptr()
    }

    /// Tells regions apart.
    pub(in crate::verbs) fn id(&self) -> usize {
        Arc::as_ptr(&self.inner).addr()
    }

    fn check(&self, offset: usize, len: usize) {
        assert!(
            self.inner.device_memory.is_none(),
            "the bytes are in the device: `DeviceMemory` copies them"
        );
        assert!(
            offset <= self.len() && len <= self.len() - offset,
            "{len} bytes at offset {offset} are not in a memory region of {}",
            self.len()
        );
    }

    fn bytes(&self) -> SharedBytes<'_> {
        // SAFETY: the memory is initialised and lives as long as the region. All threads access it through this method, or, with
        // `as_ptr` and memory of others, when no other does: their own safety comments say so.
        unsafe { SharedBytes::new(self.inner.start, self.inner.reach) }
    }
}

/// Registers memory as the macro `ibv_reg_mr` does.
///
/// # Safety
///
/// The bytes stay allocated until they are deregistered, and nothing relies on what is in them that the access flags let others write.
unsafe fn register(
    pd: &ProtectionDomain,
    start: NonNull<u8>,
    len: usize,
    access: AccessFlags,
) -> Result<NonNull<ffi::ibv_mr>, OsError> {
    let addr = start.as_ptr().cast();
    let raw = if access.bits() & IBV_ACCESS_OPTIONAL_RANGE == 0 {
        // SAFETY: the domain exists, and the caller vouches for the memory. No flag has the sign's bit.
        unsafe { ffi::ibv_reg_mr(pd.as_ptr(), addr, len, access.bits().cast_signed()) }
    } else {
        // This one leaves out flags that the kernel may ignore and does not know.
        // SAFETY: the domain exists, and the caller vouches for the memory.
        unsafe { ffi::ibv_reg_mr_iova2(pd.as_ptr(), addr, len, addr.addr() as u64, access.bits()) }
    };
    cvt_ptr("ibv_reg_mr", raw)
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryRegion")
            .field("addr", &format_args!("{:#x}", self.addr()))
            .field("len", &self.len())
            .field("lkey", &format_args!("{:#x}", self.lkey()))
            .field("rkey", &format_args!("{:#x}", self.rkey()))
            .finish()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: registered for this object alone, deregistered once, here.
        let ret = unsafe { ffi::ibv_dereg_mr(self.raw.as_ptr()) };
        let result = cvt_errno("ibv_dereg_mr", ret);
        if result.is_ok() {
            // SAFETY: dropped once, here; nobody uses the field afterwards. The device has let go of the memory.
            unsafe { ManuallyDrop::drop(&mut self.mapping) };
        }
        // If it failed, the device may still write: the memory must not be used for anything else.
        log_destroy_error(result);
    }
}
