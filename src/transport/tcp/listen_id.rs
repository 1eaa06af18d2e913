use std::{
    net::{SocketAddr, TcpListener},
    os::fd::{AsFd, AsRawFd, OwnedFd},
};

use nix::sys::socket::{Backlog, SockaddrStorage, bind, listen, setsockopt, sockopt};

use super::{
    connection_manager::ConnectionManager,
    socket::{Options, limit_waits, local_addr, set_traffic_class, stream_socket},
};
use crate::{
    config::Config,
    os::{Unshared, failed},
    status::OsError,
    transport::no_transport::NoTransport,
};

/// The maximum number of connections that the kernel queues until they are accepted.
pub(super) const KERNEL_BACKLOG: i32 = 1024;

/// A listener on an address. The listener ends when this value is dropped.
#[derive(Debug)]
pub(crate) struct ListenId {
    key: u64,
    manager: ConnectionManager,
    local: Option<SocketAddr>,
    /// Whether the socket was inherited. If so, other descriptors keep the socket's queue of
    /// connections open after this listener ends.
    is_inherited: bool,
}

impl ListenId {
    /// Listens on an address. The reports of incoming requests carry `key`, which identifies the
    /// listener.
    pub(crate) fn bind(
        manager: &ConnectionManager,
        key: u64,
        address: SocketAddr,
        config: &Config,
    ) -> Result<Self, NoTransport> {
        let socket = match &config.listening.inherited {
            Some(inherited) => copy(&inherited.0, address)?,
            None => bound_socket(address, config.listening.reuse_port)?,
        };
        // Accepted sockets inherit the traffic class, so the answers to requests also have this
        // class.
        set_traffic_class(&socket, config)?;
        let options = Options::new(config);
        options.set(&socket, format_args!("listener {key}"));
        limit_waits(&socket).map_err(failed("setsockopt"))?;
        let backlog = Backlog::new(KERNEL_BACKLOG).map_err(failed("listen"))?;
        listen(&socket, backlog).map_err(failed("listen"))?;
        let local = local_addr(socket.as_fd());
        manager.listen(key, Unshared::new(TcpListener::from(socket)), options)?;
        Ok(Self {
            key,
            manager: manager.clone(),
            local,
            is_inherited: config.listening.inherited.is_some(),
        })
    }

    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        self.local
    }
}

fn bound_socket(address: SocketAddr, reuse_port: bool) -> Result<OwnedFd, OsError> {
    let socket = stream_socket(address)?;
    setsockopt(&socket, sockopt::ReuseAddr, &true).map_err(failed("setsockopt"))?;
    setsockopt(&socket, sockopt::ReusePort, &reuse_port).map_err(failed("setsockopt"))?;
    bind(socket.as_raw_fd(), &SockaddrStorage::from(address)).map_err(failed("bind"))?;
    Ok(socket)
}

/// Duplicates the descriptor of an inherited socket. Fails if the socket is not bound to the port
/// of `address`.
fn copy(inherited: &TcpListener, address: SocketAddr) -> Result<OwnedFd, OsError> {
    if local_addr(inherited.as_fd()).map(|local| local.port()) != Some(address.port()) {
        return Err(OsError::new("bind", libc::EINVAL));
    }
    let copied = inherited.try_clone().and_then(|copy| {
        copy.set_nonblocking(true)?;
        Ok(copy.into())
    });
    copied.map_err(failed("fcntl"))
}

impl Drop for ListenId {
    fn drop(&mut self) {
        if !self.is_inherited {
            self.manager.take_queue(self.key);
        }
        self.manager.forget(self.key);
    }
}
