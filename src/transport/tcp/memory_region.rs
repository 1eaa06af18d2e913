#![allow(unsafe_code)]

use std::{fmt, ptr::NonNull, sync::Arc};

use super::keys::{Exposure, Keys};
use crate::{
    os::{Mapping, Process, SharedBytes},
    remote_access::RemoteAccess,
    status::OsError,
};

/// The domain in which memory is registered. It owns the keys of one connection. Clones refer to
/// the same domain.
#[derive(Clone, Debug)]
pub(crate) struct Domain {
    pub(in crate::transport) keys: Arc<Keys>,
    /// The process that created the domain. Only this process ends keys.
    process: Process,
}

/// Memory that the queue pairs of a domain use. If the region has a key, the peer can also access
/// the memory. Clones refer to the same region. The key ends when the last clone is dropped.
#[derive(Clone)]
pub(crate) struct MemoryRegion {
    inner: Arc<Inner>,
}

struct Inner {
    start: NonNull<u8>,
    len: usize,
    /// The number of bytes at `start` that are accessed as [`SharedBytes`]: `len`, rounded up to
    /// whole pages if the region owns the memory.
    reach: usize,
    /// The key; `None` if the peer has no access right.
    exposure: Option<Arc<Exposure>>,
    domain: Domain,
    /// The memory, dropped after the key. `None` if the region does not own the memory.
    _mapping: Option<Mapping>,
}

// SAFETY: the memory belongs to the process and not to one thread.
unsafe impl Send for Inner {}
// SAFETY: the fields do not change. The bytes of the memory change, but they are accessed as
// `SharedBytes`.
unsafe impl Sync for Inner {}

impl Default for Domain {
    fn default() -> Self {
        Self {
            keys: Arc::default(),
            process: Process::this(),
        }
    }
}

impl Domain {
    /// Returns whether the region is registered in this domain.
    pub(crate) fn has(&self, region: &MemoryRegion) -> bool {
        Arc::ptr_eq(&self.keys, &region.inner.domain.keys)
    }

    /// Allocates zeroed, page-aligned memory that the peer can access with the rights in `remote`.
    pub(crate) fn allocate(
        &self,
        len: usize,
        remote: RemoteAccess,
    ) -> Result<MemoryRegion, OsError> {
        let mapping = Mapping::new(len)?;
        let (start, reach) = (mapping.start(), mapping.len());
        Ok(self.region(start, len, reach, remote, Some(mapping)))
    }

    /// Registers memory that the caller owns. The peer can access it with the rights in `remote`.
    ///
    /// # Safety
    ///
    /// Until the last clone of the region has been dropped, the `len` bytes at `start` stay mapped
    /// and initialised, and no reference to them exists while a READ or the peer may write to them.
    pub(crate) unsafe fn register(
        &self,
        start: *mut u8,
        len: usize,
        remote: RemoteAccess,
    ) -> Result<MemoryRegion, OsError> {
        let start = NonNull::new(start).ok_or(OsError::new("mmap", libc::EINVAL))?;
        Ok(self.region(start, len, len, remote, None))
    }

    fn region(
        &self,
        start: NonNull<u8>,
        len: usize,
        reach: usize,
        remote: RemoteAccess,
        mapping: Option<Mapping>,
    ) -> MemoryRegion {
        let exposure = (remote != RemoteAccess::NONE).then(|| self.keys.expose(start, len, remote));
        MemoryRegion {
            inner: Arc::new(Inner {
                start,
                len,
                reach,
                exposure,
                domain: self.clone(),
                _mapping: mapping,
            }),
        }
    }
}

impl MemoryRegion {
    pub(crate) fn len(&self) -> usize {
        self.inner.len
    }

    /// Returns the address of the first byte, as the peer states it in its requests. Returns 0 if
    /// the peer has no access right.
    pub(crate) fn addr(&self) -> u64 {
        self.inner.exposure.as_ref().map_or(0, |key| key.addr())
    }

    /// Returns the remote key that the peer uses in its requests, or 0 if the peer has no access
    /// right.
    pub(crate) fn rkey(&self) -> u32 {
        self.inner.exposure.as_ref().map_or(0, |key| key.rkey())
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.inner.start.as_ptr()
    }

    /// Copies bytes into the region.
    ///
    /// # Panics
    ///
    /// Panics if the bytes do not fit.
    pub(crate) fn copy_in(&self, offset: usize, bytes: &[u8]) {
        self.check(offset, bytes.len());
        self.bytes().write(offset, bytes);
    }

    /// Copies bytes out of the region.
    ///
    /// # Panics
    ///
    /// Panics if the range exceeds the region.
    pub(crate) fn copy_out(&self, offset: usize, bytes: &mut [u8]) {
        self.check(offset, bytes.len());
        self.bytes().read(offset, bytes);
    }

    fn check(&self, offset: usize, len: usize) {
        assert!(
            offset <= self.len() && len <= self.len() - offset,
            "{len} bytes at offset {offset} exceed a memory region of {} bytes",
            self.len()
        );
    }

    fn bytes(&self) -> SharedBytes<'_> {
        // SAFETY: the memory is initialised, and exists until the region is dropped. Threads access
        // the bytes through this method, or through `as_ptr` while no other thread accesses the
        // same bytes: see the safety comments at the callers of `as_ptr`. The kernel copies into
        // the memory as a device would.
        unsafe { SharedBytes::new(self.inner.start, self.inner.reach) }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(exposure) = &self.exposure
            && self.domain.process.is_this()
        {
            self.domain.keys.end(exposure);
        }
    }
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryRegion")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}
