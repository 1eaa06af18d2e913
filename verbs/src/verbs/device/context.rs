#![allow(unsafe_code)]

use std::{
    any::Any,
    collections::BTreeMap,
    fmt, fs,
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd},
    path::Path,
    ptr::NonNull,
    str::FromStr,
    sync::{Arc, Mutex},
};

use rdma_status::OsError;

use super::{
    AsyncEvent, DeviceAttr, DeviceAttrEx, GidEntry, PortAttr, async_event, gid,
    identity::{self, NodeType, TransportType},
};
use crate::{
    cm::SOFTWARE_VENDOR_IDS,
    sys::{PerProcess, Process, cvt_errno, ffi, lock, log_destroy_error, verbs_ext},
};

/// An open device. Clones refer to the same open device.
///
/// Either this process opened the device with [`Device::open`](crate::verbs::Device::open), or the
/// connection manager opened it and [`cm::Devices`](crate::cm::Devices) returned it. A program
/// cannot combine objects of different contexts, even if the contexts belong to the same device.
///
/// See [`ibv_open_device(3)`](https://man7.org/linux/man-pages/man3/ibv_open_device.3.html).
#[derive(Clone)]
#[doc(alias = "ibv_context")]
pub struct Context {
    inner: Arc<Inner>,
}

struct Inner {
    raw: NonNull<ffi::ibv_context>,
    /// The process that created this handle. Only this process closes the device.
    process: Process,
    owner: Owner,
}

enum Owner {
    /// The handle owns the device. The device is closed when the last clone of the handle is
    /// dropped.
    Opened,
    /// Another object owns the device, and closes it only after `_keep_alive` is dropped.
    Borrowed {
        _keep_alive: Arc<dyn Any + Send + Sync>,
    },
}

// SAFETY: libibverbs allows any thread to use and to close an open device.
unsafe impl Send for Inner {}
// SAFETY: several threads may concurrently call the C functions that this module uses on one
// device. The fields that this module reads do not change while the device is open.
unsafe impl Sync for Inner {}

/// The counters of [`Context::next_comp_vector`], one per device name. A counter starts at the
/// process id. Each call increments the counter of its device.
static NEXT_VECTORS: PerProcess<Mutex<BTreeMap<String, u32>>> = PerProcess::new(Mutex::default);

impl Context {
    /// Takes ownership of an open device.
    ///
    /// # Safety
    ///
    /// `raw` is open, and no other code closes it.
    pub(super) unsafe fn opened(raw: NonNull<ffi::ibv_context>) -> Self {
        Self {
            inner: Arc::new(Inner {
                raw,
                process: Process::this(),
                owner: Owner::Opened,
            }),
        }
    }

    /// Borrows an open device that another object will close.
    ///
    /// # Safety
    ///
    /// `raw` stays open until `keep_alive` is dropped.
    pub(crate) unsafe fn borrowed(
        raw: NonNull<ffi::ibv_context>,
        keep_alive: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        Self {
            inner: Arc::new(Inner {
                raw,
                process: Process::this(),
                owner: Owner::Borrowed {
                    _keep_alive: keep_alive,
                },
            }),
        }
    }

    /// Returns the C object, which stays open until the last clone of this handle is dropped.
    pub(crate) fn as_ptr(&self) -> *mut ffi::ibv_context {
        self.inner.raw.as_ptr()
    }

    /// Returns a number that is unique among the open devices of this process.
    ///
    /// After this device is closed, a device that is opened later may have the same number.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.as_ptr().addr() as u64
    }

    /// Returns the device's name, for example `rxe0`.
    #[must_use]
    #[doc(alias = "ibv_get_device_name")]
    pub fn device_name(&self) -> String {
        // SAFETY: `self.device()` belongs to an open context, so it exists.
        unsafe { identity::name(self.device()) }
    }

    /// Returns the device's GUID.
    ///
    /// The number `0x0002_c903_0000_1234` is usually written `0002:c903:0000:1234`.
    #[must_use]
    #[doc(alias = "ibv_get_device_guid")]
    pub fn guid(&self) -> u64 {
        // SAFETY: `self.device()` belongs to an open context, so it exists.
        unsafe { identity::guid(self.device()) }
    }

    /// Returns the node type of the device, for example [`NodeType::RNIC`] for an iWARP adapter.
    #[must_use]
    pub fn node_type(&self) -> NodeType {
        // SAFETY: `self.device()` belongs to an open context, so it exists.
        unsafe { identity::node_type(self.device()) }
    }

    /// Returns the transport that the device implements, for example iWARP. RoCE devices implement
    /// the InfiniBand transport.
    #[must_use]
    pub fn transport_type(&self) -> TransportType {
        // SAFETY: `self.device()` belongs to an open context, so it exists.
        unsafe { identity::transport_type(self.device()) }
    }

    /// Queries the device's capabilities and limits.
    ///
    /// # Errors
    ///
    /// Returns the errors of
    /// [`ibv_query_device(3)`](https://man7.org/linux/man-pages/man3/ibv_query_device.3.html).
    #[doc(alias = "ibv_query_device")]
    pub fn query_device(&self) -> Result<DeviceAttr, OsError> {
        let mut attr = MaybeUninit::zeroed();
        // SAFETY: `self` keeps the context open, and `attr` is a local variable.
        cvt_errno("ibv_query_device", || unsafe {
            ffi::ibv_query_device(self.as_ptr(), attr.as_mut_ptr())
        })?;
        // SAFETY: `ibv_device_attr` consists of integers. `attr` was zeroed, and the call filled it
        // in.
        Ok(DeviceAttr::from_raw(unsafe { attr.assume_init() }))
    }

    /// Queries the device's extended capabilities, for example on-demand paging, timestamps and
    /// device memory.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`ibv_query_device_ex(3)`].
    ///
    /// [`ibv_query_device_ex(3)`]: https://man7.org/linux/man-pages/man3/ibv_query_device_ex.3.html
    #[doc(alias = "ibv_query_device_ex")]
    pub fn query_device_ex(&self) -> Result<DeviceAttrEx, OsError> {
        let mut attr = MaybeUninit::zeroed();
        // SAFETY: `self` keeps the context open, and `attr` is a zeroed local variable.
        cvt_errno("ibv_query_device_ex", || unsafe {
            verbs_ext::ibv_query_device_ex(self.as_ptr(), attr.as_mut_ptr())
        })?;
        // SAFETY: `ibv_device_attr_ex` consists of integers. `attr` was zeroed, and the call filled
        // it in.
        Ok(DeviceAttrEx::from_raw(unsafe { attr.assume_init() }))
    }

    /// Queries the state and properties of a port. Ports are numbered from 1.
    ///
    /// # Errors
    ///
    /// Returns the errors of
    /// [`ibv_query_port(3)`](https://man7.org/linux/man-pages/man3/ibv_query_port.3.html), for
    /// example `EINVAL` if the port does not exist.
    #[doc(alias = "ibv_query_port")]
    pub fn query_port(&self, port: u8) -> Result<PortAttr, OsError> {
        let mut attr = MaybeUninit::zeroed();
        // SAFETY: `self` keeps the context open, and `attr` is a zeroed local variable.
        cvt_errno("ibv_query_port", || unsafe {
            verbs_ext::ibv_query_port(self.as_ptr(), port, attr.as_mut_ptr())
        })?;
        // SAFETY: `ibv_port_attr` consists of integers. `attr` was zeroed, and the call filled it
        // in.
        Ok(PortAttr::from_raw(unsafe { attr.assume_init() }))
    }

    /// Queries one entry of a port's GID table, together with its type. Ports are numbered from 1.
    ///
    /// # Errors
    ///
    /// Returns the errors of
    /// [`ibv_query_gid_ex(3)`](https://man7.org/linux/man-pages/man3/ibv_query_gid_ex.3.html), for
    /// example `ENODATA` if the entry is empty, and `EINVAL` if the port or the index does not
    /// exist.
    #[doc(alias = "ibv_query_gid_ex")]
    #[doc(alias = "ibv_query_gid")]
    pub fn query_gid(&self, port: u8, index: u32) -> Result<GidEntry, OsError> {
        let mut entry = MaybeUninit::zeroed();
        // SAFETY: `self` keeps the context open, and `entry` is a local variable.
        cvt_errno("ibv_query_gid_ex", || unsafe {
            verbs_ext::ibv_query_gid_ex(self.as_ptr(), port.into(), index, entry.as_mut_ptr())
        })?;
        // SAFETY: `ibv_gid_entry` consists of integers. `entry` was zeroed, and the call filled it
        // in.
        Ok(GidEntry::from_raw(unsafe { entry.assume_init() }))
    }

    /// Queries the non-empty entries of a port's GID table. Ports are numbered from 1.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`query_port`](Self::query_port), of
    /// [`query_device`](Self::query_device) and of [`ibv_query_gid_table(3)`].
    ///
    /// [`ibv_query_gid_table(3)`]: https://man7.org/linux/man-pages/man3/ibv_query_gid_table.3.html
    #[doc(alias = "ibv_query_gid_table")]
    pub fn gid_table(&self, port: u8) -> Result<Vec<GidEntry>, OsError> {
        // `gid::all` reads the tables of all ports, and succeeds even if this port does not exist.
        // Therefore check first that the port exists.
        self.query_port(port)?;
        let mut len = 0;
        for port in 1..=self.query_device()?.phys_port_cnt() {
            len += self.query_port(port)?.gid_tbl_len() as usize;
        }
        // SAFETY: `self` keeps the context open.
        let mut entries = unsafe { gid::all(self.as_ptr(), len) }?;
        entries.retain(|entry| entry.port_num == u32::from(port));
        Ok(entries)
    }

    /// Queries an entry of a port's partition key (P_Key) table. Ports are numbered from 1.
    ///
    /// # Errors
    ///
    /// Returns the errors of
    /// [`ibv_query_pkey(3)`](https://man7.org/linux/man-pages/man3/ibv_query_pkey.3.html).
    #[doc(alias = "ibv_query_pkey")]
    pub fn query_pkey(&self, port: u8, index: u16) -> Result<u16, OsError> {
        let mut pkey = 0;
        // SAFETY: `self` keeps the context open, and `pkey` is a local variable.
        cvt_errno("ibv_query_pkey", || unsafe {
            ffi::ibv_query_pkey(self.as_ptr(), port, index.into(), &raw mut pkey)
        })?;
        Ok(u16::from_be(pkey))
    }

    /// Reads a hardware counter of a port. Returns `None` if the port has no counter with this
    /// name, or if the counter cannot be read.
    ///
    /// The counters are the files in `/sys/class/infiniband/DEVICE/ports/PORT/hw_counters`. Their
    /// names depend on the driver; the command `rdma statistic` lists them.
    #[must_use]
    pub fn hw_counter(&self, port: u8, name: &str) -> Option<u64> {
        let device = self.device_name();
        let path = format!("/sys/class/infiniband/{device}/ports/{port}/hw_counters/{name}");
        read_number(Path::new(&path))
    }

    /// Returns the NUMA node to which the device is attached, as the kernel reports it.
    ///
    /// Returns `None` for software devices. On most hosts with one processor socket, returns `None`
    /// for all devices.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use rdma_verbs::verbs::Context;
    /// # fn main() {}
    /// # fn show(context: &Context) {
    /// if let Some(node) = context.numa_node() {
    ///     println!("start the program with: numactl --cpunodebind={node}");
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn numa_node(&self) -> Option<u32> {
        let file = format!(
            "/sys/class/infiniband/{}/device/numa_node",
            self.device_name()
        );
        read_number(Path::new(&file))
    }

    /// Returns the number of the device's completion vectors. Each completion vector is an
    /// interrupt with which the device signals events of completion queues.
    #[must_use]
    pub fn num_comp_vectors(&self) -> u32 {
        // SAFETY: `self` keeps the context open, and the field `num_comp_vectors` does not change.
        let vectors = unsafe { (*self.as_ptr()).num_comp_vectors };
        u32::try_from(vectors).unwrap_or(0)
    }

    /// Returns a completion vector of the device. Successive calls in this process return the
    /// vectors in rotation.
    ///
    /// The first call returns a vector that depends on the process id. Without this rule, many
    /// processes with few queues would all use the same vectors.
    #[must_use]
    pub fn next_comp_vector(&self) -> u32 {
        let mut counters = lock(NEXT_VECTORS.get());
        let counter = counters
            .entry(self.device_name())
            .or_insert_with(std::process::id);
        *counter = counter.wrapping_add(1);
        *counter % self.num_comp_vectors().max(1)
    }

    /// Returns the descriptor that is readable while an asynchronous event is pending.
    #[must_use]
    pub fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: `self` keeps the context open, and the field `async_fd` does not change.
        let fd = unsafe { (*self.as_ptr()).async_fd };
        // SAFETY: libibverbs keeps `fd` open until the context is closed, and `self` keeps the
        // context open.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// Returns true if this process may read the device's asynchronous events. Returns false in a
    /// forked child that shares the descriptor for these events with its parent.
    ///
    /// A forked child has its own descriptors for software devices that the connection manager
    /// opened. The child shares the descriptors of all other devices that its parent opened. The
    /// child must not read events from a shared descriptor, because an event may concern an object
    /// that belongs to the parent.
    #[must_use]
    pub fn has_own_events(&self) -> bool {
        match self.inner.owner {
            Owner::Opened => self.inner.process.is_this(),
            Owner::Borrowed { .. } => {
                !Process::is_child()
                    || self
                        .query_device()
                        .is_ok_and(|attr| SOFTWARE_VENDOR_IDS.contains(&attr.vendor_id()))
            }
        }
    }

    /// Reads an asynchronous event and acknowledges the event. Returns `None` if no event is
    /// pending. Never blocks.
    ///
    /// The first call makes [`async_fd`](Self::async_fd) non-blocking. Each event is returned to
    /// only one caller. If two parts of a program read events of the same context, each part misses
    /// the events that the other part reads.
    ///
    /// # Errors
    ///
    /// Returns `EIO` after the device has been removed. Otherwise returns the errors of
    /// [`ibv_get_async_event(3)`].
    ///
    /// [`ibv_get_async_event(3)`]: https://man7.org/linux/man-pages/man3/ibv_get_async_event.3.html
    #[doc(alias = "ibv_get_async_event")]
    #[doc(alias = "ibv_ack_async_event")]
    pub fn poll_async_event(&self) -> Result<Option<AsyncEvent>, OsError> {
        // SAFETY: `self` keeps the context open, and `async_fd` returns its descriptor for
        // asynchronous events.
        unsafe { async_event::poll(self.as_ptr(), self.async_fd()) }
    }

    /// Returns true if `self` and `other` refer to the same open device. A program cannot combine
    /// objects of different open devices.
    pub(crate) fn is_same_device(&self, other: &Self) -> bool {
        self.inner.raw == other.inner.raw
    }

    fn device(&self) -> *mut ffi::ibv_device {
        // SAFETY: `self` keeps the context open, and the field `device` does not change.
        unsafe { (*self.as_ptr()).device }
    }
}

/// Returns the number in a file of sysfs. Returns `None` if the file cannot be read, or if it
/// contains no number of this type. For example, the kernel writes −1 for a device without a NUMA
/// node.
fn read_number<N: FromStr>(file: &Path) -> Option<N> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

impl AsFd for Context {
    /// Returns the descriptor that is readable while an asynchronous event is pending.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.async_fd()
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("device", &self.device_name())
            .finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.process.is_this() {
            // This process is a forked child, and the device belongs to the parent.
            return;
        }
        match self.owner {
            Owner::Opened => {
                // SAFETY: `Device::open` opened the context, and only this `drop` closes it. Each
                // object on the context owned a handle to the context, so all of these objects have
                // been destroyed.
                log_destroy_error(cvt_errno("ibv_close_device", || unsafe {
                    ffi::ibv_close_device(self.raw.as_ptr())
                }));
            }
            Owner::Borrowed { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{env, process};

    use super::*;

    #[test]
    fn node_is_a_number_that_is_not_negative() {
        let file = env::temp_dir().join(format!("rdma-verbs-numa-{}", process::id()));
        assert_eq!(read_number::<u32>(&file), None);
        for (text, node) in [
            ("0\n", Some(0)),
            ("1\n", Some(1)),
            ("-1\n", None),
            ("", None),
            ("node\n", None),
        ] {
            fs::write(&file, text).unwrap();
            assert_eq!(read_number::<u32>(&file), node, "{text:?}");
        }
        fs::remove_file(file).unwrap();
    }
}
