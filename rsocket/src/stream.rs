use std::{
    fmt,
    io::{self, Read, Write},
    mem,
    net::{Shutdown, SocketAddr, ToSocketAddrs},
    sync::{
        Arc, RwLock,
        mpsc::{RecvTimeoutError, Sender, channel},
    },
    thread,
    time::Duration,
};

use rdma_status::CmEventType;
use rdma_verbs::cm::{CmId, EventChannel, PortSpace};
use rdmsg_os::{leak, unpoisoned};

use super::{
    Config,
    link::Link,
    waiting::{Until, Waiting},
    wire::ConnData,
};

/// The time limit for resolving an address. Resolving a route has a separate limit of the same
/// length.
const RESOLVE: Duration = Duration::from_secs(2);

/// A connection to an rsocket: a byte stream in both directions.
///
/// Several threads may use a stream; for example, one may read while another writes. Dropping the
/// stream closes the connection, but first waits up to [`Config::linger`] until all written bytes
/// have arrived.
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
    /// Dropping this sender ends the keepalive thread, which waits on the channel.
    keepalive: Option<Sender<()>>,
}

/// Returns true if connecting failed because the local port is in use, or was recently used for a
/// connection to the same peer.
fn is_local_port_unavailable(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable
    )
}

impl Stream {
    /// Tries the addresses in order, and connects to the first that accepts the connection.
    ///
    /// # Errors
    ///
    /// Returns the error for the last address: `TimedOut` if a time limit expired, or an error of
    /// the connection manager or the device. Returns `InvalidInput` if the name has no address.
    pub fn connect(address: impl ToSocketAddrs) -> io::Result<Self> {
        Self::connect_with(address, &Config::default())
    }

    /// Connects as [`connect`](Self::connect) does, with a configuration.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`connect`](Self::connect), and `InvalidInput` if the configuration is
    /// invalid.
    pub fn connect_with(address: impl ToSocketAddrs, config: &Config) -> io::Result<Self> {
        config.check()?;
        let mut result = Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the name has no address",
        ));
        for address in address.to_socket_addrs()? {
            // The connection manager chooses the local port without checking TCP sockets, but iWARP
            // connections and TCP sockets use the same port numbers. If the port is in use, try
            // again with another port.
            let mut tries = CmId::FREE_PORT_TRIES;
            result = loop {
                tries -= 1;
                match Self::connect_one(address, config) {
                    Err(error) if is_local_port_unavailable(&error) && tries > 0 => {}
                    result => break result,
                }
            };
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

    /// Accepts a connection request. `peer` is the request's private data.
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

    /// Returns the address of this side.
    ///
    /// # Errors
    ///
    /// Returns `AddrNotAvailable` if this side has no address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.local
            .ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
    }

    /// Returns the address of the peer.
    ///
    /// # Errors
    ///
    /// Returns `AddrNotAvailable` if the peer has no address.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.peer
            .ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
    }

    /// Sets whether calls return `WouldBlock` instead of waiting. Default: false.
    pub fn set_nonblocking(&self, nonblocking: bool) {
        self.change(|options| options.nonblocking = nonblocking);
    }

    /// Sets the time after which a read returns `TimedOut`. `None`, the default, means no limit.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) {
        self.change(|options| options.read_timeout = timeout);
    }

    /// Sets the time after which a write returns `TimedOut`. `None`, the default, means no limit.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) {
        self.change(|options| options.write_timeout = timeout);
    }

    /// Sets the interval at which a thread sends keepalive probes to the peer. `None`, the default,
    /// means no probes.
    ///
    /// Without probes, this side detects the loss of the peer only when it writes.
    ///
    /// # Errors
    ///
    /// Returns the error of the system call if the thread cannot be started.
    pub fn set_keepalive(&self, interval: Option<Duration>) -> io::Result<()> {
        let sender = match interval {
            Some(interval) => Some(self.keep_alive(interval)?),
            None => None,
        };
        self.change(|options| options.keepalive = sender);
        Ok(())
    }

    fn keep_alive(&self, interval: Duration) -> io::Result<Sender<()>> {
        self.waiting.check()?;
        let (sender, ended) = channel();
        let waiting = Arc::clone(&self.waiting);
        let keep = move || {
            while ended.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                waiting.with(Link::keep_alive);
            }
        };
        thread::Builder::new()
            .name("rsocket-alive".into())
            .spawn(keep)?;
        Ok(sender)
    }

    /// Shuts down the writing direction, the reading direction, or both.
    ///
    /// Each side can still read the bytes that the other side wrote before the shutdown.
    ///
    /// An accepted stream can notify the peer only after the connection is established. A blocking
    /// stream waits up to [`Config::linger`] until the connection is established. A non-blocking
    /// stream does not wait. It sends the notification during a later call of one of its methods.
    ///
    /// # Errors
    ///
    /// Returns `TimedOut` if the connection is not established within [`Config::linger`], or
    /// another error if the notification cannot be sent.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.end(how)?;
        match self.until(|_| Some(self.linger)) {
            Until::Now => Ok(()),
            until => self
                .waiting
                .wait(until, |link| link.has_notified().then_some(())),
        }
    }

    fn end(&self, how: Shutdown) -> io::Result<()> {
        self.waiting.check()?;
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

    /// Waits up to `timeout` until a read would not block. `None` means no limit. This function is
    /// for non-blocking streams.
    ///
    /// A read does not block if bytes have arrived, the stream has ended, or this side has shut
    /// down reading.
    ///
    /// # Errors
    ///
    /// Returns `TimedOut` if a read would still block after `timeout`.
    pub fn wait_readable(&self, timeout: Option<Duration>) -> io::Result<()> {
        let ready = |link: &mut Link| link.is_readable().then_some(());
        self.waiting.wait(Until::after(timeout), ready)
    }

    /// Waits up to `timeout` until a write would not block. `None` means no limit. This function is
    /// for non-blocking streams.
    ///
    /// A write does not block if a byte can be sent, the stream has ended, or this side has shut
    /// down writing.
    ///
    /// # Errors
    ///
    /// Returns `TimedOut` if a write would still block after `timeout`.
    pub fn wait_writable(&self, timeout: Option<Duration>) -> io::Result<()> {
        let ready = |link: &mut Link| link.is_writable().then_some(());
        self.waiting.wait(Until::after(timeout), ready)
    }

    fn change(&self, f: impl FnOnce(&mut Options)) {
        let mut options = unpoisoned(self.options.write());
        f(&mut options);
    }

    fn until(&self, timeout: impl FnOnce(&Options) -> Option<Duration>) -> Until {
        let options = unpoisoned(self.options.read());
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

    /// Does nothing, because a write already sends the bytes.
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

    /// Does nothing, because a write already sends the bytes.
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
        if self.waiting.check().is_err() {
            // This process is a forked child, and the connection belongs to the parent. A thread of
            // the parent may have held a lock of the connection or of the keepalive channel during
            // the fork. Dropping the copies could wait for such a lock, so the child leaks them.
            leak(Arc::clone(&self.waiting));
            let options = unpoisoned(self.options.get_mut());
            leak(mem::take(options));
            return;
        }
        let notified = self.end(Shutdown::Both);
        let until = Until::after(Some(self.linger));
        let drained = self
            .waiting
            .wait(until, |link| link.is_drained().then_some(()));
        let name = self.waiting.with(|link| {
            link.disconnect();
            link.name().to_owned()
        });
        if let Err(error) = notified.and(drained) {
            warn_sparsely!(
                Rsocket,
                "{name}: closed the stream before all written bytes had arrived: {error}"
            );
        }
    }
}

/// Waits for the event `wanted`, which reports that an address or a route is resolved.
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
