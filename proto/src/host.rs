use std::net::{IpAddr, Ipv6Addr};

/// A host at the other end, for the bounds on the share of one host.
///
/// A host may take any number of IPv6 addresses in its network of 64 bits, so all addresses of such
/// a network count as one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Host(IpAddr);

impl Host {
    /// Returns the host that has this address.
    pub fn of(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V4(v4) => v4.into(),
            IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & (u128::MAX << 64)).into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_is_the_network_of_an_ipv6_address() {
        let host = |text: &str| Host::of(text.parse().unwrap()).0.to_string();
        assert_eq!(host("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!(host("2001:db8:1:3::1"), "2001:db8:1:3::");
        assert_eq!(host("fe80::1"), host("fe80::ffff:2"));
        assert_eq!(host("10.0.0.1"), "10.0.0.1");
        assert_eq!(host("::ffff:10.0.0.1"), "10.0.0.1");
    }
}
