use std::{
    io,
    net::{SocketAddr, ToSocketAddrs},
    os::fd::{AsFd, BorrowedFd},
    time::{Duration, Instant},
};

use rdma_status::CmEventType;
use rdma_verbs::cm::{CmEvent, CmId, EventChannel, PortSpace};

use super::{Config, Stream, wire::ConnData};

/// The maximum number of connection requests that wait to be accepted.
const BACKLOG: i32 = 128;

/// A listener that accepts connections from [`Stream`]s and from rsockets of C programs.
#[derive(Debug)]
pub struct Listener {
    id: CmId,
    events: EventChannel,
    config: Config,
}

impl Listener {
    /// Tries the addresses in order, and listens on the first that can be bound. Port 0 selects a
    /// free port.
    ///
    /// # Errors
    ///
    /// Returns `AddrInUse`, `AddrNotAvailable`, and the other errors of `rdma_bind_addr` and
    /// `rdma_listen`. Returns `InvalidInput` if the name has no address.
    pub fn bind(address: impl ToSocketAddrs) -> io::Result<Self> {
        Self::bind_with(address, &Config::default())
    }

    /// Listens as [`bind`](Self::bind) does, with a configuration for the accepted streams.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`bind`](Self::bind), and `InvalidInput` if the configuration is
    /// invalid.
    pub fn bind_with(address: impl ToSocketAddrs, config: &Config) -> io::Result<Self> {
        config.check()?;
        let mut result = Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the name has no address",
        ));
        for address in address.to_socket_addrs()? {
            result = Self::bind_one(address, config);
            if result.is_ok() {
                break;
            }
        }
        result
    }

    fn bind_one(address: SocketAddr, config: &Config) -> io::Result<Self> {
        let events = EventChannel::new()?;
        let create = || CmId::new(&events, PortSpace::TCP, 0);
        let id = CmId::listen_on(create, address, BACKLOG)?;
        Ok(Self {
            id,
            events,
            config: config.clone(),
        })
    }

    /// Returns the address on which the listener listens.
    ///
    /// # Errors
    ///
    /// Returns `AddrNotAvailable` if the listener has no address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let none = || io::ErrorKind::AddrNotAvailable.into();
        self.id.local_addr().ok_or_else(none)
    }

    /// Waits for the next connection request and accepts it.
    ///
    /// The listener rejects requests that do not come from an rsocket, and requests for which it
    /// lacks resources. It logs these rejections and then waits for the next request.
    ///
    /// # Errors
    ///
    /// Returns `NotConnected` after an event that is not a connection request, such as the removal
    /// of the device.
    pub fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        loop {
            if let Some(accepted) = self.accept_timeout(Duration::MAX)? {
                return Ok(accepted);
            }
        }
    }

    /// Waits up to `timeout` for the next connection request, and accepts it.
    ///
    /// Returns `None` if no request arrives in time. Apart from this limit, the method behaves like
    /// [`accept`](Self::accept).
    ///
    /// # Errors
    ///
    /// Returns the errors of [`accept`](Self::accept).
    pub fn accept_timeout(&self, timeout: Duration) -> io::Result<Option<(Stream, SocketAddr)>> {
        let start = Instant::now();
        loop {
            let left = timeout.saturating_sub(start.elapsed());
            let Some(mut event) = self.events.wait_event(left)? else {
                return Ok(None);
            };
            let request = (event.event(), event.take_request());
            let (CmEventType::CONNECT_REQUEST, Some(id)) = request else {
                let text = format!("{}: {}", event.event(), event.cm_status());
                return Err(io::Error::new(io::ErrorKind::NotConnected, text));
            };
            match self.serve(id, &event) {
                Ok(stream) => {
                    let peer = stream.peer_addr()?;
                    return Ok(Some((stream, peer)));
                }
                // `serve` has rejected the request, either explicitly or by dropping the request's
                // id.
                Err(error) => {
                    let addr = self.id.local_addr();
                    let addr = addr.map_or_else(String::new, |addr| format!(" on {addr}"));
                    warn_sparsely!(
                        Rsocket,
                        "rsocket: the listener{addr} rejected a connect request: {error}"
                    )
                }
            }
        }
    }

    fn serve(&self, mut id: CmId, event: &CmEvent) -> io::Result<Stream> {
        let Some(peer) = ConnData::from_bytes(event.private_data()) else {
            id.reject(&ConnData::NOTHING.to_bytes())?;
            let text = "the peer is not an rsocket of this protocol version";
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        };
        let events = EventChannel::new()?;
        id.migrate(&events)?;
        Stream::accept(id, events, peer, &self.config)
    }
}

/// Returns a descriptor that is readable while a connection request is waiting.
impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}
