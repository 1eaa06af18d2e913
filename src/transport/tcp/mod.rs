//! The [transport](super) over TCP: a reliable-connected queue pair in user space.
//!
//! PROTOCOL.md describes the bytes on the stream.
//!
//! The polling thread drives the stream: it receives, executes requests of the peer, and sends
//! answers. Payload is received directly into its destination: a receive buffer, the memory of a
//! message in fragments, the target of a READ, or the target of a WRITE by the peer. Only bytes
//! that were received together with a header are copied. If no other bytes wait to be sent, a frame
//! of more than 1 KiB with a contiguous payload is written to the socket from the caller's memory.
//! Only the bytes that do not fit into the socket's send buffer are then copied to the frame's slot
//! in the send ring.
//!
//! For a short message, a system call costs more than the library's own work. So a thread that
//! waits for a message blocks in recv(2), without a separate system call for the wait. The thread
//! holds the receiver's lock while it blocks. A thread waits in this way only if it waits for
//! nothing but messages, its deadline is more than 5 s away, and no event loop watches the
//! connection. If at least 128 KiB of a payload are missing, the thread sleeps until all of these
//! bytes or 256 KiB have arrived (SO_RCVLOWAT), but for at most 50 ms. All other waiting threads
//! sleep until the socket is readable. The socket stays readable while it has bytes, so no event
//! has to be requested. The engine's thread handles two conditions that do not make the socket
//! readable: bytes remain in the staging buffer after a batch, or the socket's send buffer has
//! space again after it was full.
//!
//! The end of the stream is reported as a completion that follows the completions of all received
//! frames. The thread that polls this completion also flushes the work requests, so the close needs
//! no other thread.
//!
//! An acknowledgement is sent together with the next frame in two cases: a signalled request of the
//! peer is not acknowledged yet, or at least 8 requests are not acknowledged yet. For a signalled
//! request, an acknowledgement is sent alone in three cases: a poll finds nothing, the polling
//! thread is about to sleep, or the thread that polled will not wait (`Answers::AtOnce`).
//!
//! The most recently posted receive is used first. So a connection allocates memory only for the
//! maximum number of buffers that it has used at the same time. This memory is mapped in pieces of
//! at most 256 KiB.

mod completion_queue;
mod connection_id;
mod connection_manager;
mod create_transport;
mod event;
mod incoming_payload;
mod keys;
mod listen_id;
mod memory_region;
mod queue_pair;
mod receive_queue;
mod receiver;
mod request;
mod scratch;
mod send_queue;
mod setup;
mod setup_message;
mod silent_peers;
mod socket;
#[cfg(test)]
mod socket_errors;
mod stream;
mod write_parts;
mod writing;

pub(crate) use self::{
    completion_queue::{CompletionEvents, CompletionQueue},
    connection_id::ConnectionId,
    connection_manager::{ConnectRequest, ConnectionManager, Report},
    event::Event,
    listen_id::ListenId,
    memory_region::{Domain, MemoryRegion},
    queue_pair::{QueuePair, SharedReceiveQueue},
    socket::{HopLimit, WAITS_FOR},
    stream::Reserved,
};
// Items for in-memory connections.
pub(super) use self::{
    event::EventKind,
    keys::{ExposedPart, Keys, Right},
    receive_queue::{Receive, ReceiveQueue, Unposted},
    receiver::apply,
    request::Request,
    socket::Span,
};
