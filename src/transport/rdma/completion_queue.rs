use std::{
    array,
    os::fd::{AsFd, BorrowedFd},
};

use crate::{
    proto::DrainSide,
    status::{OsError, WcStatus},
    transport::queues::{BATCH, Done, WorkId},
    verbs::{self, CompletionChannel, WcOpcode, WorkCompletion},
};

/// A completion queue of a device, and the completions that its last poll returned.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    cq: verbs::CompletionQueue,
    batch: [WorkCompletion; BATCH],
}

/// The source of the completion events. An armed queue raises one event for its next completion.
#[derive(Debug)]
pub(crate) struct CompletionEvents(CompletionChannel);

impl CompletionQueue {
    pub(super) fn new(cq: verbs::CompletionQueue) -> Self {
        Self {
            cq,
            batch: array::from_fn(|_| WorkCompletion::default()),
        }
    }

    #[inline]
    pub(crate) fn poll(&mut self) -> Result<usize, OsError> {
        self.cq.poll(&mut self.batch)
    }

    /// Returns the completion at the given index in the batch of the latest poll.
    #[inline]
    pub(crate) fn done(&self, number: usize) -> Done {
        done(&self.batch[number])
    }

    /// Returns the buffer and the length of the frame, if the completion at the given index reports
    /// a received frame. Otherwise returns `None`.
    #[inline]
    pub(crate) fn frame(&self, number: usize) -> Option<(u32, u32)> {
        let wc = &self.batch[number];
        if let WorkId::Recv(buffer) = WorkId::decode(wc.wr_id())
            && wc.is_success()
            && wc.opcode() != WcOpcode::RECV_RDMA_WITH_IMM
        {
            return Some((buffer, wc.byte_len()));
        }
        None
    }

    #[inline]
    pub(crate) fn arm(&self) -> Result<(), OsError> {
        self.cq.req_notify(false)
    }

    pub(crate) fn capacity(&self) -> usize {
        self.cq.cqe() as usize
    }
}

impl CompletionEvents {
    pub(super) fn new(channel: CompletionChannel) -> Self {
        Self(channel)
    }

    /// Consumes one event if an event is pending.
    pub(crate) fn clear(&self) {
        // A queue raises one event each time it is armed, so a second event is rare. Checking for a
        // second event would cost a system call each time. Without the check, a second event only
        // makes the thread's next sleep return immediately. The thread then consumes this event.
        let _ = self.0.get_event();
    }
}

impl AsFd for CompletionEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[inline]
fn done(wc: &WorkCompletion) -> Done {
    let (work, status) = (WorkId::decode(wc.wr_id()), wc.status());
    match work {
        WorkId::Recv(buffer) if status == WcStatus::SUCCESS => {
            let len = wc.byte_len();
            if wc.opcode() == WcOpcode::RECV_RDMA_WITH_IMM {
                let imm_data = wc.imm_data().unwrap_or_default();
                return Done::Immediate {
                    buffer,
                    imm_data,
                    len,
                };
            }
            Done::Received { buffer, len }
        }
        WorkId::Send(slot) if status == WcStatus::SUCCESS => Done::Sent { slot },
        WorkId::Recv(buffer) => Done::ReceiveFailed {
            buffer,
            status,
            vendor_err: wc.vendor_err(),
        },
        WorkId::Send(slot) => Done::SendFailed {
            slot,
            status,
            vendor_err: wc.vendor_err(),
        },
        WorkId::Invalidation if status == WcStatus::SUCCESS => Done::Invalidated,
        WorkId::Invalidation => Done::InvalidationFailed {
            status,
            vendor_err: wc.vendor_err(),
        },
        WorkId::DrainRecv => Done::Drained(DrainSide::Recv),
        WorkId::DrainSend => Done::Drained(DrainSide::Send),
    }
}
