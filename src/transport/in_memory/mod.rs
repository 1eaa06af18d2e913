//! The in-memory [transport](super), for tests. It uses no descriptors, timers or threads.
//!
//! The thread that posts a work request carries out the work request itself. For a send it copies
//! the frame to the buffer of a receive that the peer has posted. For a one-sided operation it
//! accesses the memory that the peer has exposed. Then it adds the completions to the queues of
//! both sides. During these steps the thread holds the lock of the [wire](wire::Wire). This lock is
//! taken after the connection's other locks.
//!
//! No file descriptor reports completions. When completions are added to a queue, the engine gets
//! the notice [`NoticeKind::Poll`](crate::poll::NoticeKind::Poll). The thread that posted the
//! work request first releases its locks, and then makes the engine handle the notices. An engine
//! without a thread handles them in the posting thread, so the peer's task is woken before a send
//! returns.
//!
//! Both sides of a connection share one engine.

mod completion_queue;
mod connection_id;
mod connection_manager;
mod copy;
mod create_transport;
mod listen_id;
mod queue_pair;
mod wire;

pub(crate) use self::{
    completion_queue::CompletionQueue,
    connection_id::ConnectionId,
    connection_manager::{ConnectRequest, ConnectionManager, Report},
    listen_id::ListenId,
    queue_pair::QueuePair,
    wire::WireControl,
};
