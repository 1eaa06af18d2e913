use std::{
    io,
    net::{SocketAddr, ToSocketAddrs},
    os::fd::{AsFd, BorrowedFd},
    time::{Duration, Instant},
};

use rdma_status::CmEventType;
use rdma_verbs::cm::{CmId, EventChannel, PortSpace};
use rdmsg_os::warn_sparsely;

use crate::{Config, Stream, link::Link};

/// The maximum number of connection requests that wait to be accepted.
const BACKLOG: i32 = 128;

/// The accepting side of the protocol, for programs that replace a Valkey server.
///
/// Like Valkey 8.1, the listener offers no protocol features.
#[derive(Debug)]
pub struct Listener {
    id: CmId,
    events: EventChannel,
    config: Config,
}

impl Listener {
    /// Listens on the first of these addresses that can be bound. Port 0 selects a free port.
    ///
    /// # Errors
    ///
    /// Returns `AddrInUse`, `AddrNotAvailable`, and the other errors of `rdma_bind_addr` and
    /// `rdma_listen`.
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
        let text = "the name has no address";
        let mut result = Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        for address in address.to_socket_addrs()? {
            let events = EventChannel::new()?;
            let create = || CmId::new(&events, PortSpace::TCP, 0);
            result = CmId::listen_on(create, address, BACKLOG)
                .map(|id| (id, events))
                .map_err(Into::into);
            if result.is_ok() {
                break;
            }
        }
        let (id, events) = result?;
        let config = config.clone();
        Ok(Self { id, events, config })
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
    /// The listener rejects requests that it cannot serve, logs a warning, and then waits for the
    /// next request.
    ///
    /// # Errors
    ///
    /// Returns `NotConnected` if the device was removed.
    pub fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        loop {
            if let Some(accepted) = self.accept_timeout(Duration::MAX)? {
                return Ok(accepted);
            }
        }
    }

    /// Waits up to `timeout` for the next connection request, and accepts it.
    ///
    /// Returns `None` if no request arrives in time. Rejects requests that the listener cannot
    /// serve, as [`accept`](Self::accept) does.
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
            let stream = self.serve(id);
            match stream.and_then(|stream| Ok((stream.peer_addr()?, stream))) {
                Ok((peer, stream)) => return Ok(Some((stream, peer))),
                // `serve` has dropped the request's id, which rejects the request.
                Err(error) => {
                    let addr = self.id.local_addr();
                    let addr = addr.map_or_else(String::new, |addr| format!(" on {addr}"));
                    warn_sparsely!(
                        Valkey,
                        "valkey: the listener{addr} rejected a connect request: {error}"
                    );
                }
            }
        }
    }

    fn serve(&self, mut id: CmId) -> io::Result<Stream> {
        let events = EventChannel::new()?;
        id.migrate(&events)?;
        Stream::new(Link::accept(id, events, &self.config)?, &self.config)
    }
}

/// Returns a descriptor that is readable while a connection request is waiting.
impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}
