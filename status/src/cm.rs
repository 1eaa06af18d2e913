use std::{fmt, io};

open_enum! {
    /// The type of a connection manager event: `enum rdma_cm_event_type`.
    ///
    /// See
    /// [`rdma_get_cm_event(3)`](https://man7.org/linux/man-pages/man3/rdma_get_cm_event.3.html).
    pub struct CmEventType(u32);
    /// Address resolution finished.
    ADDR_RESOLVED = 0;
    /// Address resolution failed.
    ADDR_ERROR = 1;
    /// Route resolution finished.
    ROUTE_RESOLVED = 2;
    /// Route resolution failed.
    ROUTE_ERROR = 3;
    /// Passive side: a peer requests a connection.
    CONNECT_REQUEST = 4;
    /// Active side, for an id without a queue pair: the peer accepted the request.
    CONNECT_RESPONSE = 5;
    /// The connection could not be established.
    CONNECT_ERROR = 6;
    /// Active side: the peer did not answer or is unreachable.
    UNREACHABLE = 7;
    /// The peer rejected the request or the response.
    REJECTED = 8;
    /// The connection is established.
    ESTABLISHED = 9;
    /// The connection was disconnected.
    DISCONNECTED = 10;
    /// The local device was removed. All ids on this device must be destroyed.
    DEVICE_REMOVAL = 11;
    /// The multicast group was joined.
    MULTICAST_JOIN = 12;
    /// Joining a multicast group failed, or the membership was lost.
    MULTICAST_ERROR = 13;
    /// The hardware address of the network device of this id changed.
    ADDR_CHANGE = 14;
    /// The queue pair left the timewait state and can be reused.
    TIMEWAIT_EXIT = 15;
    /// `rdma_resolve_addrinfo` finished.
    ADDRINFO_RESOLVED = 16;
    /// `rdma_resolve_addrinfo` failed.
    ADDRINFO_ERROR = 17;
    /// An event that a user-space program has written to the event channel.
    USER = 18;
    /// An event that librdmacm uses internally.
    INTERNAL = 19;
}

/// The status of an event that reports a failure. The kernel's connection manager sets it to zero
/// or to a negative error number.
///
/// In a `REJECTED` event, the same field of the event contains a [`RejectReason`].
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CmStatus(i32);

impl CmStatus {
    /// Creates a status from the `status` field of an event.
    #[must_use]
    pub const fn from_raw(raw: i32) -> Self {
        Self(raw)
    }

    /// Returns the value of the `status` field of the event.
    #[must_use]
    pub const fn raw(self) -> i32 {
        self.0
    }
}

impl fmt::Display for CmStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("the event carries no error number"),
            status if status < 0 => {
                write!(
                    f,
                    "{}",
                    io::Error::from_raw_os_error(status.saturating_neg())
                )
            }
            status => write!(f, "status {status}"),
        }
    }
}

impl fmt::Debug for CmStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CmStatus({self})")
    }
}

open_enum! {
    /// The reason for a rejection: the status of a `REJECTED` event.
    ///
    /// On InfiniBand and RoCE, the values are the reason codes in the InfiniBand specification,
    /// volume 1, section 12.6.7.2 (`enum ib_cm_rej_reason` of the Linux kernel). On iWARP, the
    /// value is a negative error number.
    pub struct RejectReason(i32);
    /// The peer has no free queue pair.
    NO_QP = 1;
    /// The peer has no free end-to-end context.
    NO_EEC = 2;
    /// The peer lacks resources for the connection.
    NO_RESOURCES = 3;
    /// The peer timed out while it waited for a message from this side.
    TIMEOUT = 4;
    /// The peer does not support the request.
    UNSUPPORTED = 5;
    /// The communication id is not valid.
    INVALID_COMM_ID = 6;
    /// The communication instance is not valid.
    INVALID_COMM_INSTANCE = 7;
    /// No listener on the peer's host uses this port.
    INVALID_SERVICE_ID = 8;
    /// The transport service type is not valid.
    INVALID_TRANSPORT_TYPE = 9;
    /// The peer still has the state of an earlier connection of this queue pair.
    STALE_CONN = 10;
    /// The requested reliable datagram channel does not exist at the peer.
    RDC_NOT_EXIST = 11;
    /// The GID does not belong to the peer.
    INVALID_GID = 12;
    /// The LID does not belong to the peer.
    INVALID_LID = 13;
    /// The service level is not valid.
    INVALID_SL = 14;
    /// The traffic class is not valid.
    INVALID_TRAFFIC_CLASS = 15;
    /// The hop limit is not valid.
    INVALID_HOP_LIMIT = 16;
    /// The packet rate is not valid.
    INVALID_PACKET_RATE = 17;
    /// The alternate GID is not valid.
    INVALID_ALT_GID = 18;
    /// The alternate LID is not valid.
    INVALID_ALT_LID = 19;
    /// The alternate service level is not valid.
    INVALID_ALT_SL = 20;
    /// The alternate traffic class is not valid.
    INVALID_ALT_TRAFFIC_CLASS = 21;
    /// The alternate hop limit is not valid.
    INVALID_ALT_HOP_LIMIT = 22;
    /// The alternate packet rate is not valid.
    INVALID_ALT_PACKET_RATE = 23;
    /// The peer redirects the request to another port and another connection manager.
    PORT_CM_REDIRECT = 24;
    /// The peer redirects the request to another port.
    PORT_REDIRECT = 25;
    /// The path MTU is not valid.
    INVALID_MTU = 26;
    /// The peer does not have enough responder resources.
    INSUFFICIENT_RESP_RESOURCES = 27;
    /// The peer's program rejected the request, and supplied the event's private data. If the event
    /// has no private data, see [`RejectReason::explanation`].
    CONSUMER_DEFINED = 28;
    /// The RNR retry count is not valid.
    INVALID_RNR_RETRY = 29;
    /// Another connection already uses the same communication id.
    DUPLICATE_LOCAL_COMM_ID = 30;
    /// The class version is not valid.
    INVALID_CLASS_VERSION = 31;
    /// The flow label is not valid.
    INVALID_FLOW_LABEL = 32;
    /// The alternate flow label is not valid.
    INVALID_ALT_FLOW_LABEL = 33;
    /// The vendor option is not supported.
    VENDOR_OPTION_NOT_SUPPORTED = 35;
}

impl RejectReason {
    /// Returns true if this is the reason of a rejection by the peer's program. If the event has
    /// private data, that program supplied the data. If the event has no private data, the peer's
    /// connection manager may have sent the rejection: see [`explanation`](Self::explanation).
    ///
    /// iWARP has no reason code for a rejection by a program. Depending on the driver, such a
    /// rejection has the status `-ECONNREFUSED` or `-ECONNRESET`, with private data.
    #[must_use]
    pub const fn is_consumer(self) -> bool {
        let iwarp = self.0 == -libc::ECONNREFUSED || self.0 == -libc::ECONNRESET;
        self.0 == Self::CONSUMER_DEFINED.0 || iwarp
    }

    /// Returns a text that explains the usual cause of a rejection that carries no private data.
    /// Returns `None` if the reason's name already states the cause.
    ///
    /// In two cases, `CONSUMER_DEFINED` comes from the connection manager on the peer's host, and
    /// not from the peer's program: the listener on the port is bound to another address, or the
    /// program ended before it accepted the request.
    #[must_use]
    pub const fn explanation(self) -> Option<&'static str> {
        const IWARP_REFUSED: i32 = -libc::ECONNREFUSED; // The status on iWARP.
        match self {
            Self::INVALID_SERVICE_ID | Self(IWARP_REFUSED) => {
                Some("refused: no program listens on this port at the peer")
            }
            Self::CONSUMER_DEFINED => Some(
                "rejected without a cause (CONSUMER_DEFINED): the listener on this port at the \
                 peer speaks another protocol, is bound to the other of IPv4 and IPv6, accepts no \
                 further connection, or has just ended",
            ),
            _ => None,
        }
    }
}
