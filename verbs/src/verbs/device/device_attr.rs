use std::{ffi::CStr, fmt};

use rdma_status::open_enum;

use crate::{sys::ffi, verbs::bit_flags::bit_flags};

/// The capabilities and limits of a device.
///
/// A limit is not a guarantee: the device may refuse a request that is within the limit.
///
/// See [`ibv_query_device(3)`](https://man7.org/linux/man-pages/man3/ibv_query_device.3.html).
#[derive(Clone, Copy)]
#[doc(alias = "ibv_device_attr")]
pub struct DeviceAttr(ffi::ibv_device_attr);

impl DeviceAttr {
    pub(super) fn from_raw(raw: ffi::ibv_device_attr) -> Self {
        Self(raw)
    }

    /// Returns the version of the firmware, in the vendor's notation.
    #[must_use]
    pub fn fw_ver(&self) -> String {
        let bytes = self.0.fw_ver.map(|char| char as u8);
        CStr::from_bytes_until_nul(&bytes)
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned()
    }

    /// Returns the GUID of the device.
    #[must_use]
    pub const fn node_guid(&self) -> u64 {
        u64::from_be(self.0.node_guid)
    }

    /// Returns the GUID of the board that contains the device.
    #[must_use]
    pub const fn sys_image_guid(&self) -> u64 {
        u64::from_be(self.0.sys_image_guid)
    }

    /// Returns the capability flags.
    #[must_use]
    pub const fn device_cap_flags(&self) -> DeviceCapFlags {
        DeviceCapFlags::from_bits(self.0.device_cap_flags)
    }

    /// Returns the scope within which atomic operations are atomic.
    #[must_use]
    pub const fn atomic_cap(&self) -> AtomicCap {
        AtomicCap::from_raw(self.0.atomic_cap)
    }

    /// Returns the maximum size of a memory region, in bytes.
    #[must_use]
    pub const fn max_mr_size(&self) -> u64 {
        self.0.max_mr_size
    }

    /// Returns the page sizes that the device supports, as a bit mask. If bit *n* is set, the
    /// device supports pages of 2ⁿ bytes.
    #[must_use]
    pub const fn page_size_cap(&self) -> u64 {
        self.0.page_size_cap
    }

    /// Returns the vendor's id, an IEEE OUI.
    #[must_use]
    pub const fn vendor_id(&self) -> u32 {
        self.0.vendor_id
    }

    /// Returns the part id that the vendor assigned to this model of device.
    #[must_use]
    pub const fn vendor_part_id(&self) -> u32 {
        self.0.vendor_part_id
    }

    /// Returns the version of the hardware.
    #[must_use]
    pub const fn hw_ver(&self) -> u32 {
        self.0.hw_ver
    }

    /// Returns the maximum number of queue pairs.
    #[must_use]
    pub const fn max_qp(&self) -> u32 {
        count(self.0.max_qp)
    }

    /// Returns the maximum number of outstanding work requests in each queue of a queue pair.
    #[must_use]
    pub const fn max_qp_wr(&self) -> u32 {
        count(self.0.max_qp_wr)
    }

    /// Returns the maximum number of scatter/gather elements in a work request.
    #[must_use]
    pub const fn max_sge(&self) -> u32 {
        count(self.0.max_sge)
    }

    /// Returns the maximum number of scatter/gather elements in an RDMA READ.
    #[must_use]
    pub const fn max_sge_rd(&self) -> u32 {
        count(self.0.max_sge_rd)
    }

    /// Returns the maximum number of completion queues.
    #[must_use]
    pub const fn max_cq(&self) -> u32 {
        count(self.0.max_cq)
    }

    /// Returns the maximum number of entries in a completion queue.
    #[must_use]
    pub const fn max_cqe(&self) -> u32 {
        count(self.0.max_cqe)
    }

    /// Returns the maximum number of memory regions.
    #[must_use]
    pub const fn max_mr(&self) -> u32 {
        count(self.0.max_mr)
    }

    /// Returns the maximum number of protection domains.
    #[must_use]
    pub const fn max_pd(&self) -> u32 {
        count(self.0.max_pd)
    }

    /// Returns the maximum number of concurrent incoming RDMA READs and atomics on a queue pair.
    #[must_use]
    pub const fn max_qp_rd_atom(&self) -> u32 {
        count(self.0.max_qp_rd_atom)
    }

    /// Returns the maximum number of concurrent incoming RDMA READs and atomics on the device.
    #[must_use]
    pub const fn max_res_rd_atom(&self) -> u32 {
        count(self.0.max_res_rd_atom)
    }

    /// Returns the maximum number of concurrent outgoing RDMA READs and atomics on a queue pair.
    #[must_use]
    pub const fn max_qp_init_rd_atom(&self) -> u32 {
        count(self.0.max_qp_init_rd_atom)
    }

    /// Returns the maximum number of multicast groups.
    #[must_use]
    pub const fn max_mcast_grp(&self) -> u32 {
        count(self.0.max_mcast_grp)
    }

    /// Returns the maximum number of queue pairs in a multicast group.
    #[must_use]
    pub const fn max_mcast_qp_attach(&self) -> u32 {
        count(self.0.max_mcast_qp_attach)
    }

    /// Returns the maximum number of address handles.
    #[must_use]
    pub const fn max_ah(&self) -> u32 {
        count(self.0.max_ah)
    }

    /// Returns the maximum number of shared receive queues.
    #[must_use]
    pub const fn max_srq(&self) -> u32 {
        count(self.0.max_srq)
    }

    /// Returns the maximum number of outstanding work requests in a shared receive queue.
    #[must_use]
    pub const fn max_srq_wr(&self) -> u32 {
        count(self.0.max_srq_wr)
    }

    /// Returns the maximum number of scatter/gather elements in a receive that is posted to a
    /// shared receive queue.
    #[must_use]
    pub const fn max_srq_sge(&self) -> u32 {
        count(self.0.max_srq_sge)
    }

    /// Returns the maximum number of partition keys.
    #[must_use]
    pub const fn max_pkeys(&self) -> u16 {
        self.0.max_pkeys
    }

    /// Returns a number *n* that encodes the maximum time after which the device acknowledges a
    /// message: 4.096 µs × 2ⁿ.
    #[must_use]
    pub const fn local_ca_ack_delay(&self) -> u8 {
        self.0.local_ca_ack_delay
    }

    /// Returns the number of ports, which are numbered from 1.
    #[must_use]
    pub const fn phys_port_cnt(&self) -> u8 {
        self.0.phys_port_cnt
    }
}

/// Converts a number that the C header declares as `int`. Negative numbers become 0.
const fn count(value: i32) -> u32 {
    if value < 0 { 0 } else { value.cast_unsigned() }
}

impl fmt::Debug for DeviceAttr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceAttr")
            .field("fw_ver", &self.fw_ver())
            .field("vendor_id", &format_args!("{:#x}", self.vendor_id()))
            .field("device_cap_flags", &self.device_cap_flags())
            .field("atomic_cap", &self.atomic_cap())
            .field("max_mr_size", &self.max_mr_size())
            .field("max_qp", &self.max_qp())
            .field("max_qp_wr", &self.max_qp_wr())
            .field("max_sge", &self.max_sge())
            .field("max_cq", &self.max_cq())
            .field("max_cqe", &self.max_cqe())
            .field("max_mr", &self.max_mr())
            .field("max_qp_rd_atom", &self.max_qp_rd_atom())
            .field("max_qp_init_rd_atom", &self.max_qp_init_rd_atom())
            .field("max_srq", &self.max_srq())
            .field("max_srq_wr", &self.max_srq_wr())
            .field("phys_port_cnt", &self.phys_port_cnt())
            .finish_non_exhaustive()
    }
}

open_enum! {
    /// The scope within which atomic operations are atomic: `enum ibv_atomic_cap`.
    #[doc(alias = "ibv_atomic_cap")]
    pub struct AtomicCap(u32);
    /// Atomic operations are not supported.
    NONE = 0;
    /// Operations are atomic among the queue pairs of this device.
    HCA = 1;
    /// Operations are atomic among all devices and the processors of the host.
    GLOB = 2;
}

bit_flags! {
    /// The capabilities of a device: `enum ibv_device_cap_flags`.
    #[doc(alias = "ibv_device_cap_flags")]
    pub struct DeviceCapFlags;
    /// The device can resize queue pairs.
    RESIZE_MAX_WR = 1 << 0;
    /// The device counts packets with a bad partition key.
    BAD_PKEY_CNTR = 1 << 1;
    /// The device counts packets with a bad queue key (Q_Key).
    BAD_QKEY_CNTR = 1 << 2;
    /// The device supports automatic path migration.
    AUTO_PATH_MIG = 1 << 4;
    /// The device can change the port of a queue pair whose send queue is drained.
    CHANGE_PHY_PORT = 1 << 5;
    /// A call that modifies a queue pair may specify the queue pair's current state.
    CURR_QP_STATE_MOD = 1 << 7;
    /// The device raises an event when a port becomes active.
    PORT_ACTIVE_EVENT = 1 << 10;
    /// The board has a GUID.
    SYS_IMAGE_GUID = 1 << 11;
    /// If a message arrives and no receive is posted, the device answers with an RNR NAK. The peer
    /// then sends the message again.
    RC_RNR_NAK_GEN = 1 << 12;
    /// The device can resize shared receive queues.
    SRQ_RESIZE = 1 << 13;
    /// The device can raise an event after a given number of completions.
    N_NOTIFY_CQ = 1 << 14;
    /// The device supports memory windows.
    MEM_WINDOW = 1 << 17;
    /// The device supports extended reliable connections.
    XRC = 1 << 20;
    /// The device supports the memory management extensions, for example SEND with invalidate.
    MEM_MGT_EXTENSIONS = 1 << 21;
    /// The device supports type 2A memory windows, which are associated with a queue pair number.
    MEM_WINDOW_TYPE_2A = 1 << 23;
    /// The device supports type 2B memory windows, which are associated with a queue pair and a
    /// protection domain.
    MEM_WINDOW_TYPE_2B = 1 << 24;
}

#[cfg(test)]
mod tests {
    #![allow(unsafe_code)]

    use std::mem::MaybeUninit;

    use super::*;

    #[test]
    fn values_are_read_as_they_are_meant() {
        // SAFETY: `ibv_device_attr` consists of integers, for which all zeros is a valid value.
        let mut raw: ffi::ibv_device_attr = unsafe { MaybeUninit::zeroed().assume_init() };
        raw.max_cqe = 77;
        raw.max_qp = -1;
        raw.node_guid = 0x0102_0304_0506_0708_u64.to_be();
        raw.fw_ver[..3].copy_from_slice(&[b'1' as _, b'.' as _, b'2' as _]);
        let attr = DeviceAttr::from_raw(raw);
        assert_eq!((attr.max_cqe(), attr.max_qp()), (77, 0));
        assert_eq!(attr.node_guid(), 0x0102_0304_0506_0708);
        assert_eq!(attr.fw_ver(), "1.2");
    }

    #[test]
    fn numbers_match_the_headers() {
        use ffi::ibv_device_cap_flags as c;
        for (ours, theirs) in [
            (DeviceCapFlags::RESIZE_MAX_WR, c::IBV_DEVICE_RESIZE_MAX_WR),
            (DeviceCapFlags::BAD_PKEY_CNTR, c::IBV_DEVICE_BAD_PKEY_CNTR),
            (DeviceCapFlags::BAD_QKEY_CNTR, c::IBV_DEVICE_BAD_QKEY_CNTR),
            (DeviceCapFlags::AUTO_PATH_MIG, c::IBV_DEVICE_AUTO_PATH_MIG),
            (
                DeviceCapFlags::CHANGE_PHY_PORT,
                c::IBV_DEVICE_CHANGE_PHY_PORT,
            ),
            (
                DeviceCapFlags::CURR_QP_STATE_MOD,
                c::IBV_DEVICE_CURR_QP_STATE_MOD,
            ),
            (
                DeviceCapFlags::PORT_ACTIVE_EVENT,
                c::IBV_DEVICE_PORT_ACTIVE_EVENT,
            ),
            (DeviceCapFlags::SYS_IMAGE_GUID, c::IBV_DEVICE_SYS_IMAGE_GUID),
            (DeviceCapFlags::RC_RNR_NAK_GEN, c::IBV_DEVICE_RC_RNR_NAK_GEN),
            (DeviceCapFlags::SRQ_RESIZE, c::IBV_DEVICE_SRQ_RESIZE),
            (DeviceCapFlags::N_NOTIFY_CQ, c::IBV_DEVICE_N_NOTIFY_CQ),
            (DeviceCapFlags::MEM_WINDOW, c::IBV_DEVICE_MEM_WINDOW),
            (DeviceCapFlags::XRC, c::IBV_DEVICE_XRC),
            (
                DeviceCapFlags::MEM_MGT_EXTENSIONS,
                c::IBV_DEVICE_MEM_MGT_EXTENSIONS,
            ),
            (
                DeviceCapFlags::MEM_WINDOW_TYPE_2A,
                c::IBV_DEVICE_MEM_WINDOW_TYPE_2A,
            ),
            (
                DeviceCapFlags::MEM_WINDOW_TYPE_2B,
                c::IBV_DEVICE_MEM_WINDOW_TYPE_2B,
            ),
        ] {
            assert_eq!(ours.bits(), theirs.0, "{ours}");
        }
        assert_eq!(AtomicCap::HCA.raw(), ffi::ibv_atomic_cap::IBV_ATOMIC_HCA);
        assert_eq!(AtomicCap::GLOB.raw(), ffi::ibv_atomic_cap::IBV_ATOMIC_GLOB);
    }
}
