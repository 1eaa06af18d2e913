use std::{io, net::SocketAddr};

use nix::sys::resource::{Resource, getrlimit};

use crate::{CloseReason, remote_access::RemoteAccess, status::OsError};

/// Why an operation of this crate failed. The text says what to do where that is known.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A [`Config`](crate::Config) field has a value that cannot work.
    #[error("invalid configuration: {field} is {value}, allowed is {allowed}")]
    InvalidConfig {
        /// The field's name.
        field: &'static str,
        /// The refused value.
        value: String,
        /// What is allowed.
        allowed: String,
    },

    /// A name or address could not be turned into a socket address.
    #[error("cannot look up the address {address}: {problem}")]
    AddressLookup {
        /// What was to be looked up.
        address: String,
        /// What the resolver said.
        problem: String,
    },

    /// This machine has no RDMA connection manager to talk to.
    #[error(
        "this machine offers no RDMA: {0}. Load the kernel's rdma_ucm and a device's driver (for software RoCE: \
         `modprobe rdma_ucm`, `rdma link add rxe0 type rxe netdev eth0`); `rdma link` shows the devices"
    )]
    NoRdma(OsError),

    /// An address cannot be listened on.
    #[error(
        "cannot listen on {address}: {error}. The address must belong to a network interface with an RDMA device \
         (`rdma link` and `ip address` show both), and its port must be free"
    )]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The call that failed.
        error: OsError,
    },

    /// The connection could not be established.
    #[error("cannot connect to {peer}: {reason}")]
    Connect {
        /// The peer's address.
        peer: SocketAddr,
        /// Why it failed.
        reason: CloseReason,
    },

    /// The connection has ended. The reason is that of the first cause and stays the same for all later calls.
    #[error("the connection has ended: {0}")]
    Disconnected(CloseReason),

    /// The connection was closed, but the peer did not confirm everything in time.
    #[error("closed, but not everything that was sent is known to have arrived: {0}")]
    Undelivered(CloseReason),

    /// The message is longer than the peer takes. Nothing was sent; the connection goes on.
    #[error(
        "a message of {len} bytes is too long: the peer takes at most {limit}; raise max_message in its Config"
    )]
    MessageTooLong {
        /// The message's length in bytes.
        len: usize,
        /// The longest message that the peer takes, in bytes.
        limit: u64,
    },

    /// The private data is longer than the connection manager can carry.
    #[error("private data of {len} bytes is too long: at most {limit} bytes fit {place}")]
    PrivateDataTooLong {
        /// The data's length in bytes.
        len: usize,
        /// The most that fits, in bytes.
        limit: usize,
        /// Which message it was to travel in.
        place: &'static str,
    },

    /// The completions of so many operations wait to be taken that there is no place for another one's. Nothing was sent; the connection
    /// goes on.
    #[error(
        "too many completions wait to be taken: take some from Endpoint::completions or with Endpoint::next before giving out \
         further ids"
    )]
    CompletionsNotTaken,

    /// A one-sided operation would reach outside of memory. Nothing was done; the connection goes on.
    #[error("{what}: {len} bytes from {start} are not within {limit}")]
    OutOfBounds {
        /// Which memory.
        what: &'static str,
        /// Where the operation would begin, in bytes.
        start: u64,
        /// How long it would be, in bytes.
        len: u64,
        /// The most that is possible, in bytes.
        limit: u64,
    },

    /// The peer's token does not allow the operation. Nothing was done; the connection goes on.
    #[error(
        "the peer did not give the right for it: its token allows {allowed}, the operation needs {needed}"
    )]
    NotAllowed {
        /// What the token allows.
        allowed: RemoteAccess,
        /// What the operation needs.
        needed: RemoteAccess,
    },

    /// An atomic operation takes a place that is a multiple of 8 bytes from an address that is. Nothing was done; the connection goes on.
    #[error(
        "an atomic operation needs a place whose address is a multiple of 8, which offset {offset} is not"
    )]
    Misaligned {
        /// The offset in the peer's region, in bytes.
        offset: u64,
    },

    /// The buffer or region was made by another connection. Nothing was done; the connection goes on.
    #[error("this memory was made by another connection, and can be used only there")]
    ForeignMemory,

    /// The time given for the operation is over. The connection goes on.
    #[error("timed out")]
    TimedOut,

    /// The connections that share receive buffers have so many in use that another one cannot be served. The others go on, and it may work
    /// when one of them has ended.
    #[error(
        "the {total} shared receive buffers are in use: {free} are free, and a connection needs {needed}; raise shared_receive in the \
         Config, close connections, or let go of messages that are kept"
    )]
    SharedReceivesExhausted {
        /// How many there are.
        total: u32,
        /// How many of them no peer may use.
        free: u32,
        /// How many a connection needs at least.
        needed: u32,
    },

    /// Registering memory failed because the process may not lock as much.
    #[error(
        "cannot register memory: {error}. The process may lock {limit} bytes (`ulimit -l`); raise memlock in \
         /etc/security/limits.conf or with LimitMEMLOCK= in the service's unit, or lower receive_window, send_depth or \
         eager_size in the Config"
    )]
    LockedMemory {
        /// The call that failed.
        error: OsError,
        /// The process's current limit on locked memory in bytes.
        limit: u64,
    },

    /// A listener can go on no longer: its device is gone, or its address. It stays so; bind a new one.
    #[error("the listener on {address} has ended: {reason}. Bind again when the device is back")]
    ListenerEnded {
        /// The address that was listened on.
        address: SocketAddr,
        /// Why it ended.
        reason: CloseReason,
    },

    /// A call into the system failed.
    #[error("{0}")]
    Os(#[from] OsError),

    /// The engine that serves this handle was shut down.
    #[error("the engine was shut down")]
    EngineShutDown,
}

impl Error {
    /// The error of a connection to `peer` that was not established.
    pub(crate) fn from_connect(peer: SocketAddr, reason: CloseReason) -> Self {
        match reason {
            CloseReason::Os(error) => Self::from_os(error),
            reason => Self::Connect { peer, reason },
        }
    }

    /// The error of a system call, with the advice that fits it.
    pub(crate) fn from_os(error: OsError) -> Self {
        match (error.call, error.errno) {
            ("ibv_reg_mr", libc::ENOMEM) => {
                // An unreadable limit is no reason to hide the error itself.
                let limit = getrlimit(Resource::RLIMIT_MEMLOCK).map_or(0, |(soft, _)| soft);
                Self::LockedMemory { error, limit }
            }
            ("rdma_create_event_channel", libc::ENODEV | libc::ENOENT | libc::ENOSYS) => {
                Self::NoRdma(error)
            }
            _ => Self::Os(error),
        }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::InvalidConfig { .. }
            | Error::MessageTooLong { .. }
            | Error::OutOfBounds { .. }
            | Error::Misaligned { .. }
            | Error::ForeignMemory
            | Error::PrivateDataTooLong { .. } => io::ErrorKind::InvalidInput,
            Error::AddressLookup { .. } => io::ErrorKind::AddrNotAvailable,
            Error::NoRdma(_) => io::ErrorKind::Unsupported,
            Error::Connect { reason, .. }
            | Error::Disconnected(reason)
            | Error::Undelivered(reason)
            | Error::ListenerEnded { reason, .. } => kind_of(reason),
            Error::TimedOut => io::ErrorKind::TimedOut,
            Error::CompletionsNotTaken => io::ErrorKind::WouldBlock,
            Error::NotAllowed { .. } => io::ErrorKind::PermissionDenied,
            Error::LockedMemory { .. } | Error::SharedReceivesExhausted { .. } => {
                io::ErrorKind::OutOfMemory
            }
            Error::Os(error) | Error::Bind { error, .. } => {
                Self::from_raw_os_error(error.errno).kind()
            }
            Error::EngineShutDown => io::ErrorKind::NotConnected,
        };
        Self::new(kind, error)
    }
}

/// The `std::io` kind that a program written for TCP would look for.
fn kind_of(reason: &CloseReason) -> io::ErrorKind {
    match reason {
        CloseReason::AddrResolution(_)
        | CloseReason::RouteResolution(_)
        | CloseReason::Unreachable(_) => io::ErrorKind::HostUnreachable,
        CloseReason::Refused
        | CloseReason::Rejected { .. }
        | CloseReason::RejectedWithoutCause
        | CloseReason::PeerOutOfResources
        | CloseReason::ConnectFailed(_) => io::ErrorKind::ConnectionRefused,
        CloseReason::NotRdmsg
        | CloseReason::PeerIsRsocket
        | CloseReason::PeerIncompatible(_)
        | CloseReason::ProtocolViolation(_) => io::ErrorKind::InvalidData,
        CloseReason::WorkRequest { .. }
        | CloseReason::PeerDisconnected
        | CloseReason::Truncated { .. } => io::ErrorKind::ConnectionReset,
        CloseReason::PeerAborted(_) | CloseReason::LocallyAborted => {
            io::ErrorKind::ConnectionAborted
        }
        CloseReason::DeviceRemoved | CloseReason::AddressChanged => io::ErrorKind::NetworkDown,
        CloseReason::TimedOut(_) | CloseReason::KeepaliveTimeout => io::ErrorKind::TimedOut,
        CloseReason::PeerClosed => io::ErrorKind::UnexpectedEof,
        CloseReason::LocallyClosed => io::ErrorKind::NotConnected,
        CloseReason::Os(error) => io::Error::from_raw_os_error(error.errno).kind(),
    }
}

/// Why a message could not be sent right now.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum TrySendError {
    /// The peer's window is full, or the send ring: waiting would help.
    #[error("the peer's receive window is full")]
    Full,
    /// Waiting would not help.
    #[error(transparent)]
    Failed(#[from] Error),
}
