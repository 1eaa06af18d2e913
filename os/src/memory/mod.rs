//! Memory that not only threads of this program access, but also devices, the kernel or peers.
//!
//! All code of the workspace that maps pages, or reads bytes that may change at any time, is in
//! this module.

mod mapping;
mod placement;
mod shared_bytes;

pub use self::{mapping::Mapping, shared_bytes::SharedBytes};
