use std::net::SocketAddr;

use super::connection_manager::ConnectionManager;
use crate::transport::no_transport::NoTransport;

/// An engine's listener for in-memory connections. Dropping the id ends the listener.
#[derive(Debug)]
pub(crate) struct ListenId {
    manager: ConnectionManager,
    local: SocketAddr,
}

impl ListenId {
    /// Listens on an address that the caller has reserved in this process. Reports of the
    /// listener's connection requests contain `key`.
    pub(crate) fn bind(
        manager: &ConnectionManager,
        key: u64,
        address: SocketAddr,
    ) -> Result<Self, NoTransport> {
        manager.listen(address, key);
        Ok(Self {
            manager: manager.clone(),
            local: address,
        })
    }

    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        Some(self.local)
    }
}

impl Drop for ListenId {
    fn drop(&mut self) {
        self.manager.end_listening(self.local);
    }
}
