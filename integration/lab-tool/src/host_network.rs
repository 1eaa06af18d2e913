//! The names and addresses of hosts, and the environment variables that pass them to a command.

use std::{
    ffi::OsString,
    net::{Ipv4Addr, Ipv6Addr},
    path::Path,
};

use clap::ValueEnum;

use crate::lab::Lab;

/// The names of the hosts, in the order of their indexes.
pub(crate) const HOSTS: [&str; 2] = ["a", "b"];

/// The drivers of a guest's devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Driver {
    /// Software RoCE.
    #[default]
    Rxe,
    /// Software iWARP. If the distribution does not contain this driver, the lab builds it on first
    /// use.
    Siw,
    /// One device of each driver. Each device has its own network interface and addresses.
    Both,
}

impl Driver {
    /// Returns the driver's name for the command line, and for `rdma link add`.
    pub(crate) fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }

    /// Returns the driver of each RDMA device of a guest.
    pub(crate) fn each(self) -> &'static [Self] {
        match self {
            Self::Rxe => &[Self::Rxe],
            Self::Siw => &[Self::Siw],
            Self::Both => &[Self::Rxe, Self::Siw],
        }
    }

    /// Returns the network of host number `index`, out of `count` hosts. Each device is named after
    /// its driver.
    pub(crate) fn host_network(self, index: usize, count: usize) -> HostNetwork {
        let names = self.each().iter().map(|driver| driver.name() + "0");
        HostNetwork::new(index, count, names)
    }
}

/// The names and addresses that a host passes to its command.
#[derive(Clone, Debug)]
pub(crate) struct HostNetwork {
    pub(crate) host: &'static str,
    /// The name of each RDMA device, and the IPv4 address of its network device.
    pub(crate) devices: Vec<(String, Ipv4Addr)>,
    /// The IPv4 address of the other host's first device.
    pub(crate) peer: Ipv4Addr,
    /// The IPv6 address of the first device. `None` if the lab uses an existing device that has no
    /// IPv6 address.
    pub(crate) addr6: Option<Ipv6Addr>,
    /// The IPv6 address of the other host's first device, if it has one.
    pub(crate) peer6: Option<Ipv6Addr>,
}

impl HostNetwork {
    /// Returns the network of host number `index`, out of `count` hosts, with devices named
    /// `devices`. Each device is in a different network. If there is only one host, it is its own
    /// peer.
    pub(crate) fn new(
        index: usize,
        count: usize,
        devices: impl IntoIterator<Item = String>,
    ) -> Self {
        let peer = (index + 1) % count;
        let v4 = |network, host| Ipv4Addr::new(10, network, 0, host as u8 + 1);
        let v6 = |host| Ipv6Addr::new(0xfd08, 0, 0, 0, 0, 0, 0, host as u16 + 1);
        let devices = devices.into_iter().zip(8..);
        Self {
            host: HOSTS[index],
            devices: devices
                .map(|(name, network)| (name, v4(network, index)))
                .collect(),
            peer: v4(8, peer),
            addr6: Some(v6(index)),
            peer6: Some(v6(peer)),
        }
    }

    pub(crate) fn variables(&self, lab: &Lab, results: &Path) -> Vec<(OsString, OsString)> {
        let (device, addr) = &self.devices[0];
        let devices = self
            .devices
            .iter()
            .map(|(name, addr)| format!("{name}={addr}"));
        let devices: Vec<_> = devices.collect();
        let mut variables = vec![
            ("LAB_HOST".into(), self.host.into()),
            ("LAB_DEV".into(), device.into()),
            ("LAB_DEVICES".into(), devices.join(" ").into()),
            ("LAB_ADDR".into(), addr.to_string().into()),
            ("LAB_PEER".into(), self.peer.to_string().into()),
            ("LAB_RESULTS".into(), results.into()),
            ("CARGO_TARGET_DIR".into(), lab.target.clone().into()),
            // Prevent a silent fallback to TCP.
            ("RDMSG_TRANSPORT".into(), "rdma".into()),
        ];
        for (name, addr) in [("LAB_ADDR6", self.addr6), ("LAB_PEER6", self.peer6)] {
            variables.extend(addr.map(|addr| (name.into(), addr.to_string().into())));
        }
        variables
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host_network(index: usize, count: usize, devices: &[&str]) -> HostNetwork {
        HostNetwork::new(index, count, devices.iter().map(|name| (*name).to_owned()))
    }

    #[test]
    fn two_hosts_are_each_others_peers() {
        let [a, b] = [0, 1].map(|index| host_network(index, 2, &["rxe0"]));
        assert_eq!((a.devices[0].1, a.addr6), (b.peer, b.peer6));
        assert_eq!((b.devices[0].1, b.addr6), (a.peer, a.peer6));
        assert_eq!(b.host, "b");
    }

    #[test]
    fn each_device_of_a_host_alone_has_an_address() {
        let alone = host_network(0, 1, &["rxe0", "siw0"]);
        let devices = alone
            .devices
            .iter()
            .map(|(name, addr)| format!("{name}={addr}"));
        assert_eq!(
            devices.collect::<Vec<_>>(),
            ["rxe0=10.8.0.1", "siw0=10.9.0.1"]
        );
        assert_eq!((alone.devices[0].1, alone.addr6), (alone.peer, alone.peer6));
    }
}
