#![allow(unsafe_code)]

//! The name, GUID, node type and transport of a device. The device need not be open.

use std::ffi::CStr;

use rdma_status::open_enum;

use crate::sys::ffi;

open_enum! {
    /// The node type of a device: `enum ibv_node_type`.
    #[doc(alias = "ibv_node_type")]
    pub struct NodeType(i32);
    /// An InfiniBand or RoCE channel adapter.
    CA = 1;
    /// An InfiniBand switch.
    SWITCH = 2;
    /// An InfiniBand router.
    ROUTER = 3;
    /// An iWARP adapter.
    RNIC = 4;
    /// A usNIC adapter.
    USNIC = 5;
    /// A usNIC adapter over UDP.
    USNIC_UDP = 6;
    /// An adapter with a proprietary transport.
    UNSPECIFIED = 7;
}

open_enum! {
    /// The transport that a device implements: `enum ibv_transport_type`.
    #[doc(alias = "ibv_transport_type")]
    pub struct TransportType(i32);
    /// The InfiniBand transport, which RoCE also uses.
    IB = 0;
    /// iWARP.
    IWARP = 1;
    /// usNIC.
    USNIC = 2;
    /// usNIC over UDP.
    USNIC_UDP = 3;
    /// A proprietary transport.
    UNSPECIFIED = 4;
}

/// Returns a device's name.
///
/// # Safety
///
/// The device belongs to a device list that has not been freed, or to an open context.
pub(super) unsafe fn name(device: *mut ffi::ibv_device) -> String {
    // SAFETY: the caller guarantees that `device` exists.
    let name = unsafe { ffi::ibv_get_device_name(device) };
    if name.is_null() {
        return String::new();
    }
    // SAFETY: `name` points to a null-terminated string inside `device`. The string does not
    // change.
    unsafe { CStr::from_ptr(name) }
        .to_string_lossy()
        .into_owned()
}

/// Returns a device's GUID in host byte order.
///
/// # Safety
///
/// The device belongs to a device list that has not been freed, or to an open context.
pub(super) unsafe fn guid(device: *mut ffi::ibv_device) -> u64 {
    // SAFETY: the caller guarantees that `device` exists.
    u64::from_be(unsafe { ffi::ibv_get_device_guid(device) })
}

/// Returns a device's node type.
///
/// # Safety
///
/// The device belongs to a device list that has not been freed, or to an open context.
pub(super) unsafe fn node_type(device: *mut ffi::ibv_device) -> NodeType {
    // SAFETY: the caller guarantees that `device` exists. Its field `node_type` does not change.
    NodeType::from_raw(unsafe { (*device).node_type })
}

/// Returns a device's transport.
///
/// # Safety
///
/// The device belongs to a device list that has not been freed, or to an open context.
pub(super) unsafe fn transport_type(device: *mut ffi::ibv_device) -> TransportType {
    // SAFETY: the caller guarantees that `device` exists. Its field `transport_type` does not
    // change.
    TransportType::from_raw(unsafe { (*device).transport_type })
}
