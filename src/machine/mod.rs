//! Facts about this machine.
//!
//! Successful operations use only these facts:
//!
//! * the amount of memory, for the default limits of an engine;
//! * the addresses of the RDMA devices, for a connection to `0.0.0.0` or `[::]` over RDMA;
//! * whether the processor prefers relaxed ordering, when RDMA devices are used.
//!
//! All other facts are read from `/dev`, `/sys` and `/proc` when an operation fails or finds no
//! RDMA device. They are hints for the person who reads the error text or log line. The text or
//! line omits a fact that cannot be read.

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
