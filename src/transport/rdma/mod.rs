//! The first implementation of a [transport](super): a reliable-connected queue pair of an RDMA
//! device.

mod books;
mod device;
mod device_counters;
mod in_flight;
mod inbound_pool;
mod layout;
mod memory;
mod one_sided;
mod outbound_pool;
mod poll_side;
mod recv_slice;
mod region;
mod rings;
mod share;
mod shared_receives;
mod transport;
mod work_id;

pub(crate) use self::{
    device::{Device, Devices},
    in_flight::{Outcome, Posted},
    inbound_pool::InboundBuffer,
    memory::Memory,
    one_sided::{Checked, OneSided},
    outbound_pool::{Exposed, OutboundBuffer},
    poll_side::{BATCH, CompletionEvents, Done, PollSide},
    recv_slice::RecvSlice,
    rings::Rings,
    share::Share,
    transport::Transport,
};
pub use self::{
    device_counters::DeviceCounters,
    region::{Region, RemoteRegion},
};
