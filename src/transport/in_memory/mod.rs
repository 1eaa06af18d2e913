//! An in-process [transport](super) for tests, without descriptors, timers or threads.
//!
//! The thread that posts a request also carries it out: it copies a frame to a receive of the peer,
//! or accesses the memory that the peer has exposed, and adds the completions to both queues. While
//! it does this, it holds the lock of the [wire](wire::Wire), which is the last one in a
//! connection's lock order.
//!
//! No event reports completions. Instead, a queue with new completions sends the notice
//! [`NoticeKind::Poll`](crate::poll::NoticeKind::Poll) to the engine of its connection. The thread
//! that posted the request runs the engine after it has released its locks. An engine without a
//! thread handles the notices in the calling thread, so the peer's task is woken before a send
//! returns.
//!
//! Both sides of a connection share one engine.

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
