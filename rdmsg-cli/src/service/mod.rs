//! The services of `rdmsg serve` for other commands. The first message of a connection names one.

mod client;
mod request;
mod unserved;

pub(crate) use self::{
    client::{addresses, ask},
    request::{Answer, Request},
    unserved::Unserved,
};

/// The default port.
pub(crate) const PORT: u16 = 7471;
