use std::{
    net::{Ipv6Addr, SocketAddr},
    sync::Arc,
};

use super::{
    connection_manager::{ConnectRequest, ConnectionManager, DEPTH, reject},
    create_transport::create_transport,
    wire::{Left, Side, Wire},
};
use crate::{
    config::Config,
    error::Error,
    proto::{CloseReason, ReadDepth},
    status::OsError,
    transport::{budget::BudgetClient, queues::TransportParts, tcp::EventKind},
};

/// The object that establishes and disconnects one connection. Only the engine uses it.
#[derive(Debug)]
pub(crate) struct ConnectionId {
    key: u64,
    manager: ConnectionManager,
    peer: Option<SocketAddr>,
    local: SocketAddr,
    side: Side,
    /// The connection; `None` before the first attempt to connect, and between two attempts.
    wire: Option<Arc<Wire>>,
    /// The detailed error of a failed call, for the application. The state machine gets only an
    /// `OsError`.
    problem: Option<Error>,
}

/// The error of `accept` after the peer has left the connection.
const GONE: OsError = OsError::new("accept", libc::ECONNRESET);

/// The error of a call while the id has no connection, that is, between a failed attempt to connect
/// and the next attempt.
const NO_WIRE: OsError = OsError::new("connect", libc::ENOTCONN);

impl ConnectionId {
    /// Creates the object for an outgoing connection with this key.
    pub(crate) fn new(manager: &ConnectionManager, key: u64) -> Self {
        Self {
            key,
            manager: manager.clone(),
            peer: None,
            local: (Ipv6Addr::UNSPECIFIED, 0).into(),
            side: Side::Active,
            wire: None,
            problem: None,
        }
    }

    /// Creates the passive side's id from a peer's request. `key` becomes the key of the
    /// connection.
    pub(crate) fn of_request(mut request: ConnectRequest, key: u64) -> Self {
        Self {
            key,
            manager: request.manager.clone(),
            peer: Some(request.peer),
            local: request.local,
            side: Side::Passive,
            wire: request.take(),
            problem: None,
        }
    }

    /// Creates a new connection. [`connect`](Self::connect) then sends the request to the listener
    /// at `peer`.
    pub(crate) fn create_id(&mut self, peer: SocketAddr) {
        self.peer = Some(peer);
        self.local = ConnectionManager::new_address(peer);
        self.wire = Some(Wire::new());
    }

    /// Reports the address as resolved immediately, because there is nothing to resolve.
    pub(crate) fn resolve_addr(&self) {
        self.manager.report(self.key, EventKind::AddrResolved);
    }

    /// Reports the route as resolved immediately.
    pub(crate) fn resolve_route(&self) {
        self.manager.report(self.key, EventKind::RouteResolved);
    }

    /// Creates the queues of the connection.
    pub(crate) fn create_transport(
        &mut self,
        config: &Config,
        budget_client: BudgetClient,
    ) -> Result<TransportParts, OsError> {
        let wire = self.wire.as_ref().ok_or(NO_WIRE)?;
        create_transport(
            (wire, self.side),
            &self.manager,
            self.key,
            config,
            budget_client,
        )
        .map_err(|no| no.store(&mut self.problem))
    }

    /// Sends a request to the listener. The connection manager reports the result.
    pub(crate) fn connect(&mut self, private_data: &[u8]) -> Result<(), OsError> {
        let wire = self.wire.as_ref().ok_or(NO_WIRE)?;
        let peer = self.peer.ok_or(NO_WIRE)?;
        if !self.manager.ask(wire, (self.local, peer), private_data) {
            let refused = EventKind::Failed(CloseReason::Refused);
            self.manager.report(self.key, refused);
        }
        Ok(())
    }

    pub(crate) fn accept(&mut self, private_data: &[u8]) -> Result<(), OsError> {
        let wire = self.wire.as_ref().ok_or(NO_WIRE)?;
        let peer = wire.open().ok_or(GONE)?;
        let established = |private_data, reads| EventKind::Established {
            private_data,
            reads,
        };
        // The passive side ignores the READ depths in this event.
        let none = ReadDepth {
            outgoing: 0,
            incoming: 0,
        };
        self.manager.report(self.key, established(Vec::new(), none));
        self.manager
            .report(peer, established(private_data.to_vec(), DEPTH));
        Ok(())
    }

    pub(crate) fn reject(&mut self, private_data: &[u8]) -> Result<(), OsError> {
        // Only the passive side rejects its peer. Between two attempts there is no connection to
        // reject.
        if let (Side::Passive, Some(wire)) = (self.side, &self.wire) {
            reject(wire, &self.manager, private_data);
        }
        Ok(())
    }

    pub(crate) fn disconnect(&mut self) -> Result<(), OsError> {
        let wire = self.wire.as_ref().ok_or(NO_WIRE)?;
        self.leave(wire);
        Ok(())
    }

    /// Leaves the connection, and drops the pending events of this side. The connection manager
    /// reports no further events for this side.
    pub(crate) fn discard(&mut self) {
        let Some(wire) = self.wire.take() else {
            return;
        };
        self.leave(&wire);
        self.manager.forget(self.key);
    }

    /// Ends the connection, and reports the end to the peer.
    fn leave(&self, wire: &Wire) {
        let left = match (self.side, wire.leave(self.side)) {
            // The peer, which is the passive side, has already received the request. Therefore it
            // gets a disconnect event, and not an event that reports a failed attempt.
            (Side::Active, Left::Unanswered(peer)) => Left::Open(peer),
            (_, left) => left,
        };
        self.manager.left(left);
    }

    /// Returns this side's address.
    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Takes the detailed error of a failed call, if there is one.
    pub(crate) fn take_problem(&mut self) -> Option<Error> {
        self.problem.take()
    }

    /// Returns true if an accept call failed with `error` because the peer has already left the
    /// connection. A separate event reports the end of the connection.
    pub(crate) fn is_withdrawn(&self, error: OsError) -> bool {
        error == GONE
    }
}

impl Drop for ConnectionId {
    fn drop(&mut self) {
        // If this id has no connection, `discard` does nothing. In this case `discard` must not
        // drop events: they may belong to a later id with the same key, which resumes the session.
        self.discard();
    }
}
