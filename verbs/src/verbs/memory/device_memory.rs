#![allow(unsafe_code)]

use std::{fmt, ptr::NonNull, sync::Arc};

use rdma_status::OsError;

use crate::{
    sys::{Process, cvt_errno, cvt_ptr, ffi, log_destroy_error, verbs_ext},
    verbs::device::Context,
};

/// Memory on the device itself. The device accesses this memory without crossing the PCIe bus.
///
/// Clones refer to the same memory.
///
/// [`MemoryRegion::of_device`](crate::verbs::MemoryRegion::of_device) registers such memory.
///
/// See [`ibv_alloc_dm(3)`](https://man7.org/linux/man-pages/man3/ibv_alloc_dm.3.html).
#[derive(Clone)]
#[doc(alias = "ibv_dm")]
pub struct DeviceMemory {
    inner: Arc<Inner>,
}

struct Inner {
    raw: NonNull<ffi::ibv_dm>,
    /// The process that allocated the memory. Only this process frees it.
    process: Process,
    len: usize,
    context: Context,
}

// SAFETY: libibverbs allows any thread to use and to free device memory.
unsafe impl Send for Inner {}
// SAFETY: only the bytes on the device change, and this type never creates a reference to these
// bytes.
unsafe impl Sync for Inner {}

impl DeviceMemory {
    /// Allocates `len` bytes of device memory.
    ///
    /// # Errors
    ///
    /// Returns `EOPNOTSUPP` if the device has no memory that programs can allocate. In this case,
    /// [`DeviceAttrEx::max_dm_size`](crate::verbs::DeviceAttrEx::max_dm_size) returns 0. Other
    /// errors are those of
    /// [`ibv_alloc_dm(3)`](https://man7.org/linux/man-pages/man3/ibv_alloc_dm.3.html).
    #[doc(alias = "ibv_alloc_dm")]
    pub fn new(context: &Context, len: usize) -> Result<Self, OsError> {
        let mut attr = ffi::ibv_alloc_dm_attr {
            length: len,
            log_align_req: 0,
            comp_mask: 0,
        };
        // SAFETY: `context` keeps the device open.
        let raw = cvt_ptr("ibv_alloc_dm", || unsafe {
            verbs_ext::ibv_alloc_dm(context.as_ptr(), &mut attr)
        })?;
        let inner = Inner {
            raw,
            process: Process::this(),
            len,
            context: context.clone(),
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// Returns the length in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "no device memory is empty")]
    pub fn len(&self) -> usize {
        self.inner.len
    }

    /// Returns the device that contains the memory.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// Copies `src` into the device memory. The copy begins at the byte `offset` of this memory.
    ///
    /// # Errors
    ///
    /// Returns the errors of
    /// [`ibv_memcpy_to_dm(3)`](https://man7.org/linux/man-pages/man3/ibv_alloc_dm.3.html). A device
    /// may require that `offset` and the length are multiples of 4.
    ///
    /// # Panics
    ///
    /// Panics if the range exceeds the device memory.
    #[doc(alias = "ibv_memcpy_to_dm")]
    pub fn copy_in(&self, offset: usize, src: &[u8]) -> Result<(), OsError> {
        const CALL: &str = "ibv_memcpy_to_dm";
        self.check(offset, src.len());
        // SAFETY: `self` keeps the device memory allocated, and the field `memcpy_to_dm` does not
        // change.
        let copy = unsafe { (*self.as_ptr()).memcpy_to_dm };
        let copy = copy.ok_or(OsError::new(CALL, libc::EOPNOTSUPP))?;
        // SAFETY: the driver has set this function. `check` has ensured that the range is inside
        // the device memory. `src` is valid for reads of `src.len()` bytes.
        cvt_errno(CALL, || unsafe {
            copy(self.as_ptr(), offset as u64, src.as_ptr().cast(), src.len())
        })
    }

    /// Fills `dst` with the bytes of the device memory that begin at `offset`.
    ///
    /// # Errors
    ///
    /// Returns the errors of
    /// [`ibv_memcpy_from_dm(3)`](https://man7.org/linux/man-pages/man3/ibv_alloc_dm.3.html). A
    /// device may require that `offset` and the length are multiples of 4.
    ///
    /// # Panics
    ///
    /// Panics if the range exceeds the device memory.
    #[doc(alias = "ibv_memcpy_from_dm")]
    pub fn copy_out(&self, offset: usize, dst: &mut [u8]) -> Result<(), OsError> {
        const CALL: &str = "ibv_memcpy_from_dm";
        self.check(offset, dst.len());
        // SAFETY: `self` keeps the device memory allocated, and the field `memcpy_from_dm` does not
        // change.
        let copy = unsafe { (*self.as_ptr()).memcpy_from_dm };
        let copy = copy.ok_or(OsError::new(CALL, libc::EOPNOTSUPP))?;
        let into = dst.as_mut_ptr().cast();
        // SAFETY: the driver has set this function. `check` has ensured that the range is inside
        // the device memory. `dst` is valid for writes of `dst.len()` bytes.
        cvt_errno(CALL, || unsafe {
            copy(into, self.as_ptr(), offset as u64, dst.len())
        })
    }

    /// Returns the C object, which exists until the last clone of this handle is dropped.
    pub(super) fn as_ptr(&self) -> *mut ffi::ibv_dm {
        self.inner.raw.as_ptr()
    }

    fn check(&self, offset: usize, len: usize) {
        assert!(
            offset <= self.len() && len <= self.len() - offset,
            "{len} bytes at offset {offset} exceed the device memory of {} bytes",
            self.len()
        );
    }
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceMemory")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.process.is_this() {
            // This process is a forked child, and the memory belongs to the parent.
            return;
        }
        // SAFETY: `new` allocated the memory, and only this `drop` frees it. All regions that
        // were registered for the memory have been deregistered, because each of them owned a
        // handle to the memory.
        log_destroy_error(cvt_errno("ibv_free_dm", || unsafe {
            verbs_ext::ibv_free_dm(self.raw.as_ptr())
        }));
    }
}
