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
    /// Between two attempts there is none.
    wire: Option<Arc<Wire>>,
    /// Why making the transport failed, in more detail than the state machine keeps.
    problem: Option<Error>,
}

/// The peer has left.
const GONE: OsError = OsError::new("accept", libc::ECONNRESET);

/// The id has no connection between two attempts.
const NO_WIRE: OsError = OsError::new("connect", libc::ENOTCONN);

impl ConnectionId {
    /// For the connection with this key, which is to connect.
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

    /// Takes a peer's request on, as the connection with this key.
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

    /// Makes the connection that `connect` offers to the listener on this address.
    pub(crate) fn create_id(&mut self, peer: SocketAddr) {
        self.peer = Some(peer);
        self.local = ConnectionManager::new_address(peer);
        self.wire = Some(Wire::new());
    }

    /// An address needs no resolving.
    pub(crate) fn resolve_addr(&self) {
        self.manager.report(self.key, EventKind::AddrResolved);
    }

    /// Nor does a route.
    pub(crate) fn resolve_route(&self) {
        self.manager.report(self.key, EventKind::RouteResolved);
    }

    /// Makes the queues.
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

    /// Asks the listener. The connection manager reports the outcome.
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
        // The reads have a meaning on the active side only.
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
        // Between two attempts there is no peer to reject.
        if let (Side::Passive, Some(wire)) = (self.side, &self.wire) {
            reject(wire, &self.manager, private_data);
        }
        Ok(())
    }

    pub(crate) fn disconnect(&mut self) -> Result<(), OsError> {
        let wire = self.wire.as_ref().ok_or(NO_WIRE)?;
        wire.disconnect(&self.manager);
        Ok(())
    }

    /// Leaves the connection. The connection manager reports no further events of this side.
    pub(crate) fn discard(&mut self) {
        let Some(wire) = self.wire.take() else {
            return;
        };
        let left = match (self.side, wire.leave(self.side)) {
            // The passive side has a request that was withdrawn.
            (Side::Active, Left::Unanswered(peer)) => Left::Open(peer),
            (_, left) => left,
        };
        self.manager.left(left);
        self.manager.forget(self.key);
    }

    /// This side's address.
    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Why making the transport failed, if it did.
    pub(crate) fn take_problem(&mut self) -> Option<Error> {
        self.problem.take()
    }

    /// Whether accepting failed with this error because the peer has gone: its end is reported.
    pub(crate) fn is_withdrawn(&self, error: OsError) -> bool {
        error == GONE
    }
}

impl Drop for ConnectionId {
    fn drop(&mut self) {
        // If this id has no connection, its key may belong to a later id that resumes the session.
        self.discard();
    }
}
