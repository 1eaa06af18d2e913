//! Memory that a device may access: protection domains, and the memory regions in them.
//!
//! A region's bytes are copied in and out as `SharedBytes` and never borrowed, because the device
//! may change them at any time. This module uses the module `device`.

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
