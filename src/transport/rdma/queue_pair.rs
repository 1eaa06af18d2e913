//! A queue pair and a shared receive queue of a device. This file hands the work requests to
//! `verbs`; [`WorkQueues`](crate::transport::queues::WorkQueues) argues why the memory that they
//! name is sound.
#![allow(unsafe_code)]

use std::{mem::MaybeUninit, ptr};

use crate::{
    status::OsError,
    sys::ffi,
    transport::queues::{RemoteAddr, SendFlags, SendOp, Sge, WorkId},
    verbs::{self, SendOp as Op},
};

/// The `min_rnr_timer` code for 0.64 ms (`ibv_modify_qp(3)`). Credits keep receives posted, so it
/// should never matter; the connection manager's 0 would mean 655 ms for every slip.
const MIN_RNR_TIMER: u8 = 12;

/// A reliable-connected queue pair.
#[derive(Debug)]
pub(crate) struct QueuePair(verbs::QueuePair);

/// Where receives of several queue pairs are posted.
#[derive(Debug)]
pub(crate) struct SharedReceiveQueue(verbs::SharedReceiveQueue);

impl QueuePair {
    pub(super) fn new(qp: verbs::QueuePair) -> Self {
        Self(qp)
    }

    /// The longest message whose bytes are copied into the work request.
    pub(crate) fn max_inline(&self) -> usize {
        self.0.cap().max_inline_data as usize
    }

    /// The connection is about to be established.
    pub(crate) fn set_min_rnr_timer(&self) -> Result<(), OsError> {
        self.0.set_min_rnr_timer(MIN_RNR_TIMER)
    }

    /// Moves to the error state: it takes no more receives.
    pub(crate) fn fail(&self) -> Result<(), OsError> {
        self.0.to_err()
    }

    /// Posts a receive.
    ///
    /// # Safety
    ///
    /// The queue pair has no shared receive queue, and a place for one more receive. Until it
    /// completes or the queue pair is destroyed, the memory is registered and nobody accesses it.
    #[inline]
    pub(crate) unsafe fn post_recv(&self, id: WorkId, sge: Option<Sge>) -> Result<(), OsError> {
        let mut sge = sge.map(raw);
        let mut wr = recv_wr(id, sge.as_mut());
        // SAFETY: the request and its element live on this stack for the call; the caller vouches
        // for the memory.
        unsafe { self.0.post_recv_raw(&raw mut wr) }
    }

    /// Posts a work request on the send queue, with at most two elements.
    ///
    /// # Safety
    ///
    /// The send queue has a place for it. Until a completion covers it or the queue pair is
    /// destroyed, the memory is registered, unless it is inline, and nobody accesses it in a way
    /// that conflicts with the device.
    #[inline]
    pub(crate) unsafe fn post_send(
        &self,
        id: WorkId,
        op: SendOp,
        sges: &[Sge],
        flags: SendFlags,
    ) -> Result<(), OsError> {
        let element = |number: usize| sges.get(number).map_or(EMPTY, |sge| raw(*sge));
        let mut raw_sges = [element(0), element(1)];
        let mut wr = MaybeUninit::<ffi::ibv_send_wr>::zeroed();
        // SAFETY: the C structure holds integers, raw pointers and unions of them: all zero is a
        // valid value.
        let wr = unsafe { wr.assume_init_mut() };
        wr.wr_id = id.encode();
        wr.sg_list = raw_sges.as_mut_ptr();
        wr.num_sge = sges.len().min(raw_sges.len()) as i32;
        wr.send_flags = self::flags(flags);
        encode(op, wr);
        // SAFETY: the request and its elements live on this stack for the call; the caller vouches
        // for the memory.
        unsafe { self.0.post_send_raw(wr) }
    }
}

impl SharedReceiveQueue {
    pub(super) fn new(queue: verbs::SharedReceiveQueue) -> Self {
        Self(queue)
    }

    pub(super) fn verbs(&self) -> &verbs::SharedReceiveQueue {
        &self.0
    }

    /// Posts a receive.
    ///
    /// # Safety
    ///
    /// The queue has a place for it. Until it completes or the queue is destroyed, the memory is
    /// registered in the queue's domain and nobody accesses it.
    #[inline]
    pub(crate) unsafe fn post_recv(&self, id: WorkId, sge: Sge) -> Result<(), OsError> {
        let mut sge = raw(sge);
        let mut wr = recv_wr(id, Some(&mut sge));
        // SAFETY: the request and its element live on this stack for the call; the caller vouches
        // for the memory.
        unsafe { self.0.post_recv_raw(&mut wr) }
    }
}

const EMPTY: ffi::ibv_sge = ffi::ibv_sge {
    addr: 0,
    length: 0,
    lkey: 0,
};

fn raw(sge: Sge) -> ffi::ibv_sge {
    ffi::ibv_sge {
        addr: sge.start.expose_provenance() as u64,
        length: sge.len,
        lkey: sge.lkey,
    }
}

fn recv_wr(id: WorkId, sge: Option<&mut ffi::ibv_sge>) -> ffi::ibv_recv_wr {
    let (sg_list, num_sge) = sge.map_or((ptr::null_mut(), 0), |sge| (ptr::from_mut(sge), 1));
    ffi::ibv_recv_wr {
        wr_id: id.encode(),
        next: ptr::null_mut(),
        sg_list,
        num_sge,
    }
}

fn flags(flags: SendFlags) -> u32 {
    let mut raw = 0;
    if flags.signalled {
        raw |= ffi::ibv_send_flags::IBV_SEND_SIGNALED.0;
    }
    if flags.inline {
        raw |= ffi::ibv_send_flags::IBV_SEND_INLINE.0;
    }
    raw
}

fn encode(op: SendOp, wr: &mut ffi::ibv_send_wr) {
    let addr = |RemoteAddr { addr, rkey }| verbs::RemoteAddr { addr, rkey };
    match op {
        SendOp::Send => Op::Send.encode(wr),
        SendOp::Read(remote) => Op::Read(addr(remote)).encode(wr),
        SendOp::Write(remote) => Op::Write(addr(remote)).encode(wr),
        SendOp::WriteWithImm(remote, imm_data) => {
            Op::WriteWithImm(addr(remote), imm_data).encode(wr);
        }
        SendOp::FetchAdd { remote, add } => {
            let remote = addr(remote);
            Op::FetchAdd { remote, add }.encode(wr);
        }
        SendOp::CompareSwap {
            remote,
            compare,
            swap,
        } => {
            let remote = addr(remote);
            Op::CompareSwap {
                remote,
                compare,
                swap,
            }
            .encode(wr);
        }
    }
}
