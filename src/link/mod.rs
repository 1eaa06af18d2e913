//! One connection: what a state machine decides, done with a transport, shared by its handles and
//! the engine's thread.
//!
//! A message leaves and arrives in the thread of the application that sends or waits, under the
//! connection's locks ([`link`]): no other thread stands between it and the device. The engine's
//! thread polls a connection only while no thread of the application does
//! ([`poll`](crate::poll)). What only the engine's thread can do, a connection asks of it with a
//! notice; it never waits for the engine.
//!
//! A connection knows nothing of the engine, of listeners or of other connections. Messages know a
//! connection only as their [`Home`](message::Home).

mod batches;
mod completion;
mod core;
mod cork;
mod deferred;
mod group_queue;
mod held;
mod hop_limit;
mod inflow;
#[expect(clippy::module_inception, reason = "it is the layer's main type")]
mod link;
mod liveness;
mod membership;
mod message;
mod outbox;
mod polling;
mod reports;
mod send;
mod sent;
mod sent_order;
mod taker;
mod write;

pub use self::{
    completion::{Completion, Immediate},
    message::Message,
};
pub(crate) use crate::poll::{Awaited, Deadline, Progress};

pub(crate) use self::{
    completion::Ended,
    cork::total,
    group_queue::GroupQueue,
    inflow::Inflow,
    link::{Link, Owner},
    liveness::Peers,
    message::Handoff,
    send::Sending,
};
