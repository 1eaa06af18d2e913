use std::net::SocketAddr;

use super::{connection_manager::ConnectionManager, rdma, tcp};
use crate::{status::OsError, transport_kind::TransportKind};

/// An address that is listened on over one transport, until this is dropped.
#[derive(Debug)]
pub(crate) enum ListenId {
    Rdma(rdma::ListenId),
    Tcp(tcp::ListenId),
}

impl ListenId {
    /// Listens on an address. Requests that come in name the listener by `key`.
    pub(crate) fn bind(
        transport: TransportKind,
        manager: &ConnectionManager,
        key: u64,
        address: SocketAddr,
        backlog: u16,
    ) -> Result<Self, OsError> {
        match transport {
            TransportKind::Rdma => {
                rdma::ListenId::bind(manager.rdma()?, key, address, backlog).map(Self::Rdma)
            }
            TransportKind::Tcp => tcp::ListenId::bind(&manager.tcp, key, address).map(Self::Tcp),
        }
    }

    /// Whether the address is one of a device, or of all.
    pub(crate) fn has_device(&self) -> bool {
        match self {
            Self::Rdma(id) => id.has_device(),
            Self::Tcp(_) => true,
        }
    }

    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        match self {
            Self::Rdma(id) => id.local_addr(),
            Self::Tcp(id) => id.local_addr(),
        }
    }
}
