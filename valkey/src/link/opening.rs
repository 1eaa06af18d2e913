//! Resolves the address and the route of a client's connection, before its queue pair is created.

use std::{io, net::SocketAddr, time::Duration};

use rdma_status::CmEventType;
use rdma_verbs::cm::{CmEvent, CmId, EventChannel, PortSpace};

use super::Link;
use crate::{Config, session::Role};

/// The time limit for each of the two steps: resolving the address, and resolving the route.
const RESOLVE: Duration = Duration::from_secs(2);

/// A connection whose address or route is being resolved.
#[derive(Debug)]
pub(crate) struct Opening {
    id: CmId,
    events: EventChannel,
    timeout: Duration,
}

impl Opening {
    /// Starts to resolve the address.
    pub(crate) fn new(address: SocketAddr, config: &Config) -> io::Result<Self> {
        config.check()?;
        let timeout = RESOLVE.min(config.connect_timeout);
        let events = EventChannel::new()?;
        let mut id = CmId::new(&events, PortSpace::TCP, 0)?;
        id.resolve_addr(None, address, timeout)?;
        Ok(Self {
            id,
            events,
            timeout,
        })
    }

    pub(crate) fn events(&self) -> &EventChannel {
        &self.events
    }

    /// Handles an event. Returns true if the event reports that the route is resolved.
    pub(crate) fn step(&mut self, event: &CmEvent) -> io::Result<bool> {
        match (event.event(), event.status()) {
            (CmEventType::ADDR_RESOLVED, 0) => {
                self.id.resolve_route(self.timeout)?;
                Ok(false)
            }
            (CmEventType::ROUTE_RESOLVED, 0) => Ok(true),
            (other, _) => {
                let text = format!("{other}: {}", event.cm_status());
                Err(io::Error::new(io::ErrorKind::HostUnreachable, text))
            }
        }
    }

    /// Requests the connection. The route must be resolved.
    pub(crate) fn connect(self, config: &Config) -> io::Result<Link> {
        let mut link = Link::new(self.id, self.events, config, Role::Client)?;
        link.id.connect(&link.param())?;
        Ok(link)
    }
}
