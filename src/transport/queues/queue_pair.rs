//! A connection's queue pair, over any transport.
#![allow(unsafe_code)]

use std::sync::Arc;

use super::{
    buffers::Buffers,
    work_request::{Frame, SendOp, Sge, WorkId},
};
#[cfg(feature = "rdma")]
use crate::transport::rdma;
use crate::{
    proto::MovedBytes,
    status::OsError,
    transport::{
        in_memory,
        memory::{Registration, Window},
        tcp,
    },
};

/// The queue pair of one connection.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "each connection has one, on the hot path"
)]
pub(crate) enum QueuePair {
    #[cfg(feature = "rdma")]
    Rdma(rdma::QueuePair),
    Tcp(tcp::QueuePair),
    Memory(in_memory::QueuePair),
}

/// The result of a post function in the cases in which the caller must act: a failure, or a
/// successful post over the in-memory transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PostError {
    /// The work was posted over the in-memory transport. After releasing its locks, the caller must
    /// make the engine poll the completion queues of both sides.
    PollBoth,
    /// The work was not posted.
    Failed(OsError),
}

impl From<OsError> for PostError {
    fn from(error: OsError) -> Self {
        Self::Failed(error)
    }
}

/// A queue for the receives of several connections.
#[derive(Debug)]
pub(crate) enum SharedReceiveQueue {
    #[cfg(feature = "rdma")]
    Rdma(rdma::SharedReceiveQueue),
    Tcp(tcp::SharedReceiveQueue),
}

impl QueuePair {
    /// Returns the maximum length in bytes of a frame that can be copied into the work request.
    /// Returns `None` if the transport has no inline data.
    pub(super) fn max_inline(&self) -> Option<usize> {
        by_transport!(self, {
            Rdma(qp) => Some(qp.max_inline()),
            Tcp(_) => None,
            Memory(_) => None,
        })
    }

    /// Returns the handle for fault injection; `None` over RDMA and TCP.
    pub(super) fn control(&self) -> Option<&in_memory::WireControl> {
        by_transport!(self, {
            Rdma(_) => None,
            Tcp(_) => None,
            Memory(qp) => Some(qp.control()),
        })
    }

    /// Sets the minimum RNR NAK timer. Called shortly before the connection is established.
    pub(super) fn set_min_rnr_timer(&self) -> Result<(), OsError> {
        by_transport!(self, {
            Rdma(qp) => qp.set_min_rnr_timer(),
            Tcp(_) => Ok(()),
            Memory(_) => Ok(()),
        })
    }

    /// Moves the queue pair to the error state. Posted work requests are flushed, and the queue
    /// pair consumes no further shared receives.
    pub(super) fn fail(&self) -> Result<(), OsError> {
        by_transport!(self, all qp => qp.fail())
    }

    /// Returns whether the transport can receive fragments directly into the memory of their
    /// message, as over TCP.
    pub(super) fn places_fragments(&self) -> bool {
        matches!(self, Self::Tcp(_))
    }

    /// Over TCP, sets the memory for the rest of a message in fragments. Further fragments of the
    /// message are received directly into this memory. `number` is the number of messages in
    /// fragments that the peer began to send before this message, modulo 2³². Over the other
    /// transports, does nothing.
    ///
    /// # Safety
    ///
    /// Until all fragments of the message have completed or the queue pair is destroyed, the memory
    /// stays mapped, and no other code accesses the bytes of fragments that begin after this call.
    pub(super) unsafe fn place_fragments(&self, number: u32, start: *mut u8, len: usize) {
        if let Self::Tcp(qp) = self {
            // SAFETY: the caller guarantees the conditions on the memory.
            unsafe { qp.place_fragments(number, start, len) };
        }
    }

    /// Returns the byte counters of a TCP connection. Returns `None` over RDMA, where a device
    /// transfers the bytes, and over the in-memory transport.
    pub(super) fn moved(&self) -> Option<MovedBytes> {
        by_transport!(self, {
            Rdma(_) => None,
            Tcp(qp) => Some(qp.moved()),
            Memory(_) => None,
        })
    }

    /// Moves an open TCP queue pair to the error state. If a thread is receiving from the queue
    /// pair's socket, this makes the thread stop soon. Returns true if no thread is receiving into
    /// the memory of the queue pair, so that the queue pair can be destroyed without waiting. Over
    /// the other transports, does nothing and returns true.
    pub(super) fn try_release(&self) -> bool {
        by_transport!(self, {
            Rdma(_) => true,
            Tcp(qp) => qp.try_release(),
            Memory(_) => true,
        })
    }

    /// Posts a receive.
    ///
    /// # Safety
    ///
    /// The queue pair does not use a shared receive queue, and its own receive queue has room for
    /// one more request. The memory stays registered, and no code accesses it, until the receive
    /// completes or the queue pair is destroyed. No other thread posts on the queue pair at the
    /// same time.
    #[inline(always)]
    pub(super) unsafe fn post_recv(&self, id: WorkId, sge: Option<Sge>) -> Result<(), OsError> {
        by_transport!(self, {
            // SAFETY: the caller guarantees the conditions on the memory.
            Rdma(qp) => unsafe { qp.post_recv(id, sge) },
            // SAFETY: as above.
            Tcp(qp) => unsafe { qp.post_recv(id, sge) },
            // SAFETY: as above.
            Memory(qp) => unsafe { qp.post_recv(id, sge) },
        })
    }

    /// Posts receives in order. Over RDMA, each driver call posts several receives.
    ///
    /// # Safety
    ///
    /// The conditions of [`post_recv`](Self::post_recv) hold for each receive.
    pub(super) unsafe fn post_recvs(
        &self,
        mut receives: impl Iterator<Item = (WorkId, Sge)>,
    ) -> Result<(), OsError> {
        by_transport!(self, {
            // SAFETY: the caller guarantees the conditions on the memory.
            Rdma(qp) => unsafe { qp.post_recvs(receives) },
            // SAFETY: as above.
            Tcp(qp) => receives.try_for_each(|(id, sge)| unsafe { qp.post_recv(id, Some(sge)) }),
            // SAFETY: as above.
            Memory(qp) => receives.try_for_each(|(id, sge)| unsafe { qp.post_recv(id, Some(sge)) }),
        })
    }

    /// Lets the queue pair post the receives with the index `next` and higher indices on demand.
    /// The queue pair of a device cannot do this, so all its receives must be posted already.
    ///
    /// # Safety
    ///
    /// The queue pair does not use a shared receive queue. No other code accesses the memory of
    /// these receives until they have completed or the queue pair is destroyed.
    pub(super) unsafe fn post_on_demand(&self, buffers: &Arc<Buffers>, next: u32) {
        by_transport!(self, {
            Rdma(_) => assert_eq!(next, buffers.layout().recv_count()),
            // SAFETY: the caller guarantees the conditions on the buffers.
            Tcp(qp) => unsafe { qp.post_on_demand(Arc::downgrade(buffers), next) },
            // SAFETY: as above.
            Memory(qp) => unsafe { qp.post_on_demand(Arc::downgrade(buffers), next) },
        })
    }

    /// Posts a send of a header and a payload, which are copied into the work request. Together
    /// they have at most [`max_inline`](Self::max_inline) bytes.
    ///
    /// # Safety
    ///
    /// The send queue has room for the request. No other thread posts on the queue pair at the same
    /// time.
    #[inline(always)]
    pub(super) unsafe fn post_inline(
        &self,
        id: WorkId,
        parts: [&[u8]; 2],
        signalled: bool,
    ) -> Result<(), PostError> {
        by_transport!(self, {
            // SAFETY: the caller guarantees that the queue has room and that no other thread posts.
            Rdma(qp) => Ok(unsafe { qp.post_inline(id, parts, signalled) }?),
            Tcp(_) => unreachable!("a transport without inline data must not get inline posts"),
            Memory(_) => unreachable!("a transport without inline data must not get inline posts"),
        })
    }

    /// Posts a work request on the send queue. The completion of a `signalled` request also covers
    /// the earlier requests that are not signalled.
    ///
    /// # Safety
    ///
    /// The send queue has room for the request. Until a completion covers the request or the queue
    /// pair is destroyed, the memory stays registered, and no access conflicts with the accesses of
    /// the device. No other thread posts on the queue pair at the same time.
    #[inline(always)]
    pub(super) unsafe fn post_send(
        &self,
        id: WorkId,
        op: SendOp,
        sge: Option<Sge>,
        signalled: bool,
    ) -> Result<(), PostError> {
        by_transport!(self, {
            // SAFETY: the caller guarantees the conditions on the memory.
            Rdma(qp) => Ok(unsafe { qp.post_send(id, op, sge, signalled) }?),
            // SAFETY: as above.
            Tcp(qp) => Ok(unsafe { qp.post_send(id, op, sge, signalled) }?),
            // SAFETY: as above.
            Memory(qp) => Err(unsafe { qp.post_send(id, op, sge, signalled) }),
        })
    }
}

impl QueuePair {
    /// Posts a frame. Before this function returns, the transport has sent the parts of the frame,
    /// or copied them to the memory that `slot` returns.
    ///
    /// # Safety
    ///
    /// The memory from `slot` has the length of the frame, and meets the conditions of
    /// [`post_send`](Self::post_send).
    #[inline]
    pub(super) unsafe fn post_frame(
        &self,
        id: WorkId,
        frame: Frame<'_>,
        slot: impl FnOnce() -> Result<Sge, OsError>,
        signalled: bool,
    ) -> Result<(), PostError> {
        by_transport!(self, {
            Rdma(qp) => {
                let slot = slot()?;
                // SAFETY: the slot has not been handed to the device yet. The caller guarantees the
                // conditions on its memory.
                unsafe { frame.copy_to(slot.start) };
                // SAFETY: the caller guarantees the conditions on the memory.
                Ok(unsafe { qp.post_send(id, SendOp::Send, Some(slot), signalled) }?)
            },
            // SAFETY: as above.
            Tcp(qp) => Ok(unsafe { qp.post_frame(id, frame, slot, signalled) }?),
            // SAFETY: as above.
            Memory(qp) => Err(unsafe { qp.post_frame(id, frame, slot, signalled) }),
        })
    }
}

impl QueuePair {
    /// Posts frames in order, in the same way as [`post_frame`](Self::post_frame). To wake the peer
    /// less often, RDMA posts all frames with one driver call. TCP sends them with one system call,
    /// unless earlier bytes are waiting. `slot` returns the memory for the frame with the given
    /// index.
    ///
    /// # Safety
    ///
    /// There is at least one frame. The conditions of `post_frame` hold for each frame.
    pub(super) unsafe fn post_frames(
        &self,
        frames: &[(WorkId, Frame<'_>, bool)],
        slot: impl Fn(usize) -> Result<Sge, OsError>,
    ) -> Result<(), PostError> {
        by_transport!(self, {
            Rdma(qp) => {
                let mut sends = Vec::with_capacity(frames.len());
                for (number, (id, frame, signalled)) in frames.iter().enumerate() {
                    let slot = slot(number)?;
                    // SAFETY: the slot has not been handed to the device yet. The caller guarantees
                    // the conditions on its memory.
                    unsafe { frame.copy_to(slot.start) };
                    sends.push((*id, slot, *signalled));
                }
                // SAFETY: the caller guarantees the conditions on the memory.
                Ok(unsafe { qp.post_sends(&sends) }?)
            },
            // SAFETY: as above.
            Tcp(qp) => Ok(unsafe { qp.post_frames(frames, slot) }?),
            // SAFETY: as above.
            Memory(qp) => Err(unsafe { qp.post_frames(frames, slot) }),
        })
    }
}

/// Functions for memory windows, which only RDMA devices support.
impl QueuePair {
    /// Posts an unsignalled bind of the window. The bind lets the peer read the first `len` bytes
    /// of `memory`. The device reports a completion with this `id` only if the bind fails.
    pub(super) fn bind(
        &self,
        id: WorkId,
        window: &mut Window,
        memory: &Registration,
        len: usize,
    ) -> Result<(), OsError> {
        match (self, memory) {
            #[cfg(feature = "rdma")]
            (Self::Rdma(qp), Registration::Rdma(region)) => qp.bind(id, window, region, len),
            (_, _) => {
                unreachable!("only a device binds windows: {window:?}, request {id:?}, {len} bytes")
            }
        }
    }

    /// Posts the invalidation of a window.
    pub(super) fn invalidate(&self, window: &mut Window) -> Result<(), OsError> {
        by_transport!(self, {
            Rdma(qp) => qp.invalidate(window),
            Tcp(_) => unreachable!("only a device invalidates windows: {window:?}"),
            Memory(_) => unreachable!("only a device invalidates windows: {window:?}"),
        })
    }
}

impl SharedReceiveQueue {
    /// Posts a receive.
    ///
    /// # Safety
    ///
    /// The queue has room for one more receive. The memory stays registered in the queue's domain,
    /// and no code accesses it, until the receive completes or the queue is destroyed.
    #[inline]
    pub(super) unsafe fn post_recv(&self, id: WorkId, sge: Sge) -> Result<(), OsError> {
        by_transport!(self, {
            // SAFETY: the caller guarantees the conditions on the memory.
            Rdma(queue) => unsafe { queue.post_recv(id, sge) },
            // SAFETY: as above.
            Tcp(queue) => unsafe { queue.post_recv(id, sge) },
        })
    }

    /// Posts receives in order. Over RDMA, each driver call posts several receives.
    ///
    /// # Safety
    ///
    /// The conditions of [`post_recv`](Self::post_recv) hold for each receive.
    pub(super) unsafe fn post_recvs(
        &self,
        mut receives: impl Iterator<Item = (WorkId, Sge)>,
    ) -> Result<(), OsError> {
        by_transport!(self, {
            // SAFETY: the caller guarantees the conditions on the memory.
            Rdma(queue) => unsafe { queue.post_recvs(receives) },
            // SAFETY: as above.
            Tcp(queue) => receives.try_for_each(|(id, sge)| unsafe { queue.post_recv(id, sge) }),
        })
    }
}
