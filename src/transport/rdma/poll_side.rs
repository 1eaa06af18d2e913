use std::{
    array,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
};

use super::work_id::WorkId;
use crate::{
    proto::DrainSide,
    status::{OsError, WcStatus},
    verbs::{CompletionChannel, CompletionQueue, WcOpcode, WorkCompletion},
};

/// How many completions are taken from the queue at a time.
pub(crate) const BATCH: usize = 16;

/// The end of a connection's device that tells what has been done: its completion queue.
#[derive(Debug)]
pub(crate) struct PollSide {
    cq: CompletionQueue,
    events: Arc<CompletionEvents>,
    batch: [WorkCompletion; BATCH],
    /// Whether all receives are back once the queue is empty: where they are shared, nothing else
    /// says so.
    drains_when_empty: bool,
}

/// What raises an event for the next completion after [`PollSide::arm`]. Its file descriptor is
/// readable while there are events.
#[derive(Debug)]
pub(crate) struct CompletionEvents(CompletionChannel);

/// Something that the device has done.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Done {
    /// A frame lies in this receive buffer.
    Received { buffer: u32, len: u32 },
    /// The peer wrote to a region of this side's, with immediate data, and used this buffer.
    Immediate {
        buffer: u32,
        imm_data: u32,
        len: u32,
    },
    /// What was posted in this slot of the send ring is done, and all that was posted before.
    Sent { slot: u32 },
    /// A receive failed.
    ReceiveFailed {
        buffer: u32,
        status: WcStatus,
        vendor_err: u32,
    },
    /// What was posted in this slot failed.
    SendFailed {
        slot: u32,
        status: WcStatus,
        vendor_err: u32,
    },
    /// Everything that was posted on this queue has come back.
    Drained(DrainSide),
}

impl PollSide {
    pub(super) fn new(cq: CompletionQueue, events: Arc<CompletionEvents>) -> Self {
        Self {
            cq,
            events,
            batch: array::from_fn(|_| WorkCompletion::default()),
            drains_when_empty: false,
        }
    }

    /// Takes up to [`BATCH`] completions, and returns how many. They are the next
    /// [`done`](Self::done).
    pub(crate) fn poll(&mut self) -> Result<usize, OsError> {
        self.cq.poll(&mut self.batch)
    }

    /// The first `count` of what was taken last.
    pub(crate) fn done(&self, count: usize) -> impl Iterator<Item = Done> + '_ {
        self.batch[..count].iter().map(done)
    }

    /// Has the device raise an event for the next completion.
    pub(crate) fn arm(&self) -> Result<(), OsError> {
        self.cq.req_notify(false)
    }

    /// How many completions the queue can hold.
    pub(crate) fn capacity(&self) -> usize {
        self.cq.cqe() as usize
    }

    pub(crate) fn events(&self) -> &Arc<CompletionEvents> {
        &self.events
    }

    /// The receives are back once the queue is empty.
    pub(crate) fn drains_when_empty(&mut self) {
        self.drains_when_empty = true;
    }

    /// The queue is empty. Whether that says that the receives are back, which it does once.
    pub(crate) fn is_drained(&mut self) -> bool {
        std::mem::take(&mut self.drains_when_empty)
    }
}

impl CompletionEvents {
    pub(super) fn new(channel: CompletionChannel) -> Arc<Self> {
        Arc::new(Self(channel))
    }

    pub(super) fn channel(&self) -> &CompletionChannel {
        &self.0
    }

    /// Takes all events.
    pub(crate) fn clear(&self) {
        while let Ok(Some(_)) = self.0.get_event() {}
    }
}

impl AsFd for CompletionEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Done {
    /// The receive buffer that was used.
    pub(crate) fn receive_buffer(&self) -> Option<u32> {
        match *self {
            Self::Received { buffer, .. }
            | Self::Immediate { buffer, .. }
            | Self::ReceiveFailed { buffer, .. } => Some(buffer),
            Self::Sent { .. } | Self::SendFailed { .. } | Self::Drained(_) => None,
        }
    }
}

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
        WorkId::DrainRecv => Done::Drained(DrainSide::Recv),
        WorkId::DrainSend => Done::Drained(DrainSide::Send),
    }
}
