//! Code shared by `ping` and `bench`: measured times, and units.

mod times;
mod units;

pub(crate) use self::{
    times::{Bucket, Summary, Times},
    units::{Size, bytes_per_second, micros, per_second},
};
