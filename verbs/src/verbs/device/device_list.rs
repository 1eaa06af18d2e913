#![allow(unsafe_code)]

use std::{fmt, ptr::NonNull, sync::Arc};

use rdma_status::OsError;

use super::{
    Context,
    identity::{self, NodeType, TransportType},
};
use crate::sys::{cvt_ptr, ffi};

/// The RDMA devices that this host had when the list was created.
///
/// See
/// [`ibv_get_device_list(3)`](https://man7.org/linux/man-pages/man3/ibv_get_device_list.3.html).
#[derive(Debug, Clone)]
pub struct DeviceList {
    devices: Vec<Device>,
}

/// An RDMA device of a [`DeviceList`]. The device need not be open. Clones refer to the same
/// device.
#[derive(Clone)]
#[doc(alias = "ibv_device")]
pub struct Device {
    raw: NonNull<ffi::ibv_device>,
    /// The list that contains `raw`. `raw` is valid while this list exists.
    _list: Arc<RawList>,
}

struct RawList(NonNull<*mut ffi::ibv_device>);

// SAFETY: libibverbs allows any thread to free the list.
unsafe impl Send for RawList {}
// SAFETY: no method of `RawList` accesses the list through a shared reference.
unsafe impl Sync for RawList {}
// SAFETY: libibverbs does not change a device that a list contains, and any thread may call the
// functions of libibverbs on the device.
unsafe impl Send for Device {}
// SAFETY: libibverbs does not change a device that a list contains, and several threads may call
// the functions of libibverbs on the device concurrently.
unsafe impl Sync for Device {}

impl DeviceList {
    /// Creates a list of the RDMA devices of this host. The list is empty if the host has no RDMA
    /// devices.
    ///
    /// # Errors
    ///
    /// Returns `ENOSYS` if the kernel has not loaded its RDMA support. Without the feature
    /// `linked`, also returns `ELIBACC` if libibverbs or librdmacm cannot be opened, and `ELIBBAD`
    /// if one of these libraries lacks a function. Other errors are those of
    /// [`ibv_get_device_list(3)`].
    ///
    /// [`ibv_get_device_list(3)`]: https://man7.org/linux/man-pages/man3/ibv_get_device_list.3.html
    #[doc(alias = "ibv_get_device_list")]
    pub fn new() -> Result<Self, OsError> {
        ffi::open_libraries()?;
        let mut count = 0;
        // SAFETY: `count` is a local variable that the function may write.
        let raw = cvt_ptr("ibv_get_device_list", || unsafe {
            ffi::ibv_get_device_list(&raw mut count)
        })?;
        let list = Arc::new(RawList(raw));
        let count = usize::try_from(count).unwrap_or(0);
        // SAFETY: `raw` points to an array of `count` pointers, which exists until `list` is
        // dropped.
        let devices = unsafe { std::slice::from_raw_parts(raw.as_ptr(), count) };
        let devices = devices
            .iter()
            .filter_map(|&device| NonNull::new(device))
            .map(|raw| Device {
                raw,
                _list: Arc::clone(&list),
            })
            .collect();
        Ok(Self { devices })
    }

    /// Returns an iterator over the devices.
    pub fn iter(&self) -> std::slice::Iter<'_, Device> {
        self.devices.iter()
    }

    /// Returns the number of devices.
    #[must_use]
    pub fn len(&self) -> usize {
        self.devices.len()
    }

    /// Returns whether the list contains no device.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.devices.is_empty()
    }

    /// Returns the device with this name, for example `rxe0`. Returns `None` if the list contains
    /// no such device.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&Device> {
        self.iter().find(|device| device.name() == name)
    }
}

impl<'a> IntoIterator for &'a DeviceList {
    type Item = &'a Device;
    type IntoIter = std::slice::Iter<'a, Device>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl IntoIterator for DeviceList {
    type Item = Device;
    type IntoIter = std::vec::IntoIter<Device>;

    fn into_iter(self) -> Self::IntoIter {
        self.devices.into_iter()
    }
}

impl Device {
    /// Returns the device's name, for example `rxe0`.
    #[must_use]
    #[doc(alias = "ibv_get_device_name")]
    pub fn name(&self) -> String {
        // SAFETY: `self._list` keeps the device alive.
        unsafe { identity::name(self.raw.as_ptr()) }
    }

    /// Returns the device's GUID.
    ///
    /// The number `0x0002_c903_0000_1234` is usually written `0002:c903:0000:1234`.
    #[must_use]
    #[doc(alias = "ibv_get_device_guid")]
    pub fn guid(&self) -> u64 {
        // SAFETY: `self._list` keeps the device alive.
        unsafe { identity::guid(self.raw.as_ptr()) }
    }

    /// Returns the node type of the device, for example [`NodeType::RNIC`] for an iWARP adapter.
    #[must_use]
    pub fn node_type(&self) -> NodeType {
        // SAFETY: `self._list` keeps the device alive.
        unsafe { identity::node_type(self.raw.as_ptr()) }
    }

    /// Returns the transport that the device implements, for example iWARP. RoCE devices implement
    /// the InfiniBand transport.
    #[must_use]
    pub fn transport_type(&self) -> TransportType {
        // SAFETY: `self._list` keeps the device alive.
        unsafe { identity::transport_type(self.raw.as_ptr()) }
    }

    /// Opens the device. Afterwards the program may drop the list and this `Device`.
    ///
    /// # Errors
    ///
    /// Returns the errors of
    /// [`ibv_open_device(3)`](https://man7.org/linux/man-pages/man3/ibv_open_device.3.html).
    #[doc(alias = "ibv_open_device")]
    pub fn open(&self) -> Result<Context, OsError> {
        // SAFETY: `self._list` keeps the device alive.
        let raw = cvt_ptr("ibv_open_device", || unsafe {
            ffi::ibv_open_device(self.raw.as_ptr())
        })?;
        // SAFETY: `raw` was just opened, and no other code refers to it.
        Ok(unsafe { Context::opened(raw) })
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("name", &self.name())
            .finish_non_exhaustive()
    }
}

impl Drop for RawList {
    fn drop(&mut self) {
        // SAFETY: `ibv_get_device_list` created the list, and only this `drop` frees it. Open
        // contexts stay valid, because each of them owns a reference to its C device.
        unsafe { ffi::ibv_free_device_list(self.0.as_ptr()) };
    }
}
