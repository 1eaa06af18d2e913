//! The services that `rdmsg serve` provides to other commands. The first message of a connection
//! names a service.

mod client;
mod request;

pub(crate) use self::{
    client::{Unserved, addresses, ask, connect},
    request::{Answer, Request},
};

/// The default port of `rdmsg serve`.
pub(crate) const PORT: u16 = 7471;
