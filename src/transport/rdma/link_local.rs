use std::net::{Ipv6Addr, SocketAddr};

use nix::ifaddrs::getifaddrs;

/// Adds the network interface of this side, which has the address `local`, to a link-local address
/// of either side. The connection manager leaves it out.
pub(super) fn with_interface(address: SocketAddr, local: Option<SocketAddr>) -> SocketAddr {
    match (address, local) {
        (SocketAddr::V6(mut v6), Some(SocketAddr::V6(local)))
            if v6.ip().is_unicast_link_local() && v6.scope_id() == 0 =>
        {
            let known = (local.scope_id() != 0).then(|| local.scope_id());
            let interface = known.or_else(|| interface_of(*local.ip()));
            v6.set_scope_id(interface.unwrap_or(0));
            v6.into()
        }
        _ => address,
    }
}

/// Returns the number of the network interface that has this link-local address.
fn interface_of(address: Ipv6Addr) -> Option<u32> {
    let mut all = getifaddrs().ok()?;
    all.find_map(|interface| {
        let found = interface.address?;
        let found = found.as_sockaddr_in6()?;
        (found.ip() == address).then(|| found.scope_id())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_local_peer_is_on_the_interface_of_this_side() {
        let local: SocketAddr = "[fe80::1%3]:1".parse().unwrap();
        for (peer, expected) in [
            ("[fe80::2]:7471", "[fe80::2%3]:7471"),
            ("[fe80::2%5]:7471", "[fe80::2%5]:7471"),
            ("[fd08::2]:7471", "[fd08::2]:7471"),
            ("10.8.0.1:7471", "10.8.0.1:7471"),
        ] {
            let address = with_interface(peer.parse().unwrap(), Some(local));
            assert_eq!(address, expected.parse().unwrap());
        }
    }
}
