//! Facts about this machine, for error texts, memory limits and relaxed ordering.
//!
//! The amount of memory is determined when an engine starts, for its default limits, and the kind
//! of processor when the first device is used. All other facts are read from `/dev`, `/sys` and
//! `/proc` when an error is created. They are hints for a person; a fact that cannot be read is
//! missing from the error text.
//!
//! Connections that succeed use only these facts:
//!
//! * the address of a device that replaces `0.0.0.0`;
//! * the network interface of a link-local address;
//! * whether the processor needs relaxed ordering.

mod access;
mod addresses;
mod memory;
#[cfg(feature = "rdma")]
mod processor;

#[cfg(test)]
mod testing;

pub use self::access::Denied;
#[cfg(feature = "rdma")]
pub(crate) use self::processor::prefers_relaxed_ordering;
pub(crate) use self::{
    access::{all_denied, denied, is_container},
    addresses::{has_rdma_device, rdma_addresses},
    memory::usable_memory,
};
