use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
};

use nix::sys::socket::{getsockopt, sockopt::IpMtu};

use super::{
    finding::{Finding, as_root},
    link::Link,
};

/// The command that makes the kernel forget the MTUs of paths.
pub(super) const FORGET_PATHS: &str = "ip route flush cache";

/// The bytes of an RDMA packet in addition to its payload, from the IPv4 header to the end.
const ROCE_HEADERS: u64 = 60;

/// The route to another host, as the kernel reports it.
#[derive(Debug)]
pub(super) struct Route {
    /// The address from which this host sends.
    pub(super) local: IpAddr,
    /// The MTU of the path in bytes, known for IPv4 only. It is the interface's MTU until a hop has
    /// a smaller one, which the kernel remembers for ten minutes.
    pub(super) mtu: Option<u64>,
}

impl Route {
    /// Nothing is sent.
    pub(super) fn to(peer: IpAddr) -> io::Result<Self> {
        let any: IpAddr = match peer {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = UdpSocket::bind((any, 0))?;
        // Any port does.
        socket.connect(SocketAddr::new(peer, 9))?;
        let mtu = getsockopt(&socket, IpMtu).ok();
        Ok(Self {
            local: socket.local_addr()?.ip(),
            mtu: mtu.and_then(|mtu| u64::try_from(mtu).ok()),
        })
    }

    /// The packets of the device have the MTU of its interface, even if the path has a smaller one,
    /// and may not be fragmented: this host drops longer ones silently. iWARP uses TCP, whose
    /// packets have the MTU of the path.
    pub(super) fn judge_mtu(&self, peer: IpAddr, link: &Link) -> Option<Finding> {
        if link.is_iwarp {
            return None;
        }
        let longest = link.rdma_mtu + ROCE_HEADERS;
        let mtu = self.mtu.filter(|mtu| *mtu < longest)?;
        let what = format!(
            "packets to {peer} may have {mtu} bytes, and those of {} have up to {longest}",
            link.device
        );
        let finding = Finding::error("path MTU", what)
            .because("longer ones get lost: short messages arrive, and long ones never")
            .mend(as_root(FORGET_PATHS))
            .hint(format!(
                "the kernel remembers for ten minutes what a smaller MTU has stopped, here or on \
                 the way; `ip route get {peer}` shows what it knows, and an mtu that was set"
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
        assert_eq!(finding.mend, [as_root(FORGET_PATHS)]);
    }
}
