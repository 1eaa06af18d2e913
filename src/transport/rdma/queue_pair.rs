//! A queue pair and a shared receive queue of a device. This module passes the work requests to
//! `verbs`. The module of [`WorkQueues`](crate::transport::queues::WorkQueues) explains why the
//! memory accesses of work requests are sound.
#![allow(unsafe_code)]

use crate::{
    status::OsError,
    transport::queues::{RemoteAddr, SendOp, Sge, WorkId},
    verbs::{self, AccessFlags, MemoryRegion, MemoryWindow, RawRecv, RawSend, RawSge},
};

/// The `min_rnr_timer` code for 0.64 ms (`ibv_modify_qp(3)`). Credits ensure that a receive is
/// posted for each frame, so the timer should never run. If it ran with the connection manager's
/// default code, 0, it would delay the sender by 655 ms.
const MIN_RNR_TIMER: u8 = 12;

/// A reliable-connected queue pair.
#[derive(Debug)]
pub(crate) struct QueuePair(verbs::QueuePair);

/// A queue for the receives of several queue pairs.
#[derive(Debug)]
pub(crate) struct SharedReceiveQueue {
    queue: verbs::SharedReceiveQueue,
    cookie: u64,
}

impl QueuePair {
    pub(super) fn new(qp: verbs::QueuePair) -> Self {
        Self(qp)
    }

    /// Returns the maximum length in bytes of a frame that is copied into the work request.
    pub(crate) fn max_inline(&self) -> usize {
        self.0.cap().max_inline_data as usize
    }

    /// Sets the RNR timer. Called shortly before the connection is established.
    pub(crate) fn set_min_rnr_timer(&self) -> Result<(), OsError> {
        self.0.set_min_rnr_timer(MIN_RNR_TIMER)
    }

    /// Moves the queue pair to the error state. Posted work requests are flushed, and no further
    /// frame is received.
    pub(crate) fn fail(&self) -> Result<(), OsError> {
        self.0.to_err()
    }

    /// Posts a receive.
    ///
    /// # Safety
    ///
    /// The queue pair has no shared receive queue, and its receive queue has room for one more
    /// request. The memory stays registered, and no code accesses it, until the receive completes
    /// or the queue pair is destroyed. No other thread posts on the queue pair at the same time.
    #[inline(always)]
    pub(crate) unsafe fn post_recv(&self, id: WorkId, sge: Option<Sge>) -> Result<(), OsError> {
        // SAFETY: the caller guarantees the conditions on the queue and on the memory. The thread
        // domain, if any, contains only this queue pair, on which no other thread posts.
        unsafe { self.0.post_recv_raw(id.encode(), sge.map(raw)) }
    }

    /// Posts receives in order, in lists. Each driver call posts one list of at most
    /// [`RawRecv::MOST`] receives.
    ///
    /// # Safety
    ///
    /// The conditions of [`post_recv`](Self::post_recv) hold for each receive.
    pub(crate) unsafe fn post_recvs(
        &self,
        receives: impl Iterator<Item = (WorkId, Sge)>,
    ) -> Result<(), OsError> {
        let receives: Vec<_> = receives.map(raw_recv).collect();
        // SAFETY: as in `post_recv`.
        unsafe { self.0.post_recvs_raw(&receives) }
    }

    /// Posts a send whose bytes are copied into the work request. The parts have at most
    /// [`max_inline`](Self::max_inline) bytes together. An empty second part is omitted.
    ///
    /// # Safety
    ///
    /// The send queue has room for the request. No other thread posts on the queue pair at the same
    /// time.
    #[inline(always)]
    pub(crate) unsafe fn post_inline(
        &self,
        id: WorkId,
        parts: [&[u8]; 2],
        signalled: bool,
    ) -> Result<(), OsError> {
        // The driver copies inline data before the call returns. So the data need not be in
        // registered memory, and the lkey is ignored.
        let elements =
            parts.map(|part| RawSge::new(part.as_ptr().cast_mut(), part.len() as u32, 0));
        let request = RawSend {
            wr_id: id.encode(),
            op: verbs::SendOp::Send,
            sges: &elements[..2 - usize::from(parts[1].is_empty())],
            signalled,
            inline: true,
        };
        // SAFETY: the caller guarantees that the send queue has room and that no other thread posts
        // to it. `parts` borrows the bytes until the call returns; by then, the driver has copied
        // them.
        unsafe { self.0.post_send_raw(request) }
    }

    /// Posts a work request on the send queue.
    ///
    /// # Safety
    ///
    /// The send queue has room for the request. Until a completion covers the request or the queue
    /// pair is destroyed, the memory stays registered, and no code accesses it in a way that
    /// conflicts with the accesses of the device. No other thread posts on the queue pair at the
    /// same time.
    #[inline(always)]
    pub(crate) unsafe fn post_send(
        &self,
        id: WorkId,
        op: SendOp,
        sge: Option<Sge>,
        signalled: bool,
    ) -> Result<(), OsError> {
        let sge = sge.map(raw);
        let request = RawSend {
            wr_id: id.encode(),
            op: operation(op),
            sges: sge.as_slice(),
            signalled,
            inline: false,
        };
        // SAFETY: as in `post_recv`.
        unsafe { self.0.post_send_raw(request) }
    }
}

impl QueuePair {
    /// Posts several sends in order. Each send has one memory element. One driver call posts all
    /// sends, so that the peer is woken less often.
    ///
    /// # Safety
    ///
    /// There is at least one send. The conditions of [`post_send`](Self::post_send) hold for each
    /// send.
    pub(crate) unsafe fn post_sends(&self, sends: &[(WorkId, Sge, bool)]) -> Result<(), OsError> {
        let elements: Vec<_> = sends.iter().map(|(_, sge, _)| [raw(*sge)]).collect();
        let sends = sends.iter().zip(&elements);
        let requests: Vec<_> = sends
            .map(|((id, _, signalled), sges)| RawSend {
                wr_id: id.encode(),
                op: verbs::SendOp::Send,
                sges,
                signalled: *signalled,
                inline: false,
            })
            .collect();
        // SAFETY: as in `post_recv`.
        unsafe { self.0.post_sends_raw(&requests) }
    }
}

/// Functions for memory windows.
impl QueuePair {
    /// Posts a bind that lets the peer read the first `len` bytes of the region. The device
    /// generates a completion, with `id`, only if the bind fails.
    pub(crate) fn bind(
        &self,
        id: WorkId,
        window: &mut MemoryWindow,
        region: &MemoryRegion,
        len: usize,
    ) -> Result<(), OsError> {
        let access = AccessFlags::REMOTE_READ;
        self.0
            .bind_window(id.encode(), window, region, 0..len, access, false)
    }

    /// Posts the invalidation of a window.
    pub(crate) fn invalidate(&self, window: &mut MemoryWindow) -> Result<(), OsError> {
        self.0
            .invalidate_window(WorkId::Invalidation.encode(), window, true)
    }
}

impl SharedReceiveQueue {
    pub(super) fn new(queue: verbs::SharedReceiveQueue, cookie: u64) -> Self {
        Self { queue, cookie }
    }

    /// Returns the number that identifies this queue in the device's events.
    pub(super) fn cookie(&self) -> u64 {
        self.cookie
    }

    pub(super) fn verbs(&self) -> &verbs::SharedReceiveQueue {
        &self.queue
    }

    /// Posts a receive.
    ///
    /// # Safety
    ///
    /// The queue has room for one more receive. The memory stays registered in the queue's domain,
    /// and no code accesses it, until the receive completes or the queue is destroyed.
    #[inline]
    pub(crate) unsafe fn post_recv(&self, id: WorkId, sge: Sge) -> Result<(), OsError> {
        // SAFETY: the caller guarantees the conditions on the queue and on the memory.
        unsafe { self.queue.post_recv_raw(id.encode(), raw(sge)) }
    }

    /// Posts receives in order, in lists. Each driver call posts one list of at most
    /// [`RawRecv::MOST`] receives.
    ///
    /// # Safety
    ///
    /// The conditions of [`post_recv`](Self::post_recv) hold for each receive.
    pub(crate) unsafe fn post_recvs(
        &self,
        receives: impl Iterator<Item = (WorkId, Sge)>,
    ) -> Result<(), OsError> {
        let receives: Vec<_> = receives.map(raw_recv).collect();
        // SAFETY: the caller guarantees the conditions on the queue and on the memory.
        unsafe { self.queue.post_recvs_raw(&receives) }
    }
}

fn raw_recv((id, sge): (WorkId, Sge)) -> RawRecv {
    RawRecv {
        wr_id: id.encode(),
        sge: raw(sge),
    }
}

fn raw(sge: Sge) -> RawSge {
    RawSge::new(sge.start, sge.len, sge.lkey)
}

fn operation(op: SendOp) -> verbs::SendOp {
    let addr = |RemoteAddr { addr, rkey }| verbs::RemoteAddr { addr, rkey };
    match op {
        SendOp::Send => verbs::SendOp::Send,
        SendOp::Read(remote) => verbs::SendOp::Read(addr(remote)),
        SendOp::Write(remote) => verbs::SendOp::Write(addr(remote)),
        SendOp::WriteWithImm(remote, imm_data) => {
            verbs::SendOp::WriteWithImm(addr(remote), imm_data)
        }
        SendOp::FetchAdd { remote, add } => {
            let remote = addr(remote);
            verbs::SendOp::FetchAdd { remote, add }
        }
        SendOp::CompareSwap {
            remote,
            compare,
            swap,
        } => {
            let remote = addr(remote);
            verbs::SendOp::CompareSwap {
                remote,
                compare,
                swap,
            }
        }
    }
}
