//! Remembers hosts without RDMA: hosts that accepted a connection over TCP after they had not
//! answered over RDMA. For 60 s after such a connection,
//! [`TransportChoice::Auto`](crate::TransportChoice) tries TCP first at the host.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::Mutex,
    time::{Duration, Instant},
};

use crate::os::{PerProcess, lock};

/// The time for which connectors try TCP first at a host without RDMA.
const RETENTION: Duration = Duration::from_secs(60);
/// The maximum number of remembered hosts. A further host replaces the oldest one.
const MOST: usize = 256;

/// The remembered hosts, oldest first. Each has the time at which it was last added. A host is
/// added when a connector reaches the host over TCP after an unanswered attempt over RDMA.
#[derive(Debug, Default)]
pub(super) struct HostsWithoutRdma(Mutex<VecDeque<(SocketAddr, Instant)>>);

/// The hosts without RDMA that this process remembers.
pub(super) static HOSTS_WITHOUT_RDMA: PerProcess<HostsWithoutRdma> =
    PerProcess::new(HostsWithoutRdma::default);

impl HostsWithoutRdma {
    /// Returns whether the host of this address is remembered as a host without RDMA.
    pub(super) fn contains(&self, address: SocketAddr, now: Instant) -> bool {
        let mut hosts = lock(&self.0);
        while let Some((_, since)) = hosts.front()
            && now.duration_since(*since) >= RETENTION
        {
            hosts.pop_front();
        }
        let host = host(address);
        hosts.iter().any(|(known, _)| *known == host)
    }

    /// Adds the host of this address.
    pub(super) fn insert(&self, address: SocketAddr, now: Instant) {
        self.remove(address);
        let mut hosts = lock(&self.0);
        if hosts.len() >= MOST {
            hosts.pop_front();
        }
        hosts.push_back((host(address), now));
    }

    /// Removes the host of this address. Called when the host has answered over RDMA or refused a
    /// connection over TCP.
    pub(super) fn remove(&self, address: SocketAddr) {
        let host = host(address);
        lock(&self.0).retain(|(known, _)| *known != host);
    }
}

/// Returns the address without its port.
fn host(mut address: SocketAddr) -> SocketAddr {
    address.set_port(0);
    address
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(host: u16, port: u16) -> SocketAddr {
        let [high, low] = host.to_be_bytes();
        SocketAddr::from(([10, 8, high, low], port))
    }

    #[test]
    fn host_is_remembered_for_a_while() {
        let (hosts, start) = (HostsWithoutRdma::default(), Instant::now());
        hosts.insert(address(1, 7471), start);
        let (before, after) = (
            start + RETENTION - Duration::from_millis(1),
            start + RETENTION,
        );
        assert!(
            hosts.contains(address(1, 80), before),
            "a host must be remembered for all ports"
        );
        assert!(!hosts.contains(address(2, 7471), before));
        hosts.insert(address(1, 7471), before);
        assert!(
            hosts.contains(address(1, 7471), after),
            "adding a host again must restart its 60 s"
        );
        hosts.remove(address(1, 7471));
        assert!(!hosts.contains(address(1, 7471), before));
        hosts.insert(address(1, 7471), start);
        assert!(!hosts.contains(address(1, 7471), after));
    }

    #[test]
    fn oldest_hosts_are_forgotten_when_there_are_many() {
        let (hosts, now) = (HostsWithoutRdma::default(), Instant::now());
        for host in 0..300 {
            hosts.insert(address(host, 7471), now);
        }
        let remembered = (0..300).filter(|host| hosts.contains(address(*host, 7471), now));
        assert!(remembered.eq(44..300));
    }
}
