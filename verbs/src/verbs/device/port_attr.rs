use rdma_status::open_enum;

use crate::sys::ffi;

/// The state and properties of a port.
///
/// See [`ibv_query_port(3)`](https://man7.org/linux/man-pages/man3/ibv_query_port.3.html).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[doc(alias = "ibv_port_attr")]
pub struct PortAttr {
    /// Whether the port can carry traffic.
    pub state: PortState,
    /// The maximum MTU that the port supports.
    pub max_mtu: Mtu,
    /// The MTU in use. On RoCE, this is the largest value of [`Mtu`] that, together with the RDMA
    /// headers, fits into the MTU of the network interface.
    pub active_mtu: Mtu,
    /// The maximum length of a message, in bytes.
    pub max_msg_sz: u32,
    /// The local identifier (LID) of the port, or 0 on RoCE.
    pub lid: u16,
    /// The number of low bits that the port ignores in a destination LID, or 0 on RoCE.
    pub lmc: u8,
    /// The LID of the subnet manager, or 0 on RoCE.
    pub sm_lid: u16,
    /// The type of the network to which the port is attached.
    pub link_layer: LinkLayer,
    /// The width of the link, as a code.
    ///
    /// The kernel defines the codes in `enum ib_port_width`: 1 means ×1, 2 means ×4, 4 means ×8, 8
    /// means ×12, and 16 means ×2.
    pub active_width: u8,
    /// The speed of one lane, as a code.
    ///
    /// The kernel defines the codes in `enum ib_port_speed`. In Gbit/s, 1 means 2.5, 2 means 5, 4
    /// and 8 mean 10, 16 means 14, 32 means 25, 64 means 50, and 128 means 100.
    pub active_speed: u8,
    /// The state of the physical link, as a code that the InfiniBand specification defines.
    pub phys_state: u8,
    gid_tbl_len: u32,
    pkey_tbl_len: u16,
    port_cap_flags: u32,
    flags: u8,
}

impl PortAttr {
    pub(super) fn from_raw(raw: ffi::ibv_port_attr) -> Self {
        Self {
            state: PortState::from_raw(raw.state),
            max_mtu: Mtu::from_raw(raw.max_mtu),
            active_mtu: Mtu::from_raw(raw.active_mtu),
            max_msg_sz: raw.max_msg_sz,
            lid: raw.lid,
            lmc: raw.lmc,
            sm_lid: raw.sm_lid,
            link_layer: LinkLayer::from_raw(raw.link_layer),
            active_width: raw.active_width,
            active_speed: raw.active_speed,
            phys_state: raw.phys_state,
            gid_tbl_len: u32::try_from(raw.gid_tbl_len).unwrap_or(0),
            pkey_tbl_len: raw.pkey_tbl_len,
            port_cap_flags: raw.port_cap_flags,
            flags: raw.flags,
        }
    }

    /// Returns the number of entries in the GID table, including the empty ones.
    #[must_use]
    pub const fn gid_tbl_len(&self) -> u32 {
        self.gid_tbl_len
    }

    /// Returns the number of entries in the P_Key table, including the empty ones.
    #[must_use]
    pub const fn pkey_tbl_len(&self) -> u16 {
        self.pkey_tbl_len
    }

    /// Returns the port's capability flags: `enum ibv_port_cap_flags`.
    #[must_use]
    pub const fn port_cap_flags(&self) -> u32 {
        self.port_cap_flags
    }

    /// Returns true if the port has the flag `IBV_QPF_GRH_REQUIRED`, which means that address
    /// handles must contain a global route.
    ///
    /// On RoCE, address handles must always contain a global route, whether or not the port has
    /// this flag.
    #[must_use]
    pub const fn grh_required(&self) -> bool {
        self.flags & 1 != 0
    }
}

open_enum! {
    /// Whether a port can carry traffic: `enum ibv_port_state`.
    #[doc(alias = "ibv_port_state")]
    pub struct PortState(u32);
    /// The state is unknown or does not apply.
    NOP = 0;
    /// The link is down.
    DOWN = 1;
    /// The link is up, but the subnet manager has not configured it yet.
    INIT = 2;
    /// The port is configured but not active yet.
    ARMED = 3;
    /// The port carries traffic.
    ACTIVE = 4;
    /// The port is active, but its link has an error from which it may recover.
    ACTIVE_DEFER = 5;
}

open_enum! {
    /// The type of the network to which a port is attached: `IBV_LINK_LAYER_*`.
    pub struct LinkLayer(u8);
    /// The driver does not specify the type, which means that the network is InfiniBand.
    UNSPECIFIED = 0;
    /// InfiniBand.
    INFINIBAND = 1;
    /// Ethernet: RoCE or iWARP.
    ETHERNET = 2;
}

open_enum! {
    /// The maximum payload of a packet: `enum ibv_mtu`.
    #[doc(alias = "ibv_mtu")]
    pub struct Mtu(u32);
    /// 256 bytes.
    MTU_256 = 1;
    /// 512 bytes.
    MTU_512 = 2;
    /// 1024 bytes.
    MTU_1024 = 3;
    /// 2048 bytes.
    MTU_2048 = 4;
    /// 4096 bytes.
    MTU_4096 = 5;
}

impl Mtu {
    /// Returns the size in bytes, or `None` for a code that this crate does not define.
    #[must_use]
    pub const fn bytes(self) -> Option<u32> {
        match self.raw() {
            code @ 1..=5 => Some(128 << code),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtu_in_bytes() {
        let known = [
            Mtu::MTU_256,
            Mtu::MTU_512,
            Mtu::MTU_1024,
            Mtu::MTU_2048,
            Mtu::MTU_4096,
        ];
        assert_eq!(
            known.map(Mtu::bytes),
            [256, 512, 1024, 2048, 4096].map(Some)
        );
        assert_eq!(Mtu::from_raw(0).bytes(), None);
        assert_eq!(Mtu::from_raw(6).bytes(), None);
    }

    #[test]
    fn numbers_match_the_headers() {
        assert_eq!(Mtu::MTU_256.raw(), ffi::ibv_mtu::IBV_MTU_256);
        assert_eq!(Mtu::MTU_4096.raw(), ffi::ibv_mtu::IBV_MTU_4096);
        use ffi::ibv_port_state as c;
        for (ours, theirs) in [
            (PortState::NOP, c::IBV_PORT_NOP),
            (PortState::DOWN, c::IBV_PORT_DOWN),
            (PortState::INIT, c::IBV_PORT_INIT),
            (PortState::ARMED, c::IBV_PORT_ARMED),
            (PortState::ACTIVE, c::IBV_PORT_ACTIVE),
            (PortState::ACTIVE_DEFER, c::IBV_PORT_ACTIVE_DEFER),
        ] {
            assert_eq!(ours.raw(), theirs, "{ours}");
        }
    }
}
