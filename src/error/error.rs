use std::{
    fmt, io,
    net::{IpAddr, SocketAddr},
};

use nix::sys::resource::{Resource, getrlimit};

use super::local_remedies::{
    BindProblem, LoopbackProblem, MemlockRemedy, NoRdmaRemedy, ScopeRemedy, device_remedy,
    rebind_remedy,
};
use crate::{
    addresses::Shown,
    machine::{self, Denied},
    os::failed_or,
    proto::{CloseReason, Phase},
    remote_access::RemoteAccess,
    status::{CmStatus, OsError},
    transport_choice::Transport,
};

/// The error of an operation. The text includes a remedy if one is known.
///
/// [The troubleshooting page](crate::guide::troubleshooting) lists the texts with causes and
/// remedies. `Debug` prints the same text as `Display`, so that a `main` that returns the error
/// prints the remedy. The error converts into an [`io::Error`] of the kind that programs written
/// for TCP expect.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A [`Config`](crate::Config) field has an invalid value.
    #[error("invalid configuration: {field} is {value}, allowed is {allowed}")]
    InvalidConfig {
        /// The field's name.
        field: &'static str,
        /// The refused value.
        value: String,
        /// The allowed values.
        allowed: String,
    },

    /// The lookup of a host name or address failed.
    #[error("cannot look up the address {address}: {problem}")]
    AddressLookup {
        /// The name or address.
        address: String,
        /// The problem, as the resolver reported it.
        problem: String,
    },

    /// This machine has no RDMA connection manager, or lacks the RDMA libraries. A program that was
    /// built without the feature `linked` loads these libraries when it first needs them.
    #[error("this machine offers no RDMA: {0}. {remedy}", remedy = NoRdmaRemedy(.0))]
    NoRdma(OsError),

    /// This program was built without rdmsg's feature `rdma`.
    #[error(
        "this program was built without RDMA: build it with rdmsg's feature rdma, or set \
         transport to Auto or Tcp in the Config"
    )]
    RdmaNotBuilt,

    /// This process is not permitted to use the machine's RDMA devices.
    #[error("{error}: {denied}{device}", device = device_remedy(machine::is_container()))]
    PermissionDenied {
        /// The call that failed.
        error: OsError,
        /// The device file and its permissions.
        denied: Denied,
    },

    /// No RDMA device serves the address, because it is a loopback address, such as `localhost`. A
    /// connect to `0.0.0.0` or `[::]` also returns this error if no RDMA device of this machine
    /// serves an address of this IP version.
    #[error("{address} {}", LoopbackProblem(.address, .local))]
    Loopback {
        /// The address.
        address: SocketAddr,
        /// The addresses of this machine that RDMA devices serve. Programs on this machine can also
        /// connect to these addresses.
        local: Vec<IpAddr>,
    },

    /// Listening on an address failed.
    #[error(
        "cannot listen on {}: {}{}",
        Shown(*.address),
        BindProblem(.address, .error),
        ScopeRemedy(.address, Some(.error))
    )]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The call that failed.
        error: OsError,
    },

    /// The connection could not be established. The reason is [`CloseReason::Os`] if a system call
    /// failed. Over TCP, every failed connect(2) has this reason, except for a refusal.
    #[error(
        "cannot connect to {}: {reason}{}",
        Shown(*.peer),
        ScopeRemedy(.peer, os_error(.reason))
    )]
    Connect {
        /// The peer's address.
        peer: SocketAddr,
        /// The reason.
        reason: CloseReason,
    },

    /// A connector could not bind to its [source](crate::Connector::source) address. The connector
    /// has not contacted the peer.
    #[error(
        "cannot connect from {address}, the source of the Connector: {}{}",
        BindProblem(.address, .error),
        ScopeRemedy(.address, Some(.error))
    )]
    Source {
        /// The source address.
        address: SocketAddr,
        /// The call that failed.
        error: OsError,
    },

    /// The connection has ended. The reason is the first event that ended the connection. All later
    /// calls return the same reason.
    #[error("the connection has ended: {0}")]
    Disconnected(CloseReason),

    /// The connection was closed, but the peer has not confirmed everything that was sent.
    #[error("closed without confirmation, sent messages may be lost: {0}")]
    Undelivered(CloseReason),

    /// A [`Persistent`](crate::Persistent) client has no connection. The call cannot wait for a new
    /// connection, because the calling thread must first take the event that reports the loss.
    ///
    /// Nothing was sent. The client connects again while the program takes the client's events.
    #[error(
        "not connected: take the events of the client with Persistent::next_event, which dials"
    )]
    NotConnected,

    /// The message is longer than the peer accepts. Nothing was sent; the connection stays open.
    #[error(
        "a message of {len} bytes is too long: the peer takes at most {limit}; raise max_message \
         in its Config"
    )]
    MessageTooLong {
        /// The message's length in bytes.
        len: usize,
        /// The length in bytes of the longest message that the peer accepts.
        limit: u64,
    },

    /// The peer's window or the send queue is full, and the call does not wait.
    ///
    /// Nothing was sent; the connection stays open, and a later retry may succeed.
    #[error("the peer's receive window or the send queue is full")]
    WindowFull,

    /// This side has [finished](crate::Endpoint::finish): it has sent its last message.
    ///
    /// The failed call has sent nothing. The peer's messages can still be received.
    #[error("nothing more can be sent: this side has finished sending")]
    Finished,

    /// The peer has [finished](crate::Endpoint::finish): it has sent its last message.
    ///
    /// All of its messages were received; this side can continue to send.
    #[error("nothing more will arrive: the peer has finished sending")]
    PeerFinished,

    /// The private data is too long for the request or reply that carries it.
    #[error("private data of {len} bytes is too long: at most {limit} bytes fit into {place}")]
    PrivateDataTooLong {
        /// The length of the private data in bytes.
        len: usize,
        /// The maximum length in bytes.
        limit: usize,
        /// A description of the request or reply that carries the private data.
        place: &'static str,
    },

    /// The program has too many untaken completions of messages with ids, and no other thread takes
    /// completions.
    ///
    /// Nothing was sent; the connection stays open. While another thread takes completions, a
    /// blocking call waits and does not return this error: see
    /// [`Outgoing::with_id`](crate::Outgoing::with_id).
    #[error(
        "too many completions wait to be taken: take some from Endpoint::completions or with \
         Endpoint::next_completion and repeat the call, or take them in another thread"
    )]
    CompletionsNotTaken,

    /// The peer's program has not yet taken and dropped 2 earlier control messages.
    ///
    /// Nothing was sent; the connection stays open, and a later retry may succeed.
    #[error(
        "the peer has not taken {untaken} earlier control messages: its program must take and drop \
         each Completion::Control; put several notices into one control message, or retry later"
    )]
    ControlMessagesNotTaken {
        /// The number of control messages that the peer has not taken.
        untaken: u32,
    },

    /// The control message is longer than the peer accepts.
    ///
    /// Nothing was sent; the connection stays open.
    #[error(
        "a control message of {len} bytes is too long: the peer takes at most {limit}; send longer \
         ones as ordinary messages"
    )]
    ControlMessageTooLong {
        /// The length of the control message in bytes.
        len: usize,
        /// The length in bytes of the longest control message that the peer accepts.
        limit: u32,
    },

    /// The endpoint is in a [`Group`](crate::Group), which receives the endpoint's messages and
    /// other completions.
    #[error(
        "the endpoint is in a Group: take its completions from Group::completions, or remove it \
         from the group first"
    )]
    Grouped,

    /// A one-sided operation exceeds the bounds of a region. Nothing was done; the connection stays
    /// open.
    #[error("{len} bytes at offset {start} do not fit into {what} of {limit} bytes")]
    OutOfBounds {
        /// A description of the memory.
        what: &'static str,
        /// The offset of the operation, in bytes.
        start: u64,
        /// The length of the operation, in bytes.
        len: u64,
        /// The length of the region, in bytes.
        limit: u64,
    },

    /// The peer's region does not allow the operation. Nothing was done; the connection stays open.
    #[error(
        "the peer's region does not allow the operation: it allows {allowed}, but the operation \
         needs {needed}"
    )]
    NotAllowed {
        /// The rights that the region grants.
        allowed: RemoteAccess,
        /// The rights that the operation needs.
        needed: RemoteAccess,
    },

    /// The remote address of an atomic operation is not a multiple of 8.
    ///
    /// Nothing was done; the connection stays open.
    #[error(
        "atomic operations need an 8-byte-aligned remote address; offset {offset} is not aligned"
    )]
    Misaligned {
        /// The offset in the peer's region, in bytes.
        offset: u64,
    },

    /// The device of this side or of the peer does not support the operation: see
    /// [`Capabilities`](crate::Capabilities).
    ///
    /// Nothing was done; the connection stays open.
    #[error("{operation} is not supported by {device}: {because}")]
    NotSupported {
        /// The operation.
        operation: &'static str,
        /// The device's name, or a text that describes the peer's device.
        device: String,
        /// The reason, for instance a missing capability.
        because: &'static str,
    },

    /// The buffer or region belongs to another connection.
    ///
    /// Nothing was done; the connection stays open.
    #[error("this buffer or region belongs to another connection and can be used only there")]
    ForeignMemory,

    /// The region belongs to a connection that was lost and has resumed since. It can be a region
    /// of this side or of the peer.
    ///
    /// When a connection with [`Config::resume`](crate::Config::resume) is lost, its regions become
    /// unusable for one-sided operations. The program can still read the bytes of its own regions.
    /// Nothing was done; the connection stays open.
    #[error(
        "this region belongs to a lost connection of the session: register a new one, and send its \
         description to the peer again"
    )]
    StaleRegion,

    /// The timeout of the call has expired. The connection stays open.
    #[error("timed out")]
    TimedOut,

    /// Too few shared receive buffers are free for another connection.
    ///
    /// Existing connections are not affected. A retry may succeed after an existing connection has
    /// ended.
    #[error(
        "the {total} shared receive buffers are in use: {free} are free, and a connection needs \
         {needed}; raise shared_receive in the Config, close connections, or drop held messages"
    )]
    SharedReceivesExhausted {
        /// The number of buffers in the pool.
        total: u32,
        /// The number of buffers that are not reserved for a connection.
        free: u32,
        /// The minimum number of buffers for a connection.
        needed: u32,
    },

    /// Registering memory failed because the process is not permitted to lock that much memory.
    #[error(
        "cannot register memory: {error}. {}",
        MemlockRemedy { limit: *.limit, in_container: machine::is_container() }
    )]
    LockedMemory {
        /// The call that failed.
        error: OsError,
        /// The process's current limit on locked memory in bytes.
        limit: u64,
    },

    /// The device or the address of a listener was removed, or the listener's engine failed. The
    /// listener cannot be used again; bind a new one.
    #[error(
        "the listener on {} has ended: {reason}{}",
        Shown(*.address),
        rebind_remedy(.reason)
    )]
    ListenerEnded {
        /// The address of the listener.
        address: SocketAddr,
        /// The reason why the listener ended.
        reason: CloseReason,
    },

    /// The listener was closed by [`Listener::close`](crate::Listener::close) or
    /// [`Engine::drain`](crate::Engine::drain). The listener cannot be used again; bind a new one.
    #[error("the listener was closed; bind a new one")]
    ListenerClosed,

    /// A system call or a call of an RDMA library failed.
    #[error("{0}")]
    Os(#[from] OsError),

    /// The engine that serves this handle was shut down, or the process is exiting: the exit
    /// handler closes all connections and ends all engines.
    #[error(
        "the engine was shut down, or the process is exiting, which ends all engines: join threads \
         before main returns; after Engine::shutdown use Engine::shared or a new engine"
    )]
    EngineShutDown,

    /// The object belongs to the parent of this process, and works only in the parent.
    ///
    /// A connection reports this condition as [`CloseReason::Forked`]. [The
    /// guide](crate::guide::installing#fork) lists the operations that work in a child.
    #[error(
        "this object belongs to the parent process and works only there; in a forked child, bind \
         or connect after the fork"
    )]
    Forked,
}

impl Error {
    /// Returns the error for a connection to `peer` that was not established.
    pub(crate) fn from_connect(
        peer: SocketAddr,
        transport: Transport,
        reason: CloseReason,
    ) -> Self {
        match transport {
            Transport::Rdma => Self::from_connect_rdma(peer, reason),
            Transport::Tcp | Transport::Memory => Self::Connect { peer, reason },
        }
    }

    fn from_connect_rdma(peer: SocketAddr, reason: CloseReason) -> Self {
        if let Some(error) = local_failure(&reason) {
            if let Some(denied) = machine::denied() {
                return Self::PermissionDenied { error, denied };
            }
            if is_loopback(peer) || peer.ip().to_canonical().is_unspecified() {
                return Self::loopback(peer);
            }
        }
        match reason {
            CloseReason::Os(error) => match Self::from_os(error) {
                Self::Os(error) => Self::Connect {
                    peer,
                    reason: CloseReason::Os(error),
                },
                advised => advised,
            },
            reason => Self::Connect { peer, reason },
        }
    }

    /// Checks a listener on `address` that the kernel has bound to no device. Returns an error if
    /// no peer can connect to the listener.
    pub(crate) fn from_bound_to_none(address: SocketAddr) -> Result<(), Self> {
        let error = OsError::new("rdma_bind_addr", libc::ENODEV);
        if !address.ip().is_unspecified() {
            // The kernel binds a loopback address without a device, but no peer can connect to it.
            return Err(Self::from_bind(address, error));
        }
        // A listener on an unspecified address serves all devices and is never bound to one device.
        // It is unusable only if this process may open none of the devices.
        machine::all_denied().map_or(Ok(()), |denied| {
            Err(Self::PermissionDenied { error, denied })
        })
    }

    /// Creates the error of a failed attempt to listen on `address` over RDMA.
    pub(crate) fn from_bind(address: SocketAddr, error: OsError) -> Self {
        match error.errno {
            // The address is not the cause, because the connection manager could not be opened.
            _ if error.call == "rdma_create_event_channel" => Self::from_os(error),
            libc::ENODEV => match machine::denied() {
                Some(denied) => Self::PermissionDenied { error, denied },
                None if is_loopback(address) => Self::loopback(address),
                None => Self::Bind { address, error },
            },
            // No peer can connect to a loopback address over RDMA, so a free port would not help.
            libc::EADDRINUSE if is_loopback(address) => Self::loopback(address),
            libc::EADDRINUSE | libc::EADDRNOTAVAIL => Self::Bind { address, error },
            _ => Self::from_os(error),
        }
    }

    /// Returns whether listening failed because another listener uses the address.
    pub(crate) fn is_address_in_use(&self) -> bool {
        matches!(self, Self::Bind { error, .. } if error.errno == libc::EADDRINUSE)
    }

    /// Returns true if a connector may try the other transport after this error. This is the case
    /// if no rdmsg peer has responded over the failed transport.
    pub(crate) fn leaves_other_transports(&self) -> bool {
        match self {
            Self::NoRdma(_)
            | Self::RdmaNotBuilt
            | Self::PermissionDenied { .. }
            | Self::Loopback { .. } => true,
            Self::Connect { reason, .. } => match reason {
                CloseReason::Refused
                // On iWARP, the host of a listener that uses only TCP may also cause this
                // rejection.
                | CloseReason::RejectedWithoutCause
                | CloseReason::PeerDisconnected
                | CloseReason::AddrResolution(_)
                | CloseReason::RouteResolution(_)
                | CloseReason::Unreachable(_)
                | CloseReason::TimedOut(_) => true,
                CloseReason::Os(error) => {
                    let unreached = [libc::ETIMEDOUT, libc::EHOSTUNREACH, libc::ENETUNREACH];
                    error.call.starts_with("rdma_") || unreached.contains(&error.errno)
                }
                _ => false,
            },
            Self::Os(error) | Self::Source { error, .. } => error.call.starts_with("rdma_"),
            _ => false,
        }
    }

    /// Returns whether the peer's host answered the connect, but no program accepted the
    /// connection.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(
            self,
            Self::Connect {
                reason: CloseReason::Refused | CloseReason::PeerDisconnected,
                ..
            }
        )
    }

    /// Returns true if the peer's host did not answer the connect.
    pub(crate) fn is_silence(&self) -> bool {
        let Self::Connect { reason, .. } = self else {
            return false;
        };
        match reason {
            CloseReason::Unreachable(_) => true,
            CloseReason::AddrResolution(status) | CloseReason::RouteResolution(status) => {
                status.raw() == -libc::ETIMEDOUT
            }
            CloseReason::TimedOut(phase) => matches!(
                phase,
                Phase::ResolvingAddr | Phase::ResolvingRoute | Phase::Connecting
            ),
            _ => false,
        }
    }

    /// Creates the error of a failed attempt to listen on `address` over TCP or over the in-memory
    /// transport.
    pub(crate) fn from_bind_locally(address: SocketAddr, error: OsError) -> Self {
        Self::Bind { address, error }
    }

    pub(super) fn loopback(address: SocketAddr) -> Self {
        Self::Loopback {
            address,
            local: machine::rdma_addresses(),
        }
    }

    /// Creates the error of a failed attempt to start a thread.
    pub(crate) fn from_spawn(error: io::Error) -> Self {
        Self::Os(failed_or("pthread_create", libc::EAGAIN)(error))
    }

    /// Converts the error of a failed call. A failure with a known remedy becomes a variant whose
    /// text states the remedy. Any other failure becomes [`Error::Os`].
    pub(crate) fn from_os(error: OsError) -> Self {
        match (error.call, error.errno) {
            // The kernel returns EPERM if the process is not permitted to lock any memory.
            ("ibv_reg_mr", libc::ENOMEM | libc::EPERM) => {
                // If the limit cannot be read, the error still reports the failed registration,
                // with a limit of 0.
                let limit = getrlimit(Resource::RLIMIT_MEMLOCK).map_or(0, |(soft, _)| soft);
                Self::LockedMemory { error, limit }
            }
            // The loader of the libraries returns `ELIBACC` if a library cannot be loaded, and
            // `ELIBBAD` if a library lacks a function.
            (_, libc::ELIBACC | libc::ELIBBAD) => Self::NoRdma(error),
            ("rdma_create_event_channel", _) if cfg!(not(feature = "rdma")) => Self::RdmaNotBuilt,
            // librdmacm returns the same error for a missing device file and for a file that this
            // process is not permitted to open. So the permissions are checked first.
            ("rdma_create_event_channel", errno) => match (machine::denied(), errno) {
                (Some(denied), _) => Self::PermissionDenied { error, denied },
                (None, libc::ENODEV | libc::ENOENT | libc::ENOSYS) => Self::NoRdma(error),
                (None, _) => Self::Os(error),
            },
            _ => Self::Os(error),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Returns the failed call or event if this machine caused the failure before it contacted the
/// peer. Returns `None` for all other failures, and for a shortage of memory or descriptors.
fn local_failure(reason: &CloseReason) -> Option<OsError> {
    let event = |call, status: &CmStatus| Some(OsError::new(call, -status.raw()));
    match reason {
        CloseReason::AddrResolution(status) => event("rdma_resolve_addr", status),
        CloseReason::RouteResolution(status) => event("rdma_resolve_route", status),
        CloseReason::Os(error) if error.call.starts_with("rdma_") && !error.is_shortage() => {
            Some(*error)
        }
        _ => None,
    }
}

/// Returns the error if the reason is a failed system call.
fn os_error(reason: &CloseReason) -> Option<&OsError> {
    match reason {
        CloseReason::Os(error) => Some(error),
        _ => None,
    }
}

fn is_loopback(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

/// The error of a send that does not wait.
///
/// It converts into an [`Error`] and into an [`io::Error`]. [`Full`](Self::Full) becomes
/// [`Error::WindowFull`] and [`WouldBlock`](std::io::ErrorKind::WouldBlock), respectively.
#[derive(Debug, Clone, thiserror::Error)]
#[expect(clippy::exhaustive_enums, reason = "a send is refused or fails")]
pub enum TrySendError {
    /// The peer's window or the send queue is full. A later retry may succeed.
    #[error("the peer's receive window or the send queue is full")]
    Full,
    /// Sending failed for a reason other than a lack of room.
    #[error(transparent)]
    Failed(#[from] Error),
}

impl TrySendError {
    /// Returns true if the error is [`Full`](Self::Full). A later retry may then succeed.
    #[must_use]
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Full)
    }
}

impl From<TrySendError> for Error {
    fn from(error: TrySendError) -> Self {
        match error {
            TrySendError::Full => Self::WindowFull,
            TrySendError::Failed(error) => error,
        }
    }
}
