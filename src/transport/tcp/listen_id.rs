use std::{
    net::{SocketAddr, TcpListener},
    os::fd::{AsFd, AsRawFd},
};

use nix::sys::socket::{Backlog, SockaddrStorage, bind, listen, setsockopt, sockopt};

use super::{
    connection_manager::ConnectionManager,
    socket::{local_addr, set_traffic_class, stream_socket},
};
use crate::{
    config::Config,
    os::{Unshared, failed},
    transport::no_transport::NoTransport,
};

/// The number of connections that the kernel keeps until they are accepted.
const KERNEL_BACKLOG: i32 = 1024;

/// A listener on an address. Dropping it ends the listener.
#[derive(Debug)]
pub(crate) struct ListenId {
    key: u64,
    manager: ConnectionManager,
    local: Option<SocketAddr>,
}

impl ListenId {
    /// Listens on an address. Incoming requests carry the listener's `key`.
    pub(crate) fn bind(
        manager: &ConnectionManager,
        key: u64,
        address: SocketAddr,
        config: &Config,
    ) -> Result<Self, NoTransport> {
        let socket = stream_socket(address)?;
        setsockopt(&socket, sockopt::ReuseAddr, &true).map_err(failed("setsockopt"))?;
        // Packets of the handshake have the traffic class of the connections.
        set_traffic_class(&socket, config)?;
        bind(socket.as_raw_fd(), &SockaddrStorage::from(address)).map_err(failed("bind"))?;
        let backlog = Backlog::new(KERNEL_BACKLOG).map_err(failed("listen"))?;
        listen(&socket, backlog).map_err(failed("listen"))?;
        let local = local_addr(socket.as_fd());
        manager.listen(key, Unshared::new(TcpListener::from(socket)))?;
        Ok(Self {
            key,
            manager: manager.clone(),
            local,
        })
    }

    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        self.local
    }
}

impl Drop for ListenId {
    fn drop(&mut self) {
        self.manager.forget(self.key);
    }
}
