use super::socket::Span;
use crate::{
    proto::DrainSide,
    status::WcStatus,
    transport::queues::{Done, SendOp, WorkId},
};

/// A work request on the send queue that has not completed.
#[derive(Debug)]
pub(in crate::transport) struct Request {
    pub(in crate::transport) id: WorkId,
    pub(in crate::transport) op: SendOp,
    /// The bytes to send, or the memory into which the answer is received.
    pub(in crate::transport) memory: Span,
    pub(in crate::transport) signalled: bool,
    /// The number of bytes that were sent, or the number of bytes of the answer that have arrived.
    pub(super) moved: usize,
    /// Whether the answer has arrived completely.
    pub(super) answered: bool,
}

// SAFETY: the caller that posts a request guarantees that only the queue uses the memory of the
// request until the request completes. The queue may be used by any thread.
#[allow(unsafe_code)]
unsafe impl Send for Request {}

impl Request {
    pub(in crate::transport) fn new(id: WorkId, op: SendOp, memory: Span, signalled: bool) -> Self {
        Self {
            id,
            op,
            memory,
            signalled,
            moved: 0,
            answered: false,
        }
    }

    /// Returns true if the request completes with an answer that contains a value. All other
    /// requests complete with an acknowledgement.
    pub(super) fn wants_value(&self) -> bool {
        match self.op {
            SendOp::Read(_) | SendOp::FetchAdd { .. } | SendOp::CompareSwap { .. } => true,
            SendOp::Send | SendOp::Write(_) | SendOp::WriteWithImm(..) => false,
        }
    }

    /// Returns true if the request needs an answer with a value, and this answer has not arrived
    /// completely.
    pub(super) fn is_unanswered(&self) -> bool {
        self.wants_value() && !self.answered
    }

    /// Returns the completion which reports that this request failed with `status`. For a drain
    /// marker, returns the usual completion, which contains no status.
    pub(in crate::transport) fn failure(&self, status: WcStatus) -> Option<Done> {
        match self.id {
            WorkId::Send(slot) => Some(Done::SendFailed {
                slot,
                status,
                vendor_err: 0,
            }),
            WorkId::DrainSend => Some(Done::Drained(DrainSide::Send)),
            WorkId::Recv(_) | WorkId::DrainRecv | WorkId::Invalidation => None,
        }
    }
}
