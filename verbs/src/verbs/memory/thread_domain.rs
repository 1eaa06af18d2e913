#![allow(unsafe_code)]

use std::{
    fmt, ptr,
    ptr::NonNull,
    sync::{Arc, Mutex, MutexGuard},
};

use rdma_status::OsError;

use super::ProtectionDomain;
use crate::{
    sys::{Process, cvt_errno, cvt_ptr, ffi, lock_hot, log_destroy_error, verbs_ext},
    verbs::device::Context,
};

/// A thread domain: a group of queue pairs that the driver does not lock. Some devices assign these
/// queue pairs a doorbell register that no other queue pair uses.
///
/// A queue pair belongs to the thread domain if it is created in the protection domain that
/// [`ProtectionDomain::with_thread_domain`] returns. The safe functions that post to such a queue
/// pair, or modify it, hold the thread domain's lock. Therefore these functions wait while another
/// thread executes such a function on any queue pair of the thread domain. The `unsafe` functions
/// acquire no lock: their callers must exclude other threads.
///
/// Clones refer to the same domain.
///
/// See [`ibv_alloc_td(3)`](https://man7.org/linux/man-pages/man3/ibv_alloc_td.3.html).
///
/// # Examples
///
/// ```no_run
/// use rdma_verbs::verbs::{Context, ProtectionDomain, ThreadDomain};
///
/// # fn open(context: &Context) -> Result<(), Box<dyn std::error::Error>> {
/// let pd = ProtectionDomain::new(context)?;
/// let queue_pair_pd = match ThreadDomain::new(context) {
///     Ok(td) => pd.with_thread_domain(&td)?,
///     Err(_) => pd.clone(),
/// };
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[doc(alias = "ibv_td")]
pub struct ThreadDomain {
    inner: Arc<Inner>,
}

struct Inner {
    raw: NonNull<ffi::ibv_td>,
    /// The process that allocated the domain. Only this process frees it.
    process: Process,
    /// Locked while safe code posts to a queue pair of the domain, or modifies such a queue pair.
    posting: Mutex<()>,
    context: Context,
}

// SAFETY: libibverbs allows any thread to use and to free a thread domain.
unsafe impl Send for Inner {}
// SAFETY: the domain itself does not change after creation.
unsafe impl Sync for Inner {}

/// The domains that a parent domain combines. They are freed in the order of the fields, after the
/// parent domain.
pub(super) struct CombinedDomains {
    td: ThreadDomain,
    _pd: ProtectionDomain,
}

impl ThreadDomain {
    /// Allocates a thread domain.
    ///
    /// # Errors
    ///
    /// Returns `EOPNOTSUPP` if the driver does not support thread domains, as is the case for
    /// software devices. Returns `ENOMEM` or another error if all doorbell registers of the device
    /// are in use. Otherwise returns the errors of
    /// [`ibv_alloc_td(3)`](https://man7.org/linux/man-pages/man3/ibv_alloc_td.3.html).
    #[doc(alias = "ibv_alloc_td")]
    pub fn new(context: &Context) -> Result<Self, OsError> {
        let mut attr = ffi::ibv_td_init_attr { comp_mask: 0 };
        // SAFETY: `context` keeps the device open.
        let raw = cvt_ptr("ibv_alloc_td", || unsafe {
            verbs_ext::ibv_alloc_td(context.as_ptr(), &mut attr)
        })?;
        let inner = Inner {
            raw,
            process: Process::this(),
            posting: Mutex::default(),
            context: context.clone(),
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// Locks the queue pairs of the domain.
    pub(in crate::verbs) fn lock(&self) -> MutexGuard<'_, ()> {
        lock_hot(&self.inner.posting)
    }
}

impl ProtectionDomain {
    /// Combines this domain with the thread domain `td`. Queue pairs that are created in the
    /// returned domain belong to `td`.
    ///
    /// These queue pairs can use the memory regions of this domain and of the returned domain. A
    /// [`SharedReceiveQueue`](crate::verbs::SharedReceiveQueue) cannot belong to a thread domain: a
    /// thread that polls completions also changes the shared receive queue, and the driver would
    /// not lock the shared receive queue.
    ///
    /// # Errors
    ///
    /// Returns `EINVAL` if `td` belongs to another device, or if this domain already has a thread
    /// domain. Otherwise returns the errors of [`ibv_alloc_parent_domain(3)`][parent].
    ///
    /// [parent]: https://man7.org/linux/man-pages/man3/ibv_alloc_parent_domain.3.html
    #[doc(alias = "ibv_alloc_parent_domain")]
    pub fn with_thread_domain(&self, td: &ThreadDomain) -> Result<Self, OsError> {
        const CALL: &str = "ibv_alloc_parent_domain";
        let context = self.context();
        if !td.inner.context.is_same_device(context) || self.thread_domain().is_some() {
            return Err(OsError::new(CALL, libc::EINVAL));
        }
        let mut attr = ffi::ibv_parent_domain_init_attr {
            pd: self.as_ptr(),
            td: td.inner.raw.as_ptr(),
            comp_mask: 0,
            alloc: None,
            free: None,
            pd_context: ptr::null_mut(),
        };
        // SAFETY: `context` keeps the device open, and both domains exist and belong to this
        // device.
        let raw = cvt_ptr(CALL, || unsafe {
            verbs_ext::ibv_alloc_parent_domain(context.as_ptr(), &mut attr)
        })?;
        let combined = CombinedDomains {
            td: td.clone(),
            _pd: self.clone(),
        };
        Ok(Self::from_raw(raw, context, Some(combined)))
    }

    /// Returns the thread domain to which the queue pairs of this domain belong, or `None` if they
    /// belong to no thread domain.
    #[must_use]
    #[inline]
    pub fn thread_domain(&self) -> Option<&ThreadDomain> {
        self.combined().map(|combined| &combined.td)
    }
}

impl fmt::Debug for ThreadDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThreadDomain")
            .field("context", &self.inner.context)
            .finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.process.is_this() {
            // This process is a forked child, and the domain belongs to the parent.
            return;
        }
        // SAFETY: `new` allocated the domain, and only this `drop` frees it. All parent domains
        // that combined this domain with another one have been freed, because each of them owned a
        // handle to this domain.
        log_destroy_error(cvt_errno("ibv_dealloc_td", || unsafe {
            verbs_ext::ibv_dealloc_td(self.raw.as_ptr())
        }));
    }
}
