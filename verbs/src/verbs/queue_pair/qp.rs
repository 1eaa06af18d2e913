#![allow(unsafe_code)]

use std::{
    fmt,
    mem::MaybeUninit,
    ptr::{self, NonNull},
    sync::{Arc, Mutex},
};

use rdma_status::OsError;

use super::{
    ModifyError, QpAttr, QpAttrMask, QpCap, QpInitAttr, QpState, QpType, SharedReceiveQueue,
    qp_attr, recv_queue::RecvQueue, send_ops, send_queue::SendQueue,
};
use crate::{
    sys::{Process, cvt_errno, cvt_ptr, ffi, lock, log_destroy_error, verbs_ext},
    verbs::{
        completion::CompletionQueue,
        memory::ProtectionDomain,
        work_request::{PostError, RawSend, RawSge, RecvWr, SendWr, raw},
    },
};

/// A queue pair: work requests are posted on it, and complete on its completion queues.
///
/// The program brings one created by [`new`](Self::new) into service by [`modify`](Self::modify),
/// with the peer's attributes. The connection manager does so with the queue pair of an id.
///
/// Work requests of each queue start in the order in which they were posted. Dropping the queue
/// pair discards outstanding ones without completions; to have each one complete, move it [to the
/// error state](Self::to_err) and poll.
///
/// See [`ibv_create_qp(3)`](https://man7.org/linux/man-pages/man3/ibv_create_qp.3.html).
// Fields are dropped in order, after `drop` has destroyed the queue pair: first the memory that its
// work requests use, then the objects that it was created with.
#[doc(alias = "ibv_qp")]
pub struct QueuePair {
    raw: NonNull<ffi::ibv_qp>,
    /// The process that created it, and that alone destroys it.
    process: Process,
    qp_num: u32,
    qp_type: QpType,
    cap: QpCap,
    /// For posting with `ibv_wr_*` functions; `None`: with `ibv_post_send`.
    send_ops: Option<NonNull<ffi::ibv_qp_ex>>,
    /// Locked while requests are posted by the safe functions; it holds their memory.
    send_queue: Mutex<SendQueue>,
    /// As above.
    recv_queue: Mutex<RecvQueue>,
    srq: Option<SharedReceiveQueue>,
    send_cq: CompletionQueue,
    recv_cq: CompletionQueue,
    pd: ProtectionDomain,
    /// The owner that destroys it. `None`: libibverbs.
    owner: Option<Arc<dyn QpOwner>>,
}

/// The owner of a queue pair that was not created by libibverbs: an id of the connection manager.
pub(crate) trait QpOwner: Send + Sync {
    /// Destroys the queue pair. Called once; `raw` is not used afterwards.
    fn destroy_qp(&self, raw: NonNull<ffi::ibv_qp>);
}

// SAFETY: libibverbs allows a queue pair to be used and destroyed from any thread.
unsafe impl Send for QueuePair {}
// SAFETY: drivers lock each queue in `ibv_post_send` and `ibv_post_recv`, as no thread domain was
// requested; the other calls may run concurrently as well. The fields of the C object that are read
// never change: `state`, which other threads write, is not among them.
unsafe impl Sync for QueuePair {}

impl QueuePair {
    /// Creates a queue pair, in state [`RESET`](QpState::RESET).
    ///
    /// # Errors
    ///
    /// The errors of
    /// [`ibv_create_qp(3)`](https://man7.org/linux/man-pages/man3/ibv_create_qp.3.html): `EINVAL`
    /// or `ENOMEM` if the requested capacities exceed the device's; `EINVAL` also if not all
    /// objects belong to the same [`Context`](crate::verbs::Context).
    #[doc(alias = "ibv_create_qp")]
    pub fn new(pd: &ProtectionDomain, attr: &QpInitAttr<'_>) -> Result<Self, OsError> {
        attr.check("ibv_create_qp", pd)?;
        let mut raw_attr = attr.to_raw();
        // SAFETY: the domain and the objects in the attributes exist, on the same device; the
        // structure is a local.
        let raw = unsafe { ffi::ibv_create_qp(pd.as_ptr(), &raw mut raw_attr) };
        let raw = cvt_ptr("ibv_create_qp", raw)?;
        // SAFETY: just created with exactly these arguments, for this object alone.
        Ok(unsafe { Self::from_raw(raw, QpCap::from_raw(raw_attr.cap), pd, attr, None) })
    }

    /// Creates a queue pair that posts sends with the functions of `ibv_wr_post(3)`.
    ///
    /// These replace `ibv_post_send`; some drivers are faster that way. For its users it does not
    /// differ from other queue pairs. (Soft-RoCE's driver in rdma-core 44 treats all elements of a
    /// request as if they had the length of the first one.) See
    /// [`ibv_wr_post(3)`](https://man7.org/linux/man-pages/man3/ibv_wr_post.3.html).
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` if the driver has no such functions; otherwise those of [`new`](Self::new).
    #[doc(alias = "ibv_create_qp_ex")]
    #[doc(alias = "ibv_wr_start")]
    #[doc(alias = "ibv_wr_complete")]
    pub fn with_send_ops(pd: &ProtectionDomain, attr: &QpInitAttr<'_>) -> Result<Self, OsError> {
        const CALL: &str = "ibv_create_qp_ex";
        attr.check(CALL, pd)?;
        let mut raw_attr = send_ops::init_attr(attr, pd.as_ptr());
        // SAFETY: the domain and the objects in the attributes exist, on the same device; the
        // structure is a local.
        let raw = unsafe { verbs_ext::ibv_create_qp_ex(pd.context().as_ptr(), &raw mut raw_attr) };
        let raw = cvt_ptr(CALL, raw)?;
        // SAFETY: just created with exactly these arguments, for this object alone.
        let mut this =
            unsafe { Self::from_raw(raw, QpCap::from_raw(raw_attr.cap), pd, attr, None) };
        // SAFETY: the queue pair exists, and was created with `ibv_create_qp_ex`.
        let ops = unsafe { ffi::ibv_qp_to_qp_ex(raw.as_ptr()) };
        this.send_ops = Some(NonNull::new(ops).ok_or(OsError::new(CALL, libc::EOPNOTSUPP))?);
        Ok(this)
    }

    /// Takes over a queue pair that the connection manager created with `pd` and `attr`.
    ///
    /// `owner` destroys it.
    ///
    /// `cap` is the capacity granted, which the call wrote over the requested one.
    ///
    /// # Safety
    ///
    /// `raw` was created with exactly these arguments, nothing else destroys it, and `owner` can
    /// destroy it at any time.
    pub(crate) unsafe fn from_cm(
        raw: NonNull<ffi::ibv_qp>,
        cap: QpCap,
        pd: &ProtectionDomain,
        attr: &QpInitAttr<'_>,
        owner: Arc<dyn QpOwner>,
    ) -> Self {
        // SAFETY: as the caller's.
        unsafe { Self::from_raw(raw, cap, pd, attr, Some(owner)) }
    }

    /// # Safety
    ///
    /// `raw` was created with exactly these arguments, and nothing else destroys it.
    unsafe fn from_raw(
        raw: NonNull<ffi::ibv_qp>,
        cap: QpCap,
        pd: &ProtectionDomain,
        attr: &QpInitAttr<'_>,
        owner: Option<Arc<dyn QpOwner>>,
    ) -> Self {
        // SAFETY: just created; the field does not change.
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

    /// Posts work requests on the send queue, in order.
    ///
    /// The queue pair holds the memory regions, and the address handles of datagrams, until it is
    /// destroyed.
    ///
    /// # Errors
    ///
    /// The first request that could not be posted, and why; those before it are posted. `EINVAL`:
    /// the queue pair cannot take such a request in any state; `ENOMEM`: the send queue is full.
    #[doc(alias = "ibv_post_send")]
    pub fn post_send(&self, requests: &[SendWr<'_>]) -> Result<(), PostError> {
        lock(&self.send_queue).post(requests, self.pd.context(), |wr, bad_wr| {
            if let Some(ops) = self.send_ops {
                // SAFETY: the queue pair exists, was created with these functions, and can take
                // these requests; the chain is complete. The rest as below.
                let ret = unsafe { send_ops::post(ops, self.qp_type, wr) };
                // Either all or none are posted.
                // SAFETY: the caller's pointer.
                unsafe { *bad_wr = wr };
                return ret;
            }
            // SAFETY: the queue pair exists and can take these requests; the chain is complete.
            // Data that is not copied before the call returns is in memory regions, which are held
            // until the queue pair is destroyed.
            unsafe { ffi::ibv_post_send(self.as_ptr(), wr, bad_wr) }
        })
    }

    /// Posts receives, in order.
    ///
    /// The queue pair holds the memory regions until it is destroyed.
    ///
    /// # Errors
    ///
    /// The first receive that could not be posted, and why; those before it are posted. `EINVAL`:
    /// the queue pair has a shared receive queue, the request has more elements than the queue
    /// pair's `max_recv_sge`, or the queue pair is still in state [`RESET`](QpState::RESET);
    /// `ENOMEM`: the receive queue is full.
    #[doc(alias = "ibv_post_recv")]
    pub fn post_recv(&self, requests: &[RecvWr<'_>]) -> Result<(), PostError> {
        if self.srq.is_some() {
            return Err(PostError {
                posted: 0,
                error: OsError::new("ibv_post_recv", libc::EINVAL),
            });
        }
        lock(&self.recv_queue).post(requests, self.cap.max_recv_sge, |wr, bad_wr| {
            // SAFETY: the queue pair exists, the chain is complete, and its memory regions are held
            // until the queue pair is destroyed.
            unsafe { ffi::ibv_post_recv(self.as_ptr(), wr, bad_wr) }
        })
    }

    /// Posts one work request on the send queue, and neither checks it nor holds its memory.
    ///
    /// # Safety
    ///
    /// A queue pair of this type and [`cap`](Self::cap) can take the request. Until it completes or
    /// the queue pair is destroyed, the memory is registered, unless it is inline, and not accessed
    /// in a way that conflicts with the device's access.
    ///
    /// # Errors
    ///
    /// The errors of
    /// [`ibv_post_send(3)`](https://man7.org/linux/man-pages/man3/ibv_post_send.3.html).
    #[inline]
    pub unsafe fn post_send_raw(&self, request: RawSend<'_>) -> Result<(), OsError> {
        let mut bad_wr = ptr::null_mut();
        request.with_wr(|wr| {
            // SAFETY: the queue pair exists, and the request lives on this stack for the call; the
            // caller guarantees the conditions on the memory.
            let ret = unsafe { ffi::ibv_post_send(self.as_ptr(), wr, &raw mut bad_wr) };
            cvt_errno("ibv_post_send", ret)
        })
    }

    /// Posts sends in their order with one call, and neither checks them nor holds their memory.
    ///
    /// After an error the first of them may have been posted.
    ///
    /// # Safety
    ///
    /// There is a request at least, and for each [`post_send_raw`](Self::post_send_raw) is allowed.
    ///
    /// # Errors
    ///
    /// The errors of
    /// [`ibv_post_send(3)`](https://man7.org/linux/man-pages/man3/ibv_post_send.3.html).
    pub unsafe fn post_sends_raw(&self, requests: &[RawSend<'_>]) -> Result<(), OsError> {
        let mut bad_wr = ptr::null_mut();
        RawSend::with_list(requests, |list| {
            // SAFETY: the queue pair exists, and the list lives for the call; the caller guarantees
            // the conditions on the memory.
            let ret = unsafe { ffi::ibv_post_send(self.as_ptr(), list, &raw mut bad_wr) };
            cvt_errno("ibv_post_send", ret)
        })
    }

    /// Posts one receive, and neither checks it nor holds its memory.
    ///
    /// # Safety
    ///
    /// The queue pair has no shared receive queue, and a place for one more receive. Until it
    /// completes or the queue pair is destroyed, the memory is registered and not accessed.
    ///
    /// # Errors
    ///
    /// The errors of
    /// [`ibv_post_recv(3)`](https://man7.org/linux/man-pages/man3/ibv_post_recv.3.html).
    #[inline]
    pub unsafe fn post_recv_raw(&self, wr_id: u64, sge: Option<RawSge>) -> Result<(), OsError> {
        let mut wr = raw::recv_wr(wr_id, sge.as_ref());
        let mut bad_wr = ptr::null_mut();
        // SAFETY: the queue pair exists, and the request lives on this stack for the call; the
        // caller guarantees the conditions on the memory.
        let ret = unsafe { ffi::ibv_post_recv(self.as_ptr(), &raw mut wr, &raw mut bad_wr) };
        cvt_errno("ibv_post_recv", ret)
    }

    /// Modifies attributes, including the state.
    ///
    /// # Errors
    ///
    /// The error of
    /// [`ibv_modify_qp(3)`](https://man7.org/linux/man-pages/man3/ibv_modify_qp.3.html), with the
    /// attributes that are missing or not allowed, if the rules define them.
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&self, attr: &QpAttr) -> Result<(), ModifyError> {
        let (mut raw, mask) = attr.to_raw();
        // SAFETY: the queue pair exists, and the structure is a local with all members set that are
        // in the mask.
        let ret =
            unsafe { ffi::ibv_modify_qp(self.as_ptr(), &raw mut raw, mask.bits().cast_signed()) };
        cvt_errno("ibv_modify_qp", ret)
            .map_err(|error| ModifyError::new(error, self.qp_type, self.state().ok(), attr))
    }

    /// Moves it to the error state, in which all posted requests complete with an error.
    ///
    /// The error is [`WR_FLUSH_ERR`](rdma_status::WcStatus::WR_FLUSH_ERR), also for requests
    /// posted later, unless a request failed before.
    ///
    /// # Errors
    ///
    /// Those of [`modify`](Self::modify).
    pub fn to_err(&self) -> Result<(), OsError> {
        let attr = QpAttr {
            qp_state: Some(QpState::ERR),
            ..QpAttr::default()
        };
        Ok(self.modify(&attr)?)
    }

    /// Sets the RNR NAK timer: the time for which a peer that found no receive waits.
    ///
    /// `code` has 5 bits: see [`QpAttr::min_rnr_timer`].
    ///
    /// The connection manager leaves it at 0, the longest time, 655.36 ms. It can be set from state
    /// [`RTR`](QpState::RTR) on.
    ///
    /// # Errors
    ///
    /// Those of [`modify`](Self::modify).
    pub fn set_min_rnr_timer(&self, code: u8) -> Result<(), OsError> {
        let attr = QpAttr {
            min_rnr_timer: Some(code),
            ..QpAttr::default()
        };
        Ok(self.modify(&attr)?)
    }

    /// Queries all attributes.
    ///
    /// Attributes without a meaning in its state or for its type are unspecified.
    ///
    /// # Errors
    ///
    /// The errors of
    /// [`ibv_query_qp(3)`](https://man7.org/linux/man-pages/man3/ibv_query_qp.3.html).
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> Result<QpAttr, OsError> {
        // All that exist, except the rate limit, which is not an attribute of these types.
        const ALL: QpAttrMask = QpAttrMask::from_bits(0x001f_ffff);
        self.query_raw(ALL).map(|raw| QpAttr::from_raw(&raw, ALL))
    }

    /// Queries its state.
    ///
    /// # Errors
    ///
    /// The errors of
    /// [`ibv_query_qp(3)`](https://man7.org/linux/man-pages/man3/ibv_query_qp.3.html).
    pub fn state(&self) -> Result<QpState, OsError> {
        self.query_raw(QpAttrMask::STATE)
            .map(|raw| QpState::from_raw(raw.qp_state))
    }

    fn query_raw(&self, mask: QpAttrMask) -> Result<ffi::ibv_qp_attr, OsError> {
        let mut attr = qp_attr::zeroed();
        let mut init_attr = MaybeUninit::zeroed();
        let mask = mask.bits().cast_signed();
        // SAFETY: the queue pair exists, and both structures are locals.
        let ret = unsafe {
            ffi::ibv_query_qp(self.as_ptr(), &raw mut attr, mask, init_attr.as_mut_ptr())
        };
        cvt_errno("ibv_query_qp", ret).map(|()| attr)
    }

    /// Returns its number, which identifies it to peers and in completions.
    #[must_use]
    pub fn qp_num(&self) -> u32 {
        self.qp_num
    }

    /// Returns its type of transport.
    #[must_use]
    pub fn qp_type(&self) -> QpType {
        self.qp_type
    }

    /// Returns the capacities of its queues, which are at least those requested.
    #[must_use]
    #[inline]
    pub fn cap(&self) -> QpCap {
        self.cap
    }

    /// Returns the completion queue of its send queue.
    #[must_use]
    pub fn send_cq(&self) -> &CompletionQueue {
        &self.send_cq
    }

    /// Returns the completion queue of its receive queue.
    #[must_use]
    pub fn recv_cq(&self) -> &CompletionQueue {
        &self.recv_cq
    }

    /// Returns its shared receive queue, if it has no receive queue of its own.
    #[must_use]
    pub fn srq(&self) -> Option<&SharedReceiveQueue> {
        self.srq.as_ref()
    }

    /// Returns the protection domain that it belongs to.
    #[must_use]
    pub fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// Returns the C object, which exists until this one is dropped.
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
            // The object is the parent's, which has its descriptor, too.
            return;
        }
        match &self.owner {
            Some(owner) => owner.destroy_qp(self.raw),
            None => {
                // SAFETY: created by `new` for this object alone, destroyed once, here. Its events
                // are acknowledged as soon as they are read, so the call does not block.
                let ret = unsafe { ffi::ibv_destroy_qp(self.as_ptr()) };
                log_destroy_error(cvt_errno("ibv_destroy_qp", ret));
            }
        }
    }
}
