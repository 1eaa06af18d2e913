//! Memory that others than this program's threads access: devices, the kernel and peers.
//!
//! Nobody else makes pages or looks at bytes that may change at any time.

mod mapping;
mod shared_bytes;

pub use self::{mapping::Mapping, shared_bytes::SharedBytes};
