//! Maps the names of in-process listeners, `memory://name`, to addresses.

use std::{
    fmt,
    net::{Ipv6Addr, SocketAddr},
    sync::Mutex,
};

use crate::os::{PerProcess, lock};

/// The scheme that precedes the name of an in-process listener.
const SCHEME: &str = "memory://";

/// The first 96 bits of the addresses that represent names. These addresses are in the discard-only
/// block `100::/64` (RFC 6666), so no host has such an address.
const PREFIX: [u16; 6] = [0x0100, 0, 0, 0, 0x7264, 0x6d73];

/// The port of all addresses that represent names. Port 0 cannot be used, because it would request
/// a free port.
const PORT: u16 = 1;

/// All names that the process has used. The index of a name is the last 32 bits of its address, so
/// no name is ever removed.
static NAMES: PerProcess<Mutex<Vec<String>>> = PerProcess::new(Mutex::default);

/// Returns the address that represents a name. Equal names have equal addresses.
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

/// Returns the name that an address represents, or `None` for an ordinary address.
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

/// Displays an address. If the address represents a name, the text is `memory://name`.
pub(crate) struct Shown(pub(crate) SocketAddr);

impl Shown {
    /// Returns whether the address represents a name.
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

/// Works like [`Display`](fmt::Display).
impl fmt::Debug for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Returns true if an in-process listener on the address `listener` accepts connections to the
/// address `wanted`. The ports must be equal. Besides, either the hosts must be equal, or one of
/// the hosts must be unspecified (`0.0.0.0`, `::`).
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
