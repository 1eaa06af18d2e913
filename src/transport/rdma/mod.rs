//! The first implementation of a [transport](super): a reliable-connected queue pair of an RDMA
//! device.

mod books;
mod device;
mod device_counters;
mod in_flight;
mod inbound_pool;
mod layout;
mod manager;
mod memory;
mod one_sided;
mod outbound_pool;
mod poll_side;
mod port;
mod recv_slice;
mod region;
mod rings;
mod setup;
mod share;
mod shared_receives;
mod transport;
mod work_id;

pub use self::{
    device_counters::DeviceCounters,
    region::{Region, RemoteRegion},
};
pub(crate) use self::{
    in_flight::{Outcome, Posted},
    inbound_pool::InboundBuffer,
    manager::{ConnectRequest, Event, Manager, Report},
    memory::Memory,
    one_sided::{Checked, OneSided},
    outbound_pool::{Exposed, OutboundBuffer},
    poll_side::{BATCH, CompletionEvents, Done, PollSide},
    port::Port,
    recv_slice::RecvSlice,
    rings::Rings,
    setup::Setup,
    share::Share,
    transport::Transport,
};
