use std::net::SocketAddr;

use super::connection_manager::ConnectionManager;
use crate::{cm::CmId, config::Config, transport::no_transport::NoTransport};

/// The minimum length of a listener's request queue in the kernel. The kernel's default limit for
/// the length has the same value (`net.rdma_ucm.max_backlog`).
///
/// The kernel silently drops a request that does not fit into the queue, and the peer repeats the
/// request some seconds later. In contrast, the engine rejects surplus requests with a reason. The
/// kernel's queue is long, so that nearly all requests reach the engine.
const KERNEL_BACKLOG: i32 = 1024;

/// A listener on an address. The listener ends when this value is dropped.
#[derive(Debug)]
pub(crate) struct ListenId {
    id: CmId,
}

impl ListenId {
    /// Listens on an address. The events that report incoming requests carry `key`, which
    /// identifies the listener.
    pub(crate) fn bind(
        manager: &ConnectionManager,
        key: u64,
        address: SocketAddr,
        config: &Config,
    ) -> Result<Self, NoTransport> {
        let create = || {
            let mut id = manager.id(key)?;
            id.set_reuseaddr(true)?;
            // Incoming connections over iWARP use this traffic class. Those over InfiniBand and
            // RoCE use the class that the peer has chosen.
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

    /// Returns whether the listener is bound to a device. A listener on the unspecified address
    /// serves all devices, and is bound to none.
    pub(crate) fn has_device(&self) -> bool {
        self.id.has_device()
    }

    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        self.id.local_addr()
    }
}
