//! Memory that devices, the kernel or peers access concurrently with threads of this program.
//!
//! No other module of the workspace maps pages, or reads bytes that may change at any time.

mod mapping;
mod placement;
mod shared_bytes;

pub use self::{mapping::Mapping, shared_bytes::SharedBytes};
