//! What ping and bench share: connections to `rdmsg serve`, times, and how they are written.

mod connect;
mod times;
mod units;

pub(crate) use self::{
    connect::connect,
    times::Times,
    units::{Size, bytes_per_second, micros, per_second},
};
