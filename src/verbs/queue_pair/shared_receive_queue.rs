#![allow(unsafe_code)]

use std::{
    fmt,
    mem::MaybeUninit,
    ptr::{self, NonNull},
    sync::{Arc, Mutex, PoisonError},
};

use super::recv_queue::RecvQueue;
use crate::{
    status::OsError,
    sys::{cvt_errno, cvt_ptr, ffi, log_destroy_error},
    verbs::{
        memory::ProtectionDomain,
        work_request::{PostError, RecvWr},
    },
};

/// A receive queue that queue pairs share. Clones are the same one.
///
/// See [`ibv_create_srq(3)`](https://man7.org/linux/man-pages/man3/ibv_create_srq.3.html).
#[derive(Clone)]
#[doc(alias = "ibv_srq")]
pub struct SharedReceiveQueue {
    inner: Arc<Inner>,
}

/// How much a shared receive queue holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "made by programs, field by field, as in C"
)]
#[doc(alias = "ibv_srq_attr")]
pub struct SrqAttr {
    /// Receives that are not completed.
    pub max_wr: u32,
    /// Scatter/gather elements of a receive.
    pub max_sge: u32,
    /// When fewer receives than this are left, there is one asynchronous event
    /// ([`SRQ_LIMIT_REACHED`](crate::verbs::AsyncEventType::SRQ_LIMIT_REACHED)), and the limit becomes 0, which is none.
    pub srq_limit: u32,
}

struct Inner {
    raw: NonNull<ffi::ibv_srq>,
    max_wr: u32,
    max_sge: u32,
    /// Let go after the queue is destroyed.
    queue: Mutex<RecvQueue>,
    pd: ProtectionDomain,
}

// SAFETY: libibverbs allows a shared receive queue to be used and destroyed from any thread.
unsafe impl Send for Inner {}
// SAFETY: drivers lock the queue in `ibv_post_srq_recv`; the other calls may run at the same time as well.
unsafe impl Sync for Inner {}

impl SharedReceiveQueue {
    /// Makes a queue. `cookie` tells which one an asynchronous event is about.
    ///
    /// # Errors
    ///
    /// What [`ibv_create_srq(3)`](https://man7.org/linux/man-pages/man3/ibv_create_srq.3.html) answers.
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
        // SAFETY: the domain exists, and the structure is a local; the cookie is never dereferenced.
        let raw = unsafe { ffi::ibv_create_srq(pd.as_ptr(), &raw mut init) };
        let inner = Inner {
            raw: cvt_ptr(CALL, raw)?,
            max_wr: init.attr.max_wr,
            max_sge: init.attr.max_sge,
            queue: Mutex::default(),
            pd: pd.clone(),
        };
        let srq = Self {
            inner: Arc::new(inner),
        };
        // Drivers leave the limit out when they make the queue.
        if srq_limit > 0 {
            srq.set_limit(srq_limit)?;
        }
        Ok(srq)
    }

    /// Posts receives, in this order. Each stays in the queue until a message of any of the queue pairs takes it.
    ///
    /// The memory regions are held until the queue is destroyed.
    ///
    /// # Errors
    ///
    /// Which one could not be posted, and why. Those before it are.
    #[doc(alias = "ibv_post_srq_recv")]
    pub fn post_recv(&self, requests: &[RecvWr<'_>]) -> Result<(), PostError> {
        let mut queue = self
            .inner
            .queue
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        queue.post(requests, self.inner.max_sge, |wr, bad_wr| {
            // SAFETY: the queue exists, the chain is complete, and its memory regions are held until the queue is destroyed.
            unsafe { ffi::ibv_post_srq_recv(self.as_ptr(), wr, bad_wr) }
        })
    }

    /// Posts receives without keeping anything for them.
    ///
    /// # Safety
    ///
    /// The chain is complete, its elements name registered memory of the queue's domain, and the device may write there until each has
    /// completed or the queue is destroyed.
    pub(crate) unsafe fn post_recv_raw(&self, wr: &mut ffi::ibv_recv_wr) -> Result<(), OsError> {
        let mut bad_wr = ptr::null_mut();
        // SAFETY: the queue exists; the caller vouches for the rest.
        let ret = unsafe { ffi::ibv_post_srq_recv(self.as_ptr(), wr, &raw mut bad_wr) };
        cvt_errno("ibv_post_srq_recv", ret)
    }

    /// Sets the limit: [`SrqAttr::srq_limit`].
    ///
    /// # Errors
    ///
    /// What [`ibv_modify_srq(3)`](https://man7.org/linux/man-pages/man3/ibv_modify_srq.3.html) answers.
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

    /// How much it holds, and its limit.
    ///
    /// # Errors
    ///
    /// What [`ibv_query_srq(3)`](https://man7.org/linux/man-pages/man3/ibv_query_srq.3.html) answers.
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

    /// How many receives it holds, which may be more than was asked for.
    #[must_use]
    pub fn max_wr(&self) -> u32 {
        self.inner.max_wr
    }

    /// The protection domain that it belongs to.
    #[must_use]
    pub fn pd(&self) -> &ProtectionDomain {
        &self.inner.pd
    }

    /// The C object. It exists for as long as this handle or a clone lives.
    pub(crate) fn as_ptr(&self) -> *mut ffi::ibv_srq {
        self.inner.raw.as_ptr()
    }
}

impl Default for SrqAttr {
    /// One receive of one element, and no limit.
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
        // SAFETY: made for this object alone, destroyed once, here; its queue pairs are gone, as they hold it.
        let ret = unsafe { ffi::ibv_destroy_srq(self.raw.as_ptr()) };
        log_destroy_error(cvt_errno("ibv_destroy_srq", ret));
    }
}
