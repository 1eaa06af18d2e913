//! The queues of a connection over any transport: its buffers and slots, its work requests and
//! their memory, and its completions.

mod buffers;
mod done;
mod exposures;
mod in_flight;
mod layout;
mod one_sided;
mod poll_side;
mod queue_pair;
mod receive_share;
mod send_slots;
mod shared_receives;
mod work_queues;
mod work_request;

pub(crate) use self::{
    buffers::Buffers,
    done::{BATCH, Done},
    layout::Layout,
    one_sided::{Checked, OneSidedOp},
    poll_side::{CompletionEvents, CompletionQueue, PollSide},
    queue_pair::{PostError, QueuePair, SharedReceiveQueue},
    receive_share::ReceiveShare,
    send_slots::{Operation, OperationKind, Outcome, Posted},
    shared_receives::{SharedPools, SharedReceives},
    work_queues::{TransportParts, WorkQueues},
    work_request::{Frame, RemoteAddr, SendOp, Sge, WorkId},
};
