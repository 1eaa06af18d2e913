//! The configuration of this machine, for the texts of errors, and its memory.
//!
//! The memory is looked up when an engine starts, for its default limits. Everything else is looked
//! up in `/dev`, `/sys` and `/proc` when an error is created. These answers are guesses for a
//! person to read, and a lookup that fails leaves its part of the text out. Of connections that
//! succeed, the addresses alone depend on this module: the device's address that stands for
//! `0.0.0.0`, and the network interface of a link-local address.

mod access;
mod addresses;
mod memory;

#[cfg(test)]
mod testing;

pub use self::access::Denied;
pub(crate) use self::{
    access::{all_denied, denied, is_container},
    addresses::rdma_addresses,
    memory::usable_memory,
};
