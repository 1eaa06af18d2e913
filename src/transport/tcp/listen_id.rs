use std::{
    net::{SocketAddr, TcpListener},
    os::fd::{AsFd, AsRawFd},
};

use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, listen, setsockopt, socket,
    sockopt,
};

use super::{connection_manager::ConnectionManager, socket::local_addr};
use crate::{
    os::{Unshared, failed},
    status::OsError,
};

/// The connections that the kernel keeps until they are taken from it.
const KERNEL_BACKLOG: i32 = 1024;

/// An address that is listened on, until this is dropped.
#[derive(Debug)]
pub(crate) struct ListenId {
    key: u64,
    manager: ConnectionManager,
    local: Option<SocketAddr>,
}

impl ListenId {
    /// Listens on an address. Requests that come in name the listener by `key`.
    pub(crate) fn bind(
        manager: &ConnectionManager,
        key: u64,
        address: SocketAddr,
    ) -> Result<Self, OsError> {
        let family = match address {
            SocketAddr::V4(_) => AddressFamily::Inet,
            SocketAddr::V6(_) => AddressFamily::Inet6,
        };
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let socket = socket(family, SockType::Stream, flags, None).map_err(failed("socket"))?;
        setsockopt(&socket, sockopt::ReuseAddr, &true).map_err(failed("setsockopt"))?;
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
