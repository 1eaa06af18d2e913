use std::{net::IpAddr, sync::Arc};

use super::link::Link;
use crate::{error::Error, os::lock, transport::HopLimit};

impl Link {
    /// Returns the limit of hops in this connection's packets.
    pub(crate) fn hop_limit(&self) -> Result<u32, Error> {
        self.with_hop_limit(|limit, over_ipv6| limit.get(over_ipv6).map_err(Error::from_os))
    }

    pub(crate) fn set_hop_limit(&self, hops: u32) -> Result<(), Error> {
        self.with_hop_limit(|limit, over_ipv6| limit.set(hops, over_ipv6).map_err(Error::from_os))
    }

    fn with_hop_limit<T>(
        &self,
        call: impl FnOnce(HopLimit<'_>, bool) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let events = lock(&self.poll)
            .as_ref()
            .map(|side| Arc::clone(side.events()));
        let events = events.ok_or_else(|| self.disconnected())?;
        let limit = events.hop_limit().ok_or_else(|| Error::NotSupported {
            operation: "a time to live of its own",
            device: "a connection over RDMA".into(),
            because: "its route has the limit of hops",
        })?;
        let over_ipv6 = match self.peer_addr().ip() {
            IpAddr::V4(_) => false,
            IpAddr::V6(ip) => ip.to_ipv4_mapped().is_none(),
        };
        call(limit, over_ipv6)
    }
}
