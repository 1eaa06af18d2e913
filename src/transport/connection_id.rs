use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use super::{
    budget::Customer,
    connection_manager::{ConnectRequest, ConnectionManager},
    queues::TransportParts,
    rdma, tcp,
};
use crate::{config::Config, error::Error, status::OsError, transport_kind::TransportKind};

/// What one connection is established and taken down with, which only the engine's thread touches.
#[derive(Debug)]
pub(crate) enum ConnectionId {
    Rdma(rdma::ConnectionId),
    Tcp(tcp::ConnectionId),
}

impl ConnectionId {
    /// For the connection with this key, which is to connect over this transport.
    pub(crate) fn new(
        transport: TransportKind,
        manager: &ConnectionManager,
        key: u64,
    ) -> Result<Self, OsError> {
        Ok(match transport {
            TransportKind::Rdma => Self::Rdma(rdma::ConnectionId::new(manager.rdma()?)),
            TransportKind::Tcp => Self::Tcp(tcp::ConnectionId::new(&manager.tcp, key)),
        })
    }

    /// Takes a peer's request on, as the connection with this key.
    pub(crate) fn of_request(request: ConnectRequest, key: u64) -> Self {
        match request {
            ConnectRequest::Rdma(request) => {
                Self::Rdma(rdma::ConnectionId::of_request(request, key))
            }
            ConnectRequest::Tcp(request) => Self::Tcp(tcp::ConnectionId::of_request(request, key)),
        }
    }

    pub(crate) fn transport(&self) -> TransportKind {
        match self {
            Self::Rdma(_) => TransportKind::Rdma,
            Self::Tcp(_) => TransportKind::Tcp,
        }
    }

    /// Makes the id of the connection with this key, which is to connect to `peer`.
    pub(crate) fn create_id(
        &mut self,
        manager: &ConnectionManager,
        key: u64,
        peer: SocketAddr,
    ) -> Result<(), OsError> {
        match self {
            Self::Rdma(id) => id.create_id(manager.rdma()?, key),
            Self::Tcp(id) => id.create_id(peer),
        }
    }

    /// Asks the device for this ACK timeout: what it makes of that is its own affair.
    pub(crate) fn set_ack_timeout(&mut self, config: &Config) {
        match self {
            Self::Rdma(id) => id.set_ack_timeout(config),
            // With the other options of its socket.
            Self::Tcp(_) => {}
        }
    }

    pub(crate) fn resolve_addr(
        &mut self,
        peer: SocketAddr,
        timeout: Duration,
    ) -> Result<(), OsError> {
        match self {
            Self::Rdma(id) => id.resolve_addr(peer, timeout),
            Self::Tcp(id) => {
                id.resolve_addr();
                Ok(())
            }
        }
    }

    pub(crate) fn resolve_route(&mut self, timeout: Duration) -> Result<(), OsError> {
        match self {
            Self::Rdma(id) => id.resolve_route(timeout),
            Self::Tcp(id) => {
                id.resolve_route();
                Ok(())
            }
        }
    }

    pub(crate) fn connect(&mut self, private_data: &[u8], config: &Config) -> Result<(), OsError> {
        match self {
            Self::Rdma(id) => id.connect(private_data, config),
            Self::Tcp(id) => id.connect(private_data),
        }
    }

    pub(crate) fn accept(&mut self, private_data: &[u8], config: &Config) -> Result<(), OsError> {
        match self {
            Self::Rdma(id) => id.accept(private_data, config),
            Self::Tcp(id) => id.accept(private_data),
        }
    }

    pub(crate) fn reject(&mut self, private_data: &[u8]) -> Result<(), OsError> {
        match self {
            Self::Rdma(id) => id.reject(private_data),
            Self::Tcp(id) => id.reject(private_data),
        }
    }

    pub(crate) fn disconnect(&mut self) -> Result<(), OsError> {
        match self {
            Self::Rdma(id) => id.disconnect(),
            Self::Tcp(id) => id.disconnect(),
        }
    }

    /// Closes the descriptor that a listener over TCP reserved. The caller creates the connection's
    /// own next.
    pub(crate) fn release_reserve(&mut self) {
        match self {
            Self::Rdma(_) => {}
            Self::Tcp(id) => id.release_reserve(),
        }
    }

    /// Makes the queues. With an error that says less than there is to say, the
    /// [problem](Self::take_problem) says the rest.
    pub(crate) fn create_transport(
        &mut self,
        manager: &mut ConnectionManager,
        key: u64,
        config: &Config,
        customer: Customer,
    ) -> Result<TransportParts, OsError> {
        match self {
            Self::Rdma(id) => id.create_transport(manager.rdma_mut()?, key, config, customer),
            Self::Tcp(id) => id.create_transport(key, config, customer),
        }
    }

    /// Destroys the id, and with it all events that it may still have had.
    pub(crate) fn discard(&mut self) {
        match self {
            Self::Rdma(id) => id.discard(),
            Self::Tcp(id) => id.discard(),
        }
    }

    /// Returns this side's address, or `0.0.0.0:0` if the system does not know it.
    pub(crate) fn local_addr(&self) -> SocketAddr {
        let known = match self {
            Self::Rdma(id) => id.local_addr(),
            Self::Tcp(id) => id.local_addr(),
        };
        known.unwrap_or_else(|| (Ipv4Addr::UNSPECIFIED, 0).into())
    }

    /// Why making the queues failed, if it did.
    pub(crate) fn take_problem(&mut self) -> Option<Error> {
        match self {
            Self::Rdma(id) => id.take_problem(),
            Self::Tcp(id) => id.take_problem(),
        }
    }

    /// Whether a step of accepting failed with this error because the peer has withdrawn its
    /// request: an event of that may still come.
    pub(crate) fn is_withdrawn(&mut self, error: OsError) -> bool {
        match self {
            Self::Rdma(id) => id.is_withdrawn(error),
            Self::Tcp(id) => id.is_withdrawn(error),
        }
    }
}
