//! Memory that others than this program's threads access: devices, the kernel and peers.
//!
//! No other module makes pages or reads bytes that may change at any time.

mod mapping;
mod shared_bytes;

pub use self::{mapping::Mapping, shared_bytes::SharedBytes};
