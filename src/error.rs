use std::{
    fmt, io,
    net::{IpAddr, SocketAddr},
};

use nix::sys::resource::{Resource, getrlimit};

use crate::{
    CloseReason,
    machine::{self, Denied},
    remote_access::RemoteAccess,
    status::{CmStatus, OsError},
};

/// Why an operation of this crate failed. The text says what to do where that is known.
///
/// `Debug` reads as `Display` does, so that a `main` which returns it shows the text.
#[derive(Clone, thiserror::Error)]
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
        "this machine offers no RDMA: {0}. Load the kernel's rdma_ucm and a device's driver (for \
         software RoCE: `modprobe rdma_ucm`, `rdma link add rxe0 type rxe netdev eth0`); `rdma \
         link` shows the devices{device}",
        device = device_advice(machine::is_container())
    )]
    NoRdma(OsError),

    /// This process has no right to use the machine's RDMA devices.
    #[error("{error}: {denied}{device}", device = device_advice(machine::is_container()))]
    PermissionDenied {
        /// The call that failed.
        error: OsError,
        /// The device file, and who may use it.
        denied: Denied,
    },

    /// A loopback address, such as `localhost`: no RDMA device serves it.
    #[error(
        "{address} is a loopback address, which no RDMA device serves; {}",
        Alternatives(.local)
    )]
    Loopback {
        /// The address.
        address: SocketAddr,
        /// The addresses of this machine that RDMA devices serve, also for connections to itself.
        local: Vec<IpAddr>,
    },

    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {}", BindProblem(.address, .error))]
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

    /// The connection has ended. The reason is that of the first cause and stays the same for all
    /// later calls.
    #[error("the connection has ended: {0}")]
    Disconnected(CloseReason),

    /// The connection was closed, but the peer did not confirm everything in time.
    #[error("closed, but not everything that was sent is known to have arrived: {0}")]
    Undelivered(CloseReason),

    /// The message is longer than the peer takes. Nothing was sent; the connection goes on.
    #[error(
        "a message of {len} bytes is too long: the peer takes at most {limit}; raise max_message \
         in its Config"
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

    /// The completions of so many operations wait to be taken that there is no place for another
    /// one's. Nothing was sent; the connection goes on.
    #[error(
        "too many completions wait to be taken: take some from Endpoint::completions or with \
         Endpoint::next_completion before giving out further ids"
    )]
    CompletionsNotTaken,

    /// A one-sided operation would reach outside of memory. Nothing was done; the connection goes
    /// on.
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

    /// The peer's region does not allow the operation. Nothing was done; the connection goes on.
    #[error(
        "the peer does not allow it: its region allows {allowed}, the operation needs {needed}"
    )]
    NotAllowed {
        /// What the region allows.
        allowed: RemoteAccess,
        /// What the operation needs.
        needed: RemoteAccess,
    },

    /// An atomic operation takes a place that is a multiple of 8 bytes from an address that is.
    /// Nothing was done; the connection goes on.
    #[error(
        "atomic operations need an 8-byte-aligned remote address; offset {offset} is not aligned"
    )]
    Misaligned {
        /// The offset in the peer's region, in bytes.
        offset: u64,
    },

    /// The buffer or region was made by another connection. Nothing was done; the connection goes
    /// on.
    #[error("this memory was made by another connection, and can be used only there")]
    ForeignMemory,

    /// The time given for the operation is over. The connection goes on.
    #[error("timed out")]
    TimedOut,

    /// The connections that share receive buffers have so many in use that another one cannot be
    /// served. The others go on, and it may work when one of them has ended.
    #[error(
        "the {total} shared receive buffers are in use: {free} are free, and a connection needs \
         {needed}; raise shared_receive in the Config, close connections, or let go of messages \
         that are kept"
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
        "cannot register memory: {error}. The process may lock {limit} bytes (`ulimit -l`); raise \
         memlock in /etc/security/limits.conf or with LimitMEMLOCK= in the service's unit, or \
         lower receive_window, send_depth or eager_size in the Config{container}",
        container = memlock_advice(machine::is_container())
    )]
    LockedMemory {
        /// The call that failed.
        error: OsError,
        /// The process's current limit on locked memory in bytes.
        limit: u64,
    },

    /// A listener can go on no longer: its device is gone, or its address. It stays so; bind a new
    /// one.
    #[error(
        "the listener on {address} has ended: {reason}. Bind again when the device is back, or set \
         rebind in its Config"
    )]
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
        if let Some(error) = before_anything_was_sent(&reason) {
            if let Some(denied) = machine::denied() {
                return Self::PermissionDenied { error, denied };
            }
            if is_loopback(peer) {
                return Self::loopback(peer);
            }
        }
        match reason {
            CloseReason::Os(error) => Self::from_os(error),
            reason => Self::Connect { peer, reason },
        }
    }

    /// The error of an `address` that was bound, though to no device, if nobody could ever connect
    /// to it.
    pub(crate) fn from_bound_to_none(address: SocketAddr) -> Result<(), Self> {
        let error = OsError::new("rdma_bind_addr", libc::ENODEV);
        if !address.ip().is_unspecified() {
            // The kernel takes loopback addresses so.
            return Err(Self::from_bind(address, error));
        }
        // All addresses, with whatever device a request comes in on.
        machine::all_denied().map_or(Ok(()), |denied| {
            Err(Self::PermissionDenied { error, denied })
        })
    }

    /// The error of an `address` that cannot be listened on.
    pub(crate) fn from_bind(address: SocketAddr, error: OsError) -> Self {
        match error.errno {
            libc::ENODEV => match machine::denied() {
                Some(denied) => Self::PermissionDenied { error, denied },
                None if is_loopback(address) => Self::loopback(address),
                None => Self::Bind { address, error },
            },
            libc::EADDRINUSE | libc::EADDRNOTAVAIL => Self::Bind { address, error },
            _ => Self::from_os(error),
        }
    }

    fn loopback(address: SocketAddr) -> Self {
        Self::Loopback {
            address,
            local: machine::rdma_addresses(),
        }
    }

    /// The error of a system call, with the advice that fits it.
    pub(crate) fn from_os(error: OsError) -> Self {
        match (error.call, error.errno) {
            // Where the process may lock nothing at all, the kernel says that it is not permitted.
            ("ibv_reg_mr", libc::ENOMEM | libc::EPERM) => {
                // An unreadable limit is no reason to hide the error itself.
                let limit = getrlimit(Resource::RLIMIT_MEMLOCK).map_or(0, |(soft, _)| soft);
                Self::LockedMemory { error, limit }
            }
            // It says the same of a file that may not be opened as of one that is not there.
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

/// Where a connection was not established for a reason that is this machine's own: the call that
/// failed, or the event.
fn before_anything_was_sent(reason: &CloseReason) -> Option<OsError> {
    let event = |call, status: &CmStatus| Some(OsError::new(call, -status.raw()));
    match reason {
        CloseReason::AddrResolution(status) => event("rdma_resolve_addr", status),
        CloseReason::RouteResolution(status) => event("rdma_resolve_route", status),
        CloseReason::Os(error) if error.call.starts_with("rdma_") => Some(*error),
        _ => None,
    }
}

fn is_loopback(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

/// Whether what is in the way of listening on all addresses is a listener on one of them, for which
/// the kernel has no word of its own.
fn is_taken_elsewhere(address: &SocketAddr, error: &OsError) -> bool {
    error.errno == libc::EADDRNOTAVAIL && address.ip().is_unspecified()
}

/// What to use instead of a loopback address.
struct Alternatives<'a>(&'a [IpAddr]);

impl fmt::Display for Alternatives<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((first, rest)) = self.0.split_first() else {
            return f.write_str(
                "of this machine's own addresses none is served either: give one to a network \
                 interface that has an RDMA device (`rdma link` shows them)",
            );
        };
        write!(
            f,
            "of this machine's own addresses, also for programs on it, use {first}"
        )?;
        rest.iter()
            .try_for_each(|address| write!(f, " or {address}"))
    }
}

/// Why an address cannot be listened on.
struct BindProblem<'a>(&'a SocketAddr, &'a OsError);

impl fmt::Display for BindProblem<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(address, error) = self;
        match error.errno {
            libc::EADDRINUSE => write!(
                f,
                "{error}. Another listener has it; end that one, or use another port"
            ),
            _ if is_taken_elsewhere(address, error) => write!(
                f,
                "address in use: another listener has port {} already, on all addresses or on one \
                 of them; end that one, or use another port ({error})",
                address.port()
            ),
            libc::EADDRNOTAVAIL => write!(
                f,
                "{error}. The address must belong to a network interface with an RDMA device \
                 (`rdma link` and `ip address` show both), and no listener on all addresses may \
                 have its port"
            ),
            _ => write!(
                f,
                "{error}. The address must belong to a network interface with an RDMA device \
                 (`rdma link` and `ip address` show both), and its port must be free"
            ),
        }
    }
}

/// How a container comes to have devices.
fn device_advice(in_container: bool) -> &'static str {
    if in_container {
        ". This looks like a container: start it with `--device=/dev/infiniband/rdma_cm \
         --device=/dev/infiniband/uverbs0` and the host's network or an RDMA-capable one"
    } else {
        ""
    }
}

/// How a container comes to lock memory.
fn memlock_advice(in_container: bool) -> &'static str {
    if in_container {
        ". This looks like a container: start it with `--ulimit memlock=-1`"
    } else {
        ""
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
            Error::AddressLookup { .. } | Error::Loopback { .. } => io::ErrorKind::AddrNotAvailable,
            Error::NoRdma(_) => io::ErrorKind::Unsupported,
            Error::Connect { reason, .. }
            | Error::Disconnected(reason)
            | Error::Undelivered(reason)
            | Error::ListenerEnded { reason, .. } => kind_of(reason),
            Error::TimedOut => io::ErrorKind::TimedOut,
            Error::CompletionsNotTaken => io::ErrorKind::WouldBlock,
            Error::NotAllowed { .. } | Error::PermissionDenied { .. } => {
                io::ErrorKind::PermissionDenied
            }
            Error::Bind { address, error } if is_taken_elsewhere(address, error) => {
                io::ErrorKind::AddrInUse
            }
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
        | CloseReason::PeerBusy
        | CloseReason::ConnectFailed(_) => io::ErrorKind::ConnectionRefused,
        CloseReason::NotRdmsg
        | CloseReason::PeerIsRsocket
        | CloseReason::PeerIncompatible(_)
        | CloseReason::ProtocolViolation(_) => io::ErrorKind::InvalidData,
        CloseReason::WorkRequest { .. }
        | CloseReason::PeerFailed(_)
        | CloseReason::PeerDisconnected
        | CloseReason::Truncated { .. } => io::ErrorKind::ConnectionReset,
        CloseReason::PeerAborted(_) | CloseReason::LocallyAborted => {
            io::ErrorKind::ConnectionAborted
        }
        CloseReason::DeviceRemoved | CloseReason::AddressChanged => io::ErrorKind::NetworkDown,
        CloseReason::TimedOut(_) | CloseReason::KeepaliveTimeout | CloseReason::ReadTimeout => {
            io::ErrorKind::TimedOut
        }
        CloseReason::OutOfMemory(_) => io::ErrorKind::OutOfMemory,
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
