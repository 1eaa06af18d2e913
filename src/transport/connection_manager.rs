use std::{
    fmt,
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
};

#[cfg(feature = "rdma")]
use super::rdma;
use super::{device_event::DeviceEvent, tcp};
use crate::{
    poll::Epolls,
    proto::{CloseReason, CmInput, ReadDepth},
    status::OsError,
    transport_choice::Transport,
};

/// The bit that marks epoll tokens of devices. The other bits are the device's number.
pub(crate) const DEVICE: u64 = 1 << 63;

/// The connection managers of an engine, one for each transport.
#[derive(Debug)]
pub(crate) struct ConnectionManager {
    /// The connection manager of RDMA, or the error of its creation.
    #[cfg(feature = "rdma")]
    rdma: Result<rdma::ConnectionManager, OsError>,
    pub(super) tcp: tcp::ConnectionManager,
}

/// A report of the connection manager.
#[derive(Debug)]
pub(crate) enum Report {
    /// A peer requests a connection.
    Request(ConnectRequest),
    /// An event of a connection or a listener.
    Event(Event),
}

/// A peer's request for a connection, for which no objects have been created yet.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "it is moved once")]
pub(crate) enum ConnectRequest {
    #[cfg(feature = "rdma")]
    Rdma(rdma::ConnectRequest),
    Tcp(tcp::ConnectRequest),
}

/// An event of the connection or the listener with this key.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "it is moved once")]
pub(crate) enum Event {
    #[cfg(feature = "rdma")]
    Rdma(rdma::Event),
    Tcp(tcp::Event),
}

impl ConnectionManager {
    /// The error of a program that was built without RDMA.
    #[cfg(not(feature = "rdma"))]
    pub(super) const NO_RDMA: OsError = OsError::new("rdma_create_event_channel", libc::ENOSYS);

    /// Creates the connection managers. If that of RDMA fails, calls that need it return its error.
    pub(crate) fn new() -> Result<Self, OsError> {
        Ok(Self {
            #[cfg(feature = "rdma")]
            rdma: rdma::ConnectionManager::new(),
            tcp: tcp::ConnectionManager::new()?,
        })
    }

    #[cfg(feature = "rdma")]
    pub(super) fn rdma(&self) -> Result<&rdma::ConnectionManager, OsError> {
        self.rdma.as_ref().map_err(|error| *error)
    }

    #[cfg(feature = "rdma")]
    pub(super) fn rdma_mut(&mut self) -> Result<&mut rdma::ConnectionManager, OsError> {
        self.rdma.as_mut().map_err(|error| *error)
    }

    /// Adds the descriptor of a device's events to the engine's epoll while the device is in use,
    /// with a token that contains [`DEVICE`].
    pub(crate) fn watch_devices(&mut self, epolls: &Arc<Epolls>) {
        #[cfg(feature = "rdma")]
        if let Ok(rdma) = &mut self.rdma {
            rdma.devices.watch(epolls);
        }
    }

    /// Takes the next event of the device with this number, if there is one.
    pub(crate) fn poll_device(&self, device: u64) -> Option<DeviceEvent> {
        #[cfg(feature = "rdma")]
        let event = self.rdma.as_ref().ok()?.devices.poll(device);
        #[cfg(not(feature = "rdma"))]
        let event = None;
        event
    }

    /// Returns each transport's descriptor, which is readable while there are reports.
    pub(crate) fn fds(&self) -> impl Iterator<Item = (Transport, BorrowedFd<'_>)> {
        let fds = std::iter::once((Transport::Tcp, self.tcp.as_fd()));
        #[cfg(feature = "rdma")]
        let fds = {
            let rdma = self.rdma.iter();
            fds.chain(rdma.map(|rdma| (Transport::Rdma, rdma.as_fd())))
        };
        fds
    }

    /// Takes the transport's next report, if there is one.
    pub(crate) fn poll(&self, transport: Transport) -> Result<Option<Report>, OsError> {
        match transport {
            #[cfg(not(feature = "rdma"))]
            Transport::Rdma => Ok(None),
            #[cfg(feature = "rdma")]
            Transport::Rdma => {
                let Ok(rdma) = &self.rdma else {
                    return Ok(None);
                };
                Ok(rdma.poll()?.map(|report| match report {
                    rdma::Report::Request(request) => {
                        Report::Request(ConnectRequest::Rdma(request))
                    }
                    rdma::Report::Event(event) => Report::Event(Event::Rdma(event)),
                }))
            }
            Transport::Tcp => Ok(self.tcp.poll()?.map(|report| match report {
                tcp::Report::Request(request) => Report::Request(ConnectRequest::Tcp(request)),
                tcp::Report::Event(event) => Report::Event(Event::Tcp(event)),
            })),
        }
    }
}

impl Drop for ConnectionManager {
    fn drop(&mut self) {
        self.tcp.close();
    }
}

impl ConnectRequest {
    /// Returns the transport of the request.
    pub(crate) fn transport(&self) -> Transport {
        by_transport!(self, {
            Rdma(_) => Transport::Rdma,
            Tcp(_) => Transport::Tcp,
        })
    }

    /// Returns the key of the listener that the request is for.
    pub(crate) fn listener(&self) -> Option<u64> {
        by_transport!(self, {
            Rdma(request) => request.listener(),
            Tcp(request) => Some(request.listener()),
        })
    }

    pub(crate) fn peer_addr(&self) -> Option<SocketAddr> {
        by_transport!(self, {
            Rdma(request) => request.peer_addr(),
            Tcp(request) => Some(request.peer_addr()),
        })
    }

    /// Returns the private data of the request.
    pub(crate) fn private_data(&self) -> &[u8] {
        by_transport!(self, request => request.private_data())
    }

    /// Returns the numbers of concurrent READs that the peer offers.
    pub(crate) fn reads(&self) -> ReadDepth {
        by_transport!(self, request => request.reads())
    }

    /// Rejects it.
    pub(crate) fn reject(self, private_data: &[u8]) {
        by_transport!(self, request => request.reject(private_data))
    }
}

impl Event {
    pub(crate) fn key(&self) -> u64 {
        by_transport!(self, event => event.key())
    }

    /// Whether the peer has disconnected.
    pub(crate) fn is_disconnect(&self) -> bool {
        by_transport!(self, event => event.is_disconnect())
    }

    /// Returns the cause if the event ends its listener.
    pub(crate) fn listener_lost(&self) -> Option<CloseReason> {
        by_transport!(self, {
            Rdma(event) => event.listener_lost(),
            Tcp(_) => None,
        })
    }

    /// Returns the event as an input of the state machine.
    pub(crate) fn input(&self) -> CmInput<'_> {
        by_transport!(self, event => event.input())
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        by_transport!(self, event => event.fmt(f))
    }
}
