//! Ids. Each id is a connection, a listener or a datagram socket.
//!
//! `cm_id.rs` defines the type. Each other file defines a group of its methods.

// Declared first so that the documentation of `CmId` begins with `new`.
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
