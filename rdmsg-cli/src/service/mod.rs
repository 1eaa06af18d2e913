//! What `rdmsg serve` does for other commands: the first message of a connection says what.

mod client;
mod request;
mod unserved;

pub(crate) use self::{
    client::{addresses, ask},
    request::{Answer, Request},
    unserved::Unserved,
};

/// The port where nobody says another one.
pub(crate) const PORT: u16 = 7471;
