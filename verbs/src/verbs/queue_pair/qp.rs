#![allow(unsafe_code)]

use std::{
    fmt,
    mem::MaybeUninit,
    ptr::{self, NonNull},
    sync::{Arc, Mutex, MutexGuard},
};

use rdma_status::OsError;

use super::{
    ModifyError, QpAttr, QpAttrMask, QpCap, QpInitAttr, QpState, QpType, SharedReceiveQueue,
    qp_attr, recv_queue::RecvQueue, send_ops, send_queue::SendQueue,
};
use crate::{
    sys::{Process, cvt_errno, cvt_post, cvt_ptr, ffi, lock_hot, log_destroy_error, verbs_ext},
    verbs::{
        completion::CompletionQueue,
        memory::{ProtectionDomain, ThreadDomain},
        work_request::{PostError, RawSend, RawSge, RecvWr, SendWr, raw},
    },
};

/// A queue pair, to which programs post work requests. The completions of the requests arrive in
/// the completion queues of the queue pair.
///
/// After [`new`](Self::new), the program makes the queue pair operational by calling
/// [`modify`](Self::modify) with attributes of the peer. If an id of the connection manager owns
/// the queue pair, the connection manager makes the queue pair operational.
///
/// The work requests of each queue start in the order in which they were posted. Dropping the queue
/// pair discards the outstanding requests without completions. A program that needs a completion
/// for each request moves the queue pair [to the error state](Self::to_err) and polls its
/// completion queues.
///
/// See [`ibv_create_qp(3)`](https://man7.org/linux/man-pages/man3/ibv_create_qp.3.html).
// `drop` destroys the C object. Afterwards the fields are dropped in this order: first the memory
// of the work requests, then the objects from which the queue pair was created.
#[doc(alias = "ibv_qp")]
pub struct QueuePair {
    raw: NonNull<ffi::ibv_qp>,
    /// The process that created the queue pair. Only this process destroys it.
    process: Process,
    qp_num: u32,
    qp_type: QpType,
    cap: QpCap,
    /// The interface of the `ibv_wr_*` functions, or `None` if sends are posted with
    /// `ibv_post_send`.
    send_ops: Option<NonNull<ffi::ibv_qp_ex>>,
    /// Locked while a safe function posts sends. The queue keeps the memory of the posted requests
    /// alive.
    send_queue: Mutex<SendQueue>,
    /// Locked while a safe function posts receives. The queue keeps the memory of the posted
    /// requests alive.
    recv_queue: Mutex<RecvQueue>,
    srq: Option<SharedReceiveQueue>,
    send_cq: CompletionQueue,
    recv_cq: CompletionQueue,
    pd: ProtectionDomain,
    /// The owner, which `drop` informs before it destroys the queue pair.
    owner: Option<Arc<dyn QpOwner>>,
}

/// The owner of a queue pair that was created through an id of the connection manager.
pub(crate) trait QpOwner: Send + Sync {
    /// Ends the use of the queue pair by the connection manager. The caller then destroys the queue
    /// pair.
    fn release_qp(&self);
}

// SAFETY: libibverbs allows any thread to use and to destroy a queue pair.
unsafe impl Send for QueuePair {}
// SAFETY: drivers lock each queue in `ibv_post_send` and `ibv_post_recv`. If the queue pair has a
// thread domain, drivers do not lock the queues, but `lock_thread_domain` locks the domain. The
// other calls may run concurrently. Completion queues have no thread domain, so drivers lock the
// state that polling and posting share. Other threads may change the field `state` of the C object,
// but this type reads only fields that never change.
unsafe impl Sync for QueuePair {}

impl QueuePair {
    /// Creates a queue pair in the state [`RESET`](QpState::RESET).
    ///
    /// # Errors
    ///
    /// Returns `EINVAL` if the objects do not all belong to the same
    /// [`Context`](crate::verbs::Context), or if the type is not RC, UC or UD. Returns `EINVAL` or
    /// `ENOMEM` if a requested capacity exceeds the device's limit. Otherwise returns the errors of
    /// [`ibv_create_qp(3)`](https://man7.org/linux/man-pages/man3/ibv_create_qp.3.html).
    #[doc(alias = "ibv_create_qp")]
    pub fn new(pd: &ProtectionDomain, attr: &QpInitAttr<'_>) -> Result<Self, OsError> {
        attr.check("ibv_create_qp", pd)?;
        let mut raw_attr = attr.to_raw();
        // SAFETY: `pd` and the objects in `raw_attr` exist and belong to the same device, and
        // `raw_attr` is a local variable.
        let raw = cvt_ptr("ibv_create_qp", || unsafe {
            ffi::ibv_create_qp(pd.as_ptr(), &raw mut raw_attr)
        })?;
        // SAFETY: `raw` was created above with exactly these arguments, and no other object owns
        // it.
        Ok(unsafe { Self::from_raw(raw, QpCap::from_raw(raw_attr.cap), pd, attr, None) })
    }

    /// Creates a queue pair that posts sends with the functions of `ibv_wr_post(3)`.
    ///
    /// These functions replace `ibv_post_send`, and are faster with some drivers. The queue pair
    /// cannot [bind memory windows](Self::bind_window); its other functions behave as usual. With
    /// software RoCE of rdma-core 44, do not use requests with several elements: that driver gives
    /// each element the length of the first element. See
    /// [`ibv_wr_post(3)`](https://man7.org/linux/man-pages/man3/ibv_wr_post.3.html).
    ///
    /// # Errors
    ///
    /// Returns `EOPNOTSUPP` if the driver lacks these functions. Otherwise returns the errors of
    /// [`new`](Self::new).
    #[doc(alias = "ibv_create_qp_ex")]
    #[doc(alias = "ibv_wr_start")]
    #[doc(alias = "ibv_wr_complete")]
    pub fn with_send_ops(pd: &ProtectionDomain, attr: &QpInitAttr<'_>) -> Result<Self, OsError> {
        const CALL: &str = "ibv_create_qp_ex";
        attr.check(CALL, pd)?;
        let mut raw_attr = send_ops::init_attr(attr, pd.as_ptr());
        // SAFETY: `pd` and the objects in `raw_attr` exist and belong to the same device, and
        // `raw_attr` is a local variable.
        let raw = cvt_ptr(CALL, || unsafe {
            verbs_ext::ibv_create_qp_ex(pd.context().as_ptr(), &raw mut raw_attr)
        })?;
        // SAFETY: `raw` was created above with exactly these arguments, and no other object owns
        // it.
        let mut this =
            unsafe { Self::from_raw(raw, QpCap::from_raw(raw_attr.cap), pd, attr, None) };
        // SAFETY: `raw` exists, and was created with `ibv_create_qp_ex`.
        let ops = unsafe { ffi::ibv_qp_to_qp_ex(raw.as_ptr()) };
        this.send_ops = Some(NonNull::new(ops).ok_or(OsError::new(CALL, libc::EOPNOTSUPP))?);
        Ok(this)
    }

    /// Takes ownership of a queue pair that the connection manager created with `pd` and `attr`.
    ///
    /// `cap` contains the granted capacities, which the call that created the queue pair returned.
    ///
    /// # Safety
    ///
    /// `raw` was created with `pd` and `attr`, and has the capacities `cap`. No other code destroys
    /// it. After [`QpOwner::release_qp`], which may be called at any time, `owner` no longer uses
    /// it.
    pub(crate) unsafe fn from_cm(
        raw: NonNull<ffi::ibv_qp>,
        cap: QpCap,
        pd: &ProtectionDomain,
        attr: &QpInitAttr<'_>,
        owner: Arc<dyn QpOwner>,
    ) -> Self {
        // SAFETY: the caller guarantees the conditions of `from_raw`.
        unsafe { Self::from_raw(raw, cap, pd, attr, Some(owner)) }
    }

    /// Creates the Rust object for the C object `raw`.
    ///
    /// # Safety
    ///
    /// `raw` was created with `pd` and `attr`, and has the capacities `cap`. Only the returned
    /// object or `owner` destroys it.
    unsafe fn from_raw(
        raw: NonNull<ffi::ibv_qp>,
        cap: QpCap,
        pd: &ProtectionDomain,
        attr: &QpInitAttr<'_>,
        owner: Option<Arc<dyn QpOwner>>,
    ) -> Self {
        // SAFETY: `raw` was just created, and its field `qp_num` does not change.
        let qp_num = unsafe { (*raw.as_ptr()).qp_num };
        Self {
            raw,
            process: Process::this(),
            qp_num,
            qp_type: attr.qp_type,
            cap,
            send_ops: None,
            send_queue: Mutex::new(SendQueue::new(attr.qp_type, cap)),
            recv_queue: Mutex::default(),
            srq: attr.srq.cloned(),
            send_cq: attr.send_cq.clone(),
            recv_cq: attr.recv_cq.clone(),
            pd: pd.clone(),
            owner,
        }
    }

    /// Posts work requests to the send queue, in order.
    ///
    /// The memory regions and the address handles of the requests stay alive until the queue pair
    /// is destroyed.
    ///
    /// # Errors
    ///
    /// The error contains the index of the first request that could not be posted, and the reason;
    /// the requests before it are posted. `ENOMEM` means that the send queue is full. `EINVAL`
    /// means that the queue pair does not support that request; some drivers also return `EINVAL`
    /// if the queue pair cannot send in its current state.
    #[doc(alias = "ibv_post_send")]
    pub fn post_send(&self, requests: &[SendWr<'_>]) -> Result<(), PostError> {
        let _guard = self.lock_thread_domain();
        lock_hot(&self.send_queue).post(requests, self.pd.context(), |wr, bad_wr| {
            if let Some(ops) = self.send_ops {
                // SAFETY: `ops` belongs to this queue pair, which exists and supports these
                // requests, and the chain from `wr` is complete. Data that is not copied during the
                // call is in memory regions, which stay alive until the queue pair is destroyed.
                let ret = unsafe { send_ops::post(ops, self.qp_type, wr) };
                // If the call failed, no request was posted, so the first request counts as the
                // failed one.
                // SAFETY: `bad_wr` points to a variable of the caller.
                unsafe { *bad_wr = wr };
                return ret;
            }
            // SAFETY: the queue pair exists and supports these requests, and the chain from `wr` is
            // complete. Data that is not copied during the call is in memory regions, which stay
            // alive until the queue pair is destroyed.
            unsafe { ffi::ibv_post_send(self.as_ptr(), wr, bad_wr) }
        })
    }

    /// Posts a request for a memory window. Returns `EINVAL` if the queue pair does not support
    /// such requests.
    ///
    /// # Safety
    ///
    /// The objects to which the request refers exist during the call, and belong to the device of
    /// this queue pair. The request has no memory elements.
    pub(super) unsafe fn post_for_window(&self, mut wr: ffi::ibv_send_wr) -> Result<(), OsError> {
        const CALL: &str = "ibv_post_send";
        let is_connected = matches!(self.qp_type, QpType::RC | QpType::UC);
        if !is_connected || self.send_ops.is_some() {
            return Err(OsError::new(CALL, libc::EINVAL));
        }
        let _guard = self.lock_thread_domain();
        let _posting = lock_hot(&self.send_queue);
        let mut bad_wr = ptr::null_mut();
        // SAFETY: the queue pair exists and supports the request, and `wr` and `bad_wr` are local
        // variables. The caller guarantees that the objects exist.
        let ret = unsafe { ffi::ibv_post_send(self.as_ptr(), &raw mut wr, &raw mut bad_wr) };
        cvt_post(CALL, ret)
    }

    /// Posts receives, in order.
    ///
    /// The memory regions of the receives stay alive until the queue pair is destroyed.
    ///
    /// # Errors
    ///
    /// The error contains the index of the first receive that could not be posted, and the reason;
    /// the receives before it are posted. `ENOMEM` means that the receive queue is full. `EINVAL`
    /// has one of these causes:
    ///
    /// * the queue pair has a shared receive queue;
    /// * the receive has more elements than the queue pair's `max_recv_sge`;
    /// * an element of the receive is in a dma-buf;
    /// * the queue pair is still in the state [`RESET`](QpState::RESET).
    #[doc(alias = "ibv_post_recv")]
    pub fn post_recv(&self, requests: &[RecvWr<'_>]) -> Result<(), PostError> {
        const CALL: &str = "ibv_post_recv";
        if self.srq.is_some() {
            return Err(PostError {
                posted: 0,
                error: OsError::new(CALL, libc::EINVAL),
            });
        }
        let _guard = self.lock_thread_domain();
        lock_hot(&self.recv_queue).post(CALL, requests, self.cap.max_recv_sge, |wr, bad_wr| {
            // SAFETY: the queue pair exists, and the chain from `wr` is complete. Its memory
            // regions stay alive until the queue pair is destroyed.
            unsafe { ffi::ibv_post_recv(self.as_ptr(), wr, bad_wr) }
        })
    }

    /// Locks the queue pair's thread domain. Does nothing if the queue pair has no thread domain.
    fn lock_thread_domain(&self) -> Option<MutexGuard<'_, ()>> {
        self.pd.thread_domain().map(ThreadDomain::lock)
    }

    /// Posts one work request to the send queue. Does not check the request, and does not keep its
    /// memory alive.
    ///
    /// # Safety
    ///
    /// The type and the [`cap`](Self::cap) of this queue pair allow the request.
    ///
    /// If the request is not inline, the following holds until the request completes or the queue
    /// pair is destroyed: its memory stays registered, and no code accesses the memory in a way
    /// that conflicts with the device's access.
    ///
    /// If the queue pair has a [`ThreadDomain`], no other thread posts to a queue pair of that
    /// domain at the same time.
    ///
    /// # Errors
    ///
    /// Returns the errors of
    /// [`ibv_post_send(3)`](https://man7.org/linux/man-pages/man3/ibv_post_send.3.html).
    #[inline(always)]
    pub unsafe fn post_send_raw(&self, request: RawSend<'_>) -> Result<(), OsError> {
        let mut wr = request.to_wr();
        let mut bad_wr = ptr::null_mut();
        // SAFETY: the queue pair exists, and `wr` and its elements exist during the call. The
        // caller guarantees that the memory stays valid.
        let ret = unsafe { ffi::ibv_post_send(self.as_ptr(), &raw mut wr, &raw mut bad_wr) };
        cvt_post("ibv_post_send", ret)
    }

    /// Posts several sends in order with one call. Does not check the requests, and does not keep
    /// their memory alive.
    ///
    /// If the call fails, it may already have posted some of the requests, beginning with the
    /// first.
    ///
    /// # Safety
    ///
    /// `requests` is not empty. The call and each request fulfil the requirements of
    /// [`post_send_raw`](Self::post_send_raw).
    ///
    /// # Errors
    ///
    /// Returns the errors of
    /// [`ibv_post_send(3)`](https://man7.org/linux/man-pages/man3/ibv_post_send.3.html).
    pub unsafe fn post_sends_raw(&self, requests: &[RawSend<'_>]) -> Result<(), OsError> {
        let mut bad_wr = ptr::null_mut();
        RawSend::with_list(requests, |list| {
            // SAFETY: the queue pair exists, and `list` and its elements exist during the call. The
            // caller guarantees that the memory stays valid.
            let ret = unsafe { ffi::ibv_post_send(self.as_ptr(), list, &raw mut bad_wr) };
            cvt_post("ibv_post_send", ret)
        })
    }

    /// Posts one receive. Does not check the request, and does not keep its memory alive.
    ///
    /// # Safety
    ///
    /// The queue pair has no shared receive queue, and its own receive queue has a free entry.
    /// Until the receive completes or the queue pair is destroyed, the receive's memory stays
    /// registered, and no code accesses this memory.
    ///
    /// If the queue pair has a [`ThreadDomain`], no other thread posts to a queue pair of that
    /// domain at the same time.
    ///
    /// # Errors
    ///
    /// Returns the errors of
    /// [`ibv_post_recv(3)`](https://man7.org/linux/man-pages/man3/ibv_post_recv.3.html).
    #[inline(always)]
    pub unsafe fn post_recv_raw(&self, wr_id: u64, sge: Option<RawSge>) -> Result<(), OsError> {
        let mut wr = raw::recv_wr(wr_id, sge.as_ref());
        let mut bad_wr = ptr::null_mut();
        // SAFETY: the queue pair exists, and `wr` and its element exist during the call. The caller
        // guarantees that the memory stays valid.
        let ret = unsafe { ffi::ibv_post_recv(self.as_ptr(), &raw mut wr, &raw mut bad_wr) };
        cvt_post("ibv_post_recv", ret)
    }

    /// Modifies attributes of the queue pair, for example its state.
    ///
    /// # Errors
    ///
    /// Returns the error of
    /// [`ibv_modify_qp(3)`](https://man7.org/linux/man-pages/man3/ibv_modify_qp.3.html), together
    /// with the attributes that are missing or not allowed according to the InfiniBand rules for
    /// this transition.
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&self, attr: &QpAttr) -> Result<(), ModifyError> {
        let (mut raw, mask) = attr.to_raw();
        let _guard = self.lock_thread_domain();
        // SAFETY: the queue pair exists. `raw` is a local variable, and all members that `mask`
        // names are set.
        let modified = cvt_errno("ibv_modify_qp", || unsafe {
            ffi::ibv_modify_qp(self.as_ptr(), &raw mut raw, mask.bits().cast_signed())
        });
        modified.map_err(|error| ModifyError::new(error, self.qp_type, self.state().ok(), attr))
    }

    /// Moves the queue pair to the error state, in which all posted requests complete with an
    /// error.
    ///
    /// The requests complete with [`WR_FLUSH_ERR`](rdma_status::WcStatus::WR_FLUSH_ERR), except a
    /// request that had already failed with another error. Requests that are posted later also
    /// complete with `WR_FLUSH_ERR`.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`modify`](Self::modify).
    pub fn to_err(&self) -> Result<(), OsError> {
        let attr = QpAttr {
            qp_state: Some(QpState::ERR),
            ..QpAttr::default()
        };
        Ok(self.modify(&attr)?)
    }

    /// Sets the RNR NAK timer. If a message arrives while this side has no posted receive, the peer
    /// waits for this time before it sends the message again.
    ///
    /// `code` has 5 bits: see [`QpAttr::min_rnr_timer`].
    ///
    /// The connection manager sets the code to 0, which means the longest time, 655.36 ms. The
    /// timer can be set for a reliable connection in the states [`RTS`](QpState::RTS) and
    /// [`SQD`](QpState::SQD).
    ///
    /// # Errors
    ///
    /// Returns the errors of [`modify`](Self::modify).
    pub fn set_min_rnr_timer(&self, code: u8) -> Result<(), OsError> {
        let attr = QpAttr {
            min_rnr_timer: Some(code),
            ..QpAttr::default()
        };
        Ok(self.modify(&attr)?)
    }

    /// Queries all attributes.
    ///
    /// If an attribute does not apply in the current state or to this type of queue pair, its value
    /// is unspecified.
    ///
    /// # Errors
    ///
    /// Returns the errors of
    /// [`ibv_query_qp(3)`](https://man7.org/linux/man-pages/man3/ibv_query_qp.3.html).
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> Result<QpAttr, OsError> {
        // All attributes except the rate limit, which RC, UC and UD queue pairs do not support.
        const ALL: QpAttrMask = QpAttrMask::from_bits(0x001f_ffff);
        self.query_raw(ALL).map(|raw| QpAttr::from_raw(&raw, ALL))
    }

    /// Queries the current state.
    ///
    /// # Errors
    ///
    /// Returns the errors of
    /// [`ibv_query_qp(3)`](https://man7.org/linux/man-pages/man3/ibv_query_qp.3.html).
    pub fn state(&self) -> Result<QpState, OsError> {
        self.query_raw(QpAttrMask::STATE)
            .map(|raw| QpState::from_raw(raw.qp_state))
    }

    fn query_raw(&self, mask: QpAttrMask) -> Result<ffi::ibv_qp_attr, OsError> {
        let mut attr = qp_attr::zeroed();
        let mut init_attr = MaybeUninit::zeroed();
        let mask = mask.bits().cast_signed();
        // SAFETY: the queue pair exists, and `attr` and `init_attr` are local variables.
        cvt_errno("ibv_query_qp", || unsafe {
            ffi::ibv_query_qp(self.as_ptr(), &raw mut attr, mask, init_attr.as_mut_ptr())
        })
        .map(|()| attr)
    }

    /// Returns the queue pair's number, which identifies the queue pair to peers and in
    /// completions.
    #[must_use]
    pub fn qp_num(&self) -> u32 {
        self.qp_num
    }

    /// Returns the type of the queue pair, which determines its transport service.
    #[must_use]
    pub fn qp_type(&self) -> QpType {
        self.qp_type
    }

    /// Returns the granted capacities of the queues, which are at least the requested capacities.
    #[must_use]
    #[inline]
    pub fn cap(&self) -> QpCap {
        self.cap
    }

    /// Returns the completion queue for sends.
    #[must_use]
    pub fn send_cq(&self) -> &CompletionQueue {
        &self.send_cq
    }

    /// Returns the completion queue for receives.
    #[must_use]
    pub fn recv_cq(&self) -> &CompletionQueue {
        &self.recv_cq
    }

    /// Returns the shared receive queue, or `None` if the queue pair has its own receive queue.
    #[must_use]
    pub fn srq(&self) -> Option<&SharedReceiveQueue> {
        self.srq.as_ref()
    }

    /// Returns the queue pair's protection domain.
    #[must_use]
    pub fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// Returns the C object, which exists until this object is dropped.
    #[inline]
    pub(crate) fn as_ptr(&self) -> *mut ffi::ibv_qp {
        self.raw.as_ptr()
    }
}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair")
            .field("qp_num", &format_args!("{:#x}", self.qp_num))
            .field("qp_type", &self.qp_type)
            .field("cap", &self.cap)
            .finish_non_exhaustive()
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        if !self.process.is_this() {
            // This process is a forked child, and the queue pair belongs to the parent.
            return;
        }
        if let Some(owner) = &self.owner {
            owner.release_qp();
        }
        // SAFETY: the queue pair exists, and only this `drop` destroys it. Its owner no longer uses
        // it. If another thread reads an event of the queue pair now, libibverbs waits until that
        // thread has acknowledged the event.
        log_destroy_error(cvt_errno("ibv_destroy_qp", || unsafe {
            ffi::ibv_destroy_qp(self.as_ptr())
        }));
    }
}
