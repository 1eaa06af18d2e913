use std::fmt;

use super::DeviceAttr;
use crate::{sys::ffi, verbs::bit_flags::bit_flags};

/// The capabilities of a device, including those that [`DeviceAttr`] does not contain.
///
/// An attribute is 0 if the device's driver does not report the attribute.
///
/// See
/// [`ibv_query_device_ex(3)`](https://man7.org/linux/man-pages/man3/ibv_query_device_ex.3.html).
#[derive(Clone, Copy)]
#[doc(alias = "ibv_device_attr_ex")]
pub struct DeviceAttrEx(ffi::ibv_device_attr_ex);

impl DeviceAttrEx {
    pub(super) fn from_raw(raw: ffi::ibv_device_attr_ex) -> Self {
        Self(raw)
    }

    /// Returns the same attributes as
    /// [`Context::query_device`](crate::verbs::Context::query_device).
    #[must_use]
    pub fn device_attr(&self) -> DeviceAttr {
        DeviceAttr::from_raw(self.0.orig_attr)
    }

    /// Returns the kinds of on-demand paging that the device supports.
    #[must_use]
    pub const fn odp_caps(&self) -> OdpCaps {
        // The cast is lossless, because only two bits are defined.
        OdpCaps::from_bits(self.0.odp_caps.general_caps as u32)
    }

    /// Returns the operations that a reliable connection supports in regions with on-demand paging.
    #[must_use]
    pub const fn rc_odp_caps(&self) -> OdpTransportCaps {
        OdpTransportCaps::from_bits(self.0.odp_caps.per_transport_caps.rc_odp_caps)
    }

    /// Returns the operations that an unreliable connection supports in regions with on-demand
    /// paging.
    #[must_use]
    pub const fn uc_odp_caps(&self) -> OdpTransportCaps {
        OdpTransportCaps::from_bits(self.0.odp_caps.per_transport_caps.uc_odp_caps)
    }

    /// Returns the operations that datagrams support in regions with on-demand paging.
    #[must_use]
    pub const fn ud_odp_caps(&self) -> OdpTransportCaps {
        OdpTransportCaps::from_bits(self.0.odp_caps.per_transport_caps.ud_odp_caps)
    }

    /// Returns a mask of the bits that are valid in a completion's timestamp. Returns 0 if the
    /// device does not support timestamps.
    #[must_use]
    pub const fn completion_timestamp_mask(&self) -> u64 {
        self.0.completion_timestamp_mask
    }

    /// Returns the frequency of the timestamp clock in kHz, or 0 if it is unknown.
    #[must_use]
    pub const fn hca_core_clock(&self) -> u64 {
        self.0.hca_core_clock
    }

    /// Returns the number of bytes of device memory that programs can allocate. Returns 0 if the
    /// device has no memory for programs.
    #[must_use]
    pub const fn max_dm_size(&self) -> u64 {
        self.0.max_dm_size
    }
}

impl fmt::Debug for DeviceAttrEx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mask = self.completion_timestamp_mask();
        f.debug_struct("DeviceAttrEx")
            .field("device_attr", &self.device_attr())
            .field("odp_caps", &self.odp_caps())
            .field("rc_odp_caps", &self.rc_odp_caps())
            .field("completion_timestamp_mask", &format_args!("{mask:#x}"))
            .field("hca_core_clock", &self.hca_core_clock())
            .field("max_dm_size", &self.max_dm_size())
            .finish_non_exhaustive()
    }
}

bit_flags! {
    /// The kinds of on-demand paging that a device supports: `enum ibv_odp_general_caps`.
    #[doc(alias = "ibv_odp_general_caps")]
    pub struct OdpCaps;
    /// The device supports memory regions with
    /// [`AccessFlags::ON_DEMAND`](crate::verbs::AccessFlags::ON_DEMAND).
    SUPPORT = 1 << 0;
    /// One region can cover the whole memory of the process.
    /// [`MemoryRegion::new_implicit`](crate::verbs::MemoryRegion::new_implicit) creates such a
    /// region.
    SUPPORT_IMPLICIT = 1 << 1;
}

bit_flags! {
    /// The operations that a transport supports in regions with on-demand paging:
    /// `enum ibv_odp_transport_cap_bits`.
    #[doc(alias = "ibv_odp_transport_cap_bits")]
    pub struct OdpTransportCaps;
    /// Sends.
    SEND = 1 << 0;
    /// Receives.
    RECV = 1 << 1;
    /// RDMA WRITEs.
    WRITE = 1 << 2;
    /// RDMA READs.
    READ = 1 << 3;
    /// Atomic operations.
    ATOMIC = 1 << 4;
    /// Receives from a shared receive queue.
    SRQ_RECV = 1 << 5;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_match_the_headers() {
        use ffi::{ibv_odp_general_caps as g, ibv_odp_transport_cap_bits as t};
        assert_eq!(OdpCaps::SUPPORT.bits(), g::IBV_ODP_SUPPORT.0);
        assert_eq!(
            OdpCaps::SUPPORT_IMPLICIT.bits(),
            g::IBV_ODP_SUPPORT_IMPLICIT.0
        );
        for (ours, theirs) in [
            (OdpTransportCaps::SEND, t::IBV_ODP_SUPPORT_SEND),
            (OdpTransportCaps::RECV, t::IBV_ODP_SUPPORT_RECV),
            (OdpTransportCaps::WRITE, t::IBV_ODP_SUPPORT_WRITE),
            (OdpTransportCaps::READ, t::IBV_ODP_SUPPORT_READ),
            (OdpTransportCaps::ATOMIC, t::IBV_ODP_SUPPORT_ATOMIC),
            (OdpTransportCaps::SRQ_RECV, t::IBV_ODP_SUPPORT_SRQ_RECV),
        ] {
            assert_eq!(ours.bits(), theirs.0, "{ours}");
        }
    }
}
