//! Silent peers: peers that have connected and have not sent their requests yet.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    time::{Duration, Instant},
};

use crate::proto::Host;

/// The maximum number of silent peers.
const PLACES: usize = 256;

/// The time limit for a peer's request.
const TIME_LIMIT: Duration = Duration::from_secs(5);

/// The silent peers, by token, oldest first.
///
/// If there are more than [`PLACES`] silent peers, the oldest peer of the host with the most silent
/// peers is removed. So a host that opens many silent connections loses its own connections, and
/// does not displace those of other hosts.
#[derive(Debug, Default)]
pub(super) struct SilentPeers(BTreeMap<u64, Silent>);

#[derive(Debug)]
struct Silent {
    since: Instant,
    host: Host,
}

impl SilentPeers {
    /// Adds a peer. `token` must be greater than the tokens of all peers that were added before. If
    /// there are then more than [`PLACES`] peers, removes one of them and returns its token.
    pub(super) fn add(&mut self, token: u64, address: IpAddr, now: Instant) -> Option<u64> {
        let host = Host::of(address);
        self.0.insert(token, Silent { since: now, host });
        if self.0.len() <= PLACES {
            return None;
        }
        let mut places = HashMap::new();
        for silent in self.0.values() {
            *places.entry(silent.host).or_insert(0) += 1;
        }
        let most = places.values().max().copied();
        let mut oldest_first = self.0.iter();
        let (&token, _) =
            oldest_first.find(|(_, silent)| places.get(&silent.host).copied() == most)?;
        self.remove(token);
        Some(token)
    }

    pub(super) fn remove(&mut self, token: u64) {
        self.0.remove(&token);
    }

    /// Removes the oldest peer if its time limit has expired. Returns the token of the removed
    /// peer.
    pub(super) fn expire(&mut self, now: Instant) -> Option<u64> {
        let (&token, silent) = self.0.first_key_value()?;
        if now.duration_since(silent.since) < TIME_LIMIT {
            return None;
        }
        self.remove(token);
        Some(token)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    const MANY: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
    const FEW: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

    #[test]
    fn address_with_most_places_gives_one_up() {
        let mut silent = SilentPeers::default();
        let now = Instant::now();
        assert_eq!(silent.add(0, FEW, now), None);
        for token in 1..PLACES as u64 {
            assert_eq!(silent.add(token, MANY, now), None);
        }
        for token in 0..1000 {
            let new = PLACES as u64 + token;
            assert_eq!(silent.add(new, MANY, now), Some(token + 1));
        }
        // A new peer with the address `FEW` displaces the oldest peer with the address `MANY`, and
        // not the older peer with the address `FEW`.
        assert_eq!(silent.add(5000, FEW, now), Some(1001));
        assert_eq!(silent.expire(now), None);
        let later = now + TIME_LIMIT;
        assert_eq!(silent.expire(later), Some(0));
        assert_eq!(silent.expire(later), Some(1002));
    }

    #[test]
    fn many_addresses_of_one_host_leave_places_free() {
        let mut silent = SilentPeers::default();
        let now = Instant::now();
        let other = "2001:db8:0:2::1".parse().unwrap();
        assert_eq!(silent.add(0, other, now), None);
        for token in 1..1000 {
            let of_one = Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 0, 0, 0, token as u16);
            let evicted = silent.add(token, of_one.into(), now);
            let expected = token.checked_sub(PLACES as u64 - 1).filter(|it| *it > 0);
            assert_eq!(evicted, expected);
        }
    }
}
