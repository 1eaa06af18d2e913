use std::net::SocketAddr;

use super::connection_manager::ConnectionManager;
use crate::{cm::CmId, config::Config, transport::no_transport::NoTransport};

/// The maximum number of requests that the kernel queues for a listener; the kernel permits no
/// higher value. The kernel silently drops a request that does not fit into the queue, and the peer
/// repeats it some seconds later. The engine, in contrast, rejects surplus requests with a reason.
const KERNEL_BACKLOG: i32 = 1024;

/// An address on which requests are accepted. Dropping it ends the listener.
#[derive(Debug)]
pub(crate) struct ListenId {
    id: CmId,
}

impl ListenId {
    /// Listens on an address. Incoming requests contain the listener's `key`.
    pub(crate) fn bind(
        manager: &ConnectionManager,
        key: u64,
        address: SocketAddr,
        config: &Config,
    ) -> Result<Self, NoTransport> {
        let create = || {
            let mut id = manager.id(key)?;
            id.set_reuseaddr(true)?;
            // Connections over iWARP use this traffic class. Connections over InfiniBand and RoCE
            // use the class of the connecting side.
            config
                .traffic_class
                .map_or(Ok(()), |class| id.set_tos(class))?;
            Ok(id)
        };
        let backlog = i32::from(config.listening.backlog).max(KERNEL_BACKLOG);
        match (
            CmId::listen_on(create, address, backlog),
            config.traffic_class,
        ) {
            (Err(error), Some(class)) if error.call == "rdma_set_option" => {
                Err(NoTransport::without_traffic_class(class, error))
            }
            (listening, _) => Ok(Self { id: listening? }),
        }
    }

    /// Returns whether the address belongs to a device, or is the unspecified address.
    pub(crate) fn has_device(&self) -> bool {
        self.id.has_device()
    }

    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        self.id.local_addr()
    }
}
