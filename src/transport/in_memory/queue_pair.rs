#![allow(unsafe_code)]

use std::{
    ptr,
    sync::{Arc, Weak},
};

use super::{
    connection_manager::ConnectionManager,
    wire::{Side, Wire, WireControl},
};
use crate::{
    status::OsError,
    transport::{
        queues::{Buffers, Frame, PostError, SendOp, Sge, WorkId},
        tcp::{Receive, ReceiveQueue, Request, Span, Unposted},
    },
};

/// A reliable-connected queue pair whose peer is in the same process.
#[derive(Debug)]
pub(crate) struct QueuePair {
    wire: Arc<Wire>,
    side: Side,
    receives: Arc<ReceiveQueue>,
    control: WireControl,
}

impl QueuePair {
    pub(super) fn new(
        wire: &Arc<Wire>,
        side: Side,
        receives: Arc<ReceiveQueue>,
        manager: &ConnectionManager,
    ) -> Self {
        Self {
            wire: Arc::clone(wire),
            side,
            receives,
            control: WireControl::new(wire, side, manager),
        }
    }

    /// Returns the handle for fault injection.
    pub(crate) fn control(&self) -> &WireControl {
        &self.control
    }

    /// Moves the queue pair to the error state: posted work requests are flushed, and no further
    /// frame is received.
    pub(crate) fn fail(&self) -> Result<(), OsError> {
        self.wire.fail(self.side);
        Ok(())
    }

    /// Posts a receive.
    ///
    /// # Safety
    ///
    /// The memory stays mapped, and no code accesses it, until the receive has completed or the
    /// queue pair is destroyed.
    pub(crate) unsafe fn post_recv(&self, id: WorkId, sge: Option<Sge>) -> Result<(), OsError> {
        let to = span(sge);
        self.receives.post(Receive { id, to });
        Ok(())
    }

    /// Lets the queue post receives on demand, beginning with the receive with the index `next`.
    /// When all posted receives are in use, the queue posts the receives in the next piece of
    /// memory.
    ///
    /// # Safety
    ///
    /// No other code accesses the memory of receives that have not completed, until the queue pair
    /// is destroyed.
    pub(crate) unsafe fn post_on_demand(&self, buffers: Weak<Buffers>, next: u32) {
        self.receives.post_on_demand(Unposted { buffers, next });
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
    ) -> PostError {
        let memory = span(sge);
        self.post(id, op, memory, signalled);
        PostError::PollBoth
    }

    /// Posts a frame. If the frame cannot be copied directly to a posted receive of the peer, the
    /// frame is copied to the memory that `slot` returns, and posted from there.
    ///
    /// # Safety
    ///
    /// The memory from `slot` has the length of the frame, and meets the conditions of
    /// [`post_send`](Self::post_send).
    pub(crate) unsafe fn post_frame(
        &self,
        id: WorkId,
        frame: Frame<'_>,
        slot: impl FnOnce() -> Result<Sge, OsError>,
        signalled: bool,
    ) -> PostError {
        if self.wire.pass(self.side, id, frame) {
            return PostError::PollBoth;
        }
        let memory = match slot() {
            Ok(slot) => span(Some(slot)),
            Err(error) => return error.into(),
        };
        // SAFETY: the caller guarantees the conditions on the slot.
        unsafe { frame.copy_to(memory.start) };
        self.post(id, SendOp::Send, memory, signalled);
        PostError::PollBoth
    }

    /// Posts frames in order, in the same way as [`post_frame`](Self::post_frame).
    ///
    /// # Safety
    ///
    /// The conditions of `post_frame` hold for each frame.
    pub(crate) unsafe fn post_frames(
        &self,
        frames: &[(WorkId, Frame<'_>, bool)],
        slot: impl Fn(usize) -> Result<Sge, OsError>,
    ) -> PostError {
        for (number, (id, frame, signalled)) in frames.iter().enumerate() {
            // SAFETY: the caller guarantees the conditions on the slots.
            let posted = unsafe { self.post_frame(*id, *frame, || slot(number), *signalled) };
            if let PostError::Failed(_) = posted {
                return posted;
            }
        }
        PostError::PollBoth
    }

    fn post(&self, id: WorkId, op: SendOp, memory: Span, signalled: bool) {
        self.wire
            .post(self.side, Request::new(id, op, memory, signalled));
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        self.wire.destroy(self.side);
    }
}

fn span(sge: Option<Sge>) -> Span {
    let (start, len) = sge.map_or((ptr::null_mut(), 0), |sge| (sge.start, sge.len as usize));
    Span { start, len }
}
