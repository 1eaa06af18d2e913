//! Shell commands that impair the network of a host in the lab, whose network device is `eth0`; and
//! addresses that no other program takes.

use std::{
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    os::fd::IntoRawFd,
};

use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, bind, getsockname, setsockopt, socket, sockopt,
};

use crate::agent;

/// Returns an address of 127.0.0.1 at which no program listens: TCP connects to it are refused. A
/// listener that sets `SO_REUSEADDR`, as all listeners of std and rdmsg do, can bind this address,
/// also several times in succession. Until this process ends, the kernel assigns the port to no
/// other socket.
///
/// # Panics
///
/// If no port is free.
pub fn reserved_address() -> SocketAddr {
    let reserve = || -> nix::Result<SocketAddr> {
        let flags = SockFlag::SOCK_CLOEXEC;
        let socket = socket(AddressFamily::Inet, SockType::Stream, flags, None)?;
        setsockopt(&socket, sockopt::ReuseAddr, &true)?;
        let any = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0);
        // The socket never listens. It stays open, so that the port stays reserved.
        let socket = socket.into_raw_fd();
        bind(socket, &SockaddrIn::from(any))?;
        let bound: SockaddrIn = getsockname(socket)?;
        Ok(SocketAddrV4::from(bound).into())
    };
    reserve().expect("a port must be free")
}

/// Returns the command that applies `netem` to all RDMA packets that this host sends. On RoCE,
/// these are the UDP packets to port 4791. On iWARP, these are the packets of all TCP connections
/// except the conductor's. The conductor uses the same network device, but `netem` does not affect
/// its packets.
pub fn impair(netem: &str) -> String {
    const SCRIPT: &str = "tc qdisc add dev eth0 root handle 1: prio bands 3 priomap 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 && \
         tc qdisc add dev eth0 parent 1:3 handle 30: netem limit 100000 NETEM && \
         add() { tc filter add dev eth0 parent 1: protocol ip prio $1 u32 $2 flowid $3; } && \
         if grep -q RNIC /sys/class/infiniband/$LAB_DEV/node_type; then \
         add 1 'match ip protocol 6 0xff match ip sport PORT 0xffff' 1:2 && \
         add 2 'match ip protocol 6 0xff match ip dport PORT 0xffff' 1:2 && \
         add 3 'match ip protocol 6 0xff' 1:3; else \
         add 1 'match ip protocol 17 0xff match ip dport 4791 0xffff' 1:3; fi";
    SCRIPT
        .replace("PORT", &agent::PORT.to_string())
        .replace("NETEM", netem)
}

/// The command that undoes [`impair`].
pub const REPAIR: &str = "tc qdisc del dev eth0 root";

/// Returns the command that replaces the `netem` arguments of an earlier [`impair`] with new ones.
pub fn change(netem: &str) -> String {
    format!("tc qdisc change dev eth0 parent 1:3 handle 30: netem limit 100000 {netem}")
}
