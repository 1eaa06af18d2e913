//! The configuration of this machine, for the texts of errors, its memory and its processor.
//!
//! The memory is looked up when an engine starts, for its default limits, and the processor when
//! the first device is used. Everything else is looked up in `/dev`, `/sys` and `/proc` when an
//! error is created. These answers are hints for a person, and a lookup that fails omits its part
//! of the text. Connections that succeed depend on this module in two ways. It determines
//! addresses: the device's address that replaces `0.0.0.0`, and the network interface of a
//! link-local address. And it decides by the processor whether relaxed ordering is used.

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
