use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
};

use nix::sys::socket::{getsockopt, sockopt::IpMtu};

use super::{
    examination::Link,
    finding::{Finding, as_root},
};

/// The command that clears the path MTUs that the kernel has cached.
pub(super) const FORGET_PATHS: &str = "ip route flush cache";

/// The total length in bytes of an RDMA packet's headers and trailer, including the IPv4 header.
const ROCE_HEADERS: u64 = 60;

/// The kernel's route to another host.
#[derive(Debug)]
pub(super) struct Route {
    /// The source address of packets on this route.
    pub(super) local: IpAddr,
    /// The path MTU in bytes, or `None` for IPv6.
    ///
    /// The default is the interface's MTU. The route can have a configured MTU, and a router or
    /// host on the path can report a smaller MTU, which the kernel caches for ten minutes.
    pub(super) mtu: Option<u64>,
}

impl Route {
    /// Asks the kernel for the route to `peer`, without sending a packet.
    pub(super) fn to(peer: IpAddr) -> io::Result<Self> {
        let any: IpAddr = match peer {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = UdpSocket::bind((any, 0))?;
        // The port number does not matter, because no packet is sent.
        socket.connect(SocketAddr::new(peer, 9))?;
        let mtu = getsockopt(&socket, IpMtu).ok();
        Ok(Self {
            local: socket.local_addr()?.ip(),
            mtu: mtu.and_then(|mtu| u64::try_from(mtu).ok()),
        })
    }

    /// Returns a finding if the device's packets can be longer than the path MTU.
    ///
    /// The maximum size of RDMA packets depends only on the interface's MTU, and the packets must
    /// not be fragmented. This host therefore silently drops packets that are longer than the path
    /// MTU. For iWARP, the function returns `None`, because TCP adapts its packets to the path MTU.
    pub(super) fn judge_mtu(&self, peer: IpAddr, link: &Link) -> Option<Finding> {
        if link.is_iwarp {
            return None;
        }
        let longest = link.rdma_mtu + ROCE_HEADERS;
        let mtu = self.mtu.filter(|mtu| *mtu < longest)?;
        let what = format!(
            "packets to {peer} can have up to {mtu} bytes, but packets of {} have up to {longest}",
            link.device
        );
        let finding = Finding::error("path MTU", what)
            .because("longer packets are lost: short messages arrive, but long ones do not")
            .command(as_root(FORGET_PATHS))
            .hint(format!(
                "the kernel caches the MTU of the path for ten minutes; `ip route get {peer}` shows \
                 this MTU, and also a configured MTU"
            ));
        Some(finding)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_reaches_itself_by_its_own_address() {
        let loopback = IpAddr::from([127, 0, 0, 1]);
        let route = Route::to(loopback).unwrap();
        assert_eq!(route.local, loopback);
        assert!(route.mtu.is_some_and(|mtu| mtu >= 1280), "{route:?}");
    }

    #[test]
    fn route_mtu_below_device_mtu_is_reported() {
        let peer = IpAddr::from([10, 8, 0, 1]);
        let link = Link {
            device: "rxe0".into(),
            interface: "eth0".into(),
            is_iwarp: false,
            mtu: 4200,
            rdma_mtu: 4096,
            addresses: Vec::new(),
        };
        let judged = |mtu| {
            let local = peer;
            Route { local, mtu }.judge_mtu(peer, &link)
        };
        assert!(judged(None).is_none() && judged(Some(4200)).is_none());
        let finding = judged(Some(1500)).unwrap();
        assert!(finding.what.contains("1500"), "{finding:?}");
        assert_eq!(finding.commands, [as_root(FORGET_PATHS)]);
    }
}
