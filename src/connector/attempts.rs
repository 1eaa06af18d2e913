use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use crate::{Addresses, Error, Transport, TransportKind};

/// What connecting tries, one after the other, within one bound.
#[derive(Debug)]
pub(super) struct Attempts {
    transport: Transport,
    addresses: Vec<SocketAddr>,
    /// How many of them were tried.
    tried: usize,
    deadline: Instant,
    /// What may be tried next at the address that was tried last.
    fallback: Option<Attempt>,
}

/// One attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Attempt {
    pub(super) address: SocketAddr,
    pub(super) transport: TransportKind,
    pub(super) deadline: Instant,
}

impl Attempts {
    /// Each address gets an equal share of the time that is left. `default` is the transport where
    /// the addresses do not say it.
    pub(super) fn new(addresses: &Addresses, default: Transport, timeout: Duration) -> Self {
        Self {
            transport: addresses.transport().unwrap_or(default),
            addresses: addresses.as_slice().to_vec(),
            tried: 0,
            deadline: Instant::now() + timeout,
            fallback: None,
        }
    }

    /// What is to be tried next, after the last one `failed`.
    pub(super) fn next(&mut self, failed: Option<&Error>) -> Option<Attempt> {
        if let (Some(fallback), Some(error)) = (self.fallback.take(), failed)
            && error.leaves_other_transports()
        {
            let address = fallback.address;
            info!("{address}: over TCP, since not over RDMA: {error}");
            return Some(fallback);
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
        let over = |transport, deadline| Attempt {
            address,
            transport,
            deadline,
        };
        let deadline = now + share;
        Some(match self.transport {
            Transport::Rdma => over(TransportKind::Rdma, deadline),
            Transport::Tcp => over(TransportKind::Tcp, deadline),
            Transport::Auto => {
                self.fallback = Some(over(TransportKind::Tcp, deadline));
                over(TransportKind::Rdma, now + share / 2)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CloseReason, Phase};

    fn addresses(count: u8) -> Addresses {
        let address = |number| SocketAddr::from(([10, 8, 0, number], 7471));
        Addresses::new((1..=count).map(address).collect())
    }

    fn failed(address: SocketAddr) -> Error {
        let reason = CloseReason::TimedOut(Phase::Waiting);
        Error::from_connect(address, TransportKind::Rdma, reason)
    }

    #[test]
    fn with_auto_each_address_is_tried_over_both_in_its_share() {
        let start = Instant::now();
        let timeout = Duration::from_secs(8);
        let mut attempts = Attempts::new(&addresses(2), Transport::Auto, timeout);
        let mut tried = Vec::new();
        let mut error = None;
        while let Some(attempt) = attempts.next(error.as_ref()) {
            error = Some(failed(attempt.address));
            tried.push((attempt.address.to_string(), attempt.transport));
            assert!(attempt.deadline <= start + timeout + Duration::from_secs(1));
        }
        let [first, second] = ["10.8.0.1:7471", "10.8.0.2:7471"].map(String::from);
        let expected = [
            (first.clone(), TransportKind::Rdma),
            (first, TransportKind::Tcp),
            (second.clone(), TransportKind::Rdma),
            (second, TransportKind::Tcp),
        ];
        assert_eq!(tried, expected);
    }

    #[test]
    fn what_a_peer_refuses_over_one_transport_is_not_tried_over_the_other() {
        let timeout = Duration::from_secs(8);
        let mut attempts = Attempts::new(&addresses(1), Transport::Auto, timeout);
        let first = attempts.next(None).unwrap();
        let error = Error::from_connect(first.address, first.transport, CloseReason::PeerBusy);
        assert_eq!(attempts.next(Some(&error)), None);
    }

    #[test]
    fn without_time_the_first_address_is_tried_and_no_other() {
        let mut attempts = Attempts::new(&addresses(3), Transport::Tcp, Duration::ZERO);
        let first = attempts.next(None).unwrap();
        assert_eq!(attempts.next(Some(&failed(first.address))), None);
    }
}
