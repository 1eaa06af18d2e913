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
//! connection only as their [`home`].

mod batches;
mod completion;
mod core;
mod cork;
mod deferred;
mod ended;
mod event_fds;
mod group_queue;
mod handoff;
mod held;
mod home;
#[expect(clippy::module_inception, reason = "it is the layer's main type")]
mod link;
mod liveness;
mod membership;
mod message;
mod one_sided;
mod outbox;
mod owner;
mod parts;
mod polling;
mod refused;
mod reports;
#[cfg(feature = "tokio")]
mod runtime;
mod send;
mod send_batch;
mod sent;
mod sent_order;
mod taker;
mod unproven;
mod write;

pub use self::{
    completion::{Completion, Immediate},
    message::Message,
};
pub(crate) use crate::poll::{Awaited, Deadline, Progress};

pub(crate) use self::{
    core::Core,
    ended::Ended,
    group_queue::GroupQueue,
    handoff::Handoff,
    held::Flush,
    link::Link,
    liveness::Peers,
    owner::Owner,
    parts::total,
    send::{Outgoing, Taken},
};
