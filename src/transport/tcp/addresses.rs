use std::{
    net::{IpAddr, SocketAddr},
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
    Some(canonical(addr))
}

/// Returns the IPv4 address of an IPv4-mapped IPv6 address, and other addresses unchanged: a
/// link-local one keeps its network interface.
pub(super) fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        ip @ IpAddr::V4(_) => SocketAddr::new(ip, address.port()),
        IpAddr::V6(_) => address,
    }
}
