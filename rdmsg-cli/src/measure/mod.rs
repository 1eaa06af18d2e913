//! Code shared by `ping` and `bench`: connections to `rdmsg serve`, measured times, and units.

mod connect;
mod times;
mod units;

pub(crate) use self::{
    connect::connect,
    times::{Bucket, Summary, Times},
    units::{Size, bytes_per_second, micros, per_second},
};
