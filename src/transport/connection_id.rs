use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use nix::sys::eventfd::EventFd;

#[cfg(feature = "rdma")]
use super::rdma;
use super::{
    budget::BudgetClient,
    connection_manager::{ConnectRequest, ConnectionManager, DeviceEvent},
    in_memory,
    no_transport::NoTransport,
    queues::TransportParts,
    tcp,
};
use crate::{config::Config, error::Error, status::OsError, transport_choice::Transport};

/// Returns the local address from which a connector with this configuration connects to `peer`, or
/// `None` if the application has not chosen an address. Fails if the chosen address and `peer` have
/// different address families.
pub(super) fn source(config: &Config, peer: SocketAddr) -> Result<Option<SocketAddr>, NoTransport> {
    match config.source {
        Some(source) if source.is_ipv4() != peer.is_ipv4() => {
            let error = OsError::new("bind", libc::EAFNOSUPPORT);
            Err(NoTransport::without_source(source, error))
        }
        source => Ok(source),
    }
}

/// The object that establishes and disconnects one connection. Only the engine uses it.
#[derive(Debug)]
pub(crate) enum ConnectionId {
    #[cfg(feature = "rdma")]
    Rdma(rdma::ConnectionId),
    Tcp(tcp::ConnectionId),
    Memory(in_memory::ConnectionId),
}

impl ConnectionId {
    /// Creates the id for an outgoing connection with this key over this transport.
    pub(crate) fn new(
        transport: Transport,
        manager: &ConnectionManager,
        key: u64,
    ) -> Result<Self, OsError> {
        Ok(match transport {
            #[cfg(feature = "rdma")]
            Transport::Rdma => Self::Rdma(rdma::ConnectionId::new(manager.rdma()?)),
            #[cfg(not(feature = "rdma"))]
            Transport::Rdma => return Err(ConnectionManager::NO_RDMA),
            Transport::Tcp => Self::Tcp(tcp::ConnectionId::new(manager.tcp()?, key)),
            Transport::Memory => Self::Memory(in_memory::ConnectionId::new(&manager.memory, key)),
        })
    }

    /// Creates the id of an incoming connection from the peer's request. `key` becomes the key of
    /// the connection.
    pub(crate) fn of_request(request: ConnectRequest, key: u64) -> Self {
        by_transport!(ConnectRequest, request, {
            Rdma(request) => Self::Rdma(rdma::ConnectionId::of_request(request, key)),
            Tcp(request) => Self::Tcp(tcp::ConnectionId::of_request(request, key)),
            Memory(request) => Self::Memory(in_memory::ConnectionId::of_request(request, key)),
        })
    }

    pub(crate) fn transport(&self) -> Transport {
        by_transport!(self, {
            Rdma(_) => Transport::Rdma,
            Tcp(_) => Transport::Tcp,
            Memory(_) => Transport::Memory,
        })
    }

    /// Creates the transport's id for the outgoing connection to `peer` with this `key`. After a
    /// failure, [`take_problem`](Self::take_problem) may return a more specific error.
    pub(crate) fn create_id(
        &mut self,
        manager: &ConnectionManager,
        key: u64,
        peer: SocketAddr,
        config: &Config,
    ) -> Result<(), OsError> {
        by_transport!(self, {
            Rdma(id) => id.create_id(manager.rdma()?, key, peer, config),
            Tcp(id) => id.create_id(peer, config),
            Memory(id) => {
                id.create_id(peer);
                Ok(())
            },
        })
    }

    /// Requests the configured ACK timeout from the RDMA device, which may ignore the request.
    pub(crate) fn set_ack_timeout(&mut self, key: u64, config: &Config) {
        by_transport!(self, {
            Rdma(id) => id.set_ack_timeout(key, config),
            // Over TCP the timeout is set together with the other socket options.
            Tcp(_) => {},
            Memory(_) => {},
        })
    }

    pub(crate) fn resolve_addr(
        &mut self,
        peer: SocketAddr,
        timeout: Duration,
    ) -> Result<(), OsError> {
        by_transport!(self, {
            Rdma(id) => id.resolve_addr(peer, timeout),
            Tcp(id) => {
                id.resolve_addr();
                Ok(())
            },
            Memory(id) => {
                id.resolve_addr();
                Ok(())
            },
        })
    }

    pub(crate) fn resolve_route(&mut self, timeout: Duration) -> Result<(), OsError> {
        by_transport!(self, {
            Rdma(id) => id.resolve_route(timeout),
            Tcp(id) => {
                id.resolve_route();
                Ok(())
            },
            Memory(id) => {
                id.resolve_route();
                Ok(())
            },
        })
    }

    pub(crate) fn connect(&mut self, private_data: &[u8], config: &Config) -> Result<(), OsError> {
        by_transport!(self, {
            Rdma(id) => id.connect(private_data, config),
            Tcp(id) => id.connect(private_data),
            Memory(id) => id.connect(private_data),
        })
    }

    pub(crate) fn accept(&mut self, private_data: &[u8], config: &Config) -> Result<(), OsError> {
        by_transport!(self, {
            Rdma(id) => id.accept(private_data, config),
            Tcp(id) => id.accept(private_data),
            Memory(id) => id.accept(private_data),
        })
    }

    pub(crate) fn reject(&mut self, private_data: &[u8]) -> Result<(), OsError> {
        by_transport!(self, all id => id.reject(private_data))
    }

    pub(crate) fn disconnect(&mut self) -> Result<(), OsError> {
        by_transport!(self, all id => id.disconnect())
    }

    /// Takes the eventfd that a TCP listener opened in advance for this connection. The listener
    /// does so because an accepted connection must get all its descriptors even if the process has
    /// reached its descriptor limit in the meantime. Returns `None` if there is no such eventfd.
    pub(crate) fn take_reserve(&mut self) -> Option<EventFd> {
        by_transport!(self, {
            Rdma(_) => None,
            Tcp(id) => id.take_reserve(),
            Memory(_) => None,
        })
    }

    /// Creates the queues of the connection. After a failure, [`take_problem`](Self::take_problem)
    /// may return a more specific error.
    pub(crate) fn create_transport(
        &mut self,
        manager: &mut ConnectionManager,
        key: u64,
        config: &Config,
        budget_client: BudgetClient,
    ) -> Result<TransportParts, OsError> {
        by_transport!(self, {
            Rdma(id) => id.create_transport(manager.rdma_mut()?, key, config, budget_client),
            Tcp(id) => id.create_transport(key, config, budget_client),
            Memory(id) => id.create_transport(config, budget_client),
        })
    }

    /// Gives up the id, and drops its events that have not been polled. Dropping the result
    /// destroys the id.
    pub(crate) fn discard(&mut self) -> Option<Box<dyn Send>> {
        by_transport!(self, {
            Rdma(id) => id.discard().map(|id| Box::new(id) as Box<dyn Send>),
            Tcp(id) => { id.discard(); None },
            Memory(id) => { id.discard(); None },
        })
    }

    /// Returns the local address, or `0.0.0.0:0` if it is not known.
    pub(crate) fn local_addr(&self) -> SocketAddr {
        let known = by_transport!(self, {
            Rdma(id) => id.local_addr(),
            Tcp(id) => id.local_addr(),
            Memory(id) => Some(id.local_addr()),
        });
        known.unwrap_or_else(|| (Ipv4Addr::UNSPECIFIED, 0).into())
    }

    /// Returns true if `event` applies to an object or a port that the connection uses.
    pub(crate) fn is_affected_by(&self, event: &DeviceEvent) -> bool {
        by_transport!(self, {
            Rdma(id) => id.is_affected_by(event),
            Tcp(_) => false,
            Memory(_) => false,
        })
    }

    /// Takes the more specific error of a failed [`create_id`](Self::create_id) or
    /// [`create_transport`](Self::create_transport), if there is one.
    pub(crate) fn take_problem(&mut self) -> Option<Error> {
        by_transport!(self, all id => id.take_problem())
    }

    /// Returns true if an accept call failed with `error` because the peer has withdrawn its
    /// request. The event that reports the withdrawal may arrive later.
    pub(crate) fn is_withdrawn(&mut self, error: OsError) -> bool {
        by_transport!(self, all id => id.is_withdrawn(error))
    }
}
