//! The names of listeners within the process, `memory://name`, as addresses.

use std::{
    fmt,
    net::{Ipv6Addr, SocketAddr},
    sync::Mutex,
};

use crate::os::{PerProcess, lock};

/// The part before the name.
const SCHEME: &str = "memory://";

/// The addresses of names begin with these. They are of the block `100::/64`, which reaches no host
/// (RFC 6666).
const PREFIX: [u16; 6] = [0x0100, 0, 0, 0, 0x7264, 0x6d73];

/// The port of all names. Port 0 would stand for a free one.
const PORT: u16 = 1;

/// The names that were used, each at its number. They stay.
static NAMES: PerProcess<Mutex<Vec<String>>> = PerProcess::new(Mutex::default);

/// Returns the address that stands for a name, always the same one.
pub(super) fn address_of(name: &str) -> SocketAddr {
    let mut names = lock(NAMES.get());
    let known = names.iter().position(|known| known == name);
    let number = known.unwrap_or_else(|| {
        names.push(name.to_owned());
        names.len() - 1
    }) as u32;
    let [a, b, c, d, e, f] = PREFIX;
    let ip = Ipv6Addr::new(a, b, c, d, e, f, (number >> 16) as u16, number as u16);
    (ip, PORT).into()
}

/// Returns the name for which an address stands, if it stands for one.
fn name_of(address: SocketAddr) -> Option<String> {
    let SocketAddr::V6(v6) = address else {
        return None;
    };
    let [prefix @ .., high, low] = v6.ip().segments();
    if prefix != PREFIX || v6.port() != PORT {
        return None;
    }
    let number = usize::from(high) << 16 | usize::from(low);
    lock(NAMES.get()).get(number).cloned()
}

/// An address as a text for people: `memory://name` if it stands for a name.
pub(crate) struct Shown(pub(crate) SocketAddr);

impl Shown {
    /// Whether it is a name.
    pub(crate) fn is_name(&self) -> bool {
        name_of(self.0).is_some()
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match name_of(self.0) {
            Some(name) => write!(f, "{SCHEME}{name}"),
            None => self.0.fmt(f),
        }
    }
}

/// As [`Display`](fmt::Display).
impl fmt::Debug for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Whether a listener on an address within the process serves connects to another one: the ports
/// are the same, and so are the hosts, unless one of them stands for all.
pub(crate) fn serves(listener: SocketAddr, wanted: SocketAddr) -> bool {
    let (own, other) = (listener.ip(), wanted.ip());
    let is_same = own == other || own.is_unspecified() || other.is_unspecified();
    listener.port() == wanted.port() && is_same
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_has_one_address() {
        let (orders, bills) = (address_of("orders"), address_of("bills"));
        assert_ne!(orders, bills);
        assert_eq!(address_of("orders"), orders);
        assert_eq!(Shown(orders).to_string(), "memory://orders");
        assert!(Shown(bills).is_name());
        let other = SocketAddr::from(([127, 0, 0, 1], 1));
        assert_eq!(Shown(other).to_string(), "127.0.0.1:1");
        assert!(!serves(orders, bills) && serves(orders, orders));
    }

    #[test]
    fn listener_on_all_hosts_serves_each() {
        let [all, host, other, port] = ["0.0.0.0:1", "10.0.0.1:1", "10.0.0.2:1", "10.0.0.1:2"]
            .map(|text| text.parse().unwrap());
        assert!(serves(all, host) && serves(host, all));
        assert!(!serves(host, other) && !serves(host, port));
    }
}
