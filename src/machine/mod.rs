//! What this machine tells about its configuration, for the texts of errors.
//!
//! Everything is looked up in `/dev`, `/sys` and `/proc` when an error is created, never before and
//! never on a path that succeeds. The answers are guesses for a person to read: no behaviour of the
//! crate depends on them, and a lookup that fails leaves its part of the text out.

mod access;
mod addresses;
mod container;

#[cfg(test)]
mod testing;

pub use self::access::Denied;
pub(crate) use self::{
    access::{all_denied, denied},
    addresses::rdma_addresses,
    container::is_container,
};
