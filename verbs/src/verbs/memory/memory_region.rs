#![allow(unsafe_code)]

use std::{
    fmt,
    mem::ManuallyDrop,
    ops::Range,
    os::fd::{AsRawFd, BorrowedFd},
    ptr::{self, NonNull},
    sync::Arc,
};

use rdma_status::OsError;
use rdmsg_os::{Mapping, SharedBytes};

use super::{DeviceMemory, ProtectionDomain};
use crate::{
    sys::{
        Process,
        consts::{IBV_ACCESS_OPTIONAL_RANGE, IBV_ADVISE_MR_FLAG_FLUSH},
        cvt_errno, cvt_ptr, ffi, log_destroy_error, newer, verbs_ext,
    },
    verbs::bit_flags::bit_flags,
};

/// Memory that is registered with a device. Clones refer to the same region.
///
/// The device, and any peer that knows [`rkey`](Self::rkey) and has the permission, may read or
/// change the bytes at any time. Therefore there are no references to them: they are copied in and
/// out. The program's protocol defines which side may access which bytes when, for instance by a
/// completion, which orders the device's writes before a later [`copy_out`](Self::copy_out).
///
/// Dropping the last handle deregisters the memory, and then unmaps it. Queue pairs and shared
/// receive queues hold a handle of each region that was posted on them.
///
/// See [`ibv_reg_mr(3)`](https://man7.org/linux/man-pages/man3/ibv_reg_mr.3.html).
#[derive(Clone)]
#[doc(alias = "ibv_mr")]
pub struct MemoryRegion {
    inner: Arc<Inner>,
}

/// The access that a device is to prepare for: `enum ibv_advise_mr_advice`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[doc(alias = "ibv_advise_mr_advice")]
pub enum Advice {
    /// The device will read the memory.
    Prefetch,
    /// The device will write the memory.
    PrefetchWrite,
}

/// The maximum number of bytes that one element of an advice covers.
const ADVICE_STEP: usize = 1 << 30;

struct Inner {
    raw: NonNull<ffi::ibv_mr>,
    /// The process that created it, and that alone destroys it.
    process: Process,
    lkey: u32,
    rkey: u32,
    start: NonNull<u8>,
    len: usize,
    /// The address of the first byte in work requests.
    addr: u64,
    place: Place,
    /// The length of the [`SharedBytes`]: the whole mapping, or the registered bytes.
    reach: usize,
    /// Unmapped after the region is deregistered; never, if that fails. `None` for memory that the
    /// region does not own.
    mapping: ManuallyDrop<Option<Mapping>>,
    /// The region that owns the bytes, if they are a part of another one.
    _part_of: Option<MemoryRegion>,
    /// Freed last.
    pd: ProtectionDomain,
}

/// The location of a region's bytes.
enum Place {
    /// The memory of the process.
    Process,
    /// A device, whose memory is freed after the region.
    Device { _memory: DeviceMemory },
    /// A buffer that the kernel holds until the region is deregistered.
    DmaBuf,
}

// SAFETY: libibverbs allows a region to be deregistered from any thread; the memory belongs to the
// process.
unsafe impl Send for Inner {}
// SAFETY: nothing of it changes after its creation but the bytes, and those are accessed as
// `SharedBytes`.
unsafe impl Sync for Inner {}

impl MemoryRegion {
    /// Allocates `len` bytes, zeroed and page aligned, and registers them.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a `len` of zero, and for `REMOTE_WRITE` or `REMOTE_ATOMIC` without
    /// `LOCAL_WRITE`; `ENOMEM` most often means that the limit on locked memory (`ulimit -l`) is
    /// reached. Otherwise the errors of
    /// [`ibv_reg_mr(3)`](https://man7.org/linux/man-pages/man3/ibv_reg_mr.3.html) and
    /// [`mmap(2)`](https://man7.org/linux/man-pages/man2/mmap.2.html).
    #[doc(alias = "ibv_reg_mr")]
    pub fn new(pd: &ProtectionDomain, len: usize, access: AccessFlags) -> Result<Self, OsError> {
        let mapping = Mapping::new(len)?;
        mapping.prepare_for_device()?;
        let start = mapping.start();
        // SAFETY: the mapping is at least `len` bytes long, and moves into the region below, which
        // keeps it until it is deregistered.
        let raw = unsafe { register(pd, start, len, access) }?;
        let reach = mapping.len();
        // SAFETY: just registered, and the whole mapping is initialised.
        Ok(unsafe { Self::from_raw(raw, pd, start, len, reach, Some(mapping), None) })
    }

    /// Registers a part of the region again, with other access flags.
    ///
    /// # Panics
    ///
    /// If the part exceeds the region, or the bytes are in the device or in a dma-buf.
    ///
    /// # Errors
    ///
    /// The errors of [`ibv_reg_mr(3)`](https://man7.org/linux/man-pages/man3/ibv_reg_mr.3.html).
    pub fn again(&self, part: Range<usize>, access: AccessFlags) -> Result<Self, OsError> {
        let len = part.end.saturating_sub(part.start);
        self.check(part.start, len);
        // SAFETY: the part lies inside the region.
        let start = unsafe { self.inner.start.add(part.start) };
        let (pd, reach) = (self.pd(), self.inner.reach - part.start);
        // SAFETY: the region owns the bytes, and is held below until they are deregistered. Like
        // it, the new one creates no reference to them.
        let raw = unsafe { register(pd, start, len, access) }?;
        // SAFETY: just registered, and the bytes are the region's, which accesses them as
        // `SharedBytes`.
        Ok(unsafe { Self::from_raw(raw, pd, start, len, reach, None, Some(self.clone())) })
    }

    /// Registers memory that the caller owns.
    ///
    /// # Safety
    ///
    /// Until the last handle has been dropped, including those held by queue pairs and shared
    /// receive queues:
    ///
    /// * the `len` bytes at `start` stay allocated, initialised, and at this address;
    /// * no Rust reference to them is used while the device or a peer may access them, except that
    ///   the device only reads memory that is posted for sending;
    /// * no thread accesses them other than through this handle while another thread does so
    ///   through it.
    ///
    /// # Errors
    ///
    /// The errors of [`ibv_reg_mr(3)`](https://man7.org/linux/man-pages/man3/ibv_reg_mr.3.html);
    /// `EINVAL` for null.
    pub unsafe fn register(
        pd: &ProtectionDomain,
        start: *mut u8,
        len: usize,
        access: AccessFlags,
    ) -> Result<Self, OsError> {
        let start = NonNull::new(start).ok_or(OsError::new("ibv_reg_mr", libc::EINVAL))?;
        // SAFETY: the caller guarantees the conditions on the memory.
        let raw = unsafe { register(pd, start, len, access) }?;
        // SAFETY: just registered, and the caller guarantees the conditions on the bytes.
        Ok(unsafe { Self::from_raw(raw, pd, start, len, len, None, None) })
    }

    /// Allocates `len` bytes, zeroed and page aligned, under an implicit on-demand registration.
    ///
    /// The registration covers all memory of the process, and the device faults pages in when it
    /// needs them: nothing is pinned, and buffers are not registered one by one.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a `len` of zero, and for an `access` that includes peers: they could access the
    /// whole process. [`OdpCaps::SUPPORT_IMPLICIT`](crate::verbs::OdpCaps::SUPPORT_IMPLICIT) is set
    /// if the device supports it; otherwise those of [`new`](Self::new).
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
        mapping.prepare_for_device()?;
        let (start, reach) = (mapping.start(), mapping.len());
        let access = (access | AccessFlags::ON_DEMAND).bits().cast_signed();
        // SAFETY: the domain exists. The key is used for nothing but the mapping: elements of the
        // region lie inside it.
        let raw = unsafe { ffi::ibv_reg_mr(pd.as_ptr(), ptr::null_mut(), usize::MAX, access) };
        let raw = cvt_ptr(CALL, raw)?;
        // SAFETY: just registered, and the whole mapping is initialised.
        Ok(unsafe { Self::from_raw(raw, pd, start, len, reach, Some(mapping), None) })
    }

    /// Registers memory of the device.
    ///
    /// Its addresses start at 0, and its bytes are copied with [`DeviceMemory::copy_in`] and
    /// [`DeviceMemory::copy_out`].
    ///
    /// # Errors
    ///
    /// `EINVAL` if it belongs to another device; otherwise those of
    /// [`ibv_reg_dm_mr(3)`](https://man7.org/linux/man-pages/man3/ibv_alloc_dm.3.html).
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
        // SAFETY: domain and memory exist, on the same device, and the memory is `len` bytes long.
        let raw = unsafe { verbs_ext::ibv_reg_dm_mr(pd.as_ptr(), memory.as_ptr(), len, access) };
        let raw = cvt_ptr(CALL, raw)?;
        let place = Place::Device {
            _memory: memory.clone(),
        };
        // SAFETY: just registered.
        Ok(unsafe { Self::outside(raw, pd, len, 0, place) })
    }

    /// Registers `len` bytes of a dma-buf, which another driver exports, such as that of a GPU.
    ///
    /// They begin at byte `offset` of the buffer. Work requests and peers address the first one as
    /// `iova`, which [`addr`](Self::addr) returns. The kernel holds the buffer until the region is
    /// deregistered, so `fd` may be closed after the call. The program accesses the bytes by the
    /// exporter's calls: the region copies none.
    ///
    /// Safe calls do not post the region for a receive, a READ or an atomic operation of this side,
    /// which fail with `EINVAL`. A provider may copy such bytes with the processor to the address
    /// of the element, which is no address of the process: that of ConnectX copies up to 64 bytes,
    /// unless the environment has `MLX5_SCATTER_TO_CQE=0` when the device is opened. The calls
    /// that take addresses and keys, such as
    /// [`post_recv_raw`](crate::verbs::QueuePair::post_recv_raw), leave that to their caller.
    ///
    /// This call has not run on a device yet.
    ///
    /// # Errors
    ///
    /// `ELIBBAD` with the name of the function, if libibverbs is older than rdma-core 34. `EINVAL`
    /// for a `len` of zero. `EOPNOTSUPP` or `ENOSYS` if the driver or its library has no such
    /// registration, as software RoCE and software iWARP. Otherwise those of
    /// [`ibv_reg_dmabuf_mr(3)`](https://man7.org/linux/man-pages/man3/ibv_reg_mr.3.html): `offset`
    /// and `iova` have the same position in their pages, and `offset + len` is within the buffer.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use std::{fs::File, os::fd::AsFd};
    ///
    /// use rdma_verbs::verbs::{AccessFlags, MemoryRegion, ProtectionDomain};
    ///
    /// # fn share(pd: &ProtectionDomain, buffer: File) -> Result<(), Box<dyn std::error::Error>> {
    /// let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    /// let region = MemoryRegion::of_dmabuf(pd, buffer.as_fd(), 0, 4096, 0, access)?;
    /// drop(buffer);
    /// println!("peers write at {:#x} with key {:#x}", region.addr(), region.rkey());
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "ibv_reg_dmabuf_mr")]
    pub fn of_dmabuf(
        pd: &ProtectionDomain,
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        iova: u64,
        access: AccessFlags,
    ) -> Result<Self, OsError> {
        let register = newer::ibv_reg_dmabuf_mr()?;
        // SAFETY: it is this function.
        unsafe { Self::of_dmabuf_by(register, pd, fd, offset, len, iova, access) }
    }

    /// Registers a dma-buf with this function.
    ///
    /// # Safety
    ///
    /// `register` behaves as `ibv_reg_dmabuf_mr`.
    unsafe fn of_dmabuf_by(
        register: newer::RegDmabufMr,
        pd: &ProtectionDomain,
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        iova: u64,
        access: AccessFlags,
    ) -> Result<Self, OsError> {
        const CALL: &str = "ibv_reg_dmabuf_mr";
        if len == 0 {
            return Err(OsError::new(CALL, libc::EINVAL));
        }
        let (fd, access) = (fd.as_raw_fd(), access.bits().cast_signed());
        // SAFETY: the domain exists and the descriptor is open.
        let raw = unsafe { register(pd.as_ptr(), offset, len, iova, fd, access) };
        let raw = cvt_ptr(CALL, raw)?;
        // SAFETY: just registered.
        Ok(unsafe { Self::outside(raw, pd, len, iova, Place::DmaBuf) })
    }

    /// Returns a region whose bytes are not in the memory of the process.
    ///
    /// # Safety
    ///
    /// `raw` is the registration of `len` bytes of `place` in `pd`, owned by nothing else.
    unsafe fn outside(
        raw: NonNull<ffi::ibv_mr>,
        pd: &ProtectionDomain,
        len: usize,
        addr: u64,
        place: Place,
    ) -> Self {
        // SAFETY: just registered; the field does not change.
        let lkey = unsafe { (*raw.as_ptr()).lkey };
        // SAFETY: just registered; the field does not change.
        let rkey = unsafe { (*raw.as_ptr()).rkey };
        Self {
            inner: Arc::new(Inner {
                raw,
                process: Process::this(),
                lkey,
                rkey,
                // The processor cannot access the bytes.
                start: NonNull::dangling(),
                reach: 0,
                len,
                addr,
                place,
                mapping: ManuallyDrop::new(None),
                _part_of: None,
                pd: pd.clone(),
            }),
        }
    }

    /// Prefetches the pages of a region of on-demand paging, and waits until they are present.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` if the driver takes no advice; otherwise those of
    /// [`ibv_advise_mr(3)`](https://man7.org/linux/man-pages/man3/ibv_advise_mr.3.html).
    #[doc(alias = "ibv_advise_mr")]
    pub fn advise(&self, advice: Advice) -> Result<(), OsError> {
        use ffi::ib_uverbs_advise_mr_advice as c;
        let advice = match advice {
            Advice::Prefetch => c::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH,
            Advice::PrefetchWrite => c::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE,
        };
        // A scatter/gather element's length has 32 bits.
        let mut list: Vec<_> = (0..self.len())
            .step_by(ADVICE_STEP)
            .map(|offset| ffi::ibv_sge {
                addr: self.addr() + offset as u64,
                length: (self.len() - offset).min(ADVICE_STEP) as u32,
                lkey: self.lkey(),
            })
            .collect();
        let pd = self.pd().as_ptr();
        // SAFETY: the domain exists, and the elements belong to a region of it.
        let ret =
            unsafe { verbs_ext::ibv_advise_mr(pd, advice, IBV_ADVISE_MR_FLAG_FLUSH, &mut list) };
        cvt_errno("ibv_advise_mr", ret)
    }

    /// # Safety
    ///
    /// `raw` is the registration of `len` bytes at `start` in `pd`, owned by nothing else. `reach`
    /// bytes there, at least `len`, satisfy `SharedBytes::new` until the region is deregistered.
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
                process: Process::this(),
                lkey,
                rkey,
                start,
                len,
                addr: start.addr().get() as u64,
                place: Place::Process,
                reach,
                mapping,
                _part_of: part_of,
                pd: pd.clone(),
            }),
        }
    }

    /// Returns the length in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "no region is empty")]
    #[inline]
    pub fn len(&self) -> usize {
        self.inner.len
    }

    /// Returns the address of the first byte, which peers use in one-sided operations.
    #[must_use]
    #[inline]
    pub fn addr(&self) -> u64 {
        self.inner.addr
    }

    /// Returns the key for local operations.
    #[must_use]
    #[inline]
    pub fn lkey(&self) -> u32 {
        self.inner.lkey
    }

    /// Returns the key that peers need for one-sided operations.
    #[must_use]
    #[inline]
    pub fn rkey(&self) -> u32 {
        self.inner.rkey
    }

    /// Returns the protection domain that it belongs to.
    #[must_use]
    pub fn pd(&self) -> &ProtectionDomain {
        &self.inner.pd
    }

    /// Copies `src` into the region, starting at byte `offset`.
    ///
    /// # Panics
    ///
    /// If the range exceeds the region, or the bytes are in the device or in a dma-buf.
    #[inline]
    pub fn copy_in(&self, offset: usize, src: &[u8]) {
        self.check(offset, src.len());
        self.bytes().write(offset, src);
    }

    /// Fills `dst` with bytes of the region, starting at byte `offset`.
    ///
    /// # Panics
    ///
    /// If the range exceeds the region, or the bytes are in the device or in a dma-buf.
    #[inline]
    pub fn copy_out(&self, offset: usize, dst: &mut [u8]) {
        self.check(offset, dst.len());
        self.bytes().read(offset, dst);
    }

    /// Returns the address of the first byte, valid until the last clone of this handle is dropped.
    ///
    /// It is dangling if the bytes are in the device or in a dma-buf.
    /// See the type's documentation for the permitted accesses.
    #[must_use]
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.inner.start.as_ptr()
    }

    /// Returns whether the bytes are in a dma-buf, so that its addresses are none of the process.
    #[inline]
    pub(in crate::verbs) fn is_dmabuf(&self) -> bool {
        matches!(self.inner.place, Place::DmaBuf)
    }

    /// Returns a number that identifies the region among the existing ones.
    pub(in crate::verbs) fn id(&self) -> usize {
        Arc::as_ptr(&self.inner).addr()
    }

    #[inline]
    fn check(&self, offset: usize, len: usize) {
        match self.inner.place {
            Place::Process => {}
            Place::Device { .. } => {
                panic!("the bytes are in the device: copy them with `DeviceMemory`")
            }
            Place::DmaBuf => panic!("the bytes are in a dma-buf: copy them by its exporter"),
        }
        assert!(
            offset <= self.len() && len <= self.len() - offset,
            "{len} bytes at offset {offset} exceed a memory region of {} bytes",
            self.len()
        );
    }

    #[inline]
    fn bytes(&self) -> SharedBytes<'_> {
        // SAFETY: the memory is initialised and exists until the region ends. All threads access it
        // through this method, or, with `as_ptr` and memory of the caller, while no other thread
        // does: see the safety comments there.
        unsafe { SharedBytes::new(self.inner.start, self.inner.reach) }
    }
}

/// Registers memory as the macro `ibv_reg_mr` does.
///
/// # Safety
///
/// The bytes stay allocated until they are deregistered, and nothing relies on the content of those
/// that the access flags allow others to write.
unsafe fn register(
    pd: &ProtectionDomain,
    start: NonNull<u8>,
    len: usize,
    access: AccessFlags,
) -> Result<NonNull<ffi::ibv_mr>, OsError> {
    let addr = start.as_ptr().cast();
    let raw = if access.bits() & IBV_ACCESS_OPTIONAL_RANGE == 0 {
        // SAFETY: the domain exists, and the caller guarantees the conditions on the memory. No
        // flag is the sign bit.
        unsafe { ffi::ibv_reg_mr(pd.as_ptr(), addr, len, access.bits().cast_signed()) }
    } else {
        // This variant drops optional flags that the kernel does not know.
        // SAFETY: the domain exists, and the caller guarantees the conditions on the memory.
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
        if !self.process.is_this() {
            // The object is the parent's, which has its descriptor, too.
            return;
        }
        // SAFETY: registered for this object alone, deregistered once, here.
        let ret = unsafe { ffi::ibv_dereg_mr(self.raw.as_ptr()) };
        let result = cvt_errno("ibv_dereg_mr", ret);
        if result.is_ok() {
            // SAFETY: dropped once, here; the field is not used afterwards. The device has stopped
            // accessing the memory.
            unsafe { ManuallyDrop::drop(&mut self.mapping) };
        }
        // If it failed, the device may still write, so the memory must not be reused.
        log_destroy_error(result);
    }
}

bit_flags! {
    /// The accesses that a memory region or a queue pair allows: `enum ibv_access_flags`.
    ///
    /// Reading by the local device is always allowed. See
    /// [`ibv_reg_mr(3)`](https://man7.org/linux/man-pages/man3/ibv_reg_mr.3.html).
    #[doc(alias = "ibv_access_flags")]
    pub struct AccessFlags;
    /// The local device may write: receives, and the results of READ and atomic operations.
    LOCAL_WRITE = 1 << 0;
    /// A peer may write. A memory region needs `LOCAL_WRITE` as well.
    REMOTE_WRITE = 1 << 1;
    /// A peer may read.
    REMOTE_READ = 1 << 2;
    /// A peer may execute atomic operations. A memory region needs `LOCAL_WRITE` as well.
    REMOTE_ATOMIC = 1 << 3;
    /// On-demand paging: the device faults pages in, instead of having them pinned at registration.
    ON_DEMAND = 1 << 6;
    /// The memory consists of huge pages.
    HUGETLB = 1 << 7;
    /// The device may reorder its accesses. Ignored by kernels that do not know it.
    RELAXED_ORDERING = 1 << 20;
}

#[cfg(test)]
impl MemoryRegion {
    /// Returns a region of 4096 bytes of a dma-buf at 0x2000 on no device, which is not freed.
    pub(in crate::verbs) fn of_no_device() -> Self {
        use std::{io, mem::MaybeUninit, os::fd::AsFd};

        unsafe extern "C" fn register(
            _pd: *mut ffi::ibv_pd,
            offset: u64,
            length: usize,
            iova: u64,
            fd: libc::c_int,
            access: libc::c_int,
        ) -> *mut ffi::ibv_mr {
            assert_eq!((offset, length, iova, access), (0x1000, 4096, 0x2000, 3));
            assert!(fd >= 0);
            // SAFETY: a structure of integers and pointers: all zero is a valid value.
            let mut raw: ffi::ibv_mr = unsafe { MaybeUninit::zeroed().assume_init() };
            (raw.lkey, raw.rkey) = (5, 6);
            Box::leak(Box::new(raw))
        }

        let pd = ProtectionDomain::of_no_device();
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        let input = io::stdin();
        let make = |len| {
            // SAFETY: the function above never uses the memory.
            unsafe { Self::of_dmabuf_by(register, &pd, input.as_fd(), 0x1000, len, 0x2000, access) }
        };
        assert_eq!(
            make(0).err(),
            Some(OsError::new("ibv_reg_dmabuf_mr", libc::EINVAL))
        );
        let region = make(4096).unwrap();
        let _leaked = ManuallyDrop::new(region.clone());
        region
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::sys::ffi::ibv_access_flags as c;

    #[test]
    fn dmabuf_is_addressed_by_iova_and_not_copied() {
        let region = MemoryRegion::of_no_device();
        assert_eq!((region.addr(), region.len()), (0x2000, 4096));
        assert_eq!((region.lkey(), region.rkey()), (5, 6));
        let copy = AssertUnwindSafe(|| region.copy_out(0, &mut [0]));
        let copied = catch_unwind(copy);
        let text = copied.unwrap_err();
        let text = text.downcast_ref::<&str>().unwrap();
        assert!(text.starts_with("the bytes are in a dma-buf"), "{text}");
    }

    #[test]
    fn flags_are_the_headers() {
        for (ours, theirs) in [
            (AccessFlags::LOCAL_WRITE, c::IBV_ACCESS_LOCAL_WRITE),
            (AccessFlags::REMOTE_WRITE, c::IBV_ACCESS_REMOTE_WRITE),
            (AccessFlags::REMOTE_READ, c::IBV_ACCESS_REMOTE_READ),
            (AccessFlags::REMOTE_ATOMIC, c::IBV_ACCESS_REMOTE_ATOMIC),
            (AccessFlags::ON_DEMAND, c::IBV_ACCESS_ON_DEMAND),
            (AccessFlags::HUGETLB, c::IBV_ACCESS_HUGETLB),
            (
                AccessFlags::RELAXED_ORDERING,
                c::IBV_ACCESS_RELAXED_ORDERING,
            ),
        ] {
            assert_eq!(ours.bits(), theirs.0, "{ours}");
        }
    }

    #[test]
    fn text_lists_names_and_keeps_the_rest() {
        let flags =
            AccessFlags::REMOTE_READ | AccessFlags::LOCAL_WRITE | AccessFlags::from_bits(1 << 31);
        assert_eq!(flags.to_string(), "LOCAL_WRITE | REMOTE_READ | 0x80000000");
        assert_eq!(AccessFlags::empty().to_string(), "none");
        assert_eq!(
            format!("{:?}", AccessFlags::from_bits(1 << 30)),
            "AccessFlags(0x40000000)"
        );
    }

    #[test]
    fn set_operations() {
        let both = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        assert!(both.contains(AccessFlags::REMOTE_WRITE));
        assert!(!both.contains(AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ));
        assert_eq!(
            both.difference(AccessFlags::LOCAL_WRITE),
            AccessFlags::REMOTE_WRITE
        );
    }
}
