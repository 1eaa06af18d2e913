use std::net::SocketAddr;

#[cfg(feature = "rdma")]
use super::rdma;
use super::{connection_manager::ConnectionManager, in_memory, no_transport::NoTransport, tcp};
use crate::{config::Config, transport_choice::Transport};

/// A listener on one address, over one transport. Dropping the id ends the listener.
#[derive(Debug)]
pub(crate) enum ListenId {
    #[cfg(feature = "rdma")]
    Rdma(rdma::ListenId),
    Tcp(tcp::ListenId),
    Memory(in_memory::ListenId),
}

impl ListenId {
    /// Listens on an address. Reports of the listener's connection requests contain `key`.
    pub(crate) fn bind(
        transport: Transport,
        manager: &ConnectionManager,
        key: u64,
        address: SocketAddr,
        config: &Config,
    ) -> Result<Self, NoTransport> {
        match transport {
            #[cfg(feature = "rdma")]
            Transport::Rdma => {
                rdma::ListenId::bind(manager.rdma()?, key, address, config).map(Self::Rdma)
            }
            #[cfg(not(feature = "rdma"))]
            Transport::Rdma => Err(ConnectionManager::NO_RDMA.into()),
            Transport::Tcp => {
                tcp::ListenId::bind(manager.tcp()?, key, address, config).map(Self::Tcp)
            }
            Transport::Memory => {
                in_memory::ListenId::bind(&manager.memory, key, address).map(Self::Memory)
            }
        }
    }

    /// Over RDMA, returns true if the listener's address belongs to a device, or is the unspecified
    /// address. Over the other transports, always returns true.
    pub(crate) fn has_device(&self) -> bool {
        by_transport!(self, {
            Rdma(id) => id.has_device(),
            Tcp(_) => true,
            Memory(_) => true,
        })
    }

    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        by_transport!(self, all id => id.local_addr())
    }
}
