#![allow(unsafe_code)]

use std::{
    fmt,
    mem::MaybeUninit,
    ptr::{self, NonNull},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{
    ModifyError, QpAttr, QpAttrMask, QpCap, QpInitAttr, QpState, QpType, SharedReceiveQueue,
    qp_attr, recv_queue::RecvQueue, send_ops, send_queue::SendQueue,
};
use crate::{
    status::OsError,
    sys::{cvt_errno, cvt_ptr, ffi, log_destroy_error, verbs_ext},
    verbs::{
        completion::CompletionQueue,
        memory::ProtectionDomain,
        work_request::{PostError, RecvWr, SendWr},
    },
};

/// A queue pair: work requests go in, completions come out of its completion queues.
///
/// One made by [`new`](Self::new) is brought into service by [`modify`](Self::modify), with what the program learned about its peer. One
/// of the connection manager is brought there by the connection manager.
///
/// Work requests of each queue start in the order in which they were posted. Dropping the queue pair ends those that are not done,
/// without completions; move it [to the error state](Self::to_err) and poll to see each one end.
///
/// See [`ibv_create_qp(3)`](https://man7.org/linux/man-pages/man3/ibv_create_qp.3.html).
// Fields are dropped in order, after `drop` has destroyed the queue pair: first what its work requests use, then what it is made of.
#[doc(alias = "ibv_qp")]
pub struct QueuePair {
    raw: NonNull<ffi::ibv_qp>,
    qp_num: u32,
    qp_type: QpType,
    cap: QpCap,
    /// Where sends are posted with functions for each part of a request; `None`: with `ibv_post_send`.
    send_ops: Option<NonNull<ffi::ibv_qp_ex>>,
    /// Locked while requests are posted in the safe way, whose memory it holds.
    send_queue: Mutex<SendQueue>,
    /// As above.
    recv_queue: Mutex<RecvQueue>,
    srq: Option<SharedReceiveQueue>,
    send_cq: CompletionQueue,
    recv_cq: CompletionQueue,
    pd: ProtectionDomain,
    /// Who destroys it. `None`: libibverbs.
    owner: Option<Arc<dyn QpOwner>>,
}

/// Somebody other than libibverbs who made a queue pair and destroys it: an id of the connection manager.
pub(crate) trait QpOwner: Send + Sync {
    /// Destroys the queue pair. Called once; nobody uses `raw` afterwards.
    fn destroy_qp(&self, raw: NonNull<ffi::ibv_qp>);
}

// SAFETY: libibverbs allows a queue pair to be used and destroyed from any thread.
unsafe impl Send for QueuePair {}
// SAFETY: drivers lock each queue in `ibv_post_send` and `ibv_post_recv`, as no thread domain was asked for; the other calls may run at
// the same time as well. The fields of the C object that are read are those that never change: not `state`, which others write.
unsafe impl Sync for QueuePair {}

impl QueuePair {
    /// Makes a queue pair, in state [`RESET`](QpState::RESET).
    ///
    /// # Errors
    ///
    /// What [`ibv_create_qp(3)`](https://man7.org/linux/man-pages/man3/ibv_create_qp.3.html) answers: `EINVAL` or `ENOMEM` when the device
    /// cannot do as much; `EINVAL` too when not everything belongs to the same [`Context`](crate::verbs::Context).
    #[doc(alias = "ibv_create_qp")]
    pub fn new(pd: &ProtectionDomain, attr: &QpInitAttr<'_>) -> Result<Self, OsError> {
        attr.check("ibv_create_qp", pd)?;
        let mut raw_attr = attr.to_raw();
        // SAFETY: the domain and what the attributes name exist, on the same device; the structure is a local.
        let raw = unsafe { ffi::ibv_create_qp(pd.as_ptr(), &raw mut raw_attr) };
        let raw = cvt_ptr("ibv_create_qp", raw)?;
        // SAFETY: just made of exactly these, for this object alone.
        Ok(unsafe { Self::from_raw(raw, QpCap::from_raw(raw_attr.cap), pd, attr, None) })
    }

    /// Makes a queue pair of which the send queue is filled with the functions of
    /// [`ibv_wr_post(3)`](https://man7.org/linux/man-pages/man3/ibv_wr_post.3.html) instead of `ibv_post_send`. To its users it is like any
    /// other; some drivers are faster that way. (Soft-RoCE's in rdma-core 44 takes all pieces of a request for as long as the first one.)
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` when the driver has no such functions; otherwise as [`new`](Self::new).
    #[doc(alias = "ibv_create_qp_ex")]
    #[doc(alias = "ibv_wr_start")]
    #[doc(alias = "ibv_wr_complete")]
    pub fn with_send_ops(pd: &ProtectionDomain, attr: &QpInitAttr<'_>) -> Result<Self, OsError> {
        const CALL: &str = "ibv_create_qp_ex";
        attr.check(CALL, pd)?;
        let mut raw_attr = send_ops::init_attr(attr, pd.as_ptr());
        // SAFETY: the domain and what the attributes name exist, on the same device; the structure is a local.
        let raw = unsafe { verbs_ext::ibv_create_qp_ex(pd.context().as_ptr(), &raw mut raw_attr) };
        let raw = cvt_ptr(CALL, raw)?;
        // SAFETY: just made of exactly these, for this object alone.
        let mut this =
            unsafe { Self::from_raw(raw, QpCap::from_raw(raw_attr.cap), pd, attr, None) };
        // SAFETY: the queue pair exists, and was made with `ibv_create_qp_ex`.
        let ops = unsafe { ffi::ibv_qp_to_qp_ex(raw.as_ptr()) };
        this.send_ops = Some(NonNull::new(ops).ok_or(OsError::new(CALL, libc::EOPNOTSUPP))?);
        Ok(this)
    }

    /// Takes over a queue pair that the connection manager made of `pd` and `attr`, and that `owner` destroys.
    ///
    /// `cap` is what was granted: the call wrote it over what `attr` asked for.
    ///
    /// # Safety
    ///
    /// `raw` was made of exactly these, nobody else destroys it, and `owner` can destroy it whenever that is.
    pub(crate) unsafe fn from_cm(
        raw: NonNull<ffi::ibv_qp>,
        cap: QpCap,
        pd: &ProtectionDomain,
        attr: &QpInitAttr<'_>,
        owner: Arc<dyn QpOwner>,
    ) -> Self {
        // SAFETY: the caller vouches for it.
        unsafe { Self::from_raw(raw, cap, pd, attr, Some(owner)) }
    }

    /// # Safety
    ///
    /// `raw` was made of exactly these, and nobody else destroys it.
    unsafe fn from_raw(
        raw: NonNull<ffi::ibv_qp>,
        cap: QpCap,
        pd: &ProtectionDomain,
        attr: &QpInitAttr<'_>,
        owner: Option<Arc<dyn QpOwner>>,
    ) -> Self {
        // SAFETY: just made; the field does not change.
        let qp_num = unsafe { (*raw.as_ptr()).qp_num };
        Self {
            raw,
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

    /// Posts work requests on the send queue, in this order.
    ///
    /// The memory regions, and the address handles of datagrams, are held until the queue pair is destroyed.
    ///
    /// # Errors
    ///
    /// Which one could not be posted, and why. Those before it are. `EINVAL`: the queue pair cannot take such a request, whatever its state;
    /// `ENOMEM`: the send queue is full.
    #[doc(alias = "ibv_post_send")]
    pub fn post_send(&self, requests: &[SendWr<'_>]) -> Result<(), PostError> {
        lock(&self.send_queue).post(requests, self.pd.context(), |wr, bad_wr| {
            if let Some(ops) = self.send_ops {
                // SAFETY: the queue pair exists, was made for this, and can do these requests; the chain is complete. For the rest as below.
                let ret = unsafe { send_ops::post(ops, self.qp_type, wr) };
                // All are posted, or none.
                // SAFETY: the caller's pointer.
                unsafe { *bad_wr = wr };
                return ret;
            }
            // SAFETY: the queue pair exists and can do these requests; the chain is complete. What is not copied before the call
            // returns is in memory regions, and these are held until the queue pair is destroyed.
            unsafe { ffi::ibv_post_send(self.as_ptr(), wr, bad_wr) }
        })
    }

    /// Posts receives, in this order.
    ///
    /// The memory regions are held until the queue pair is destroyed.
    ///
    /// # Errors
    ///
    /// Which one could not be posted, and why. Those before it are. `EINVAL`: the queue pair has a shared receive queue, or too few
    /// elements, or is still in state [`RESET`](QpState::RESET); `ENOMEM`: the receive queue is full.
    #[doc(alias = "ibv_post_recv")]
    pub fn post_recv(&self, requests: &[RecvWr<'_>]) -> Result<(), PostError> {
        if self.srq.is_some() {
            return Err(PostError {
                posted: 0,
                error: OsError::new("ibv_post_recv", libc::EINVAL),
            });
        }
        lock(&self.recv_queue).post(requests, self.cap.max_recv_sge, |wr, bad_wr| {
            // SAFETY: the queue pair exists, the chain is complete, and its memory regions are held until the queue pair is destroyed.
            unsafe { ffi::ibv_post_recv(self.as_ptr(), wr, bad_wr) }
        })
    }

    /// Posts one work request on the send queue, or a chain of them.
    ///
    /// # Safety
    ///
    /// `wr` and what it is chained to are complete and live during the call. They are such as a queue pair of this type and
    /// [`cap`](Self::cap) can do. The memory that they name is registered, unless it is inline, and nobody uses it in a way that conflicts
    /// with the device's, until they complete or the queue pair is destroyed.
    ///
    /// # Errors
    ///
    /// What [`ibv_post_send(3)`](https://man7.org/linux/man-pages/man3/ibv_post_send.3.html) answers. Of a chain, those before the one at
    /// fault are posted.
    pub(crate) unsafe fn post_send_raw(&self, wr: *mut ffi::ibv_send_wr) -> Result<(), OsError> {
        let mut bad_wr = ptr::null_mut();
        // SAFETY: the queue pair exists; the caller vouches for the chain.
        let ret = unsafe { ffi::ibv_post_send(self.as_ptr(), wr, &raw mut bad_wr) };
        cvt_errno("ibv_post_send", ret)
    }

    /// Posts one receive, or a chain of them.
    ///
    /// # Safety
    ///
    /// `wr` and what it is chained to are complete, with no more elements than [`cap`](Self::cap) says, and live during the call. The queue
    /// pair has no shared receive queue. The memory that they name is registered, and nobody uses it, until they complete or the queue
    /// pair is destroyed.
    ///
    /// # Errors
    ///
    /// What [`ibv_post_recv(3)`](https://man7.org/linux/man-pages/man3/ibv_post_recv.3.html) answers. Of a chain, those before the one at
    /// fault are posted.
    pub(crate) unsafe fn post_recv_raw(&self, wr: *mut ffi::ibv_recv_wr) -> Result<(), OsError> {
        let mut bad_wr = ptr::null_mut();
        // SAFETY: the queue pair exists; the caller vouches for the chain.
        let ret = unsafe { ffi::ibv_post_recv(self.as_ptr(), wr, &raw mut bad_wr) };
        cvt_errno("ibv_post_recv", ret)
    }

    /// Changes attributes, the state among them.
    ///
    /// # Errors
    ///
    /// What [`ibv_modify_qp(3)`](https://man7.org/linux/man-pages/man3/ibv_modify_qp.3.html) answers, and which attribute was missing or
    /// is not allowed, where the rules tell.
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&self, attr: &QpAttr) -> Result<(), ModifyError> {
        let (mut raw, mask) = attr.to_raw();
        // SAFETY: the queue pair exists, and the structure is a local with everything set that the mask names.
        let ret =
            unsafe { ffi::ibv_modify_qp(self.as_ptr(), &raw mut raw, mask.bits().cast_signed()) };
        cvt_errno("ibv_modify_qp", ret)
            .map_err(|error| ModifyError::new(error, self.qp_type, self.state().ok(), attr))
    }

    /// Moves it to the error state: everything posted, now or later, completes with
    /// [`WR_FLUSH_ERR`](crate::status::WcStatus::WR_FLUSH_ERR) or what went wrong before.
    ///
    /// # Errors
    ///
    /// What [`modify`](Self::modify) says.
    pub fn to_err(&self) -> Result<(), OsError> {
        let attr = QpAttr {
            qp_state: Some(QpState::ERR),
            ..QpAttr::default()
        };
        Ok(self.modify(&attr)?)
    }

    /// Sets how long the peer waits before it sends again when there was no receive posted here: a code of 5 bits, as
    /// [`QpAttr::min_rnr_timer`] has it.
    ///
    /// The connection manager leaves it at 0, which is the longest, 655.36 ms. Possible from [`RTR`](QpState::RTR) on.
    ///
    /// # Errors
    ///
    /// What [`modify`](Self::modify) says.
    pub fn set_min_rnr_timer(&self, code: u8) -> Result<(), OsError> {
        let attr = QpAttr {
            min_rnr_timer: Some(code),
            ..QpAttr::default()
        };
        Ok(self.modify(&attr)?)
    }

    /// All attributes, as the driver knows them. Those that its state and type give no meaning to are whatever they are.
    ///
    /// # Errors
    ///
    /// What [`ibv_query_qp(3)`](https://man7.org/linux/man-pages/man3/ibv_query_qp.3.html) answers.
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> Result<QpAttr, OsError> {
        // All that exist, but for the rate limit, which is no attribute of these types.
        const ALL: QpAttrMask = QpAttrMask::from_bits(0x001f_ffff);
        self.query_raw(ALL).map(|raw| QpAttr::from_raw(&raw, ALL))
    }

    /// The state that it is in.
    ///
    /// # Errors
    ///
    /// What [`ibv_query_qp(3)`](https://man7.org/linux/man-pages/man3/ibv_query_qp.3.html) answers.
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

    /// Its number, by which peers and completions name it.
    #[must_use]
    pub fn qp_num(&self) -> u32 {
        self.qp_num
    }

    /// Its kind of transport.
    #[must_use]
    pub fn qp_type(&self) -> QpType {
        self.qp_type
    }

    /// How much its queues hold: at least what was asked for.
    #[must_use]
    pub fn cap(&self) -> QpCap {
        self.cap
    }

    /// Where completions of its send queue go.
    #[must_use]
    pub fn send_cq(&self) -> &CompletionQueue {
        &self.send_cq
    }

    /// Where completions of its receive queue go.
    #[must_use]
    pub fn recv_cq(&self) -> &CompletionQueue {
        &self.recv_cq
    }

    /// Where its receives come from, if it has no queue of its own.
    #[must_use]
    pub fn srq(&self) -> Option<&SharedReceiveQueue> {
        self.srq.as_ref()
    }

    /// The protection domain that it belongs to.
    #[must_use]
    pub fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// The C object. It exists for as long as this one does.
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
        match &self.owner {
            Some(owner) => owner.destroy_qp(self.raw),
            None => {
                // SAFETY: made by `new` for this object alone, destroyed once, here. Its events are acknowledged as soon as they are
                // read, so this does not wait.
                let ret = unsafe { ffi::ibv_destroy_qp(self.as_ptr()) };
                log_destroy_error(cvt_errno("ibv_destroy_qp", ret));
            }
        }
    }
}

/// A thread that panicked while it held the lock left nothing half done that matters: chains are rebuilt from empty.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
