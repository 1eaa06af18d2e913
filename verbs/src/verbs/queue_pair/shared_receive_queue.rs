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
    sys::{Process, cvt_errno, cvt_post, cvt_ptr, ffi, lock, log_destroy_error},
    verbs::{
        memory::ProtectionDomain,
        work_request::{PostError, RawSge, RecvWr, raw},
    },
};

/// A receive queue that several queue pairs share. Clones refer to the same queue.
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
    reason = "programs fill in every field, as in C"
)]
#[doc(alias = "ibv_srq_attr")]
pub struct SrqAttr {
    /// The maximum number of outstanding receives.
    pub max_wr: u32,
    /// The maximum number of scatter/gather elements of a receive.
    pub max_sge: u32,
    /// The low-water mark, as a number of receives; 0 means that there is no mark. An asynchronous
    /// event is raised when the number of outstanding receives falls below the mark.
    ///
    /// The event is [`SRQ_LIMIT_REACHED`](crate::verbs::AsyncEventType::SRQ_LIMIT_REACHED). When
    /// the event is raised, the mark is reset to 0, so the event is raised only once.
    pub srq_limit: u32,
}

struct Inner {
    raw: NonNull<ffi::ibv_srq>,
    /// The process that created the queue. Only this process destroys it.
    process: Process,
    max_wr: u32,
    max_sge: u32,
    /// Keeps the memory of the posted receives alive until the C object has been destroyed.
    queue: Mutex<RecvQueue>,
    pd: ProtectionDomain,
}

// SAFETY: libibverbs allows any thread to use and to destroy a shared receive queue.
unsafe impl Send for Inner {}
// SAFETY: drivers lock the queue in `ibv_post_srq_recv`, and the other calls may run concurrently.
unsafe impl Sync for Inner {}

impl SharedReceiveQueue {
    /// Creates a queue. Asynchronous events identify the queue by `cookie`.
    ///
    /// # Errors
    ///
    /// Returns `EINVAL` if `pd` has a [`ThreadDomain`](crate::verbs::ThreadDomain). The reason is
    /// that a thread that polls completions also changes the shared receive queue, and the driver
    /// would not lock the shared receive queue. Otherwise returns the errors of
    /// [`ibv_create_srq(3)`](https://man7.org/linux/man-pages/man3/ibv_create_srq.3.html).
    #[doc(alias = "ibv_create_srq")]
    pub fn new(pd: &ProtectionDomain, attr: &SrqAttr, cookie: u64) -> Result<Self, OsError> {
        const CALL: &str = "ibv_create_srq";
        let cookie = usize::try_from(cookie).map_err(|_| OsError::new(CALL, libc::EINVAL))?;
        if pd.thread_domain().is_some() {
            return Err(OsError::new(CALL, libc::EINVAL));
        }
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
        // SAFETY: `pd` keeps the domain alive, and `init` is a local variable. libibverbs does not
        // dereference the cookie.
        let raw = cvt_ptr(CALL, || unsafe {
            ffi::ibv_create_srq(pd.as_ptr(), &raw mut init)
        })?;
        let inner = Inner {
            raw,
            process: Process::this(),
            max_wr: init.attr.max_wr,
            max_sge: init.attr.max_sge,
            queue: Mutex::default(),
            pd: pd.clone(),
        };
        let srq = Self {
            inner: Arc::new(inner),
        };
        // Drivers ignore the low-water mark in the creation attributes, so set the mark separately.
        if srq_limit > 0 {
            srq.set_limit(srq_limit)?;
        }
        Ok(srq)
    }

    /// Posts receives, in order. If a queue pair uses this queue, each message that arrives on the
    /// queue pair consumes one receive.
    ///
    /// The memory regions of the receives stay alive until the queue is destroyed.
    ///
    /// # Errors
    ///
    /// The error contains the index of the first receive that could not be posted, and the reason.
    /// The receives before it are posted. `EINVAL` can mean that the receive has more elements than
    /// `max_sge`, or an element in a dma-buf.
    #[doc(alias = "ibv_post_srq_recv")]
    pub fn post_recv(&self, requests: &[RecvWr<'_>]) -> Result<(), PostError> {
        let mut queue = lock(&self.inner.queue);
        queue.post(
            "ibv_post_srq_recv",
            requests,
            self.inner.max_sge,
            |wr, bad_wr| {
                // SAFETY: the queue exists, and the chain from `wr` is complete. Its memory regions
                // stay alive until the queue is destroyed.
                unsafe { ffi::ibv_post_srq_recv(self.as_ptr(), wr, bad_wr) }
            },
        )
    }

    /// Posts one receive. Does not check the request, and does not keep its memory alive.
    ///
    /// # Safety
    ///
    /// The queue has a free entry. Until the receive completes or the queue is destroyed, the
    /// receive's memory stays registered in the queue's domain, and no code accesses this memory.
    ///
    /// # Errors
    ///
    /// Returns the errors of
    /// [`ibv_post_srq_recv(3)`](https://man7.org/linux/man-pages/man3/ibv_post_srq_recv.3.html).
    #[inline]
    pub unsafe fn post_recv_raw(&self, wr_id: u64, sge: RawSge) -> Result<(), OsError> {
        let mut wr = raw::recv_wr(wr_id, Some(&sge));
        let mut bad_wr = ptr::null_mut();
        // SAFETY: the queue exists, and `wr` and its element exist during the call. The caller
        // guarantees that the memory stays valid.
        let ret = unsafe { ffi::ibv_post_srq_recv(self.as_ptr(), &raw mut wr, &raw mut bad_wr) };
        cvt_post("ibv_post_srq_recv", ret)
    }

    /// Sets the low-water mark: [`SrqAttr::srq_limit`].
    ///
    /// # Errors
    ///
    /// Returns the errors of
    /// [`ibv_modify_srq(3)`](https://man7.org/linux/man-pages/man3/ibv_modify_srq.3.html).
    #[doc(alias = "ibv_modify_srq")]
    pub fn set_limit(&self, srq_limit: u32) -> Result<(), OsError> {
        let mut attr = ffi::ibv_srq_attr {
            max_wr: 0,
            max_sge: 0,
            srq_limit,
        };
        let mask = ffi::ibv_srq_attr_mask::IBV_SRQ_LIMIT.0.cast_signed();
        // SAFETY: the queue exists, and `attr` is a local variable.
        cvt_errno("ibv_modify_srq", || unsafe {
            ffi::ibv_modify_srq(self.as_ptr(), &raw mut attr, mask)
        })
    }

    /// Queries the queue's capacities and low-water mark.
    ///
    /// # Errors
    ///
    /// Returns the errors of
    /// [`ibv_query_srq(3)`](https://man7.org/linux/man-pages/man3/ibv_query_srq.3.html).
    #[doc(alias = "ibv_query_srq")]
    pub fn query(&self) -> Result<SrqAttr, OsError> {
        let mut attr = MaybeUninit::<ffi::ibv_srq_attr>::zeroed();
        // SAFETY: the queue exists, and `attr` is a local variable.
        cvt_errno("ibv_query_srq", || unsafe {
            ffi::ibv_query_srq(self.as_ptr(), attr.as_mut_ptr())
        })?;
        // SAFETY: `ibv_srq_attr` consists of integers. `attr` was zeroed, and the call filled it
        // in.
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

    /// Returns the maximum number of outstanding receives, which may be larger than requested.
    #[must_use]
    pub fn max_wr(&self) -> u32 {
        self.inner.max_wr
    }

    /// Returns the queue's protection domain.
    #[must_use]
    pub fn pd(&self) -> &ProtectionDomain {
        &self.inner.pd
    }

    /// Returns the C object, which exists until the last clone of this handle is dropped.
    #[inline]
    pub(crate) fn as_ptr(&self) -> *mut ffi::ibv_srq {
        self.inner.raw.as_ptr()
    }
}

impl Default for SrqAttr {
    /// Returns the attributes of a queue for one receive with one element, without a low-water
    /// mark.
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
            // This process is a forked child, and the queue belongs to the parent.
            return;
        }
        // SAFETY: `new` created the queue, and only this `drop` destroys it. All queue pairs that
        // used the queue have been destroyed, because each of them owned a handle to the queue.
        log_destroy_error(cvt_errno("ibv_destroy_srq", || unsafe {
            ffi::ibv_destroy_srq(self.raw.as_ptr())
        }));
    }
}
