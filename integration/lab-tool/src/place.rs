//! What a host is called, which addresses it has, and the variables that tell a command so.

use std::{
    ffi::OsString,
    net::{Ipv4Addr, Ipv6Addr},
    path::Path,
};

use crate::lab::Lab;

/// Names of the hosts, in order.
pub(crate) const HOSTS: [&str; 2] = ["a", "b"];

/// One host as its command sees it.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) host: &'static str,
    pub(crate) device: String,
    pub(crate) addr: Ipv4Addr,
    pub(crate) peer: Ipv4Addr,
    /// A device that the lab found, not made, may have no IPv6 address.
    pub(crate) addr6: Option<Ipv6Addr>,
    pub(crate) peer6: Option<Ipv6Addr>,
    /// Another device of the host's, and its address.
    pub(crate) second: Option<(String, Ipv4Addr)>,
}

impl Place {
    /// Host number `index` of `count`; a host that is alone is its own peer.
    pub(crate) fn new(index: usize, count: usize, device: &str) -> Self {
        let peer = (index + 1) % count;
        let v4 = |host: usize| Ipv4Addr::new(10, 8, 0, host as u8 + 1);
        let v6 = |host: usize| Ipv6Addr::new(0xfd08, 0, 0, 0, 0, 0, 0, host as u16 + 1);
        Self {
            host: HOSTS[index],
            device: device.into(),
            addr: v4(index),
            peer: v4(peer),
            addr6: Some(v6(index)),
            peer6: Some(v6(peer)),
            second: None,
        }
    }

    /// Has a second device beside, of a host that is alone.
    pub(crate) fn beside(self, device: &str) -> Self {
        let second = Some((device.into(), Ipv4Addr::new(10, 9, 0, 1)));
        Self { second, ..self }
    }

    /// The place as the second device is to see it.
    pub(crate) fn of_second(&self) -> Option<Self> {
        let (device, addr) = self.second.clone()?;
        Some(Self {
            device,
            addr,
            peer: addr,
            addr6: None,
            peer6: None,
            second: None,
            ..self.clone()
        })
    }

    /// Each device with its address.
    fn devices(&self) -> String {
        let first = format!("{}={}", self.device, self.addr);
        match &self.second {
            Some((device, addr)) => format!("{first} {device}={addr}"),
            None => first,
        }
    }

    pub(crate) fn variables(&self, lab: &Lab, results: &Path) -> Vec<(OsString, OsString)> {
        let mut variables = vec![
            ("LAB_HOST".into(), self.host.into()),
            ("LAB_DEV".into(), self.device.clone().into()),
            ("LAB_DEVICES".into(), self.devices().into()),
            ("LAB_ADDR".into(), self.addr.to_string().into()),
            ("LAB_PEER".into(), self.peer.to_string().into()),
            ("LAB_RESULTS".into(), results.into()),
            ("CARGO_TARGET_DIR".into(), lab.target.clone().into()),
            // Nothing falls back to TCP unseen.
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

    #[test]
    fn two_hosts_are_each_others_peers() {
        let (a, b) = (Place::new(0, 2, "rxe0"), Place::new(1, 2, "rxe0"));
        assert_eq!((a.addr, a.addr6), (b.peer, b.peer6));
        assert_eq!((b.addr, b.addr6), (a.peer, a.peer6));
        assert_eq!(b.host, "b");
    }

    #[test]
    fn a_second_device_has_an_address_of_its_own() {
        let place = Place::new(0, 1, "rxe0");
        assert_eq!(place.devices(), "rxe0=10.8.0.1");
        let both = place.beside("siw0");
        assert_eq!(both.devices(), "rxe0=10.8.0.1 siw0=10.9.0.1");
        assert_eq!(both.of_second().unwrap().devices(), "siw0=10.9.0.1");
    }

    #[test]
    fn a_host_alone_is_its_own_peer() {
        let alone = Place::new(0, 1, "rxe0");
        assert_eq!((alone.addr, alone.addr6), (alone.peer, alone.peer6));
    }
}
