use std::{
    fmt,
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, ToSocketAddrs},
    sync::{
        Arc, PoisonError, RwLock,
        mpsc::{RecvTimeoutError, Sender, channel},
    },
    thread,
    time::Duration,
};

use super::{
    Config,
    link::Link,
    waiting::{Until, Waiting},
    wire::ConnData,
};
use crate::{
    cm::{CmId, EventChannel, PortSpace},
    status::CmEventType,
};

/// How long one attempt to resolve an address or a route takes.
const RESOLVE: Duration = Duration::from_secs(2);

/// A connection to an rsocket: bytes in order, both ways.
///
/// Threads may share it: one may read while another writes. Dropping it closes the connection, and waits for what was written to arrive, at most
/// [`Config::linger`].
pub struct Stream {
    waiting: Arc<Waiting>,
    local: Option<SocketAddr>,
    peer: Option<SocketAddr>,
    linger: Duration,
    options: RwLock<Options>,
}

#[derive(Default)]
struct Options {
    nonblocking: bool,
    read_timeout: Option<Duration>,
    write_timeout: Option<Duration>,
    /// Dropped to end the thread that keeps the connection alive.
    keepalive: Option<Sender<()>>,
}

impl Stream {
    /// Connects, trying the addresses that a name stands for in turn.
    ///
    /// # Errors
    ///
    /// `TimedOut`, and what the connection manager says of the last address.
    pub fn connect(address: impl ToSocketAddrs) -> io::Result<Self> {
        Self::connect_with(address, &Config::default())
    }

    /// As [`connect`](Self::connect), with another configuration.
    ///
    /// # Errors
    ///
    /// As `connect`, and `InvalidInput` for a configuration that no stream can be made of.
    pub fn connect_with(address: impl ToSocketAddrs, config: &Config) -> io::Result<Self> {
        config.check()?;
        let mut result = Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "no address behind this name",
        ));
        for address in address.to_socket_addrs()? {
            result = Self::connect_one(address, config);
            if result.is_ok() {
                break;
            }
        }
        result
    }

    fn connect_one(address: SocketAddr, config: &Config) -> io::Result<Self> {
        let until = Until::after(Some(config.connect_timeout));
        let events = EventChannel::new()?;
        let mut id = CmId::new(&events, PortSpace::TCP, 0)?;
        id.resolve_addr(None, address, RESOLVE.min(config.connect_timeout))?;
        resolved(&events, CmEventType::ADDR_RESOLVED, config)?;
        id.resolve_route(RESOLVE.min(config.connect_timeout))?;
        resolved(&events, CmEventType::ROUTE_RESOLVED, config)?;
        let mut link = Link::new(id, events, config)?;
        link.connect()?;
        let stream = Self::new(link, config);
        stream.waiting.wait(until, |link| match link.error() {
            Some(error) => Some(Err(error)),
            None => link.is_established().then_some(Ok(())),
        })??;
        Ok(stream)
    }

    /// Accepts a request, with which the peer sent this.
    pub(super) fn accept(
        id: CmId,
        events: EventChannel,
        peer: ConnData,
        config: &Config,
    ) -> io::Result<Self> {
        let mut link = Link::new(id, events, config)?;
        link.accept(peer)?;
        Ok(Self::new(link, config))
    }

    fn new(link: Link, config: &Config) -> Self {
        Self {
            local: link.id().local_addr(),
            peer: link.id().peer_addr(),
            waiting: Arc::new(Waiting::new(link)),
            linger: config.linger,
            options: RwLock::default(),
        }
    }

    /// This side's address.
    ///
    /// # Errors
    ///
    /// `AddrNotAvailable`: it has none.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.local
            .ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
    }

    /// The peer's address.
    ///
    /// # Errors
    ///
    /// `AddrNotAvailable`: it has none.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.peer
            .ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
    }

    /// Whether calls that would have to wait return `WouldBlock` instead. Default: they wait.
    pub fn set_nonblocking(&self, nonblocking: bool) {
        self.change(|options| options.nonblocking = nonblocking);
    }

    /// How long reading waits before it returns `TimedOut`. Default `None`: for ever.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) {
        self.change(|options| options.read_timeout = timeout);
    }

    /// How long writing waits before it returns `TimedOut`. Default `None`: for ever.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) {
        self.change(|options| options.write_timeout = timeout);
    }

    /// Makes sure every `interval` that the peer is there, with a thread that does so. Default `None`: a peer that vanishes without a word
    /// is noticed only by whoever writes.
    ///
    /// # Errors
    ///
    /// There can be no thread.
    pub fn set_keepalive(&self, interval: Option<Duration>) -> io::Result<()> {
        let sender = match interval {
            Some(interval) => Some(self.keep_alive(interval)?),
            None => None,
        };
        self.change(|options| options.keepalive = sender);
        Ok(())
    }

    fn keep_alive(&self, interval: Duration) -> io::Result<Sender<()>> {
        let (sender, ended) = channel();
        let waiting = Arc::clone(&self.waiting);
        let keep = move || {
            while ended.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                waiting.with(|link| {
                    if let Err(error) = link.keep_alive() {
                        log::debug!("{}: keepalive: {error}", link.name());
                    }
                });
            }
        };
        thread::Builder::new()
            .name("rsocket-alive".into())
            .spawn(keep)?;
        Ok(sender)
    }

    /// Ends one direction or both. The peer reads to the end what was written before. Reading what the peer wrote before is still possible.
    ///
    /// An accepted stream can tell the peer when that has said that it knows of the connection. It waits for this at most
    /// [`Config::linger`]; one that does not block tells it with one of the next calls.
    ///
    /// # Errors
    ///
    /// The peer cannot be told; `TimedOut`.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.end(how)?;
        match self.until(|_| Some(self.linger)) {
            Until::Now => Ok(()),
            until => self
                .waiting
                .wait(until, |link| link.has_said().then_some(())),
        }
    }

    fn end(&self, how: Shutdown) -> io::Result<()> {
        self.waiting.with(|link| {
            if how != Shutdown::Write {
                link.shutdown_read()?;
            }
            if how != Shutdown::Read {
                link.shutdown_write()?;
            }
            Ok(())
        })
    }

    /// Waits until something can be read, or the end can be seen, for at most `timeout`; `None` is for ever. For streams that do not
    /// block by themselves.
    ///
    /// # Errors
    ///
    /// `TimedOut`.
    pub fn wait_readable(&self, timeout: Option<Duration>) -> io::Result<()> {
        let ready = |link: &mut Link| link.is_readable().then_some(());
        self.waiting.wait(Until::after(timeout), ready)
    }

    /// Waits until something can be written, or the stream has failed, for at most `timeout`; `None` is for ever. For streams that do not
    /// block by themselves.
    ///
    /// # Errors
    ///
    /// `TimedOut`.
    pub fn wait_writable(&self, timeout: Option<Duration>) -> io::Result<()> {
        let ready = |link: &mut Link| link.is_writable().then_some(());
        self.waiting.wait(Until::after(timeout), ready)
    }

    fn change(&self, f: impl FnOnce(&mut Options)) {
        f(&mut self.options.write().unwrap_or_else(PoisonError::into_inner));
    }

    fn until(&self, timeout: impl FnOnce(&Options) -> Option<Duration>) -> Until {
        let options = self.options.read().unwrap_or_else(PoisonError::into_inner);
        if options.nonblocking {
            Until::Now
        } else {
            Until::after(timeout(&options))
        }
    }
}

impl Read for &Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let until = self.until(|options| options.read_timeout);
        self.waiting.wait(until, |link| link.read(into))?
    }
}

impl Write for &Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let until = self.until(|options| options.write_timeout);
        self.waiting.wait(until, |link| link.write(bytes))?
    }

    /// Does nothing: what was written is on its way.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        (&*self).read(into)
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self).write(bytes)
    }

    /// Does nothing: what was written is on its way.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream")
            .field("local", &self.local)
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let told = self.end(Shutdown::Both);
        let until = Until::after(Some(self.linger));
        let drained = self
            .waiting
            .wait(until, |link| link.is_drained().then_some(()));
        self.waiting.with(|link| {
            if let Err(error) = told.and(drained) {
                log::warn!(
                    "{}: closed before everything had arrived: {error}",
                    link.name()
                );
            }
            link.disconnect();
        });
    }
}

/// Waits for a step of resolving.
fn resolved(events: &EventChannel, wanted: CmEventType, config: &Config) -> io::Result<()> {
    let Some(event) = events.wait_event(config.connect_timeout)? else {
        return Err(io::ErrorKind::TimedOut.into());
    };
    if event.event() == wanted && event.status() == 0 {
        return Ok(());
    }
    let text = format!("{}: {}", event.event(), event.cm_status());
    Err(io::Error::new(io::ErrorKind::HostUnreachable, text))
}
