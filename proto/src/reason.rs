use std::{fmt, io};

use rdma_status::{CmStatus, OsError, RejectReason, WcStatus};

use crate::hello::{REPLY_DATA_MAX, REQUEST_DATA_MAX};

/// A violation of the protocol: a field in a received frame has an invalid value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub struct Violation {
    field: &'static str,
    value: u64,
    expected: &'static str,
}

impl Violation {
    /// Creates a violation from the name and the value of the field. `expected` describes the
    /// values that the protocol allows.
    pub const fn new(field: &'static str, value: u64, expected: &'static str) -> Self {
        Self {
            field,
            value,
            expected,
        }
    }

    /// Returns the field's name.
    #[must_use]
    pub const fn field(&self) -> &'static str {
        self.field
    }

    /// Returns the invalid value of the field.
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

/// A field of the hello whose values on the two sides are incompatible.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
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
        let Self {
            field,
            ours,
            theirs,
        } = self;
        match (*field, ours, theirs) {
            ("stream", 0, 1) => f.write_str("this side sends messages, and the peer a byte stream"),
            ("stream", 1, 0) => f.write_str("this side sends a byte stream, and the peer messages"),
            ("private_data", len, 0) => write!(
                f,
                "the private data have {len} bytes, and the peer's version accepts at most \
                 {REQUEST_DATA_MAX}"
            ),
            ("private_data", len, eager_size) => write!(
                f,
                "the private data have {len} bytes, which eager_size allows here, but eager_size \
                 at the peer is {eager_size}; send at most {REQUEST_DATA_MAX} bytes, or raise it \
                 there to at least {}",
                len.max(&(REPLY_DATA_MAX as u64))
            ),
            _ => write!(f, "{field} is {ours} here and {theirs} at the peer"),
        }
    }
}

/// The step that was in progress when the deadline for establishing a connection passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
#[non_exhaustive]
pub enum Phase {
    /// Waiting for other connections to be established, because this host limits the number of
    /// concurrent attempts.
    Waiting,
    /// Resolving the address.
    ResolvingAddr,
    /// Resolving the route.
    ResolvingRoute,
    /// Waiting for the peer's answer.
    Connecting,
    /// Waiting for the application to accept or reject the request.
    Accepting,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Waiting => "this host was busy establishing other connections",
            Self::ResolvingAddr => "resolving the address",
            Self::ResolvingRoute => "resolving the route",
            Self::Connecting => "waiting for the peer's answer",
            Self::Accepting => "waiting for the application to accept the request",
        })
    }
}

/// The timeout that expired at the peer, because the peer received no sign of life or too few bytes
/// from this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
#[non_exhaustive]
pub enum PeerTimeout {
    /// The peer received no sign of life within its `Config::keepalive_interval` plus its
    /// `Config::keepalive_timeout`.
    Keepalive,
    /// The peer received too few bytes of a message above the eager size within its
    /// `Config::read_timeout`.
    Read,
}

/// The reason why a connection ended or was not established. If one cause led to another, this is
/// the first cause.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
#[non_exhaustive]
pub enum CloseReason {
    /// No RDMA device has a route to the address, or the address does not answer (event
    /// `ADDR_ERROR`).
    AddrResolution(CmStatus),
    /// The route could not be resolved (event `ROUTE_ERROR`).
    RouteResolution(CmStatus),
    /// The peer's host did not answer (event `UNREACHABLE`).
    Unreachable(CmStatus),
    /// The connection could not be established (event `CONNECT_ERROR`).
    ConnectFailed(CmStatus),
    /// No program on the peer's host listens on this port.
    Refused,
    /// The peer rejected the connection.
    Rejected {
        /// The reason that the connection manager reports.
        reason: RejectReason,
        /// The bytes that the peer's application supplied for its rejection. Empty if the rejection
        /// did not come from the application.
        data: Box<[u8]>,
    },
    /// The peer rejected the connection without stating a cause. This crate always states a cause,
    /// so the peer is one of the following:
    ///
    /// - Another program that listens on the port, such as an rsocket in C.
    /// - A listener that accepts only IPv6 or only IPv4, while the address is of the other family.
    /// - A listener whose backlog was full.
    /// - A listener that had just ended.
    RejectedWithoutCause,
    /// The peer answered, but does not use the protocol of this crate.
    NotRdmsg,
    /// The peer is an rsocket. The crate `rdmsg-rsocket` can connect to rsockets.
    PeerIsRsocket,
    /// The peer ran out of resources. Either the peer lacked memory, descriptors or shared receives
    /// for a new connection, or it failed to get memory for a message above the eager size within
    /// its `Config::read_timeout`. A later attempt can succeed, so a connector with
    /// `Config::retry_refused` retries.
    PeerOutOfResources,
    /// The peer ended the connection because a timeout in its `Config` expired. The peer reported
    /// the timeout in its last frame, so its process was still running.
    PeerGaveUp(PeerTimeout),
    /// The peer's library ended the connection with a code that this version does not know.
    PeerFailed(u32),
    /// The peer's listener has no room for another connection (`Config::backlog`,
    /// `Config::half_open`), the peer's program did not answer the request in time, or the listener
    /// is being closed. A connector with `Config::retry_refused` retries.
    ///
    /// An established connection ends with this reason if the peer's listener was dropped before
    /// the peer's program accepted the connection. The program has received no message, so it is
    /// safe to connect and send again.
    PeerBusy,
    /// The peer uses this crate with an incompatible version or configuration.
    PeerIncompatible(Mismatch),
    /// The peer violated the protocol.
    ///
    /// A violation of the [field](Violation::field) `rkey` may have another cause: the peer's
    /// process was killed while this side was reading a message above the eager size. In that case,
    /// the peer's kernel first revokes the key of the message, and then disconnects.
    ProtocolViolation(Violation),
    /// A work request failed. The status `RETRY_EXC_ERR` means that the peer's host, or the path to
    /// it, is down.
    WorkRequest {
        /// The status of the work completion.
        status: WcStatus,
        /// The vendor-specific error code of the device (`vendor_err`).
        vendor_err: u32,
    },
    /// The local RDMA device was removed.
    DeviceRemoved,
    /// The local RDMA device reported the failure of an object that the connection uses.
    DeviceFault(DeviceFault),
    /// The address of the network device under the RDMA device changed.
    AddressChanged,
    /// The deadline for establishing the connection passed.
    TimedOut(Phase),
    /// The peer gave no sign of life within `Config::keepalive_interval` plus
    /// `Config::keepalive_timeout`.
    KeepaliveTimeout,
    /// For longer than `Config::read_timeout`, this side received too few bytes of a message above
    /// the eager size. Usually a single byte within this time prevents the timeout. A minimum rate
    /// applies only while other connections wait for memory.
    ReadTimeout,
    /// The peer closed the connection, and everything that the peer sent has been delivered.
    ///
    /// The peer receives no messages after its close. Therefore a `send` can fail with this reason
    /// while messages from the peer are still arriving.
    PeerClosed,
    /// The peer closed the connection and disconnected before this side had read all messages from
    /// the peer's memory. The last `missing` messages are lost. Either the peer's `close` failed,
    /// or the peer's program did not wait until `close` had completed.
    Truncated {
        /// The number of messages that the peer sent but that were not delivered.
        missing: u64,
    },
    /// The peer's application aborted the connection with this code.
    PeerAborted(u32),
    /// The connection was disconnected without a close. Either the peer's process has ended, or the
    /// peer's engine ended the connection and the [notice](Self::PeerGaveUp) did not arrive. If the
    /// peer disconnects while the connection is being established, a connector with
    /// `Config::retry_refused` retries.
    PeerDisconnected,
    /// The connection was lost, and the peer no longer has the session: the peer's process has
    /// ended, or the peer has ended the session.
    ///
    /// A [`Completion::Failed`] reports each message that has an id and may not have arrived.
    ///
    /// [`Completion::Failed`]: https://docs.rs/rdmsg/latest/rdmsg/enum.Completion.html
    SessionLost,
    /// This side closed the connection.
    LocallyClosed,
    /// This side aborted the connection.
    LocallyAborted,
    /// A task waited for the connection, and the task's waker panicked. This side ended the
    /// connection, because the task might never be polled again.
    WakerPanicked,
    /// This process is a forked child. The connection belongs to the parent process, and continues
    /// there.
    Forked,
    /// For longer than `Config::read_timeout`, no memory was available for a message above the
    /// eager size that the peer had announced. The usual cause is that the process has reached its
    /// limit on locked memory.
    OutOfMemory(OsError),
    /// A system call failed. Over TCP, this includes all failures of connect(2) except a refused
    /// connection.
    Os(OsError),
}

impl CloseReason {
    /// Returns the kind of [`std::io::Error`] that a TCP program would expect for this reason.
    #[must_use]
    pub fn io_kind(&self) -> io::ErrorKind {
        match self {
            Self::AddrResolution(_) | Self::RouteResolution(_) | Self::Unreachable(_) => {
                io::ErrorKind::HostUnreachable
            }
            Self::Refused
            | Self::Rejected { .. }
            | Self::RejectedWithoutCause
            | Self::PeerOutOfResources
            | Self::PeerBusy
            | Self::ConnectFailed(_) => io::ErrorKind::ConnectionRefused,
            Self::NotRdmsg
            | Self::PeerIsRsocket
            | Self::PeerIncompatible(_)
            | Self::ProtocolViolation(_) => io::ErrorKind::InvalidData,
            Self::WorkRequest { .. }
            | Self::PeerFailed(_)
            | Self::PeerGaveUp(_)
            | Self::PeerAborted(_)
            | Self::PeerDisconnected
            | Self::SessionLost
            | Self::Truncated { .. } => io::ErrorKind::ConnectionReset,
            Self::LocallyAborted | Self::WakerPanicked => io::ErrorKind::ConnectionAborted,
            Self::DeviceRemoved | Self::DeviceFault(_) | Self::AddressChanged => {
                io::ErrorKind::NetworkDown
            }
            Self::TimedOut(_) | Self::KeepaliveTimeout | Self::ReadTimeout => {
                io::ErrorKind::TimedOut
            }
            Self::OutOfMemory(_) => io::ErrorKind::OutOfMemory,
            Self::PeerClosed => io::ErrorKind::UnexpectedEof,
            Self::LocallyClosed | Self::Forked => io::ErrorKind::NotConnected,
            Self::Os(error) => io::Error::from_raw_os_error(error.errno).kind(),
        }
    }

    /// Returns whether a session continues if an established connection ends for this reason. The
    /// result is true if the path, a device or a host failed, and neither side closed or aborted
    /// the connection.
    #[must_use]
    pub fn is_loss(&self) -> bool {
        match self {
            Self::WorkRequest { status, .. } => matches!(
                *status,
                // If there is no path to the peer, some devices report `LOC_QP_OP_ERR` or
                // `FATAL_ERR`.
                WcStatus::RETRY_EXC_ERR
                    | WcStatus::WR_FLUSH_ERR
                    | WcStatus::RESP_TIMEOUT_ERR
                    | WcStatus::LOC_QP_OP_ERR
                    | WcStatus::FATAL_ERR
            ),
            Self::PeerDisconnected
            | Self::KeepaliveTimeout
            | Self::PeerGaveUp(PeerTimeout::Keepalive)
            | Self::DeviceRemoved
            | Self::AddressChanged => true,
            Self::DeviceFault(fault) => fault.is_loss(),
            Self::Os(error) => matches!(
                error.errno,
                libc::ECONNRESET
                    | libc::EPIPE
                    | libc::ETIMEDOUT
                    | libc::EHOSTUNREACH
                    | libc::ENETUNREACH
                    | libc::ENETDOWN
            ),
            _ => false,
        }
    }

    /// Returns whether both sides had received all messages when the connection ended. The result
    /// is true if one side closed the connection and the other side answered the close.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        matches!(self, Self::PeerClosed | Self::LocallyClosed)
    }
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AddrResolution(status) if status.raw() == -libc::ENODEV => f.write_str(
                "no RDMA device has a route to that address; `rdma link` lists the devices, and \
                 `ip route get` shows the interface for the address: this interface must belong to \
                 one of the devices",
            ),
            Self::AddrResolution(status) => write!(
                f,
                "the address could not be resolved: {status}; check `ip route get` and `ip \
                 neighbour`"
            ),
            Self::RouteResolution(status) => write!(f, "the route could not be resolved: {status}"),
            Self::Unreachable(status) => write!(f, "the peer does not answer: {status}"),
            Self::ConnectFailed(status) => {
                write!(f, "establishing the connection failed: {status}")
            }
            Self::Refused => f.write_str(explanation(RejectReason::INVALID_SERVICE_ID)),
            Self::RejectedWithoutCause => write!(
                f,
                "{}; if it is an rsocket, connect to it with rdmsg::rsocket::Stream",
                explanation(RejectReason::CONSUMER_DEFINED)
            ),
            Self::Rejected { reason, data } => {
                f.write_str("rejected by the peer: ")?;
                match *reason {
                    RejectReason::CONSUMER_DEFINED => f.write_str("its program refused")?,
                    reason => reason.fmt(f)?,
                }
                if data.is_empty() {
                    return Ok(());
                }
                let (len, text) = (data.len(), String::from_utf8_lossy(data));
                write!(f, ", with {len} bytes: {text:?}")
            }
            Self::NotRdmsg => f.write_str(
                "the program at the other end does not speak rdmsg's protocol; check the address \
                 and the port",
            ),
            Self::PeerIsRsocket => f.write_str(
                "the program at the other end speaks the protocol of rsockets, not that of \
                 endpoints: use rdmsg::rsocket on this side, or an Endpoint or Listener on the \
                 other",
            ),
            Self::PeerOutOfResources => f.write_str(
                "the peer ran out of resources (memory, descriptors or shared receives); its own \
                 error has the details, and a retry later may succeed",
            ),
            Self::PeerGaveUp(PeerTimeout::Keepalive) => write!(
                f,
                "the peer gave up: it received no sign of life from this side within its \
                 keepalive_interval and keepalive_timeout, because this process did not run or \
                 the network lost packets; {LONG_PACKETS}"
            ),
            Self::PeerGaveUp(PeerTimeout::Read) => write!(
                f,
                "the peer gave up: it could not read a message from this side within its \
                 read_timeout, because the path is too slow or loses packets; {LONG_PACKETS}"
            ),
            Self::PeerFailed(code) => {
                write!(
                    f,
                    "the peer gave up (code {code}); the error at the peer has the cause"
                )
            }
            Self::PeerBusy => f.write_str(
                "the peer is busy: its listener is full or is being closed, or its program did not \
                 answer the request within connect_timeout; its program has seen no message; retry \
                 later, or set retry_refused of the Connector; at the peer, accept faster, or \
                 raise backlog and half_open",
            ),
            Self::PeerIncompatible(mismatch) => {
                write!(f, "the two sides are incompatible: {mismatch}")
            }
            Self::ProtocolViolation(violation) => {
                write!(f, "the peer violated the protocol: {violation}")
            }
            Self::WorkRequest {
                status: WcStatus::RETRY_EXC_ERR,
                ..
            } => f.write_str(
                "the peer does not acknowledge: its host or the path to it is down (RETRY_EXC_ERR)",
            ),
            Self::WorkRequest { status, vendor_err } => {
                write!(
                    f,
                    "a work request failed: {status} (vendor error {vendor_err:#x})"
                )
            }
            Self::DeviceRemoved => f.write_str("the RDMA device was removed"),
            Self::DeviceFault(fault) => write!(f, "the RDMA device reports a failure: {fault}"),
            Self::AddressChanged => f.write_str("the network device's address changed"),
            Self::TimedOut(phase) => write!(f, "timed out while {phase}"),
            Self::KeepaliveTimeout => write!(
                f,
                "the peer gives no sign of life: its process has stopped, or its host or the path \
                 to it is down; {LONG_PACKETS}"
            ),
            Self::ReadTimeout => write!(
                f,
                "the peer announced a message that cannot be read: the peer's host does not \
                 answer, or the path to it is too slow for read_timeout in the Config; \
                 {LONG_PACKETS}"
            ),
            Self::PeerClosed => f.write_str("closed by the peer"),
            Self::Truncated { missing } => write!(
                f,
                "truncated: the peer closed and disconnected before its last {missing} message{} \
                 read; receive and release messages faster, or raise close_timeout at the peer",
                if *missing == 1 { " was" } else { "s were" }
            ),
            Self::PeerAborted(code) => write!(f, "aborted by the peer with code {code}"),
            Self::PeerDisconnected => {
                f.write_str("the peer disconnected without closing; its process may have ended")
            }
            Self::SessionLost => f.write_str(
                "the connection was lost, and the peer does not know its session: the peer's \
                 process has ended, or the peer has ended the session; a Completion::Failed \
                 reports each message that may not have arrived",
            ),
            Self::LocallyClosed => f.write_str("closed by this side"),
            Self::LocallyAborted => f.write_str("aborted by this side"),
            Self::WakerPanicked => f.write_str(
                "the waker of a task that waited on the connection panicked; the panic's message \
                 on stderr names the line of code",
            ),
            Self::Forked => f.write_str(
                "the connection belongs to the process that forked this one, and continues there; \
                 connect after the fork",
            ),
            Self::OutOfMemory(error) => {
                write!(
                    f,
                    "there was no memory for a message of the peer for longer than read_timeout: \
                     {error}; "
                )?;
                if error.call == "ibv_reg_mr" {
                    write!(
                        f,
                        "if this process has reached its limit on locked memory, \
                         {RAISE_MEMLOCK}, or "
                    )?;
                }
                f.write_str(
                    "lower pinned in the EngineLimits, or receive_window, send_depth or eager_size \
                     in the Config",
                )
            }
            Self::Os(error) if (error.call, error.errno) == ("ibv_reg_mr", libc::ENOMEM) => write!(
                f,
                "{error}: this process has reached its limit on locked memory; {RAISE_MEMLOCK}, or \
                 lower large_memory or registration_cache in the Config"
            ),
            Self::Os(error) => write!(f, "{error}"),
        }
    }
}

/// A hint in the texts of errors that can occur if a network drops long packets.
const LONG_PACKETS: &str = "if short messages pass and long ones do not, the MTUs of the hosts and \
                            the switches differ";

/// The remedy in the texts of errors that occur if the limit on locked memory is too low.
pub const RAISE_MEMLOCK: &str = "raise memlock in /etc/security/limits.conf or with LimitMEMLOCK= \
                                 in the service's unit (`ulimit -l` shows the limit)";

fn explanation(reason: RejectReason) -> &'static str {
    reason.explanation().unwrap_or("rejected")
}

impl std::error::Error for CloseReason {}

/// A fault that a device has reported in an asynchronous event: see `ibv_get_async_event(3)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
#[non_exhaustive]
pub enum DeviceFault {
    /// The whole device failed (`DEVICE_FATAL`). All connections on the device end. Some drivers
    /// also report this event when a device is removed.
    Device,
    /// The connection's queue pair failed (`QP_FATAL`).
    QueuePair,
    /// The peer sent a request that the queue pair cannot serve (`QP_REQ_ERR`).
    Request,
    /// The peer requested access to memory without the required right (`QP_ACCESS_ERR`).
    Access,
    /// The connection's completion queue failed (`CQ_ERR`).
    CompletionQueue,
    /// The connection's shared receive queue failed (`SRQ_ERR`).
    SharedReceives,
}

impl DeviceFault {
    /// Returns true if a session can continue over another connection after this fault: the device
    /// or one of its queues failed, and the peer made no invalid request.
    pub(crate) const fn is_loss(self) -> bool {
        match self {
            Self::Device | Self::QueuePair | Self::CompletionQueue | Self::SharedReceives => true,
            Self::Request | Self::Access => false,
        }
    }
}

impl fmt::Display for DeviceFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Device => "the whole device failed (DEVICE_FATAL)",
            Self::QueuePair => "the queue pair failed (QP_FATAL)",
            Self::Request => "the peer sent an invalid request (QP_REQ_ERR)",
            Self::Access => "the peer accessed memory without the right to do so (QP_ACCESS_ERR)",
            Self::CompletionQueue => "the completion queue failed (CQ_ERR)",
            Self::SharedReceives => "the shared receive queue failed (SRQ_ERR)",
        })
    }
}
