//! A [transport](super) over TCP: a reliable-connected queue pair in user space.
//!
//! PROTOCOL.md describes what travels on the stream.

mod addresses;
mod carrier;
mod coming;
mod completion_queue;
mod connection_id;
mod connection_manager;
mod create_transport;
mod event;
mod hop_limit;
mod keys;
mod listen_id;
mod memory_region;
mod queue_pair;
mod receive_queue;
mod receiver;
mod request;
mod send_queue;
mod setup;
mod setup_message;
mod silent_peers;
mod socket;
#[cfg(test)]
mod socket_errors;
mod stream;
mod watch;
mod write_parts;
mod writing;

pub(crate) use self::{
    completion_queue::{CompletionEvents, CompletionQueue},
    connection_id::ConnectionId,
    connection_manager::{ConnectRequest, ConnectionManager, Report},
    event::Event,
    hop_limit::HopLimit,
    listen_id::ListenId,
    memory_region::{Domain, MemoryRegion},
    queue_pair::{QueuePair, SharedReceiveQueue},
    socket::WAITS_FOR,
    stream::Reserved,
};
