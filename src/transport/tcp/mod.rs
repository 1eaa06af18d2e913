//! The [transport](super) over TCP: a reliable-connected queue pair in user space.
//!
//! PROTOCOL.md describes the bytes on the stream.
//!
//! The polling thread drives the stream: it receives, executes requests of the peer, and sends
//! answers. Payload is received directly into its receive buffer, or into the target of a READ,
//! except for bytes that were received together with a header. Sends are written to the socket from
//! the caller's memory. Only the bytes for which the socket has no room are copied to the slot in
//! the send ring.
//!
//! A thread that waits for a message blocks in recv(2) while it holds the receiver's lock, because
//! a system call costs more than the library's own work on a short message. A thread does so only
//! if it waits for messages alone, its deadline is more than 5 s away, and no event loop watches
//! the connection. For a long payload a thread sleeps until 256 KiB have arrived (SO_RCVLOWAT), or
//! for 50 ms. Other threads sleep on the socket, which stays readable while it has bytes, so no
//! event has to be requested. The engine's thread handles two conditions that do not make the
//! socket readable: bytes remain in the staging buffer after a batch, or a full send buffer of the
//! socket has space again.
//!
//! The end of the stream is a completion behind those of the received frames. The polling thread
//! flushes the work requests in the same poll, so the close needs no other thread.
//!
//! An acknowledgement is sent together with the next frame, if a request of the peer is signalled
//! or 8 requests are not acknowledged. For a signalled request it is sent alone when a poll finds
//! nothing, before the thread sleeps, or when the engine starts to poll the connection.
//!
//! The receive that was posted last is used first. So a connection has memory only for the maximum
//! number of buffers that it has used at one time. This memory is mapped in pieces of at most 256
//! KiB.

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
