//! The first implementation of a [transport](super): a reliable-connected queue pair of an RDMA
//! device.

mod connection_id;
mod connection_manager;
mod device;
mod device_counters;
mod in_flight;
mod inbound_pool;
mod layout;
mod listen_id;
mod memory;
mod one_sided;
mod outbound_pool;
mod poll_side;
mod recv_slice;
mod region;
mod send_slots;
mod share;
mod shared_receives;
mod transport;
mod work_id;
mod work_queues;

pub(crate) use self::{
    connection_id::ConnectionId,
    connection_manager::{ConnectRequest, ConnectionManager, Event, Report},
    inbound_pool::InboundBuffer,
    listen_id::ListenId,
    memory::Memory,
    one_sided::{Checked, OneSided},
    outbound_pool::{Exposed, OutboundBuffer},
    poll_side::{BATCH, CompletionEvents, Done, PollSide},
    recv_slice::RecvSlice,
    send_slots::{Outcome, Posted},
    share::Share,
    transport::Transport,
    work_queues::WorkQueues,
};
pub use self::{
    device_counters::DeviceCounters,
    region::{Region, RemoteRegion},
};
