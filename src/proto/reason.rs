use std::fmt;

use crate::status::{CmStatus, OsError, RejectReason, WcStatus};

/// A field of a received frame that does not obey the protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    field: &'static str,
    value: u64,
    expected: &'static str,
}

impl Violation {
    pub(crate) const fn new(field: &'static str, value: u64, expected: &'static str) -> Self {
        Self {
            field,
            value,
            expected,
        }
    }

    /// The field's name.
    #[must_use]
    pub const fn field(&self) -> &'static str {
        self.field
    }

    /// The value that it had.
    #[must_use]
    pub const fn value(&self) -> u64 {
        self.value
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} is {}, expected {}",
            self.field, self.value, self.expected
        )
    }
}

/// Two values of the two sides' hellos that do not go together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The field's name.
    pub field: &'static str,
    /// This side's value.
    pub ours: u64,
    /// The peer's value.
    pub theirs: u64,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} is {} here and {} at the peer",
            self.field, self.ours, self.theirs
        )
    }
}

/// Which part of establishing a connection a deadline ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Phase {
    /// Waiting for its turn: this host was busy establishing other connections.
    Waiting,
    /// Resolving the address.
    ResolvingAddr,
    /// Resolving the route.
    ResolvingRoute,
    /// Waiting for the peer's answer.
    Connecting,
    /// Waiting for the application to accept or reject.
    Accepting,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Waiting => "this host was busy with other connections",
            Self::ResolvingAddr => "the address was being resolved",
            Self::ResolvingRoute => "the route was being resolved",
            Self::Connecting => "the peer had not answered",
            Self::Accepting => "the request had not been accepted",
        })
    }
}

/// Why a connection ended, or did not come about. The first cause counts, and stays.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CloseReason {
    /// No RDMA device has a route to the address, or the address does not answer (event `ADDR_ERROR`).
    AddrResolution(CmStatus),
    /// The route could not be resolved (event `ROUTE_ERROR`).
    RouteResolution(CmStatus),
    /// The peer's host did not answer (event `UNREACHABLE`).
    Unreachable(CmStatus),
    /// Establishing the connection failed (event `CONNECT_ERROR`).
    ConnectFailed(CmStatus),
    /// Nobody listens on this port at the peer.
    Refused,
    /// The peer rejected the connection.
    Rejected {
        /// Why, as the connection manager says it.
        reason: RejectReason,
        /// What the peer's application gave along, where it was the application that rejected.
        data: Box<[u8]>,
    },
    /// The peer rejected the connection without a cause. An application that rejects with this
    /// crate gives one, so what listens on the port is another program, such as an rsocket in C, or
    /// listens for the other of IPv4 and IPv6; or the listener has no place in its backlog, or
    /// ended just then.
    RejectedWithoutCause,
    /// The peer answered, but is no program that uses this crate.
    NotRdmsg,
    /// The peer is an rsocket: [`rsocket`](crate::rsocket) speaks to it.
    PeerIsRsocket,
    /// The peer has not what is needed: memory that it may lock, or shared receives, for another
    /// connection; or, for long, memory for a message above the eager size. It may later.
    PeerOutOfResources,
    /// The peer's library could not go on, for a reason of which this version knows only the code.
    PeerFailed(u32),
    /// As many requests as the peer's listener takes at a time wait there
    /// ([`backlog`](crate::Config::backlog), [`half_open`](crate::Config::half_open)). A connector
    /// with [`retry_refused`](crate::Config::retry_refused) tries again.
    PeerBusy,
    /// The peer uses this crate, and the two sides do not go together.
    PeerIncompatible(Mismatch),
    /// The peer sent something that the protocol forbids.
    ProtocolViolation(Violation),
    /// The device gave up on a work request. `RETRY_EXC_ERR`: the peer's host, or the path to it, is gone.
    WorkRequest {
        /// How the work request ended.
        status: WcStatus,
        /// The device's own code.
        vendor_err: u32,
    },
    /// The local RDMA device was removed.
    DeviceRemoved,
    /// The network device under the RDMA device changed its address.
    AddressChanged,
    /// The deadline for establishing the connection passed.
    TimedOut(Phase),
    /// The peer gave no sign of life for longer than the configuration allows.
    KeepaliveTimeout,
    /// The peer announced a message above the eager size, and nothing of it could be read for
    /// longer than [`Config::read_timeout`](crate::Config::read_timeout).
    ReadTimeout,
    /// The peer closed the connection, and everything that it sent has been delivered.
    ///
    /// A `send` that fails with it while messages still arrive says only that the peer takes no
    /// more.
    PeerClosed,
    /// The peer closed the connection and left before all that it had sent could be read from its
    /// memory: the last `missing` messages are lost. Its own `close` failed, or it did not wait.
    Truncated {
        /// How many messages the peer sent that were not delivered.
        missing: u64,
    },
    /// The peer's application aborted the connection with this code.
    PeerAborted(u32),
    /// The connection was taken down without a close: the peer's process has ended, or its engine gave up.
    PeerDisconnected,
    /// This side closed the connection.
    LocallyClosed,
    /// This side aborted the connection.
    LocallyAborted,
    /// For longer than [`Config::read_timeout`](crate::Config::read_timeout) there was no memory
    /// for a message above the eager size that the peer announced: most often the process may not
    /// lock as much.
    OutOfMemory(OsError),
    /// A call into the system failed.
    Os(OsError),
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AddrResolution(status) if status.raw() == -libc::ENODEV => f.write_str(
                "no RDMA device owns a route to that address; `rdma link` shows the devices and `ip route get` the \
                 interface that leads there: it must be one of theirs",
            ),
            Self::AddrResolution(status) => write!(f, "the address could not be resolved: {status}; `ip route get` and `ip neighbour` tell more"),
            Self::RouteResolution(status) => write!(f, "the route could not be resolved: {status}"),
            Self::Unreachable(status) => write!(f, "the peer does not answer: {status}"),
            Self::ConnectFailed(status) => write!(f, "establishing the connection failed: {status}"),
            Self::Refused => f.write_str(explanation(RejectReason::INVALID_SERVICE_ID)),
            Self::RejectedWithoutCause => write!(
                f,
                "{}; an rsocket, if it is one, is reached with rdmsg::rsocket::Stream",
                explanation(RejectReason::CONSUMER_DEFINED)
            ),
            Self::Rejected { reason, data } if data.is_empty() => write!(f, "rejected by the peer: {reason}"),
            Self::Rejected { reason, data } => {
                write!(f, "rejected by the peer: {reason}, with {} bytes: {:?}", data.len(), String::from_utf8_lossy(data))
            }
            Self::NotRdmsg => f.write_str("the program at the other end does not speak rdmsg's protocol"),
            Self::PeerIsRsocket => f.write_str(
                "the program at the other end speaks the protocol of rsockets, not that of endpoints: use rdmsg::rsocket on this side, \
                 or an Endpoint or Listener on the other",
            ),
            Self::PeerOutOfResources => f.write_str(
                "the peer is out of resources, such as memory that it may lock or shared receives; its own error tells more",
            ),
            Self::PeerFailed(code) => write!(f, "the peer could not go on (code {code}); its own error tells more"),
            Self::PeerBusy => f.write_str(
                "the peer is busy: as many connects wait there as its listener takes at a time. Try again later, or set retry_refused in \
                 the Config; at the peer accept faster, or raise backlog and half_open",
            ),
            Self::PeerIncompatible(mismatch) => write!(f, "the two sides do not go together: {mismatch}"),
            Self::ProtocolViolation(violation) => write!(f, "the peer violated the protocol: {violation}"),
            Self::WorkRequest { status: WcStatus::RETRY_EXC_ERR, .. } => {
                f.write_str("the peer does not acknowledge: its host or the path to it is gone (RETRY_EXC_ERR)")
            }
            Self::WorkRequest { status, vendor_err } => {
                write!(f, "the device failed a work request: {status} (vendor error {vendor_err:#x})")
            }
            Self::DeviceRemoved => f.write_str("the RDMA device was removed"),
            Self::AddressChanged => f.write_str("the network device's address changed"),
            Self::TimedOut(phase) => write!(f, "timed out while {phase}"),
            Self::KeepaliveTimeout => f.write_str("the peer gives no sign of life"),
            Self::ReadTimeout => f.write_str(
                "the peer announced a message that cannot be read: its device does not answer, or the path to it is too slow for read_timeout",
            ),
            Self::PeerClosed => f.write_str("closed by the peer"),
            Self::Truncated { missing } => write!(
                f,
                "truncated: the peer closed and left before its last {missing} message{} read; \
                 receive and let go of messages faster, or raise close_timeout at the peer",
                if *missing == 1 { " was" } else { "s were" }
            ),
            Self::PeerAborted(code) => write!(f, "aborted by the peer with code {code}"),
            Self::PeerDisconnected => f.write_str("the peer disconnected without closing; its process may have ended"),
            Self::LocallyClosed => f.write_str("closed by this side"),
            Self::LocallyAborted => f.write_str("aborted by this side"),
            Self::OutOfMemory(error) => write!(
                f,
                "there was no memory for a message of the peer's for longer than read_timeout: {error}; if this process may lock no \
                 more (`ulimit -l`), raise memlock in /etc/security/limits.conf or with LimitMEMLOCK= in the service's unit, or lower \
                 pinned in the EngineLimits, or receive_window, send_depth or eager_size in the Config"
            ),
            Self::Os(error) if (error.call, error.errno) == ("ibv_reg_mr", libc::ENOMEM) => write!(
                f,
                "{error}: this process may lock no more memory (`ulimit -l`); raise memlock in /etc/security/limits.conf or with \
                 LimitMEMLOCK= in the service's unit, or lower large_memory or registration_cache in the Config"
            ),
            Self::Os(error) => write!(f, "{error}"),
        }
    }
}

fn explanation(reason: RejectReason) -> &'static str {
    reason.explanation().unwrap_or("rejected")
}

impl std::error::Error for CloseReason {}
