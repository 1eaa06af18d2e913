//! Memory that a device may access: protection domains, and the regions registered in them.
//!
//! The bytes of a region are copied in and out by `shared_bytes.rs` only, because the device may
//! change them at any time. Uses `device`.

mod access;
mod device_memory;
mod mapping;
mod memory_region;
mod protection_domain;
mod shared_bytes;

pub use access::AccessFlags;
pub use device_memory::DeviceMemory;
pub(crate) use mapping::Mapping;
pub use memory_region::{Advice, MemoryRegion};
pub use protection_domain::ProtectionDomain;
