#![allow(unsafe_code)]

use std::{
    fmt,
    mem::MaybeUninit,
    ptr::{self, NonNull},
    sync::{Arc, Mutex},
};

use rdma_status::OsError;

use super::recv_queue::RecvQueue;
use crate::{
    sys::{Process, cvt_errno, cvt_ptr, ffi, lock, log_destroy_error},
    verbs::{
        memory::ProtectionDomain,
        work_request::{PostError, RawSge, RecvWr, raw},
    },
};

/// A receive queue that queue pairs share. Clones refer to the same queue.
///
/// See [`ibv_create_srq(3)`](https://man7.org/linux/man-pages/man3/ibv_create_srq.3.html).
#[derive(Clone)]
#[doc(alias = "ibv_srq")]
pub struct SharedReceiveQueue {
    inner: Arc<Inner>,
}

/// The attributes of a shared receive queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "made by programs, field by field, as in C"
)]
#[doc(alias = "ibv_srq_attr")]
pub struct SrqAttr {
    /// The maximum number of outstanding receives.
    pub max_wr: u32,
    /// The maximum number of scatter/gather elements of a receive.
    pub max_sge: u32,
    /// The low-water mark: one asynchronous event when fewer receives are posted; 0 is none.
    ///
    /// The event is [`SRQ_LIMIT_REACHED`](crate::verbs::AsyncEventType::SRQ_LIMIT_REACHED). It sets
    /// the limit to 0.
    pub srq_limit: u32,
}

struct Inner {
    raw: NonNull<ffi::ibv_srq>,
    /// The process that created it, and that alone destroys it.
    process: Process,
    max_wr: u32,
    max_sge: u32,
    /// Dropped after the queue is destroyed.
    queue: Mutex<RecvQueue>,
    pd: ProtectionDomain,
}

// SAFETY: libibverbs allows a shared receive queue to be used and destroyed from any thread.
unsafe impl Send for Inner {}
// SAFETY: drivers lock the queue in `ibv_post_srq_recv`; the other calls may run concurrently as
// well.
unsafe impl Sync for Inner {}

impl SharedReceiveQueue {
    /// Creates a queue, which `cookie` identifies in asynchronous events.
    ///
    /// # Errors
    ///
    /// The errors of
    /// [`ibv_create_srq(3)`](https://man7.org/linux/man-pages/man3/ibv_create_srq.3.html).
    #[doc(alias = "ibv_create_srq")]
    pub fn new(pd: &ProtectionDomain, attr: &SrqAttr, cookie: u64) -> Result<Self, OsError> {
        const CALL: &str = "ibv_create_srq";
        let cookie = usize::try_from(cookie).map_err(|_| OsError::new(CALL, libc::EINVAL))?;
        let SrqAttr {
            max_wr,
            max_sge,
            srq_limit,
        } = *attr;
        let mut init = ffi::ibv_srq_init_attr {
            srq_context: ptr::without_provenance_mut(cookie),
            attr: ffi::ibv_srq_attr {
                max_wr,
                max_sge,
                srq_limit: 0,
            },
        };
        // SAFETY: the domain exists, and the structure is a local; the cookie is never
        // dereferenced.
        let raw = unsafe { ffi::ibv_create_srq(pd.as_ptr(), &raw mut init) };
        let inner = Inner {
            raw: cvt_ptr(CALL, raw)?,
            process: Process::this(),
            max_wr: init.attr.max_wr,
            max_sge: init.attr.max_sge,
            queue: Mutex::default(),
            pd: pd.clone(),
        };
        let srq = Self {
            inner: Arc::new(inner),
        };
        // Drivers ignore the limit when they create the queue.
        if srq_limit > 0 {
            srq.set_limit(srq_limit)?;
        }
        Ok(srq)
    }

    /// Posts receives, in order. A message on any of the queue pairs consumes one.
    ///
    /// The queue holds the memory regions until it is destroyed.
    ///
    /// # Errors
    ///
    /// The first receive that could not be posted, and why; those before it are posted.
    #[doc(alias = "ibv_post_srq_recv")]
    pub fn post_recv(&self, requests: &[RecvWr<'_>]) -> Result<(), PostError> {
        let mut queue = lock(&self.inner.queue);
        queue.post(requests, self.inner.max_sge, |wr, bad_wr| {
            // SAFETY: the queue exists, the chain is complete, and its memory regions are held
            // until the queue is destroyed.
            unsafe { ffi::ibv_post_srq_recv(self.as_ptr(), wr, bad_wr) }
        })
    }

    /// Posts one receive, and neither checks it nor holds its memory.
    ///
    /// # Safety
    ///
    /// The queue has a place for it. Until it completes or the queue is destroyed, the memory is
    /// registered in the queue's domain and not accessed.
    ///
    /// # Errors
    ///
    /// The errors of
    /// [`ibv_post_srq_recv(3)`](https://man7.org/linux/man-pages/man3/ibv_post_srq_recv.3.html).
    #[inline]
    pub unsafe fn post_recv_raw(&self, wr_id: u64, sge: RawSge) -> Result<(), OsError> {
        let mut wr = raw::recv_wr(wr_id, Some(&sge));
        let mut bad_wr = ptr::null_mut();
        // SAFETY: the queue exists, and the request lives on this stack for the call; the caller
        // guarantees the conditions on the memory.
        let ret = unsafe { ffi::ibv_post_srq_recv(self.as_ptr(), &raw mut wr, &raw mut bad_wr) };
        cvt_errno("ibv_post_srq_recv", ret)
    }

    /// Sets the limit: [`SrqAttr::srq_limit`].
    ///
    /// # Errors
    ///
    /// The errors of
    /// [`ibv_modify_srq(3)`](https://man7.org/linux/man-pages/man3/ibv_modify_srq.3.html).
    #[doc(alias = "ibv_modify_srq")]
    pub fn set_limit(&self, srq_limit: u32) -> Result<(), OsError> {
        let mut attr = ffi::ibv_srq_attr {
            max_wr: 0,
            max_sge: 0,
            srq_limit,
        };
        let mask = ffi::ibv_srq_attr_mask::IBV_SRQ_LIMIT.0.cast_signed();
        // SAFETY: the queue exists, and the structure is a local.
        let ret = unsafe { ffi::ibv_modify_srq(self.as_ptr(), &raw mut attr, mask) };
        cvt_errno("ibv_modify_srq", ret)
    }

    /// Queries its capacity and limit.
    ///
    /// # Errors
    ///
    /// The errors of
    /// [`ibv_query_srq(3)`](https://man7.org/linux/man-pages/man3/ibv_query_srq.3.html).
    #[doc(alias = "ibv_query_srq")]
    pub fn query(&self) -> Result<SrqAttr, OsError> {
        let mut attr = MaybeUninit::<ffi::ibv_srq_attr>::zeroed();
        // SAFETY: the queue exists, and the structure is a local.
        let ret = unsafe { ffi::ibv_query_srq(self.as_ptr(), attr.as_mut_ptr()) };
        cvt_errno("ibv_query_srq", ret)?;
        // SAFETY: a structure of integers: zeroed, then filled in.
        let ffi::ibv_srq_attr {
            max_wr,
            max_sge,
            srq_limit,
        } = unsafe { attr.assume_init() };
        Ok(SrqAttr {
            max_wr,
            max_sge,
            srq_limit,
        })
    }

    /// Returns its capacity in receives, which may be larger than requested.
    #[must_use]
    pub fn max_wr(&self) -> u32 {
        self.inner.max_wr
    }

    /// Returns the protection domain that it belongs to.
    #[must_use]
    pub fn pd(&self) -> &ProtectionDomain {
        &self.inner.pd
    }

    /// Returns the C object, which exists for as long as this handle or a clone.
    #[inline]
    pub(crate) fn as_ptr(&self) -> *mut ffi::ibv_srq {
        self.inner.raw.as_ptr()
    }
}

impl Default for SrqAttr {
    /// Returns a capacity of one receive with one element, and no limit.
    fn default() -> Self {
        Self {
            max_wr: 1,
            max_sge: 1,
            srq_limit: 0,
        }
    }
}

impl fmt::Debug for SharedReceiveQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedReceiveQueue")
            .field("max_wr", &self.max_wr())
            .finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.process.is_this() {
            // This process is a child of a fork. The queue belongs to the parent, whose descriptor
            // the call would use.
            return;
        }
        // SAFETY: created for this object alone, destroyed once, here; its queue pairs have been
        // destroyed, as they hold it.
        let ret = unsafe { ffi::ibv_destroy_srq(self.raw.as_ptr()) };
        log_destroy_error(cvt_errno("ibv_destroy_srq", ret));
    }
}
