//! The [transport](super) over RDMA: a reliable-connected queue pair of a device.

mod completion_queue;
mod connection_id;
mod connection_manager;
mod create_transport;
mod device;
mod device_events;
mod domain;
mod listen_id;
mod queue_pair;
mod thread_domains;
mod windows;

pub(crate) use crate::verbs::{MemoryRegion, MemoryWindow};

pub(crate) use self::{
    completion_queue::{CompletionEvents, CompletionQueue},
    connection_id::ConnectionId,
    connection_manager::{ConnectRequest, ConnectionManager, Event, Report},
    domain::Domain,
    listen_id::ListenId,
    queue_pair::{QueuePair, SharedReceiveQueue},
};
