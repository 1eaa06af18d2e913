use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// A network interface and its RDMA device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Link {
    pub(super) device: String,
    pub(super) interface: String,
    pub(super) mtu: u64,
    /// Whether the device implements iWARP, which runs over TCP.
    #[serde(default)]
    pub(super) is_iwarp: bool,
    /// The maximum payload of an RDMA packet in bytes.
    pub(super) rdma_mtu: u64,
    pub(super) addresses: Vec<IpAddr>,
}
