use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::{Duration, Instant},
};

use super::hosts_without_rdma::HostsWithoutRdma;
use crate::{
    addresses::{Addresses, Shown},
    error::Error,
    link::PeerPath,
    machine::rdma_addresses,
    transport_choice::{Transport, TransportChoice},
};

/// The attempts of one connect. They try the addresses and transports one after the other, within a
/// common time limit.
#[derive(Debug)]
pub(super) struct Attempts {
    transport: TransportChoice,
    addresses: Vec<SocketAddr>,
    /// The number of addresses that have been tried.
    tried: usize,
    deadline: Instant,
    hosts_without_rdma: &'static HostsWithoutRdma,
    /// The attempts to connect to the address that was tried last.
    last: Option<Tried>,
}

/// The attempts to connect to one address.
#[derive(Clone, Copy, Debug)]
struct Tried {
    address: SocketAddr,
    transport: Transport,
    /// The attempt over the second transport, if a second one is allowed and has not been tried.
    fallback: Option<Attempt>,
    /// Whether the host left an attempt over RDMA unanswered.
    is_silent_over_rdma: bool,
}

/// One attempt to connect to an address over one transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Attempt {
    pub(super) address: SocketAddr,
    pub(super) transport: Transport,
    /// The path to the address over the transport that this attempt does not use, if RDMA and TCP
    /// are both allowed.
    pub(super) other: Option<PeerPath>,
    pub(super) deadline: Instant,
}

/// Returns the paths to an address over the allowed transports, in order of preference.
pub(super) fn paths(
    address: SocketAddr,
    transport: TransportChoice,
) -> impl Iterator<Item = PeerPath> {
    let (first, second) = match transport.resolved() {
        TransportChoice::Rdma => (Transport::Rdma, None),
        TransportChoice::Tcp => (Transport::Tcp, None),
        TransportChoice::Memory => (Transport::Memory, None),
        TransportChoice::Auto | TransportChoice::Environment => {
            (Transport::Rdma, Some(Transport::Tcp))
        }
    };
    let both = [Some(first), second].into_iter().flatten();
    both.map(move |transport| PeerPath::new(reachable(address, transport), transport))
}

impl Attempts {
    /// Creates the attempts for these addresses. Each address gets an equal share of the remaining
    /// time. `default` is the transport if `addresses` does not specify one.
    pub(super) fn new(
        addresses: &Addresses,
        default: TransportChoice,
        timeout: Duration,
        hosts_without_rdma: &'static HostsWithoutRdma,
    ) -> Self {
        Self {
            transport: addresses.transport().unwrap_or(default).resolved(),
            addresses: addresses.as_slice().to_vec(),
            tried: 0,
            deadline: Instant::now() + timeout,
            hosts_without_rdma,
            last: None,
        }
    }

    /// Returns the next attempt, or `None` if none is left. `failed` is the error of the previous
    /// attempt.
    pub(super) fn next(&mut self, failed: Option<&Error>) -> Option<Attempt> {
        if let (Some(last), Some(error)) = (&mut self.last, failed)
            && let Some(fallback) = last.fallback.take()
        {
            let is_tcp = last.transport == Transport::Tcp;
            if is_tcp && error.is_refusal() {
                // No program accepted the connection over TCP. A program may listen over RDMA, so
                // the next connect tries RDMA first.
                self.hosts_without_rdma.remove(last.address);
            } else if error.leaves_other_transports() && Instant::now() < fallback.deadline {
                return Some(last.fall_back(fallback, error));
            }
        }
        let left = self.addresses.get(self.tried..)?;
        let address = *left.first()?;
        let now = Instant::now();
        let count = u32::try_from(left.len()).unwrap_or(u32::MAX);
        let share = self.deadline.saturating_duration_since(now) / count;
        if share.is_zero() && self.tried > 0 {
            return None;
        }
        self.tried += 1;
        let choice = self.transport;
        let over = |transport, deadline| Attempt {
            address: reachable(address, transport),
            transport,
            other: paths(address, choice).find(|path| path.transport != transport),
            deadline,
        };
        let (rdma, tcp) = (Transport::Rdma, Transport::Tcp);
        let (first, second) = match self.transport {
            TransportChoice::Rdma => (rdma, None),
            TransportChoice::Tcp => (tcp, None),
            TransportChoice::Memory => (Transport::Memory, None),
            TransportChoice::Auto if self.hosts_without_rdma.contains(address, now) => {
                (tcp, Some(rdma))
            }
            TransportChoice::Auto | TransportChoice::Environment => (rdma, Some(tcp)),
        };
        // If RDMA is tried before TCP, the attempt over RDMA gets half of the address's share, so
        // that time remains for TCP. Any other attempt may use the whole share.
        let time = match (first, second) {
            (Transport::Rdma, Some(_)) => share / 2,
            (_, _) => share,
        };
        self.last = Some(Tried {
            address,
            transport: first,
            fallback: second.map(|second| over(second, now + share)),
            is_silent_over_rdma: false,
        });
        Some(over(first, now + time))
    }

    /// Updates `hosts_without_rdma` after the last attempt has succeeded.
    pub(super) fn succeeded(&self) {
        if let Some(last) = &self.last {
            match last.transport {
                Transport::Rdma => self.hosts_without_rdma.remove(last.address),
                Transport::Tcp if last.is_silent_over_rdma => {
                    self.hosts_without_rdma.insert(last.address, Instant::now());
                }
                Transport::Tcp | Transport::Memory => {}
            }
        }
    }
}

impl Tried {
    /// Switches to the attempt `to` over the second transport, and logs `error` as the cause.
    fn fall_back(&mut self, to: Attempt, error: &Error) -> Attempt {
        let (address, over) = (to.address, to.transport);
        let from = self.transport;
        info!(
            Connect,
            "connector: cannot connect to {} over {from}: {error}; trying {over} next",
            Shown(address)
        );
        self.is_silent_over_rdma = from == Transport::Rdma && error.is_silence();
        self.transport = over;
        to
    }
}

/// Replaces `0.0.0.0` or `[::]` with an address at which this host reaches itself over `transport`.
/// Returns any other address unchanged. A TCP socket can connect to `0.0.0.0`, which leads to the
/// loopback interface, but RDMA needs the address of a device.
fn reachable(address: SocketAddr, transport: Transport) -> SocketAddr {
    let ip = address.ip().to_canonical();
    if !ip.is_unspecified() {
        return address;
    }
    let own = match (transport, ip) {
        (Transport::Rdma, _) => {
            let mut devices = rdma_addresses().into_iter();
            devices.find(|device| device.is_ipv4() == ip.is_ipv4())
        }
        (Transport::Tcp, IpAddr::V4(_)) => Some(Ipv4Addr::LOCALHOST.into()),
        (Transport::Tcp, IpAddr::V6(_)) => Some(Ipv6Addr::LOCALHOST.into()),
        (Transport::Memory, _) => None,
    };
    SocketAddr::new(own.unwrap_or(ip), address.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{CloseReason, Phase};

    fn addresses(count: u8) -> Addresses {
        let address = |number| SocketAddr::from(([10, 8, 0, number], 7471));
        Addresses::new((1..=count).map(address).collect())
    }

    /// Creates attempts for `count` addresses. No host is known to be without RDMA.
    fn attempts(count: u8, transport: TransportChoice, timeout: Duration) -> Attempts {
        let hosts_without_rdma = Box::leak(Box::default());
        Attempts::new(&addresses(count), transport, timeout, hosts_without_rdma)
    }

    fn failed(address: SocketAddr) -> Error {
        let reason = CloseReason::TimedOut(Phase::Waiting);
        Error::from_connect(address, Transport::Rdma, reason)
    }

    #[test]
    fn auto_tries_both_transports_per_address_in_time() {
        let start = Instant::now();
        let timeout = Duration::from_secs(8);
        let mut attempts = attempts(2, TransportChoice::Auto, timeout);
        let mut tried = Vec::new();
        let mut error = None;
        while let Some(attempt) = attempts.next(error.as_ref()) {
            error = Some(failed(attempt.address));
            tried.push((attempt.address.to_string(), attempt.transport));
            assert!(attempt.deadline <= start + timeout + Duration::from_secs(1));
        }
        let [first, second] = ["10.8.0.1:7471", "10.8.0.2:7471"].map(String::from);
        let expected = [
            (first.clone(), Transport::Rdma),
            (first, Transport::Tcp),
            (second.clone(), Transport::Rdma),
            (second, Transport::Tcp),
        ];
        assert_eq!(tried, expected);
    }

    #[test]
    fn refused_attempt_skips_the_other_transport() {
        let timeout = Duration::from_secs(8);
        let mut attempts = attempts(1, TransportChoice::Auto, timeout);
        let first = attempts.next(None).unwrap();
        let error = Error::from_connect(first.address, first.transport, CloseReason::PeerBusy);
        assert_eq!(attempts.next(Some(&error)), None);
    }

    #[test]
    fn zero_timeout_tries_only_the_first_address() {
        let mut attempts = attempts(3, TransportChoice::Tcp, Duration::ZERO);
        let first = attempts.next(None).unwrap();
        assert_eq!(attempts.next(Some(&failed(first.address))), None);
    }

    #[test]
    fn tcp_is_tried_first_at_host_without_rdma() {
        let (rdma, tcp) = (Transport::Rdma, Transport::Tcp);
        let hosts: &'static HostsWithoutRdma = Box::leak(Box::default());
        let new = || {
            let timeout = Duration::from_secs(8);
            Attempts::new(&addresses(1), TransportChoice::Auto, timeout, hosts)
        };
        let over = |attempt: Option<Attempt>| attempt.map(|attempt| attempt.transport);
        let peer = addresses(1).as_slice()[0];
        let silence = CloseReason::TimedOut(Phase::Connecting);
        let silence = Error::from_connect(peer, rdma, silence);

        let mut attempts = new();
        assert_eq!(over(attempts.next(None)), Some(rdma));
        assert_eq!(over(attempts.next(Some(&silence))), Some(tcp));
        let refused = Error::from_connect(peer, tcp, CloseReason::Refused);
        assert_eq!(attempts.next(Some(&refused)), None);
        assert_eq!(
            over(new().next(None)),
            Some(rdma),
            "a host that accepts over no transport must not be remembered as one without RDMA"
        );

        for (error, expected) in [
            (Error::from_connect(peer, rdma, CloseReason::Refused), false),
            (failed(peer), false),
            (silence, true),
        ] {
            let mut attempts = new();
            assert_eq!(over(attempts.next(None)), Some(rdma));
            assert_eq!(over(attempts.next(Some(&error))), Some(tcp));
            attempts.succeeded();
            assert_eq!(hosts.contains(peer, Instant::now()), expected, "{error}");
        }

        let no_way = CloseReason::TimedOut(Phase::Connecting);
        let no_way = Error::from_connect(peer, tcp, no_way);
        let mut attempts = new();
        assert_eq!(over(attempts.next(None)), Some(tcp));
        assert_eq!(over(attempts.next(Some(&no_way))), Some(rdma));
        assert_eq!(over(new().next(None)), Some(tcp));
        attempts.succeeded();
        assert_eq!(
            over(new().next(None)),
            Some(rdma),
            "a host that answers over RDMA must no longer be remembered as one without RDMA"
        );

        hosts.insert(peer, Instant::now());
        let mut attempts = new();
        assert_eq!(over(attempts.next(None)), Some(tcp));
        assert_eq!(
            attempts.next(Some(&refused)),
            None,
            "a refusal over TCP must end the connect without an attempt over RDMA"
        );
        assert_eq!(
            over(new().next(None)),
            Some(rdma),
            "a host that refuses TCP must be tried over RDMA first"
        );
    }

    #[test]
    fn connecting_to_any_address_means_loopback_over_tcp() {
        for (all, host) in [
            ("0.0.0.0:1", "127.0.0.1:1"),
            ("[::]:1", "[::1]:1"),
            ("[::ffff:0.0.0.0]:1", "127.0.0.1:1"),
            ("10.8.0.1:1", "10.8.0.1:1"),
        ] {
            let reached = reachable(all.parse().unwrap(), Transport::Tcp);
            assert_eq!(reached, host.parse().unwrap());
        }
    }
}
