#![allow(unsafe_code)]

//! The identity of a device, opened or not.

use std::ffi::CStr;

use rdma_status::open_enum;

use crate::sys::ffi;

open_enum! {
    /// The kind of node that a device is: `enum ibv_node_type`.
    #[doc(alias = "ibv_node_type")]
    pub struct NodeType(i32);
    /// A channel adapter: InfiniBand or RoCE.
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
    /// An adapter with a transport of its own.
    UNSPECIFIED = 7;
}

open_enum! {
    /// The transport that a device implements: `enum ibv_transport_type`.
    #[doc(alias = "ibv_transport_type")]
    pub struct TransportType(i32);
    /// InfiniBand's, which RoCE uses as well.
    IB = 0;
    /// iWARP.
    IWARP = 1;
    /// usNIC.
    USNIC = 2;
    /// usNIC over UDP.
    USNIC_UDP = 3;
    /// A transport of its own.
    UNSPECIFIED = 4;
}

/// Returns a device's name.
///
/// # Safety
///
/// The device is held by a list or open.
pub(super) unsafe fn name(device: *mut ffi::ibv_device) -> String {
    // SAFETY: the caller guarantees the conditions on the device.
    let name = unsafe { ffi::ibv_get_device_name(device) };
    if name.is_null() {
        return String::new();
    }
    // SAFETY: a string inside the device, terminated by zero; it does not change.
    unsafe { CStr::from_ptr(name) }
        .to_string_lossy()
        .into_owned()
}

/// Returns a device's GUID in host byte order.
///
/// # Safety
///
/// The device is held by a list or open.
pub(super) unsafe fn guid(device: *mut ffi::ibv_device) -> u64 {
    // SAFETY: the caller guarantees the conditions on the device.
    u64::from_be(unsafe { ffi::ibv_get_device_guid(device) })
}

/// Returns a device's node type.
///
/// # Safety
///
/// The device is held by a list or open.
pub(super) unsafe fn node_type(device: *mut ffi::ibv_device) -> NodeType {
    // SAFETY: the caller guarantees the conditions on the device; the field does not change.
    NodeType::from_raw(unsafe { (*device).node_type })
}

/// Returns a device's transport.
///
/// # Safety
///
/// The device is held by a list or open.
pub(super) unsafe fn transport_type(device: *mut ffi::ibv_device) -> TransportType {
    // SAFETY: the caller guarantees the conditions on the device; the field does not change.
    TransportType::from_raw(unsafe { (*device).transport_type })
}
