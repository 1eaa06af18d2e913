use std::{
    net::SocketAddr,
    os::fd::{AsRawFd, BorrowedFd},
};

use nix::sys::socket::{SockaddrStorage, getsockname};

/// The address that a socket is bound to.
pub(super) fn local_addr(socket: BorrowedFd<'_>) -> Option<SocketAddr> {
    let addr = getsockname::<SockaddrStorage>(socket.as_raw_fd()).ok()?;
    let addr = match (addr.as_sockaddr_in(), addr.as_sockaddr_in6()) {
        (Some(v4), _) => SocketAddr::V4((*v4).into()),
        (None, Some(v6)) => SocketAddr::V6((*v6).into()),
        (None, None) => return None,
    };
    Some(SocketAddr::new(addr.ip().to_canonical(), addr.port()))
}
