//! Memory that a device may access: protection domains, and the memory regions and memory windows
//! in them.
//!
//! The device may change the bytes of a region at any time. Therefore this module never borrows the
//! bytes, but copies them in and out through `SharedBytes`. This module uses the module `device`.

mod device_memory;
mod memory_region;
mod memory_window;
mod protection_domain;
mod thread_domain;

pub use device_memory::DeviceMemory;
pub use memory_region::{AccessFlags, Advice, MemoryRegion};
pub use memory_window::MemoryWindow;
pub use protection_domain::ProtectionDomain;
pub use thread_domain::ThreadDomain;
