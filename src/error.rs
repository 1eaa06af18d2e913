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

/// The error of an operation. The text says what to do where that is known.
///
/// [The troubleshooting page](crate::guide::troubleshooting) lists the texts with causes and
/// remedies. `Debug` prints the same text as `Display`, so that a `main` which returns it shows the
/// advice. It converts into [`io::Error`] with the kind that programs written for TCP expect.
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

    /// The lookup of a name or address failed.
    #[error("cannot look up the address {address}: {problem}")]
    AddressLookup {
        /// The name or address.
        address: String,
        /// The problem as the resolver reported it.
        problem: String,
    },

    /// This machine has no RDMA connection manager; or it lacks the libraries, which a program that
    /// was built with the feature `dlopen` opens when it needs them.
    #[error("this machine offers no RDMA: {0}. {remedy}", remedy = WhatOffersRdma(.0))]
    NoRdma(OsError),

    /// This program was built without RDMA: without rdmsg's features `rdma` and `dlopen`.
    #[error(
        "this program was built without RDMA: build it with rdmsg's feature rdma or dlopen, or set \
         transport to Auto or Tcp in the Config"
    )]
    RdmaNotBuilt,

    /// This process has no right to use the machine's RDMA devices.
    #[error("{error}: {denied}{device}", device = device_advice(machine::is_container()))]
    PermissionDenied {
        /// The call that failed.
        error: OsError,
        /// The device file, and its permissions.
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
        /// The reason.
        reason: CloseReason,
    },

    /// The connection has ended. The reason is the first cause, the same for all later calls.
    #[error("the connection has ended: {0}")]
    Disconnected(CloseReason),

    /// The connection was closed, but not everything was confirmed by the peer.
    #[error("closed, but not everything that was sent is known to have arrived: {0}")]
    Undelivered(CloseReason),

    /// The message is longer than the peer accepts. Nothing was sent; the connection goes on.
    #[error(
        "a message of {len} bytes is too long: the peer takes at most {limit}; raise max_message \
         in its Config"
    )]
    MessageTooLong {
        /// The message's length in bytes.
        len: usize,
        /// The longest message that the peer accepts, in bytes.
        limit: u64,
    },

    /// The peer's window or the send ring is full, and the call does not wait.
    ///
    /// Nothing was sent; the connection goes on, and a retry later may succeed.
    #[error("the peer's receive window is full")]
    WindowFull,

    /// This side has [finished](crate::Endpoint::finish): it sends no more messages.
    ///
    /// Nothing was sent; the peer's messages can still be received.
    #[error("nothing more can be sent: this side has finished sending")]
    Finished,

    /// The peer has [finished](crate::Endpoint::finish): it sends no more messages.
    ///
    /// All of its messages were received; this side may go on sending.
    #[error("nothing more will arrive: the peer has finished sending")]
    PeerFinished,

    /// The private data is longer than the connection manager can carry.
    #[error("private data of {len} bytes is too long: at most {limit} bytes fit {place}")]
    PrivateDataTooLong {
        /// The data's length in bytes.
        len: usize,
        /// The longest that fits, in bytes.
        limit: usize,
        /// What carries it.
        place: &'static str,
    },

    /// Too many completions wait to be taken for another id.
    ///
    /// Nothing was sent; the connection goes on.
    #[error(
        "too many completions wait to be taken: take some from Endpoint::completions or with \
         Endpoint::next_completion before using further ids"
    )]
    CompletionsNotTaken,

    /// The endpoint is in a [`Group`](crate::Group), which has its messages and other completions.
    #[error(
        "the endpoint is in a Group: take what happens on it from Group::completions, or remove it \
         from the group first"
    )]
    Grouped,

    /// A one-sided operation exceeds the memory. Nothing was done; the connection goes on.
    #[error("{len} bytes at offset {start} do not fit {what} of {limit} bytes")]
    OutOfBounds {
        /// The memory.
        what: &'static str,
        /// The offset of the operation, in bytes.
        start: u64,
        /// The length of the operation, in bytes.
        len: u64,
        /// The length of the memory, in bytes.
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

    /// The remote address of an atomic operation is not a multiple of 8.
    ///
    /// Nothing was done; the connection goes on.
    #[error(
        "atomic operations need an 8-byte-aligned remote address; offset {offset} is not aligned"
    )]
    Misaligned {
        /// The offset in the peer's region, in bytes.
        offset: u64,
    },

    /// The device of this side, or the peer's, cannot do that: see
    /// [`Capabilities`](crate::Capabilities).
    ///
    /// Nothing was done; the connection goes on.
    #[error("{operation} is not supported by {device}: {because}")]
    NotSupported {
        /// The operation.
        operation: &'static str,
        /// The device's name, or that it is the peer's.
        device: String,
        /// What it lacks.
        because: &'static str,
    },

    /// The buffer or region belongs to another connection.
    ///
    /// Nothing was done; the connection goes on.
    #[error("this memory belongs to another connection and can be used only there")]
    ForeignMemory,

    /// The timeout of the call passed. The connection goes on.
    #[error("timed out")]
    TimedOut,

    /// Too few shared receive buffers are free for another connection.
    ///
    /// The others go on; a retry may succeed when one of them has ended.
    #[error(
        "the {total} shared receive buffers are in use: {free} are free, and a connection needs \
         {needed}; raise shared_receive in the Config, close connections, or drop messages that \
         are held"
    )]
    SharedReceivesExhausted {
        /// The number of buffers.
        total: u32,
        /// The number of those that are promised to no peer.
        free: u32,
        /// The number that a connection needs at least.
        needed: u32,
    },

    /// Registering memory failed because the process may not lock that much.
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

    /// The device or the address of a listener was removed. It stays so; bind a new one.
    #[error(
        "the listener on {address} has ended: {reason}. Bind again when the device is back, or set \
         rebind in its Config"
    )]
    ListenerEnded {
        /// The address that was listened on.
        address: SocketAddr,
        /// The reason for which it ended.
        reason: CloseReason,
    },

    /// The listener was closed by [`Listener::close`](crate::Listener::close) or
    /// [`Engine::drain`](crate::Engine::drain). It stays so; bind a new one.
    #[error("the listener was closed; bind a new one")]
    ListenerClosed,

    /// A call into the system failed.
    #[error("{0}")]
    Os(#[from] OsError),

    /// The engine that serves this handle was shut down.
    #[error("the engine was shut down; use Engine::shared or a new one")]
    EngineShutDown,
}

impl Error {
    /// Returns the error of a connection to `peer` that was not established.
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

    /// Returns an error if no peer could ever connect to an `address` that was bound, but to no
    /// device.
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

    /// Returns the error of an `address` that cannot be listened on.
    pub(crate) fn from_bind(address: SocketAddr, error: OsError) -> Self {
        match error.errno {
            // This machine has no connection manager, whatever the address.
            _ if error.call == "rdma_create_event_channel" => Self::from_os(error),
            libc::ENODEV => match machine::denied() {
                Some(denied) => Self::PermissionDenied { error, denied },
                None if is_loopback(address) => Self::loopback(address),
                None => Self::Bind { address, error },
            },
            libc::EADDRINUSE | libc::EADDRNOTAVAIL => Self::Bind { address, error },
            _ => Self::from_os(error),
        }
    }

    /// Whether an address cannot be listened on because another listener has it.
    pub(crate) fn is_address_in_use(&self) -> bool {
        matches!(self, Self::Bind { address, error }
            if error.errno == libc::EADDRINUSE || is_taken_elsewhere(address, error))
    }

    /// Whether another transport may lead to the peer, which has not answered.
    pub(crate) fn leaves_other_transports(&self) -> bool {
        match self {
            Self::NoRdma(_)
            | Self::RdmaNotBuilt
            | Self::PermissionDenied { .. }
            | Self::Loopback { .. } => true,
            Self::Connect { reason, .. } => matches!(
                reason,
                CloseReason::Refused
                    // On iWARP also that of a listener of TCP.
                    | CloseReason::RejectedWithoutCause
                    | CloseReason::AddrResolution(_)
                    | CloseReason::RouteResolution(_)
                    | CloseReason::Unreachable(_)
                    | CloseReason::TimedOut(_)
            ),
            Self::Os(error) => error.call.starts_with("rdma_"),
            _ => false,
        }
    }

    /// Returns the error of an `address` that cannot be listened on over TCP.
    pub(crate) fn from_bind_tcp(address: SocketAddr, error: OsError) -> Self {
        match error.errno {
            libc::EADDRINUSE | libc::EADDRNOTAVAIL | libc::EACCES => Self::Bind { address, error },
            _ => Self::from_os(error),
        }
    }

    fn loopback(address: SocketAddr) -> Self {
        Self::Loopback {
            address,
            local: machine::rdma_addresses(),
        }
    }

    /// Returns the error of a system call, with the advice for it.
    pub(crate) fn from_os(error: OsError) -> Self {
        match (error.call, error.errno) {
            // The kernel returns EPERM where the process may lock nothing at all.
            ("ibv_reg_mr", libc::ENOMEM | libc::EPERM) => {
                // An unreadable limit is no reason to hide the error itself.
                let limit = getrlimit(Resource::RLIMIT_MEMLOCK).map_or(0, |(soft, _)| soft);
                Self::LockedMemory { error, limit }
            }
            // By these `sys` says that a library cannot be opened, or lacks a function.
            (_, libc::ELIBACC | libc::ELIBBAD) => Self::NoRdma(error),
            // It returns the same for a file that may not be opened as for one that is missing.
            ("rdma_create_event_channel", _) if cfg!(not(rdma)) => Self::RdmaNotBuilt,
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

/// Returns the call or event that failed, if the cause is on this machine: the peer was never
/// contacted.
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

/// Whether a listener on one of the addresses prevents listening on all, for which the kernel has
/// no error of its own.
fn is_taken_elsewhere(address: &SocketAddr, error: &OsError) -> bool {
    error.errno == libc::EADDRNOTAVAIL && address.ip().is_unspecified()
}

/// The addresses to use instead of a loopback address.
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

/// What has to be there for RDMA, by what is not.
struct WhatOffersRdma<'a>(&'a OsError);

impl fmt::Display for WhatOffersRdma<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.errno {
            libc::ELIBACC | libc::ELIBBAD => f.write_str(
                "This program takes librdmacm.so.1 and libibverbs.so.1 of rdma-core 32 or newer \
                 from the system: install them with their drivers (`apt install librdmacm1 \
                 libibverbs1 ibverbs-providers` on Debian and Ubuntu)",
            ),
            _ => write!(
                f,
                "Load the kernel's rdma_ucm and a device's driver (for software RoCE: `modprobe \
                 rdma_ucm`, `rdma link add rxe0 type rxe netdev eth0`); `rdma link` shows the \
                 devices{}",
                device_advice(machine::is_container())
            ),
        }
    }
}

/// The cause for which an address cannot be listened on, with the remedy.
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
            libc::EADDRNOTAVAIL | libc::EACCES if error.call == "bind" => write!(
                f,
                "{error}. The address must belong to a network interface of this machine (`ip \
                 address` shows them), and ports below 1024 need CAP_NET_BIND_SERVICE"
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

/// Returns how to give a container devices.
fn device_advice(in_container: bool) -> &'static str {
    if in_container {
        ". This looks like a container: start it with `--device=/dev/infiniband/rdma_cm \
         --device=/dev/infiniband/uverbs0` and the host's network or an RDMA-capable one"
    } else {
        ""
    }
}

/// Returns how to let a container lock memory.
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
            | Error::Grouped
            | Error::PrivateDataTooLong { .. } => io::ErrorKind::InvalidInput,
            Error::AddressLookup { .. } | Error::Loopback { .. } => io::ErrorKind::AddrNotAvailable,
            Error::NoRdma(_) | Error::RdmaNotBuilt | Error::NotSupported { .. } => {
                io::ErrorKind::Unsupported
            }
            Error::Connect { reason, .. }
            | Error::Disconnected(reason)
            | Error::Undelivered(reason)
            | Error::ListenerEnded { reason, .. } => kind_of(reason),
            Error::TimedOut => io::ErrorKind::TimedOut,
            Error::CompletionsNotTaken | Error::WindowFull => io::ErrorKind::WouldBlock,
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
            Error::Finished => io::ErrorKind::BrokenPipe,
            Error::PeerFinished => io::ErrorKind::UnexpectedEof,
            Error::ListenerClosed | Error::EngineShutDown => io::ErrorKind::NotConnected,
        };
        Self::new(kind, error)
    }
}

/// Returns the `std::io` kind that a program written for TCP expects.
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

/// The error of a send that does not wait.
///
/// It converts into [`Error`], where [`Full`](Self::Full) is [`Error::WindowFull`], and into
/// [`io::Error`], where that is [`WouldBlock`](io::ErrorKind::WouldBlock).
#[derive(Debug, Clone, thiserror::Error)]
#[expect(clippy::exhaustive_enums, reason = "there is no third")]
pub enum TrySendError {
    /// The peer's window or the send ring is full. A retry later may succeed.
    #[error("the peer's receive window is full")]
    Full,
    /// Sending failed; a retry would fail as well.
    #[error(transparent)]
    Failed(#[from] Error),
}

impl TrySendError {
    /// Returns whether there is merely no room now.
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

impl From<TrySendError> for io::Error {
    fn from(error: TrySendError) -> Self {
        Error::from(error).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        proto::{Mismatch, Phase, Violation},
        status::{RejectReason, WcStatus},
    };

    const PAGE: &str = include_str!("../docs/guide/troubleshooting.md");

    /// One of each reason, and more where the text differs.
    fn reasons() -> Vec<CloseReason> {
        let status = CmStatus::from_raw(-libc::ETIMEDOUT);
        let error = OsError::new("ibv_reg_mr", libc::ENOMEM);
        let rejected = |data: &[u8]| CloseReason::Rejected {
            reason: RejectReason::CONSUMER_DEFINED,
            data: data.into(),
        };
        let failed = |status| CloseReason::WorkRequest {
            status,
            vendor_err: 0,
        };
        vec![
            CloseReason::AddrResolution(CmStatus::from_raw(-libc::ENODEV)),
            CloseReason::AddrResolution(status),
            CloseReason::RouteResolution(status),
            CloseReason::Unreachable(status),
            CloseReason::ConnectFailed(status),
            CloseReason::Refused,
            rejected(b""),
            rejected(b"why"),
            CloseReason::RejectedWithoutCause,
            CloseReason::NotRdmsg,
            CloseReason::PeerIsRsocket,
            CloseReason::PeerOutOfResources,
            CloseReason::PeerFailed(9),
            CloseReason::PeerBusy,
            CloseReason::PeerIncompatible(Mismatch {
                field: "version",
                ours: 3,
                theirs: 2,
            }),
            CloseReason::ProtocolViolation(Violation::new("kind", 9, "a kind")),
            failed(WcStatus::RETRY_EXC_ERR),
            failed(WcStatus::REM_ACCESS_ERR),
            CloseReason::DeviceRemoved,
            CloseReason::AddressChanged,
            CloseReason::TimedOut(Phase::Connecting),
            CloseReason::KeepaliveTimeout,
            CloseReason::ReadTimeout,
            CloseReason::PeerClosed,
            CloseReason::Truncated { missing: 2 },
            CloseReason::PeerAborted(9),
            CloseReason::PeerDisconnected,
            CloseReason::LocallyClosed,
            CloseReason::LocallyAborted,
            CloseReason::OutOfMemory(error),
            CloseReason::Os(error),
        ]
    }

    /// One of each error, but for those whose text is that of a reason or a system call.
    fn errors() -> Vec<Error> {
        let error = OsError::new("ibv_reg_mr", libc::ENOMEM);
        let address = SocketAddr::from(([127, 0, 0, 1], 7471));
        let text = || String::from("text");
        vec![
            Error::InvalidConfig {
                field: "eager_size",
                value: text(),
                allowed: text(),
            },
            Error::AddressLookup {
                address: text(),
                problem: text(),
            },
            Error::NoRdma(error),
            Error::NoRdma(OsError::new("librdmacm.so.1", libc::ELIBACC)),
            Error::RdmaNotBuilt,
            Error::WindowFull,
            Error::Finished,
            Error::PeerFinished,
            Error::PermissionDenied {
                error,
                denied: Denied {
                    file: "/dev/infiniband/rdma_cm".into(),
                    group: None,
                    mode: 0,
                },
            },
            Error::loopback(address),
            Error::Bind { address, error },
            Error::MessageTooLong { len: 5, limit: 4 },
            Error::PrivateDataTooLong {
                len: 5,
                limit: 4,
                place: "a place",
            },
            Error::CompletionsNotTaken,
            Error::Grouped,
            Error::OutOfBounds {
                what: "the region",
                start: 1,
                len: 4,
                limit: 4,
            },
            Error::NotAllowed {
                allowed: RemoteAccess::READ,
                needed: RemoteAccess::WRITE,
            },
            Error::Misaligned { offset: 4 },
            Error::NotSupported {
                operation: "fetch_add",
                device: "siw0".into(),
                because: "its driver reports no atomic operations",
            },
            Error::ForeignMemory,
            Error::TimedOut,
            Error::SharedReceivesExhausted {
                total: 26,
                free: 1,
                needed: 13,
            },
            Error::LockedMemory { error, limit: 1 },
            Error::ListenerEnded {
                address,
                reason: CloseReason::DeviceRemoved,
            },
            Error::ListenerClosed,
            Error::EngineShutDown,
        ]
    }

    /// Whether a text is that of an entry, in which `…` stands for anything.
    fn is_entry(entry: &str, text: &str) -> bool {
        let parts: Vec<&str> = entry.split('…').collect();
        let (Some(first), Some(last)) = (parts.first(), parts.last()) else {
            return false;
        };
        let mut rest = text;
        let in_order = parts.iter().all(|part| {
            let found = rest.split_once(part);
            rest = found.map_or(rest, |(_, after)| after);
            found.is_some()
        });
        in_order && text.starts_with(first) && text.ends_with(last)
    }

    #[test]
    fn the_troubleshooting_page_has_every_text_and_no_other() {
        let page = PAGE.split_whitespace().collect::<Vec<_>>().join(" ");
        let entries: Vec<&str> = page
            .split("* **`")
            .skip(1)
            .filter_map(|entry| entry.split_once("`**"))
            .map(|(text, _)| text)
            .collect();
        let mut texts: Vec<String> = reasons().iter().map(ToString::to_string).collect();
        texts.extend(errors().iter().map(ToString::to_string));
        texts.push(TrySendError::Full.to_string());
        for text in &texts {
            let has = entries.iter().any(|entry| is_entry(entry, text));
            assert!(has, "no entry for: {text}");
        }
        for entry in &entries {
            let used = texts.iter().any(|text| is_entry(entry, text));
            assert!(used, "no error has the text of this entry: {entry}");
        }
        let (peer, reason) = (
            SocketAddr::from(([10, 8, 0, 1], 7471)),
            CloseReason::PeerClosed,
        );
        for error in [
            Error::Connect {
                peer,
                reason: reason.clone(),
            },
            Error::Disconnected(reason.clone()),
            Error::Undelivered(reason),
        ] {
            let text = error.to_string().replace(&peer.to_string(), "…");
            let form = text.replace("closed by the peer", "…");
            assert!(page.contains(&format!("`{form}`")), "{form}");
        }
    }
}
