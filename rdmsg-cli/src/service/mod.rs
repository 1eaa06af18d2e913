//! The services that `rdmsg serve` provides to other commands. The first message of a connection
//! names a service.

mod client;
mod request;
mod unserved;

pub(crate) use self::{
    client::{addresses, ask},
    request::{Answer, Request},
    unserved::Unserved,
};

/// The default port of `rdmsg serve`.
pub(crate) const PORT: u16 = 7471;
