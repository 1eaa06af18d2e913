use std::{
    fmt,
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
};

#[cfg(feature = "rdma")]
use super::rdma;
use super::{in_memory, tcp};
use crate::{
    poll::{Epolls, Mailbox, Notice},
    proto::{CloseReason, CmInput, DeviceFault, ReadDepth},
    status::OsError,
    transport_choice::Transport,
};

/// The bit that marks epoll tokens of devices. The other bits are the number of the device.
pub(crate) const DEVICE: u64 = 1 << 63;

/// The connection managers of an engine, one for each transport.
#[derive(Debug)]
pub(crate) struct ConnectionManager {
    /// The connection manager for RDMA, or the error that prevented its creation.
    #[cfg(feature = "rdma")]
    rdma: Result<rdma::ConnectionManager, OsError>,
    /// The connection manager for TCP; `None` in an engine without a thread.
    tcp: Option<tcp::ConnectionManager>,
    pub(super) memory: in_memory::ConnectionManager,
}

/// A report of the connection manager.
#[derive(Debug)]
pub(crate) enum Report {
    /// A peer has requested a connection.
    Request(ConnectRequest),
    /// An event of a connection or a listener.
    Event(Event),
}

/// A peer's connection request. The engine has not created a connection for it yet.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "it is moved once")]
pub(crate) enum ConnectRequest {
    #[cfg(feature = "rdma")]
    Rdma(rdma::ConnectRequest),
    Tcp(tcp::ConnectRequest),
    Memory(in_memory::ConnectRequest),
}

/// An event for the connection or listener whose key it contains.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "it is moved once")]
pub(crate) enum Event {
    #[cfg(feature = "rdma")]
    Rdma(rdma::Event),
    /// An event of a TCP or in-memory connection.
    Tcp(tcp::Event),
}

/// An asynchronous event that a device reports about itself, one of its ports or one of its
/// objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeviceEvent {
    /// The number of the device, unique among the devices that this process has opened.
    pub(crate) device: u64,
    /// The name of the device.
    pub(crate) name: Arc<str>,
    /// The name of the event without its prefix, for example `PORT_ERR`.
    pub(crate) event: Arc<str>,
    pub(crate) effect: Effect,
}

/// The effect of an event on connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// The link of this port was lost. The state machines of the connections that use the port
    /// check whether their peers still answer.
    Suspect { port: u8 },
    /// The link of this port is up again. The state machines stop checking whether the peers
    /// answer.
    Trust { port: u8 },
    /// An object failed. The connections that use it end.
    End(Object, DeviceFault),
    /// Addresses of the device changed. The engine only logs this event.
    Addresses,
    /// The event is part of normal operation and is ignored.
    Nothing,
}

/// The object to which an event applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Object {
    Device,
    /// The queue pair with this number.
    QueuePair(u32),
    /// The completion queue with this cookie.
    CompletionQueue(u64),
    /// The shared receive queue with this cookie.
    SharedReceives(u64),
}

impl ConnectionManager {
    /// The error of calls that need RDMA, in a program that was built without RDMA.
    #[cfg(not(feature = "rdma"))]
    pub(super) const NO_RDMA: OsError = OsError::new("rdma_create_event_channel", libc::ENOSYS);

    /// The error of calls that need a descriptor, in an engine without a thread. Such an engine
    /// watches no descriptors.
    const NO_THREAD: OsError = OsError::new("epoll_wait", libc::EOPNOTSUPP);

    /// Creates the connection managers. If the manager for RDMA cannot be created, this function
    /// succeeds, and calls that need RDMA return the error later. In-memory connections send their
    /// notices to `notices`.
    pub(crate) fn new(notices: &Arc<Mailbox<Notice>>) -> Result<Self, OsError> {
        Ok(Self {
            #[cfg(feature = "rdma")]
            rdma: rdma::ConnectionManager::new(),
            tcp: Some(tcp::ConnectionManager::new()?),
            memory: in_memory::ConnectionManager::new(notices),
        })
    }

    /// Creates the managers of an engine without a thread, which supports only in-memory
    /// connections.
    pub(crate) fn in_memory(notices: &Arc<Mailbox<Notice>>) -> Self {
        Self {
            #[cfg(feature = "rdma")]
            rdma: Err(Self::NO_THREAD),
            tcp: None,
            memory: in_memory::ConnectionManager::new(notices),
        }
    }

    pub(super) fn tcp(&self) -> Result<&tcp::ConnectionManager, OsError> {
        self.tcp.as_ref().ok_or(Self::NO_THREAD)
    }

    #[cfg(feature = "rdma")]
    pub(super) fn rdma(&self) -> Result<&rdma::ConnectionManager, OsError> {
        self.rdma.as_ref().map_err(|error| *error)
    }

    #[cfg(feature = "rdma")]
    pub(super) fn rdma_mut(&mut self) -> Result<&mut rdma::ConnectionManager, OsError> {
        self.rdma.as_mut().map_err(|error| *error)
    }

    /// Makes the engine's epoll watch the event descriptor of each device while the device is in
    /// use. The epoll token contains [`DEVICE`].
    pub(crate) fn watch_devices(&mut self, epolls: &Arc<Epolls>) {
        #[cfg(feature = "rdma")]
        if let Ok(rdma) = &mut self.rdma {
            rdma.devices.watch(epolls);
        }
    }

    /// Returns the next event of the device with this number, if there is one.
    pub(crate) fn poll_device(&self, device: u64) -> Option<DeviceEvent> {
        #[cfg(feature = "rdma")]
        let event = self.rdma.as_ref().ok()?.devices.poll(device);
        #[cfg(not(feature = "rdma"))]
        let event = None;
        event
    }

    /// Returns true if in-memory connections have reports. No descriptor becomes readable for such
    /// reports.
    pub(crate) fn has_memory_reports(&self) -> bool {
        self.memory.has_reports()
    }

    /// Returns one descriptor for each transport that has one. The descriptor of RDMA is readable
    /// while there are reports. When the descriptor of TCP is readable, the caller must call
    /// [`gather`](Self::gather) before it polls for reports.
    pub(crate) fn fds(&self) -> impl Iterator<Item = (Transport, BorrowedFd<'_>)> {
        let tcp = self.tcp.iter();
        let fds = tcp.map(|tcp| (Transport::Tcp, tcp.as_fd()));
        #[cfg(feature = "rdma")]
        let fds = {
            let rdma = self.rdma.iter();
            fds.chain(rdma.map(|rdma| (Transport::Rdma, rdma.as_fd())))
        };
        fds
    }

    /// Handles the TCP sockets that are ready, which may add reports. Does nothing while earlier
    /// reports of TCP remain.
    pub(crate) fn gather(&self) -> Result<(), OsError> {
        self.tcp
            .as_ref()
            .map_or(Ok(()), tcp::ConnectionManager::gather)
    }

    /// Returns the next report of the transport, if there is one.
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
            Transport::Tcp => {
                let Some(tcp) = &self.tcp else {
                    return Ok(None);
                };
                Ok(tcp.poll().map(|report| match report {
                    tcp::Report::Request(request) => Report::Request(ConnectRequest::Tcp(request)),
                    tcp::Report::Event(event) => Report::Event(Event::Tcp(event)),
                }))
            }
            Transport::Memory => Ok(self.memory.poll().map(|report| match report {
                in_memory::Report::Request(request) => {
                    Report::Request(ConnectRequest::Memory(request))
                }
                in_memory::Report::Event(event) => Report::Event(Event::Tcp(event)),
            })),
        }
    }
}

impl Drop for ConnectionManager {
    fn drop(&mut self) {
        if let Some(tcp) = &self.tcp {
            tcp.close();
        }
        self.memory.close();
    }
}

impl ConnectRequest {
    /// Returns the transport of the request.
    pub(crate) fn transport(&self) -> Transport {
        by_transport!(self, {
            Rdma(_) => Transport::Rdma,
            Tcp(_) => Transport::Tcp,
            Memory(_) => Transport::Memory,
        })
    }

    /// Returns the key of the listener to which the request was sent.
    pub(crate) fn listener(&self) -> Option<u64> {
        by_transport!(self, {
            Rdma(request) => request.listener(),
            Tcp(request) => Some(request.listener()),
            Memory(request) => Some(request.listener()),
        })
    }

    pub(crate) fn peer_addr(&self) -> Option<SocketAddr> {
        by_transport!(self, {
            Rdma(request) => request.peer_addr(),
            Tcp(request) => Some(request.peer_addr()),
            Memory(request) => Some(request.peer_addr()),
        })
    }

    /// Returns the private data of the request.
    pub(crate) fn private_data(&self) -> &[u8] {
        by_transport!(self, all request => request.private_data())
    }

    /// Returns the maximum number of concurrent READs that the peer offers for each direction.
    pub(crate) fn reads(&self) -> ReadDepth {
        by_transport!(self, all request => request.reads())
    }

    /// Rejects the request.
    pub(crate) fn reject(self, private_data: &[u8]) {
        by_transport!(self, all request => request.reject(private_data))
    }
}

impl Event {
    pub(crate) fn key(&self) -> u64 {
        by_transport!(self, event => event.key())
    }

    /// Returns true if the event reports that the peer has disconnected.
    pub(crate) fn is_disconnect(&self) -> bool {
        by_transport!(self, event => event.is_disconnect())
    }

    /// Returns the reason if the event ends a listener; otherwise `None`.
    pub(crate) fn listener_lost(&self) -> Option<CloseReason> {
        by_transport!(self, {
            Rdma(event) => event.listener_lost(),
            Tcp(_) => None,
        })
    }

    /// Converts the event to an input of the state machine.
    pub(crate) fn input(&self) -> CmInput<'_> {
        by_transport!(self, event => event.input())
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        by_transport!(self, event => event.fmt(f))
    }
}
