//! Registered memory: for received messages, for messages to send, and for one-sided operations.

mod allocator;
mod domain;
mod exposed;
mod inbound_pool;
mod outbound_pool;
mod recv_slice;
mod region;

pub(crate) use self::{
    allocator::Allocator,
    domain::{Domain, Registration},
    exposed::{Exposed, WINDOWS, Window},
    inbound_pool::{InboundBuffer, InboundPool},
    outbound_pool::OutboundBuffer,
    recv_slice::{RecvSlice, received_bytes},
};
pub use self::{
    domain::DeviceCounters,
    region::{Region, RemoteRegion},
};
