//! What this machine says of itself, for the texts of errors: looked up when something has gone
//! wrong, and never before.

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
