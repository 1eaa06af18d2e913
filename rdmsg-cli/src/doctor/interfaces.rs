use std::net::{IpAddr, Ipv4Addr};

use nix::ifaddrs::getifaddrs;

use super::root::Root;

/// The maximum size in bytes of the headers and trailers of a RoCE packet.
const HEADERS: u64 = 96;

/// The network interfaces of this host.
#[derive(Clone, Debug, Default)]
pub(super) struct Interfaces(Vec<Interface>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Interface {
    pub(super) name: String,
    /// The hardware address, for example `52:54:00:12:34:56`.
    hardware: String,
    pub(super) mtu: u64,
    pub(super) is_up: bool,
    /// Whether the link is up: the other end of the cable is active.
    pub(super) has_carrier: bool,
    pub(super) is_loopback: bool,
    /// Whether the interface belongs to a network adapter. False for software interfaces.
    is_adapter: bool,
    /// The name of the network adapter's driver.
    pub(super) driver: Option<String>,
    /// The IP addresses, except IPv6 link-local addresses.
    pub(super) addresses: Vec<IpAddr>,
}

impl Interfaces {
    /// Reads the interfaces from sysfs. `addresses` contains interface names with their IP
    /// addresses.
    pub(super) fn read(root: &Root, addresses: &[(String, IpAddr)]) -> Self {
        const UP: u64 = 1;
        const LOOPBACK: u64 = 8;
        let read = |name: String| {
            let at = format!("sys/class/net/{name}");
            let flags = root.text(format!("{at}/flags")).unwrap_or_default();
            let flags = u64::from_str_radix(flags.trim_start_matches("0x"), 16).ok()?;
            Some(Interface {
                hardware: root.text(format!("{at}/address")).unwrap_or_default(),
                mtu: root.number(format!("{at}/mtu")).unwrap_or(0),
                is_up: flags & UP != 0,
                has_carrier: root.number(format!("{at}/carrier")) == Some(1),
                is_loopback: flags & LOOPBACK != 0,
                is_adapter: root.has(format!("{at}/device")),
                driver: root.target_name(format!("{at}/device/driver")),
                addresses: addresses
                    .iter()
                    .filter(|(of, _)| *of == name)
                    .map(|(_, address)| *address)
                    .collect(),
                name,
            })
        };
        let names = root.names("sys/class/net");
        Self(names.into_iter().filter_map(read).collect())
    }

    pub(super) fn named(&self, name: &str) -> Option<&Interface> {
        self.0.iter().find(|interface| interface.name == name)
    }

    pub(super) fn with_address(&self, address: IpAddr) -> Option<&Interface> {
        let has = |interface: &&Interface| interface.addresses.contains(&address);
        self.0.iter().find(has)
    }

    pub(super) fn with_hardware(&self, address: [u8; 6]) -> Option<&Interface> {
        let written = address.map(|byte| format!("{byte:02x}")).join(":");
        self.0
            .iter()
            .find(|interface| interface.hardware == written)
    }

    pub(super) fn iter(&self) -> std::slice::Iter<'_, Interface> {
        self.0.iter()
    }

    /// Returns the interface for a new software device, or `None` if no interface is suitable. An
    /// interface is suitable if it is up and is not a loopback interface. If the interface that has
    /// `address` is suitable, returns this interface. Otherwise, prefers suitable interfaces that
    /// have any address, and among these, prefers network adapters.
    pub(super) fn for_software(&self, address: Option<IpAddr>) -> Option<&Interface> {
        let routed = address.and_then(|address| self.with_address(address));
        let fits = |interface: &&Interface| !interface.is_loopback && interface.is_up;
        routed.filter(fits).or_else(|| {
            let fitting = self.0.iter().filter(fits);
            fitting.min_by_key(|interface| (interface.addresses.is_empty(), !interface.is_adapter))
        })
    }

    /// Returns the first three octets of a private network in which no interface has an address.
    pub(super) fn free_network(&self) -> [u8; 3] {
        let taken: Vec<[u8; 2]> = self
            .0
            .iter()
            .flat_map(|interface| &interface.addresses)
            .filter_map(|address| match address {
                IpAddr::V4(v4) => Some([v4.octets()[0], v4.octets()[1]]),
                IpAddr::V6(_) => None,
            })
            .collect();
        let free = (77..255).find(|second| !taken.contains(&[10, *second]));
        [10, free.unwrap_or(77), 0]
    }
}

impl Interface {
    /// Returns the maximum payload in bytes of an RDMA packet on this interface.
    pub(super) fn rdma_mtu(&self) -> u64 {
        let fits = |mtu: &u64| *mtu + HEADERS <= self.mtu;
        let mtus = [4096, 2048, 1024, 512, 256];
        mtus.into_iter().find(fits).unwrap_or(0)
    }
}

/// Returns the names of this host's interfaces with their IP addresses, except IPv6 link-local
/// addresses.
pub(super) fn addresses() -> Vec<(String, IpAddr)> {
    let all = getifaddrs().into_iter().flatten();
    all.filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        let v6 = || address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip()));
        Some((interface.interface_name, v4.or_else(v6)?))
    })
    .filter(|(_, address)| match address {
        IpAddr::V4(v4) => *v4 != Ipv4Addr::UNSPECIFIED,
        IpAddr::V6(v6) => !v6.is_unicast_link_local(),
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::{super::root::testing::Machine, *};

    fn machine() -> Machine {
        Machine::new()
            .file("sys/class/net/lo/flags", "0x9\n")
            .file("sys/class/net/lo/mtu", "65536\n")
            .file("sys/class/net/docker0/flags", "0x1003\n")
            .file("sys/class/net/docker0/mtu", "1500\n")
            .file("sys/class/net/eth0/flags", "0x1003\n")
            .file("sys/class/net/eth0/mtu", "4200\n")
            .file("sys/class/net/eth0/carrier", "1\n")
            .file("sys/class/net/eth0/device/vendor", "0x15b3\n")
            .link(
                "sys/class/net/eth0/device/driver",
                "../../../bus/pci/drivers/mlx5_core",
            )
            .file("sys/class/net/eth1/flags", "0x1002\n")
            .file("sys/class/net/eth1/mtu", "1500\n")
    }

    fn addresses(all: &[(&str, &str)]) -> Vec<(String, IpAddr)> {
        let parse = |(name, address): &(&str, &str)| ((*name).into(), address.parse().unwrap());
        all.iter().map(parse).collect()
    }

    #[test]
    fn interfaces_are_read_with_their_addresses() {
        let of = addresses(&[
            ("lo", "127.0.0.1"),
            ("eth0", "10.8.0.1"),
            ("eth0", "fd08::1"),
        ]);
        let all = Interfaces::read(&machine().root(), &of);
        let eth0 = all.named("eth0").unwrap();
        assert!(eth0.is_up && eth0.has_carrier && !eth0.is_loopback);
        assert_eq!(eth0.driver.as_deref(), Some("mlx5_core"));
        assert_eq!(eth0.addresses.len(), 2);
        assert!(!all.named("eth1").unwrap().is_up);
        assert_eq!(all.with_address("fd08::1".parse().unwrap()), Some(eth0));
    }

    #[test]
    fn software_device_is_made_on_route_or_adapter() {
        let of = addresses(&[
            ("lo", "127.0.0.1"),
            ("docker0", "172.17.0.1"),
            ("eth0", "10.8.0.1"),
        ]);
        let all = Interfaces::read(&machine().root(), &of);
        let made_on = |address: Option<&str>| {
            let address = address.map(|address| address.parse().unwrap());
            all.for_software(address).unwrap().name.clone()
        };
        assert_eq!(made_on(None), "eth0");
        assert_eq!(made_on(Some("172.17.0.1")), "docker0");
        assert_eq!(
            made_on(Some("127.0.0.1")),
            "eth0",
            "the loopback interface must not be chosen"
        );
        assert_eq!(all.free_network(), [10, 77, 0]);
    }

    #[test]
    fn packets_are_as_long_as_fits_with_their_headers() {
        let mut all = Interfaces::read(&machine().root(), &[]);
        let eth0 = all.0.iter_mut().find(|one| one.name == "eth0").unwrap();
        for (mtu, expected) in [
            (4200, 4096),
            (9000, 4096),
            (4100, 2048),
            (1500, 1024),
            (300, 0),
        ] {
            eth0.mtu = mtu;
            assert_eq!(eth0.rdma_mtu(), expected, "{mtu}");
        }
    }
}
