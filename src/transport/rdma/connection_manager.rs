use std::{
    fmt,
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd},
};

use super::{connection_id::with_interface, device::Devices};
use crate::{
    cm::{CmEvent, CmId, EventChannel, PortSpace},
    proto::{CloseReason, CmInput, ReadDepth},
    status::{CmEventType, OsError},
};

/// The event channel of the connection manager for one engine, and the devices in use. The file
/// descriptor of the channel is readable while events are pending.
#[derive(Debug)]
pub(crate) struct ConnectionManager {
    channel: EventChannel,
    pub(in crate::transport) devices: Devices,
}

/// A report of the connection manager.
#[derive(Debug)]
pub(crate) enum Report {
    /// A peer has requested a connection.
    Request(ConnectRequest),
    /// An event of a connection or a listener.
    Event(Event),
}

/// A peer's connection request, for which this side has not created a connection yet.
#[derive(Debug)]
pub(crate) struct ConnectRequest {
    event: CmEvent,
    id: CmId,
}

/// An event for the connection or listener whose key it contains.
#[derive(Debug)]
pub(crate) struct Event(CmEvent);

impl ConnectionManager {
    /// Creates a connection manager.
    ///
    /// # Errors
    ///
    /// Fails if `/dev/infiniband/rdma_cm` is missing: see `rdma_create_event_channel(3)`.
    pub(crate) fn new() -> Result<Self, OsError> {
        Ok(Self {
            channel: EventChannel::new()?,
            devices: Devices::default(),
        })
    }

    /// Returns the report of the next event, if an event is pending.
    pub(crate) fn poll(&self) -> Result<Option<Report>, OsError> {
        let Some(mut event) = self.channel.poll_event()? else {
            return Ok(None);
        };
        Ok(Some(match event.take_request() {
            Some(id) => Report::Request(ConnectRequest { event, id }),
            None => Report::Event(Event(event)),
        }))
    }

    /// Creates an id whose events contain this key.
    pub(super) fn id(&self, key: u64) -> Result<CmId, OsError> {
        CmId::new(&self.channel, PortSpace::TCP, key)
    }
}

impl AsFd for ConnectionManager {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

impl ConnectRequest {
    /// Returns the key of the listener to which the request was sent.
    pub(crate) fn listener(&self) -> Option<u64> {
        self.event.listen_context()
    }

    pub(crate) fn peer_addr(&self) -> Option<SocketAddr> {
        let peer = self.id.peer_addr()?;
        Some(with_interface(peer, self.id.local_addr()))
    }

    /// Returns the private data of the request.
    pub(crate) fn private_data(&self) -> &[u8] {
        self.event.private_data()
    }

    /// Returns the maximum number of concurrent READs in each direction, as offered by the peer.
    pub(crate) fn reads(&self) -> ReadDepth {
        read_depth(&self.event)
    }

    /// Rejects the request.
    pub(crate) fn reject(mut self, private_data: &[u8]) {
        if let Err(error) = self.id.reject(private_data) {
            debug!(Rdma, "engine: cannot reject a connect request: {error}");
        }
    }

    /// Returns the id of the request. Later events of this id contain `key`.
    pub(super) fn into_id(mut self, key: u64) -> CmId {
        self.id.set_context(key);
        self.id
    }
}

impl Event {
    pub(crate) fn key(&self) -> u64 {
        self.0.context()
    }

    /// Returns whether the event reports that the peer has disconnected.
    pub(crate) fn is_disconnect(&self) -> bool {
        self.0.event() == CmEventType::DISCONNECTED
    }

    /// Returns the cause if the event ends its listener. Otherwise returns `None`.
    pub(crate) fn listener_lost(&self) -> Option<CloseReason> {
        match self.0.event() {
            CmEventType::DEVICE_REMOVAL => Some(CloseReason::DeviceRemoved),
            CmEventType::ADDR_CHANGE => Some(CloseReason::AddressChanged),
            _ => None,
        }
    }

    /// Converts the event to an input of the state machine.
    pub(crate) fn input(&self) -> CmInput<'_> {
        let event = &self.0;
        let status = event.cm_status();
        match event.event() {
            CmEventType::ADDR_RESOLVED => CmInput::AddrResolved,
            CmEventType::ADDR_ERROR => CmInput::AddrError(status),
            CmEventType::ROUTE_RESOLVED => CmInput::RouteResolved,
            CmEventType::ROUTE_ERROR => CmInput::RouteError(status),
            CmEventType::CONNECT_RESPONSE => CmInput::ConnectResponse,
            CmEventType::CONNECT_ERROR => CmInput::ConnectError(status),
            CmEventType::UNREACHABLE => CmInput::Unreachable(status),
            CmEventType::REJECTED => CmInput::Rejected {
                reason: event.reject_reason(),
                private_data: event.private_data(),
            },
            CmEventType::ESTABLISHED => CmInput::Established {
                private_data: event.private_data(),
                reads: read_depth(event),
            },
            CmEventType::DISCONNECTED => CmInput::Disconnected,
            CmEventType::DEVICE_REMOVAL => CmInput::DeviceRemoval,
            CmEventType::ADDR_CHANGE => CmInput::AddrChange,
            CmEventType::TIMEWAIT_EXIT => CmInput::TimewaitExit,
            other => CmInput::Other(other.raw()),
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.event().fmt(f)?;
        match self.0.status() {
            0 => Ok(()),
            status => write!(f, ", status {status}"),
        }
    }
}

/// Returns the maximum number of concurrent READs in each direction, as stated in the peer's
/// request or acceptance.
fn read_depth(event: &CmEvent) -> ReadDepth {
    let (outgoing, incoming) = event.conn().map_or((0, 0), |param| {
        (param.initiator_depth, param.responder_resources)
    });
    ReadDepth { outgoing, incoming }
}
