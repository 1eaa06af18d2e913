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
        cvt_errno, cvt_ptr, ffi, log_destroy_error, optional_functions, verbs_ext,
    },
    verbs::bit_flags::bit_flags,
};

/// Memory that is registered with a device. Clones refer to the same region.
///
/// The device may read or change the bytes at any time. Any peer that knows [`rkey`](Self::rkey)
/// may also do so, as far as the region's access flags permit. Therefore this type returns no
/// references to the bytes, but copies the bytes in and out. The program's protocol must define
/// when each side may access which bytes. For example, if the program polls the completion of a
/// receive and then calls [`copy_out`](Self::copy_out), the program gets the bytes that the device
/// has written.
///
/// When the last handle is dropped, the memory is deregistered. If the region owns the memory, the
/// memory is then unmapped. Queue pairs and shared receive queues own handles to the regions of all
/// requests that the safe functions posted to them.
///
/// See [`ibv_reg_mr(3)`](https://man7.org/linux/man-pages/man3/ibv_reg_mr.3.html).
#[derive(Clone)]
#[doc(alias = "ibv_mr")]
pub struct MemoryRegion {
    inner: Arc<Inner>,
}

/// The kind of access for which the device prefetches pages: `enum ibv_advise_mr_advice`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[doc(alias = "ibv_advise_mr_advice")]
pub enum Advice {
    /// The device will read the memory.
    Prefetch,
    /// The device will write to the memory.
    PrefetchWrite,
}

/// The maximum number of bytes in one scatter/gather element of an `ibv_advise_mr` call.
const ADVICE_STEP: usize = 1 << 30;

struct Inner {
    raw: NonNull<ffi::ibv_mr>,
    /// The process that registered the region. Only this process deregisters it.
    process: Process,
    lkey: u32,
    rkey: u32,
    start: NonNull<u8>,
    len: usize,
    /// The address that work requests specify for the first byte.
    addr: u64,
    location: Location,
    /// The length in bytes of the view that `bytes` returns. The view begins at `start`, and may
    /// extend beyond the registered bytes to the end of the mapping.
    view_len: usize,
    /// The memory of the region, or `None` if the region does not own its memory. The memory is
    /// unmapped after the region has been deregistered, and stays mapped if deregistration fails.
    mapping: ManuallyDrop<Option<Mapping>>,
    /// The region's protection domain. This field is dropped after `drop` has deregistered the
    /// region, so the domain outlives the registration.
    pd: ProtectionDomain,
}

/// The kind of memory that contains a region's bytes.
enum Location {
    /// Memory of the process.
    Process,
    /// Device memory, which is freed after the region has been deregistered.
    Device { _memory: DeviceMemory },
    /// A dma-buf, which the kernel keeps until the region has been deregistered.
    DmaBuf,
    /// A part of the region `_of`. The region `_of` exists until the part has been deregistered.
    Part { _of: MemoryRegion },
}

// SAFETY: libibverbs allows any thread to deregister a region, and the memory belongs to the
// process, not to a thread.
unsafe impl Send for Inner {}
// SAFETY: after creation only the bytes change. The methods access the bytes only as `SharedBytes`.
unsafe impl Sync for Inner {}

impl MemoryRegion {
    /// Allocates `len` bytes, zeroed and page-aligned, and registers them.
    ///
    /// # Errors
    ///
    /// Returns `EINVAL` if `len` is 0, or if `access` contains `REMOTE_WRITE` or `REMOTE_ATOMIC`
    /// but not `LOCAL_WRITE`. Other errors are those of
    /// [`ibv_reg_mr(3)`](https://man7.org/linux/man-pages/man3/ibv_reg_mr.3.html) and
    /// [`mmap(2)`](https://man7.org/linux/man-pages/man2/mmap.2.html). `ENOMEM` usually means that
    /// the process has reached its limit on locked memory (`ulimit -l`).
    #[doc(alias = "ibv_reg_mr")]
    pub fn new(pd: &ProtectionDomain, len: usize, access: AccessFlags) -> Result<Self, OsError> {
        Self::on_node(pd, len, access, None)
    }

    /// Allocates and registers memory as [`new`](Self::new) does, on the NUMA node `node` if
    /// possible.
    ///
    /// [`Context::numa_node`](crate::verbs::Context::numa_node) returns the node of a device. The
    /// kernel chooses another node in these cases: `node` has no free memory or does not exist, the
    /// process is not allowed to choose a node, or the calling thread has a memory policy, for
    /// example from `numactl(8)`. If `node` is `None`, the kernel always chooses.
    ///
    /// For a region of 2 MiB or more, `new` and this function request huge pages, so that the
    /// device needs fewer address translations.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`new`](Self::new).
    pub fn on_node(
        pd: &ProtectionDomain,
        len: usize,
        access: AccessFlags,
        node: Option<u32>,
    ) -> Result<Self, OsError> {
        let mapping = Mapping::in_huge_pages(len)?;
        mapping.prepare_for_device(node)?;
        let start = mapping.start();
        // SAFETY: `mapping` has at least `len` bytes from `start`. It moves into the region below,
        // which keeps it mapped until the region has been deregistered.
        let raw = unsafe { register(pd, start, len, access) }?;
        let view_len = mapping.len();
        // SAFETY: `raw` was just registered, and all `view_len` bytes of the mapping are
        // initialised.
        Ok(unsafe {
            Self::from_raw(
                raw,
                pd,
                start,
                len,
                view_len,
                Some(mapping),
                Location::Process,
            )
        })
    }

    /// Registers a part of the region a second time, with different access flags. Only work
    /// requests and peers can use the new region. Its functions `copy_in` and `copy_out` panic, so
    /// copy through `self`.
    ///
    /// # Panics
    ///
    /// Panics if `part` exceeds the region, if `again` created `self`, or if the bytes are in
    /// device memory or in a dma-buf.
    ///
    /// # Errors
    ///
    /// Returns the errors of
    /// [`ibv_reg_mr(3)`](https://man7.org/linux/man-pages/man3/ibv_reg_mr.3.html).
    pub fn again(&self, part: Range<usize>, access: AccessFlags) -> Result<Self, OsError> {
        let len = part.end.saturating_sub(part.start);
        self.check(part.start, len);
        // SAFETY: `check` has ensured that the part lies inside the region, whose first byte is
        // `self.inner.start`.
        let start = unsafe { self.inner.start.add(part.start) };
        let pd = self.pd();
        // SAFETY: the bytes stay allocated while a clone of `self` exists. The new region owns such
        // a clone until the new region has been deregistered. Neither region creates a reference to
        // the bytes.
        let raw = unsafe { register(pd, start, len, access) }?;
        let location = Location::Part { _of: self.clone() };
        // SAFETY: `raw` was just registered. The view of the new region is empty, because a view of
        // the part and the view of `self` could access a byte through atomics of different sizes,
        // which `SharedBytes::new` forbids.
        Ok(unsafe { Self::from_raw(raw, pd, start, len, 0, None, location) })
    }

    /// Registers memory that the caller owns.
    ///
    /// # Safety
    ///
    /// The following must hold until the last handle is dropped, including the handles that queue
    /// pairs and shared receive queues own:
    ///
    /// * the `len` bytes at `start` stay allocated, initialised and at this address;
    /// * no Rust reference to the bytes is used while the device or a peer may access them. If the
    ///   memory is posted only for sending, shared references are allowed, because the device only
    ///   reads it;
    /// * while a thread accesses the bytes through this handle, no other thread accesses them by
    ///   other means.
    ///
    /// # Errors
    ///
    /// Returns the errors of
    /// [`ibv_reg_mr(3)`](https://man7.org/linux/man-pages/man3/ibv_reg_mr.3.html), and `EINVAL` if
    /// `start` is null.
    pub unsafe fn register(
        pd: &ProtectionDomain,
        start: *mut u8,
        len: usize,
        access: AccessFlags,
    ) -> Result<Self, OsError> {
        let start = NonNull::new(start).ok_or(OsError::new("ibv_reg_mr", libc::EINVAL))?;
        // SAFETY: the caller guarantees that the `len` bytes from `start` stay allocated.
        let raw = unsafe { register(pd, start, len, access) }?;
        // SAFETY: `raw` was just registered. The conditions that `from_raw` sets for the bytes are
        // among those that the caller guarantees.
        Ok(unsafe { Self::from_raw(raw, pd, start, len, len, None, Location::Process) })
    }

    /// Allocates `len` bytes, zeroed and page-aligned, and registers the whole memory of the
    /// process for implicit on-demand paging.
    ///
    /// The device faults pages in when it accesses them. Therefore the kernel pins no memory, and
    /// the program does not have to register each buffer.
    ///
    /// # Errors
    ///
    /// Returns `EINVAL` if `len` is 0, or if `access` contains a flag other than `LOCAL_WRITE` and
    /// `ON_DEMAND`. Flags that grant access to peers are not allowed, because peers could then
    /// access the whole memory of the process. Other errors are those of [`new`](Self::new), for
    /// example if the device does not have the capability
    /// [`OdpCaps::SUPPORT_IMPLICIT`](crate::verbs::OdpCaps::SUPPORT_IMPLICIT).
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
        mapping.prepare_for_device(None)?;
        let (start, view_len) = (mapping.start(), mapping.len());
        let access = (access | AccessFlags::ON_DEMAND).bits().cast_signed();
        // SAFETY: `pd` keeps the domain alive. The registration covers the whole memory of the
        // process, but its key is used only for elements of this region, which lie inside the
        // mapping.
        let raw = cvt_ptr(CALL, || unsafe {
            ffi::ibv_reg_mr(pd.as_ptr(), ptr::null_mut(), usize::MAX, access)
        })?;
        // SAFETY: `raw` was just registered, and all `view_len` bytes of the mapping are
        // initialised.
        Ok(unsafe {
            Self::from_raw(
                raw,
                pd,
                start,
                len,
                view_len,
                Some(mapping),
                Location::Process,
            )
        })
    }

    /// Registers device memory.
    ///
    /// The addresses of the region start at 0. The program copies the bytes with
    /// [`DeviceMemory::copy_in`] and [`DeviceMemory::copy_out`].
    ///
    /// # Errors
    ///
    /// Returns `EINVAL` if `memory` belongs to another device. Otherwise returns the errors of
    /// [`ibv_reg_dm_mr(3)`](https://man7.org/linux/man-pages/man3/ibv_alloc_dm.3.html).
    #[doc(alias = "ibv_reg_dm_mr")]
    pub fn of_device(
        pd: &ProtectionDomain,
        memory: &DeviceMemory,
        access: AccessFlags,
    ) -> Result<Self, OsError> {
        const CALL: &str = "ibv_reg_dm_mr";
        if !memory.context().is_same_device(pd.context()) {
            return Err(OsError::new(CALL, libc::EINVAL));
        }
        let access = access.bits() | ffi::ibv_access_flags::IBV_ACCESS_ZERO_BASED.0;
        let len = memory.len();
        // SAFETY: `pd` and `memory` exist and belong to the same device, and `memory` is `len`
        // bytes long.
        let raw = cvt_ptr(CALL, || unsafe {
            verbs_ext::ibv_reg_dm_mr(pd.as_ptr(), memory.as_ptr(), len, access)
        })?;
        let location = Location::Device {
            _memory: memory.clone(),
        };
        // SAFETY: `raw` was just registered for the `len` bytes of `memory`, and no other code owns
        // `raw`.
        Ok(unsafe { Self::from_raw_outside_process(raw, pd, len, 0, location) })
    }

    /// Registers `len` bytes of a dma-buf that another driver, for example a GPU driver, exports.
    ///
    /// The region begins at the byte `offset` of the buffer. Work requests and peers use `iova` as
    /// the address of the first byte, and [`addr`](Self::addr) returns `iova`. The kernel keeps the
    /// buffer until the region has been deregistered, so the program may close `fd` after the call.
    /// This type cannot copy the bytes. The program accesses them with functions of the exporting
    /// driver.
    ///
    /// The safe functions that post requests return `EINVAL` if the destination of a receive, a
    /// READ or an atomic operation is a dma-buf region. The reason is that some userspace drivers
    /// let the processor copy short results to the address in the work request. In a dma-buf
    /// region, this address is not an address of the process. The driver of ConnectX adapters
    /// copies up to 64 bytes in this way, unless `MLX5_SCATTER_TO_CQE=0` is in the environment when
    /// the device is opened. The unsafe functions that accept addresses and keys, for example
    /// [`post_recv_raw`](crate::verbs::QueuePair::post_recv_raw), do not check the destination.
    ///
    /// This function has not been tested on a device yet.
    ///
    /// # Errors
    ///
    /// Returns `ELIBBAD` with the name of the function if libibverbs is older than rdma-core 34.
    /// Returns `EINVAL` if `len` is 0. Returns `EOPNOTSUPP` or `ENOSYS` if the driver or its
    /// library does not support dma-bufs, for example for software RoCE and software iWARP. Other
    /// errors are those of
    /// [`ibv_reg_dmabuf_mr(3)`](https://man7.org/linux/man-pages/man3/ibv_reg_mr.3.html). That
    /// function requires that `offset` and `iova` have the same offset within a page, and that
    /// `offset + len` does not exceed the length of the buffer.
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
        let register = optional_functions::ibv_reg_dmabuf_mr()?;
        // SAFETY: `register` is the function `ibv_reg_dmabuf_mr` itself.
        unsafe { Self::of_dmabuf_by(register, pd, fd, offset, len, iova, access) }
    }

    /// Registers a dma-buf by calling `register`. Tests pass a function that needs no device.
    ///
    /// # Safety
    ///
    /// `register` behaves as `ibv_reg_dmabuf_mr` does.
    unsafe fn of_dmabuf_by(
        register: optional_functions::RegDmabufMr,
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
        // SAFETY: `pd` keeps the domain alive, and `fd` is open.
        let raw = cvt_ptr(CALL, || unsafe {
            register(pd.as_ptr(), offset, len, iova, fd, access)
        })?;
        // SAFETY: `raw` was just registered for `len` bytes of a dma-buf, and no other code owns
        // `raw`.
        Ok(unsafe { Self::from_raw_outside_process(raw, pd, len, iova, Location::DmaBuf) })
    }

    /// Creates a region whose bytes are outside the memory of the process.
    ///
    /// # Safety
    ///
    /// `raw` is the registration of `len` bytes of `location` in `pd`, and no other code owns it.
    unsafe fn from_raw_outside_process(
        raw: NonNull<ffi::ibv_mr>,
        pd: &ProtectionDomain,
        len: usize,
        addr: u64,
        location: Location,
    ) -> Self {
        // SAFETY: `raw` was just registered, and its field `lkey` does not change.
        let lkey = unsafe { (*raw.as_ptr()).lkey };
        // SAFETY: `raw` was just registered, and its field `rkey` does not change.
        let rkey = unsafe { (*raw.as_ptr()).rkey };
        Self {
            inner: Arc::new(Inner {
                raw,
                process: Process::this(),
                lkey,
                rkey,
                // The pointer dangles, because the bytes have no address in the process.
                start: NonNull::dangling(),
                view_len: 0,
                len,
                addr,
                location,
                mapping: ManuallyDrop::new(None),
                pd: pd.clone(),
            }),
        }
    }

    /// Prefetches the pages of a region with on-demand paging, and waits until the prefetch has
    /// completed.
    ///
    /// # Errors
    ///
    /// Returns `EOPNOTSUPP` if the driver does not support advice. Otherwise returns the errors of
    /// [`ibv_advise_mr(3)`](https://man7.org/linux/man-pages/man3/ibv_advise_mr.3.html).
    #[doc(alias = "ibv_advise_mr")]
    pub fn advise(&self, advice: Advice) -> Result<(), OsError> {
        use ffi::ib_uverbs_advise_mr_advice as c;
        let advice = match advice {
            Advice::Prefetch => c::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH,
            Advice::PrefetchWrite => c::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE,
        };
        // The length field of an element has only 32 bits. Therefore a long region needs several
        // elements.
        let mut list: Vec<_> = (0..self.len())
            .step_by(ADVICE_STEP)
            .map(|offset| ffi::ibv_sge {
                addr: self.addr() + offset as u64,
                length: (self.len() - offset).min(ADVICE_STEP) as u32,
                lkey: self.lkey(),
            })
            .collect();
        let pd = self.pd().as_ptr();
        // SAFETY: `pd` is alive, and all elements of `list` lie in this region, which is registered
        // in `pd`.
        cvt_errno("ibv_advise_mr", || unsafe {
            verbs_ext::ibv_advise_mr(pd, advice, IBV_ADVISE_MR_FLAG_FLUSH, &mut list)
        })
    }

    /// Creates a region whose bytes are in the memory of the process.
    ///
    /// # Safety
    ///
    /// `raw` is the registration of `len` bytes at `start` in `pd`, and no other code owns it.
    /// `view_len` is 0 or at least `len`. The `view_len` bytes at `start` satisfy the requirements
    /// of `SharedBytes::new` until the region has been deregistered.
    unsafe fn from_raw(
        raw: NonNull<ffi::ibv_mr>,
        pd: &ProtectionDomain,
        start: NonNull<u8>,
        len: usize,
        view_len: usize,
        mapping: Option<Mapping>,
        location: Location,
    ) -> Self {
        // SAFETY: `raw` was just registered, and its field `lkey` does not change.
        let lkey = unsafe { (*raw.as_ptr()).lkey };
        // SAFETY: `raw` was just registered, and its field `rkey` does not change.
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
                location,
                view_len,
                mapping,
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

    /// Returns the address of the first byte. Peers use this address in one-sided operations.
    #[must_use]
    #[inline]
    pub fn addr(&self) -> u64 {
        self.inner.addr
    }

    /// Returns the key that local work requests use.
    #[must_use]
    #[inline]
    pub fn lkey(&self) -> u32 {
        self.inner.lkey
    }

    /// Returns the key that peers use in one-sided operations.
    #[must_use]
    #[inline]
    pub fn rkey(&self) -> u32 {
        self.inner.rkey
    }

    /// Returns the region's protection domain.
    #[must_use]
    pub fn pd(&self) -> &ProtectionDomain {
        &self.inner.pd
    }

    /// Copies `src` into the region. The copy begins at the byte `offset` of the region.
    ///
    /// # Panics
    ///
    /// Panics if the range exceeds the region, if the bytes are in device memory or in a dma-buf,
    /// or if [`again`](Self::again) created this region.
    #[inline]
    pub fn copy_in(&self, offset: usize, src: &[u8]) {
        self.check(offset, src.len());
        self.bytes().write(offset, src);
    }

    /// Fills `dst` with the bytes of the region that begin at `offset`.
    ///
    /// # Panics
    ///
    /// Panics if the range exceeds the region, if the bytes are in device memory or in a dma-buf,
    /// or if [`again`](Self::again) created this region.
    #[inline]
    pub fn copy_out(&self, offset: usize, dst: &mut [u8]) {
        self.check(offset, dst.len());
        self.bytes().read(offset, dst);
    }

    /// Returns a pointer to the first byte. The pointer is valid until the last clone of this
    /// handle is dropped.
    ///
    /// The pointer dangles if the bytes are in device memory or in a dma-buf. The documentation of
    /// [`MemoryRegion`] describes when the program may access the bytes.
    #[must_use]
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.inner.start.as_ptr()
    }

    /// Returns whether the bytes are in a dma-buf. If so, the region's addresses are not addresses
    /// of the process.
    #[inline]
    pub(in crate::verbs) fn is_dmabuf(&self) -> bool {
        matches!(self.inner.location, Location::DmaBuf)
    }

    /// Returns the C object, which exists until the last clone of this handle is dropped.
    pub(in crate::verbs) fn as_raw(&self) -> *mut ffi::ibv_mr {
        self.inner.raw.as_ptr()
    }

    /// Returns a number that is unique among the existing regions of the process.
    pub(in crate::verbs) fn id(&self) -> usize {
        Arc::as_ptr(&self.inner).addr()
    }

    #[inline]
    fn check(&self, offset: usize, len: usize) {
        match self.inner.location {
            Location::Process => {}
            Location::Device { .. } => {
                panic!("the bytes are in device memory: copy them with `DeviceMemory`")
            }
            Location::DmaBuf => {
                panic!("the bytes are in a dma-buf: copy them with the exporting driver")
            }
            Location::Part { .. } => {
                panic!("the bytes belong to another region: copy them through that region")
            }
        }
        assert!(
            offset <= self.len() && len <= self.len() - offset,
            "{len} bytes at offset {offset} exceed a memory region of {} bytes",
            self.len()
        );
    }

    #[inline]
    fn bytes(&self) -> SharedBytes<'_> {
        // SAFETY: the `view_len` bytes from `start` are initialised, and exist while the region
        // exists. A thread accesses the bytes either through this method, or through `as_ptr` while
        // no other thread accesses the bytes, as the documentation of `register` requires.
        unsafe { SharedBytes::new(self.inner.start, self.inner.view_len) }
    }
}

/// Registers memory as the C macro `ibv_reg_mr` does.
///
/// # Safety
///
/// The bytes stay allocated until they have been deregistered. If `access` allows the device or
/// peers to write to the bytes, no code assumes that the bytes stay unchanged.
unsafe fn register(
    pd: &ProtectionDomain,
    start: NonNull<u8>,
    len: usize,
    access: AccessFlags,
) -> Result<NonNull<ffi::ibv_mr>, OsError> {
    let addr: *mut libc::c_void = start.as_ptr().cast();
    let (iova, access) = (addr.addr() as u64, access.bits());
    cvt_ptr("ibv_reg_mr", || {
        if access & IBV_ACCESS_OPTIONAL_RANGE == 0 {
            // SAFETY: `pd` keeps the domain alive, and the caller guarantees that the memory stays
            // allocated. The cast keeps all bits.
            unsafe { ffi::ibv_reg_mr(pd.as_ptr(), addr, len, access.cast_signed()) }
        } else {
            // `ibv_reg_mr_iova2` ignores optional flags that the kernel does not support.
            // SAFETY: `pd` keeps the domain alive, and the caller guarantees that the memory stays
            // allocated.
            unsafe { ffi::ibv_reg_mr_iova2(pd.as_ptr(), addr, len, iova, access) }
        }
    })
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
            // This process is a forked child, and the region belongs to the parent.
            return;
        }
        // SAFETY: `raw` was registered for this object, and only this `drop` deregisters it.
        let result = cvt_errno("ibv_dereg_mr", || unsafe {
            ffi::ibv_dereg_mr(self.raw.as_ptr())
        });
        if result.is_ok() {
            // SAFETY: only this `drop` drops the mapping, and no code uses the field afterwards.
            // The device no longer accesses the memory.
            unsafe { ManuallyDrop::drop(&mut self.mapping) };
        }
        // If deregistration failed, the device may still write to the memory, so the memory stays
        // mapped and is not reused.
        log_destroy_error(result);
    }
}

bit_flags! {
    /// The kinds of access that a memory region or a queue pair allows: `enum ibv_access_flags`.
    ///
    /// The local device may always read the memory. See
    /// [`ibv_reg_mr(3)`](https://man7.org/linux/man-pages/man3/ibv_reg_mr.3.html).
    #[doc(alias = "ibv_access_flags")]
    pub struct AccessFlags;
    /// The local device may write. Memory for receives, and for the results of READs and atomic
    /// operations, requires this flag.
    LOCAL_WRITE = 1 << 0;
    /// A peer may write. On a memory region, this flag requires `LOCAL_WRITE`.
    REMOTE_WRITE = 1 << 1;
    /// A peer may read.
    REMOTE_READ = 1 << 2;
    /// A peer may execute atomic operations. On a memory region, this flag requires `LOCAL_WRITE`.
    REMOTE_ATOMIC = 1 << 3;
    /// The program may bind a [`MemoryWindow`](crate::verbs::MemoryWindow) to the region. The bind
    /// specifies the access that peers have through the window.
    MW_BIND = 1 << 4;
    /// On-demand paging: the device faults pages in when it accesses them, so the kernel pins no
    /// pages.
    ON_DEMAND = 1 << 6;
    /// The memory consists of huge pages.
    HUGETLB = 1 << 7;
    /// The device may reorder its accesses. libibverbs ignores this flag if the kernel does not
    /// support it.
    RELAXED_ORDERING = 1 << 20;
}

#[cfg(test)]
impl MemoryRegion {
    /// Returns a fake dma-buf region of 4096 bytes with the `iova` 0x2000. The region belongs to no
    /// device and is never freed.
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
            // SAFETY: `ibv_mr` consists of integers and pointers, for which all zeros is a valid
            // value.
            let mut raw: ffi::ibv_mr = unsafe { MaybeUninit::zeroed().assume_init() };
            (raw.lkey, raw.rkey) = (5, 6);
            Box::leak(Box::new(raw))
        }

        let pd = ProtectionDomain::of_no_device();
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        let input = io::stdin();
        let make = |len| {
            // SAFETY: `register` above returns a valid structure and does not access the buffer's
            // memory.
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
    fn flags_match_the_headers() {
        for (ours, theirs) in [
            (AccessFlags::LOCAL_WRITE, c::IBV_ACCESS_LOCAL_WRITE),
            (AccessFlags::REMOTE_WRITE, c::IBV_ACCESS_REMOTE_WRITE),
            (AccessFlags::REMOTE_READ, c::IBV_ACCESS_REMOTE_READ),
            (AccessFlags::REMOTE_ATOMIC, c::IBV_ACCESS_REMOTE_ATOMIC),
            (AccessFlags::MW_BIND, c::IBV_ACCESS_MW_BIND),
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
