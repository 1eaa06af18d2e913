#![allow(unsafe_code)]

use std::{
    fmt, ptr,
    sync::{Arc, Weak},
};

use super::{
    receive_queue::{Receive, ReceiveQueue, Unposted},
    socket::Span,
    stream::Stream,
};
use crate::{
    proto::MovedBytes,
    status::OsError,
    transport::queues::{Buffers, Frame, SendOp, Sge, WorkId},
};

/// A reliable-connected queue pair in user space, over a TCP stream.
pub(crate) struct QueuePair(Arc<Stream>);

/// A queue for the receives of several queue pairs.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedReceiveQueue(Arc<ReceiveQueue>);

impl QueuePair {
    pub(super) fn new(stream: Arc<Stream>) -> Self {
        Self(stream)
    }

    /// Moves the queue pair to the error state: posted work requests are flushed, and no further
    /// receives are consumed. A delayed acknowledgement is sent first, because no later PDU could
    /// carry it.
    pub(crate) fn fail(&self) -> Result<(), OsError> {
        self.0.answer();
        self.0.fail();
        Ok(())
    }

    /// See [`Stream::moved`].
    pub(crate) fn moved(&self) -> MovedBytes {
        self.0.moved()
    }

    /// Moves the queue pair to the error state. Returns true if no other thread is receiving into
    /// the queue pair's memory, so that the queue pair can be destroyed now.
    pub(crate) fn try_release(&self) -> bool {
        self.0.try_release()
    }

    /// Posts a receive.
    ///
    /// # Safety
    ///
    /// The memory stays mapped, and no code accesses it, until the receive has completed or the
    /// queue pair is destroyed.
    pub(crate) unsafe fn post_recv(&self, id: WorkId, sge: Option<Sge>) -> Result<(), OsError> {
        self.0.receives().post(receive(id, sge));
        Ok(())
    }

    /// Lets the queue post the receives from index `next` on demand: whenever no posted receive
    /// remains, the queue allocates the next piece of memory and posts the receives in this piece.
    ///
    /// # Safety
    ///
    /// Until the queue pair is destroyed, no other code accesses the memory of receives that have
    /// not completed.
    pub(crate) unsafe fn post_on_demand(&self, buffers: Weak<Buffers>, next: u32) {
        self.0.receives().post_on_demand(Unposted { buffers, next });
    }

    /// Receives the further fragments of a message directly into the memory of the message: see
    /// [`Stream::place_fragments`].
    ///
    /// # Safety
    ///
    /// Until all fragments of the message have completed or the queue pair is destroyed, the memory
    /// stays mapped, and no other code accesses the bytes of fragments that begin after this call.
    pub(crate) unsafe fn place_fragments(&self, number: u32, start: *mut u8, len: usize) {
        // SAFETY: the caller guarantees the conditions on the memory.
        unsafe { self.0.place_fragments(number, Span { start, len }) };
    }

    /// Posts a work request on the send queue. The request has at most one memory element, which is
    /// not inline.
    ///
    /// # Safety
    ///
    /// Until a completion covers the request or the queue pair is destroyed, every page that
    /// contains part of the memory stays mapped, and no reference to the memory conflicts with the
    /// request.
    pub(crate) unsafe fn post_send(
        &self,
        id: WorkId,
        op: SendOp,
        sge: Option<Sge>,
        signalled: bool,
    ) -> Result<(), OsError> {
        let memory = span(sge);
        self.0.post_send(id, op, memory, signalled);
        Ok(())
    }

    /// Posts a frame. `slot` returns the memory for bytes of the frame that cannot be sent
    /// immediately.
    ///
    /// # Safety
    ///
    /// The memory that `slot` returns has the length of the frame, and meets the conditions of
    /// [`post_send`](Self::post_send).
    pub(crate) unsafe fn post_frame(
        &self,
        id: WorkId,
        frame: Frame<'_>,
        slot: impl FnOnce() -> Result<Sge, OsError>,
        signalled: bool,
    ) -> Result<(), OsError> {
        let start = || Ok(slot()?.start);
        // SAFETY: the caller guarantees the conditions on the slot.
        unsafe { self.0.post_frame(id, frame, start, signalled) }
    }

    /// Posts the frames of one message. `slot` takes the index of a frame, and returns the memory
    /// for the bytes of this frame that cannot be sent immediately.
    ///
    /// # Safety
    ///
    /// The conditions of [`post_frame`](Self::post_frame) hold for each frame.
    pub(crate) unsafe fn post_frames(
        &self,
        frames: &[(WorkId, Frame<'_>, bool)],
        slot: impl Fn(usize) -> Result<Sge, OsError>,
    ) -> Result<(), OsError> {
        let start = |number| Ok(slot(number)?.start);
        // SAFETY: the caller guarantees the conditions on the slots.
        unsafe { self.0.post_frames(frames, start) }
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        self.0.destroy();
    }
}

impl SharedReceiveQueue {
    pub(in crate::transport) fn queue(&self) -> &Arc<ReceiveQueue> {
        &self.0
    }

    /// Posts a receive.
    ///
    /// # Safety
    ///
    /// The memory stays mapped, and no other code accesses it, until the receive has completed or
    /// the last queue pair that uses this queue is destroyed.
    pub(crate) unsafe fn post_recv(&self, id: WorkId, sge: Sge) -> Result<(), OsError> {
        self.0.post(receive(id, Some(sge)));
        Ok(())
    }
}

fn receive(id: WorkId, sge: Option<Sge>) -> Receive {
    Receive { id, to: span(sge) }
}

fn span(sge: Option<Sge>) -> Span {
    let (start, len) = sge.map_or((ptr::null_mut(), 0), |sge| (sge.start, sge.len as usize));
    Span { start, len }
}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair").finish_non_exhaustive()
    }
}
