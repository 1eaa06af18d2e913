use std::{
    cell::OnceCell,
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
    socket::{Options, Socket, bind_source, local_addr, set_traffic_class, stream_socket},
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
    /// The maximum number of READs that the requesting peer serves at a time.
    reads: u8,
    carrier: Carrier,
    /// The options that the socket of an incoming connection has inherited from the listener.
    inherited: Option<Options>,
    /// The eventfd that the listener opened for an incoming connection.
    reserve: Option<EventFd>,
    /// This side's address, stored by the first successful call of
    /// [`local_addr`](Self::local_addr).
    local: OnceCell<SocketAddr>,
    /// The detailed error of a failed call, for the application. The state machine gets only an
    /// `OsError`.
    problem: Option<Error>,
}

impl ConnectionId {
    /// Creates the object for an outgoing connection with this key.
    pub(crate) fn new(manager: &ConnectionManager, key: u64) -> Self {
        Self {
            key,
            manager: manager.clone(),
            peer: None,
            reads: 0,
            carrier: Carrier::Nothing,
            inherited: None,
            reserve: None,
            local: OnceCell::new(),
            problem: None,
        }
    }

    /// Creates the object for a peer's request. `key` becomes the key of the connection.
    pub(crate) fn of_request(request: ConnectRequest, key: u64) -> Self {
        let (peer, reads) = (request.peer_addr(), request.reads().outgoing);
        let (accepted, manager) = request.adopt(key);
        Self {
            key,
            manager,
            peer: Some(peer),
            reads,
            carrier: Carrier::Socket(accepted.socket),
            inherited: Some(accepted.options),
            reserve: Some(accepted.reserve),
            local: OnceCell::new(),
            problem: None,
        }
    }

    /// Creates the socket for an outgoing connection to `peer`.
    pub(crate) fn create_id(&mut self, peer: SocketAddr, config: &Config) -> Result<(), OsError> {
        let socket = create_socket(peer, config).map_err(|no| no.store(&mut self.problem))?;
        self.carrier = Carrier::Socket(Socket::of_connect(Unshared::new(socket)));
        self.inherited = None;
        self.peer = Some(peer);
        Ok(())
    }

    /// Reports the address as resolved immediately, because TCP addresses need no resolution.
    pub(crate) fn resolve_addr(&mut self) {
        self.manager.resolved_addr(self.key);
    }

    /// Reports the route as resolved immediately.
    pub(crate) fn resolve_route(&mut self) {
        self.manager.resolved_route(self.key);
    }

    /// Takes the eventfd that the listener opened for this connection.
    pub(crate) fn take_reserve(&mut self) -> Option<EventFd> {
        self.reserve.take()
    }

    /// Creates the queues on the socket, even if the socket is not connected yet.
    pub(crate) fn create_transport(
        &mut self,
        key: u64,
        config: &Config,
        budget_client: BudgetClient,
    ) -> Result<TransportParts, OsError> {
        let shared_pools = self.manager.shared_pools();
        let (socket, options) = (self.carrier.fd()?, Options::new(config));
        if self.inherited != Some(options) {
            options.set(&socket, format_args!("conn {key}"));
        }
        set_traffic_class(&socket, config)
            .and_then(|()| {
                create_transport(&mut self.carrier, shared_pools, key, config, budget_client)
            })
            .map_err(|no| no.store(&mut self.problem))
    }

    /// Connects the socket, and then sends the request. The connection manager reports the result.
    pub(crate) fn connect(&mut self, private_data: &[u8]) -> Result<(), OsError> {
        let (stream, peer) = (self.carrier.stream()?, self.peer.ok_or(NO_PEER)?);
        let address = SockaddrStorage::from(peer);
        match connect(stream.fd().as_raw_fd(), &address) {
            // After a signal (EINTR), the kernel continues to connect.
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
        // Between two attempts there is no socket, and no peer to reject.
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
    /// even if the queues still use it. The next attempt uses a new socket with the same key.
    pub(crate) fn discard(&mut self) {
        let Ok(socket) = self.carrier.fd() else {
            return;
        };
        self.manager.discard(self.key, socket);
        self.carrier = Carrier::Nothing;
        self.local.take();
    }

    /// Returns this side's address, after the socket has connected.
    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        if let Some(local) = self.local.get() {
            return Some(*local);
        }
        let local = self.carrier.fd().ok().and_then(local_addr)?;
        Some(*self.local.get_or_init(|| local))
    }

    /// Takes the detailed error of a failed call, if there is one.
    pub(crate) fn take_problem(&mut self) -> Option<Error> {
        self.problem.take()
    }

    /// Returns true if an accept call failed with `error` because the peer has closed its socket.
    /// The end of the connection is reported separately.
    pub(crate) fn is_withdrawn(&self, error: OsError) -> bool {
        matches!(error.errno, libc::EPIPE | libc::ECONNRESET)
    }
}

impl Drop for ConnectionId {
    fn drop(&mut self) {
        // If this id has no socket, `discard` does nothing. In particular, it drops no pending
        // events with this key, because these events may belong to a later id that has the same key
        // and resumes the session.
        self.discard();
    }
}

/// Creates a socket for a connection to `peer`. Binds the socket to the source address if one is
/// configured.
fn create_socket(peer: SocketAddr, config: &Config) -> Result<OwnedFd, NoTransport> {
    let source = source(config, peer)?;
    let socket = stream_socket(peer)?;
    if let Some(source) = source {
        bind_source(&socket, source).map_err(|error| NoTransport::without_source(source, error))?;
    }
    Ok(socket)
}

/// The error of a call of `connect` before `create_id` has set the peer.
const NO_PEER: OsError = OsError::new("connect", libc::EDESTADDRREQ);

/// The socket or stream of a connection.
#[derive(Debug)]
pub(super) enum Carrier {
    /// No socket exists. This is the state before the first attempt and between two attempts.
    Nothing,
    /// The socket exists, but no queues exist.
    Socket(Socket),
    /// All queues exist, or some of them if the others could not be created.
    Stream(Arc<Stream>),
}

/// The error of a call that needs a socket or a stream that does not exist.
const NO_SOCKET: OsError = OsError::new("socket", libc::ENOTSOCK);

impl Carrier {
    /// Converts the socket to a stream. The stream is kept even if a later step fails, so that a
    /// rejection can be sent.
    pub(super) fn open(
        &mut self,
        open: impl FnOnce(Socket) -> Arc<Stream>,
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
