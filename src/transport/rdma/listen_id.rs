use std::net::SocketAddr;

use super::connection_manager::ConnectionManager;
use crate::{cm::CmId, config::Config, transport::no_transport::NoTransport};

/// The number of requests that the kernel queues for a listener until the engine takes them. It is
/// the highest number that the kernel allows, because a request that does not fit the kernel's
/// queue is dropped silently, and its peer repeats it some seconds later. The engine instead
/// rejects surplus requests with a cause.
const KERNEL_BACKLOG: i32 = 1024;

/// An address that is listened on, until this is dropped.
#[derive(Debug)]
pub(crate) struct ListenId {
    id: CmId,
}

impl ListenId {
    /// Listens on an address. Incoming requests carry the listener's `key`.
    pub(crate) fn bind(
        manager: &ConnectionManager,
        key: u64,
        address: SocketAddr,
        config: &Config,
    ) -> Result<Self, NoTransport> {
        let create = || {
            let mut id = manager.id(key)?;
            id.set_reuseaddr(true)?;
            // The class applies to connections over iWARP. Over InfiniBand and RoCE the class of
            // the connecting side applies.
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

    /// Whether the address is one of a device, or of all.
    pub(crate) fn has_device(&self) -> bool {
        self.id.has_device()
    }

    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        self.id.local_addr()
    }
}
