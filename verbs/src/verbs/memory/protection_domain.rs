#![allow(unsafe_code)]

use std::{fmt, ptr::NonNull, sync::Arc};

use rdma_status::OsError;

use super::thread_domain::CombinedDomains;
use crate::{
    sys::{Process, cvt_errno, cvt_ptr, ffi, log_destroy_error},
    verbs::device::Context,
};

/// A protection domain. A queue pair can use only memory regions of its own domain.
///
/// Clones refer to the same domain.
///
/// See [`ibv_alloc_pd(3)`](https://man7.org/linux/man-pages/man3/ibv_alloc_pd.3.html).
#[derive(Clone)]
#[doc(alias = "ibv_pd")]
pub struct ProtectionDomain {
    inner: Arc<Inner>,
}

struct Inner {
    raw: NonNull<ffi::ibv_pd>,
    /// The process that allocated the domain. Only this process frees it.
    process: Process,
    /// The two domains that this domain combines, or `None` if this domain is not a parent domain.
    /// The two domains are freed after this domain.
    combined: Option<CombinedDomains>,
    context: Context,
}

// SAFETY: libibverbs allows any thread to use and to free a protection domain.
unsafe impl Send for Inner {}
// SAFETY: a domain does not change after creation, and several threads may create objects in it
// concurrently.
unsafe impl Sync for Inner {}

impl ProtectionDomain {
    /// Allocates a protection domain.
    ///
    /// # Errors
    ///
    /// Returns the errors of
    /// [`ibv_alloc_pd(3)`](https://man7.org/linux/man-pages/man3/ibv_alloc_pd.3.html).
    #[doc(alias = "ibv_alloc_pd")]
    pub fn new(context: &Context) -> Result<Self, OsError> {
        // SAFETY: `context` keeps the device open.
        let raw = cvt_ptr("ibv_alloc_pd", || unsafe {
            ffi::ibv_alloc_pd(context.as_ptr())
        })?;
        Ok(Self::from_raw(raw, context, None))
    }

    /// Takes ownership of a domain that was just allocated.
    pub(super) fn from_raw(
        raw: NonNull<ffi::ibv_pd>,
        context: &Context,
        combined: Option<CombinedDomains>,
    ) -> Self {
        Self {
            inner: Arc::new(Inner {
                raw,
                process: Process::this(),
                combined,
                context: context.clone(),
            }),
        }
    }

    /// Returns the domain's device.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// Returns the two domains that this domain combines, or `None` if this domain is not a parent
    /// domain.
    #[inline]
    pub(super) fn combined(&self) -> Option<&CombinedDomains> {
        self.inner.combined.as_ref()
    }

    /// Returns true if `self` and `other` refer to the same domain.
    #[must_use]
    pub fn is_same_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Returns the C object, which exists until the last clone of this handle is dropped.
    pub(crate) fn as_ptr(&self) -> *mut ffi::ibv_pd {
        self.inner.raw.as_ptr()
    }
}

impl fmt::Debug for ProtectionDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProtectionDomain")
            .field("context", self.context())
            .finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.process.is_this() {
            // This process is a forked child, and the domain belongs to the parent.
            return;
        }
        // SAFETY: the domain was allocated for this object, and only this `drop` frees it. All
        // objects in the domain have been destroyed, because each of them owned a handle to the
        // domain.
        log_destroy_error(cvt_errno("ibv_dealloc_pd", || unsafe {
            ffi::ibv_dealloc_pd(self.raw.as_ptr())
        }));
    }
}

#[cfg(test)]
impl ProtectionDomain {
    /// Returns a domain that belongs to no device and is never freed.
    pub(super) fn of_no_device() -> Self {
        use std::mem::ManuallyDrop;

        // SAFETY: no code uses the context, which is a dangling pointer.
        let context = unsafe { Context::borrowed(NonNull::dangling(), Arc::new(())) };
        let inner = Arc::new(Inner {
            raw: NonNull::dangling(),
            process: Process::this(),
            combined: None,
            context,
        });
        let _leaked = ManuallyDrop::new(Arc::clone(&inner));
        Self { inner }
    }
}
