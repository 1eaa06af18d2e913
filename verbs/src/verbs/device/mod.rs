//! The devices of this host, whether open or not, and their attributes.
//!
//! All other objects of `verbs` are created from a [`Context`]. This module does not depend on the
//! modules that define those objects.

mod async_event;
mod context;
mod device_attr;
mod device_attr_ex;
mod device_list;
mod gid;
mod identity;
mod port_attr;

pub use async_event::{AsyncElement, AsyncEvent, AsyncEventType};
pub use context::Context;
pub use device_attr::{AtomicCap, DeviceAttr, DeviceCapFlags};
pub use device_attr_ex::{DeviceAttrEx, OdpCaps, OdpTransportCaps};
pub use device_list::{Device, DeviceList};
pub use gid::{Gid, GidEntry, GidType};
pub use identity::{NodeType, TransportType};
pub use port_attr::{LinkLayer, Mtu, PortAttr, PortState};
