//! A [transport](super) within the process, for tests: no descriptor, no timer, no thread.
//!
//! The thread that posts a request carries it out: it copies a frame to a receive of the peer, or
//! accesses the memory that the peer has exposed, and adds the completions to both queues. It holds
//! the lock of the [wire](wire::Wire) for that, which is the last in the order of a connection's
//! locks.
//!
//! No event reports completions. Each queue with new completions has a notice
//! ([`NoticeKind::Poll`](crate::poll::NoticeKind::Poll)) sent to the engine of the connection, and
//! the call that posted tells its caller to have the engine take notices once the locks are free.
//! An engine without a thread takes them in the calling thread, so the peer's task is woken before
//! a send returns.
//!
//! Both sides of a connection have the same engine.

mod completion_queue;
mod connection_id;
mod connection_manager;
mod control;
mod copy;
mod create_transport;
mod listen_id;
mod queue_pair;
mod wire;

pub(crate) use self::{
    completion_queue::CompletionQueue,
    connection_id::ConnectionId,
    connection_manager::{ConnectRequest, ConnectionManager, Report},
    control::WireControl,
    listen_id::ListenId,
    queue_pair::QueuePair,
};
