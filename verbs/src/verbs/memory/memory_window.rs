#![allow(unsafe_code)]

use std::{fmt, ptr::NonNull};

use rdma_status::OsError;

use super::{MemoryRegion, ProtectionDomain};
use crate::sys::{Process, cvt_errno, cvt_ptr, ffi, log_destroy_error, verbs_ext};

/// A type 2 memory window, which gives a peer access to a part of a [`MemoryRegion`].
///
/// A work request on a queue pair binds a window to a part of a region
/// ([`QueuePair::bind_window`](crate::verbs::QueuePair::bind_window)). Afterwards the peer of that
/// queue pair can access these bytes with the window's [`rkey`](Self::rkey). Another kind of work
/// request ends the access
/// ([`QueuePair::invalidate_window`](crate::verbs::QueuePair::invalidate_window)). Unlike the
/// registration of a region, these requests need no system call. Each bind changes the key; the
/// keys repeat after 256 binds.
///
/// Not every device enforces the bounds of the window: software RoCE checks only the bounds of the
/// region. A peer can also invalidate the window
/// ([`SendWr::send_with_inv`](crate::verbs::SendWr::send_with_inv)). On a host with software RoCE,
/// the kernel crashes if a peer invalidates a window that is not bound.
///
/// Dropping the window frees it, and so ends the access. The window owns a handle to each region to
/// which it was bound. Some drivers destroy a queue pair only after all windows that were bound
/// through the queue pair have been invalidated or freed. Therefore drop the windows before the
/// queue pair.
///
/// See [`ibv_alloc_mw(3)`](https://man7.org/linux/man-pages/man3/ibv_alloc_mw.3.html).
///
/// # Examples
///
/// ```no_run
/// use rdma_verbs::verbs::{AccessFlags, MemoryRegion, MemoryWindow, ProtectionDomain, QueuePair};
///
/// # fn lend(pd: &ProtectionDomain, qp: &QueuePair) -> Result<(), Box<dyn std::error::Error>> {
/// let region = MemoryRegion::new(pd, 4096, AccessFlags::MW_BIND)?;
/// let mut window = MemoryWindow::new(pd)?;
/// qp.bind_window(1, &mut window, &region, 0..100, AccessFlags::REMOTE_READ, false)?;
/// println!("the peer reads at {:#x} with key {:#x}", region.addr(), window.rkey());
/// # Ok(())
/// # }
/// ```
#[doc(alias = "ibv_mw")]
pub struct MemoryWindow {
    raw: NonNull<ffi::ibv_mw>,
    /// The process that allocated the window. Only this process frees it.
    process: Process,
    /// The key of the last posted bind, or the initial key if no bind has been posted yet.
    rkey: u32,
    /// Whether the last posted request for the window was a bind, not an invalidation.
    is_bound: bool,
    /// The regions to which the window was bound. They are dropped after the window is freed,
    /// because the peer may access them until then.
    regions: Vec<MemoryRegion>,
    pd: ProtectionDomain,
}

// SAFETY: libibverbs allows any thread to use and to free a window.
unsafe impl Send for MemoryWindow {}
// SAFETY: the methods that take `&self` only read the fields of the window. The methods that change
// the C object take `&mut self`.
unsafe impl Sync for MemoryWindow {}

impl MemoryWindow {
    /// Allocates an unbound window.
    ///
    /// # Errors
    ///
    /// Returns `EOPNOTSUPP` if the driver does not support windows. Otherwise returns the errors of
    /// [`ibv_alloc_mw(3)`](https://man7.org/linux/man-pages/man3/ibv_alloc_mw.3.html).
    #[doc(alias = "ibv_alloc_mw")]
    pub fn new(pd: &ProtectionDomain) -> Result<Self, OsError> {
        // SAFETY: `pd` keeps the domain alive.
        let raw = cvt_ptr("ibv_alloc_mw", || unsafe {
            verbs_ext::ibv_alloc_mw(pd.as_ptr())
        })?;
        // SAFETY: the window was just allocated, and no other code uses it.
        let rkey = unsafe { (*raw.as_ptr()).rkey };
        Ok(Self {
            raw,
            process: Process::this(),
            rkey,
            is_bound: false,
            regions: Vec::new(),
            pd: pd.clone(),
        })
    }

    /// Returns the key of the last posted bind. The peer uses this key in one-sided operations.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// Returns whether the program's last request for the window was a bind. The device may not
    /// have executed the request yet. An invalidation by the peer does not change the result.
    #[must_use]
    pub fn is_bound(&self) -> bool {
        self.is_bound
    }

    /// Returns the window's protection domain.
    #[must_use]
    pub fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// Returns the C object, which exists until this object is dropped.
    pub(in crate::verbs) fn as_ptr(&self) -> *mut ffi::ibv_mw {
        self.raw.as_ptr()
    }

    /// Returns the key of the next bind: the current key with its low 8 bits incremented. The
    /// device chose the other bits when the window was allocated.
    pub(in crate::verbs) fn next_rkey(&self) -> u32 {
        self.rkey & !0xff | self.rkey.wrapping_add(1) & 0xff
    }

    /// Records that a bind to `region` with the next key was posted, and keeps a handle to
    /// `region`.
    pub(in crate::verbs) fn set_bound(&mut self, region: &MemoryRegion) {
        self.rkey = self.next_rkey();
        // The driver reads this field when it posts the next bind.
        // SAFETY: the window exists, and `self` is borrowed exclusively.
        unsafe { (*self.raw.as_ptr()).rkey = self.rkey };
        self.is_bound = true;
        if self.regions.iter().all(|held| held.id() != region.id()) {
            self.regions.push(region.clone());
        }
    }

    /// Records that an invalidation was posted.
    pub(in crate::verbs) fn set_invalidated(&mut self) {
        self.is_bound = false;
    }
}

impl fmt::Debug for MemoryWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryWindow")
            .field("rkey", &format_args!("{:#x}", self.rkey))
            .field("is_bound", &self.is_bound)
            .finish_non_exhaustive()
    }
}

impl Drop for MemoryWindow {
    fn drop(&mut self) {
        if !self.process.is_this() {
            // This process is a forked child, and the window belongs to the parent.
            return;
        }
        // SAFETY: `new` allocated the window, and only this `drop` frees it.
        log_destroy_error(cvt_errno("ibv_dealloc_mw", || unsafe {
            verbs_ext::ibv_dealloc_mw(self.raw.as_ptr())
        }));
    }
}
