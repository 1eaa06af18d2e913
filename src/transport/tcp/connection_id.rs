use std::{
    mem,
    net::SocketAddr,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use nix::sys::{
    eventfd::EventFd,
    socket::{SockaddrStorage, connect},
};

use super::{
    connection_manager::{ConnectRequest, ConnectionManager},
    create_transport::create_transport,
    setup::tell,
    setup_message::Kind,
    socket::{bind_source, local_addr, set_options, stream_socket},
    stream::Stream,
};
use crate::{
    config::Config,
    error::Error,
    os::{Unshared, failed},
    status::OsError,
    transport::{
        budget::BudgetClient, connection_id::source, no_transport::NoTransport,
        queues::TransportParts,
    },
};

/// The object that establishes and disconnects one TCP connection. Only the engine's thread uses
/// it.
#[derive(Debug)]
pub(crate) struct ConnectionId {
    key: u64,
    manager: ConnectionManager,
    peer: Option<SocketAddr>,
    /// How many READs the peer that asked serves at a time.
    reads: u8,
    carrier: Carrier,
    /// A descriptor for the transport of a request, which is closed before that is made.
    reserve: Option<EventFd>,
    /// Why making the transport failed, in more detail than the state machine keeps.
    problem: Option<Error>,
}

impl ConnectionId {
    /// For the connection with this key, which is to connect.
    pub(crate) fn new(manager: &ConnectionManager, key: u64) -> Self {
        Self {
            key,
            manager: manager.clone(),
            peer: None,
            reads: 0,
            carrier: Carrier::Nothing,
            reserve: None,
            problem: None,
        }
    }

    /// Takes a peer's request on, as the connection with this key.
    pub(crate) fn of_request(request: ConnectRequest, key: u64) -> Self {
        let (peer, reads) = (request.peer_addr(), request.reads().outgoing);
        let (socket, reserve, manager) = request.adopt(key);
        Self {
            key,
            manager,
            peer: Some(peer),
            reads,
            carrier: socket.map_or(Carrier::Nothing, Carrier::Socket),
            reserve,
            problem: None,
        }
    }

    /// Makes the socket that is to connect to this address.
    pub(crate) fn create_id(&mut self, peer: SocketAddr, config: &Config) -> Result<(), OsError> {
        let socket = create_socket(peer, config).map_err(|no| no.store(&mut self.problem))?;
        self.carrier = Carrier::Socket(Unshared::new(socket));
        self.peer = Some(peer);
        Ok(())
    }

    /// An address needs no resolving.
    pub(crate) fn resolve_addr(&mut self) {
        self.manager.resolved_addr(self.key);
    }

    /// Nor does a route.
    pub(crate) fn resolve_route(&mut self) {
        self.manager.resolved_route(self.key);
    }

    /// Closes the reserved descriptor, so that the transport can open its own.
    pub(crate) fn release_reserve(&mut self) {
        self.reserve = None;
    }

    /// Makes the queues on the socket, connected or not.
    pub(crate) fn create_transport(
        &mut self,
        key: u64,
        config: &Config,
        budget_client: BudgetClient,
    ) -> Result<TransportParts, OsError> {
        let shared_pools = self.manager.shared_pools();
        set_options(&self.carrier.fd()?, key, config)
            .and_then(|()| {
                create_transport(&mut self.carrier, shared_pools, key, config, budget_client)
            })
            .map_err(|no| no.store(&mut self.problem))
    }

    /// Connects, and then sends the request. The connection manager reports the outcome.
    pub(crate) fn connect(&mut self, private_data: &[u8]) -> Result<(), OsError> {
        let (stream, peer) = (self.carrier.stream()?, self.peer.ok_or(NO_PEER)?);
        let address = SockaddrStorage::from(peer);
        match connect(stream.fd().as_raw_fd(), &address) {
            // The kernel continues to connect after a signal.
            Ok(()) | Err(nix::Error::EINPROGRESS | nix::Error::EINTR) => {
                self.manager.connecting(self.key, stream, private_data)
            }
            Err(errno) => {
                self.manager.failed_to_connect(self.key, errno);
                Ok(())
            }
        }
    }

    pub(crate) fn accept(&mut self, private_data: &[u8]) -> Result<(), OsError> {
        let stream = self.carrier.stream()?;
        tell(stream.fd(), Kind::Accept, private_data).map_err(failed("send"))?;
        self.manager.accepted(self.key, stream, self.reads);
        Ok(())
    }

    pub(crate) fn reject(&mut self, private_data: &[u8]) -> Result<(), OsError> {
        // Between two attempts there is no peer to reject.
        let Ok(socket) = self.carrier.fd() else {
            return Ok(());
        };
        tell(socket, Kind::Reject, private_data).map_err(failed("send"))
    }

    pub(crate) fn disconnect(&mut self) -> Result<(), OsError> {
        self.carrier.stream()?.disconnect();
        Ok(())
    }

    /// Drops this object's socket. The connection manager reports no further events of the socket,
    /// even if the queues still use it. The next attempt gets another socket with the same key.
    pub(crate) fn discard(&mut self) {
        let Ok(socket) = self.carrier.fd() else {
            return;
        };
        self.manager.unwatch(socket);
        self.manager.forget(self.key);
        self.carrier = Carrier::Nothing;
    }

    /// This side's address.
    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        self.carrier.fd().ok().and_then(local_addr)
    }

    /// Why making the transport failed, if it did.
    pub(crate) fn take_problem(&mut self) -> Option<Error> {
        self.problem.take()
    }

    /// Whether accepting failed with this error because the peer has gone: its end is reported.
    pub(crate) fn is_withdrawn(&self, error: OsError) -> bool {
        matches!(error.errno, libc::EPIPE | libc::ECONNRESET)
    }
}

impl Drop for ConnectionId {
    fn drop(&mut self) {
        // If this id has no socket, its key may belong to a later id that resumes the session.
        self.discard();
    }
}

/// Makes a socket that is to connect to `peer`, bound to the address from which it connects.
fn create_socket(peer: SocketAddr, config: &Config) -> Result<OwnedFd, NoTransport> {
    let source = source(config, peer)?;
    let socket = stream_socket(peer)?;
    if let Some(source) = source {
        bind_source(&socket, source).map_err(|error| NoTransport::without_source(source, error))?;
    }
    Ok(socket)
}

/// Its address is resolved first.
const NO_PEER: OsError = OsError::new("connect", libc::EDESTADDRREQ);

/// The socket or stream of a connection.
#[derive(Debug)]
pub(super) enum Carrier {
    /// Before the first attempt, and between two.
    Nothing,
    /// Until there are queues.
    Socket(Unshared<OwnedFd>),
    /// With queues, or a part of them if the rest failed.
    Stream(Arc<Stream>),
}

/// The id's socket is missing between two attempts.
const NO_SOCKET: OsError = OsError::new("socket", libc::ENOTSOCK);

impl Carrier {
    /// Makes a stream of the socket. It stays if later steps fail, so that a rejection can be sent.
    pub(super) fn open(
        &mut self,
        open: impl FnOnce(Unshared<OwnedFd>) -> Arc<Stream>,
    ) -> Result<&Arc<Stream>, OsError> {
        if let Self::Socket(socket) = mem::replace(self, Self::Nothing) {
            *self = Self::Stream(open(socket));
        }
        self.stream()
    }

    pub(super) fn stream(&self) -> Result<&Arc<Stream>, OsError> {
        match self {
            Self::Stream(stream) => Ok(stream),
            Self::Nothing | Self::Socket(_) => Err(NO_SOCKET),
        }
    }

    pub(super) fn fd(&self) -> Result<BorrowedFd<'_>, OsError> {
        match self {
            Self::Nothing => Err(NO_SOCKET),
            Self::Socket(socket) => Ok(socket.as_fd()),
            Self::Stream(stream) => Ok(stream.fd()),
        }
    }
}
