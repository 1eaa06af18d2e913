//! Ids: a connection, a listener or a datagram socket each.
//!
//! `cm_id.rs` has the type; each other file adds the calls of one subject to it.

// First, so that the documentation of `CmId` begins with `new`.
mod cm_id;

mod address;
mod connect;
mod multicast;
mod options;
mod queue_pair;
mod sync;

pub use self::{
    cm_id::{CmId, PortSpace},
    options::Ece,
};
