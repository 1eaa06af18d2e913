//! Memory that devices, the kernel or peers access concurrently with threads of this program.
//!
//! Only this module of the workspace maps pages and reads bytes that may change at any time.

mod mapping;
mod placement;
mod shared_bytes;

pub use self::{mapping::Mapping, shared_bytes::SharedBytes};
