use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// An RDMA device on a network interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Link {
    pub(super) device: String,
    pub(super) interface: String,
    pub(super) mtu: u64,
    /// Whether the device uses iWARP, whose packets are those of TCP.
    #[serde(default)]
    pub(super) is_iwarp: bool,
    /// The payload of an RDMA packet in bytes.
    pub(super) rdma_mtu: u64,
    pub(super) addresses: Vec<IpAddr>,
}
