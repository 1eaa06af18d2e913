use std::{io, net::SocketAddr, time::Duration};

use crossbeam_channel::bounded;

use self::{
    attempts::{Attempt, Attempts, paths},
    hosts_without_rdma::HOSTS_WITHOUT_RDMA,
};
use crate::{
    addresses::{Addresses, ToAddresses},
    config::{Config, Label},
    endpoint::Endpoint,
    engine::{Command, Engine, Reply, engine_of, wait_for_engine, wait_for_reply},
    error::Error,
    link::PeerPath,
    persistent::Redial,
    proto::{CloseReason, PRIVATE_DATA_MAX, REPLY_DATA_MAX, REQUEST_DATA_MAX},
    stream::Stream,
    tally::count_failure,
    transport_choice::TransportChoice,
};

mod attempts;
mod connecting;
mod hosts_without_rdma;
pub(crate) mod lookup;

pub use self::connecting::Connecting;

/// Connects with a [configuration](Self::config), [private data](Self::private_data), or a separate
/// [engine](Self::engine).
///
/// [`Endpoint::connect`] is the short form, with the defaults. A test without a network uses
/// [`pair`](Self::pair).
///
/// # Examples
///
/// ```no_run
/// # fn main() -> Result<(), rdmsg::Error> {
/// let connector = rdmsg::Connector::new().retry_refused(true).private_data(b"user 7");
/// let endpoint = connector.connect("10.8.0.1:7471")?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Connector {
    pub(crate) config: Config,
    private_data: Vec<u8>,
    alternatives: Vec<(SocketAddr, Option<TransportChoice>)>,
    engine: Option<Engine>,
    pub(crate) redial: Redial,
}

impl Connector {
    /// The maximum length of [private data](Self::private_data), over every transport: 4096 bytes.
    pub const PRIVATE_DATA_MAX: usize = PRIVATE_DATA_MAX;

    /// Creates a connector with the default [`Config`], no private data and the shared engine.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the configuration of the connection. Default: [`Config::default`].
    #[must_use]
    pub fn config(mut self, config: &Config) -> Self {
        let before = std::mem::replace(&mut self.config, config.clone());
        self.config.retry_refused = before.retry_refused;
        self.config.source = before.source;
        self.config.label = before.label;
        self
    }

    /// Sets whether the connector retries when the peer refuses a connect.
    ///
    /// Retrying is for clients that start before their server, and for many clients that start at
    /// the same time. The connector retries after the following refusals, until
    /// [`connect_timeout`](Config::connect_timeout) has passed:
    ///
    /// * No program listens at the peer's address.
    /// * The peer is [busy](crate::CloseReason::PeerBusy): its listener has too many unanswered
    ///   requests or is being closed, or its program did not answer in time.
    /// * The peer has run out of [memory, descriptors or shared
    ///   receives](crate::CloseReason::PeerOutOfResources).
    /// * The peer still has state of an earlier connection.
    /// * The peer's process ended before it answered. Over RDMA its kernel then rejects with
    ///   [`CONSUMER_DEFINED`](crate::status::RejectReason::CONSUMER_DEFINED) without data. Over TCP
    ///   it resets or closes the connection
    ///   ([`PeerDisconnected`](crate::CloseReason::PeerDisconnected)).
    ///
    /// The connector retries with [private data](Self::private_data) of any length. It does not
    /// retry after [`Rejected`](CloseReason::Rejected), because the peer's program has decided to
    /// reject the connection.
    ///
    /// Default `false`: a refusal fails the connect immediately.
    #[must_use]
    pub fn retry_refused(mut self, retry_refused: bool) -> Self {
        self.config.retry_refused = retry_refused;
        self
    }

    /// Sets the local address of the connection, for a host with several addresses.
    ///
    /// Port 0 requests a free port. Over RDMA the address selects the device. Connecting fails with
    /// [`Error::Source`] if the address cannot be used, or if its IP version differs from that of
    /// the peer's address.
    ///
    /// Default: the system chooses the address from its routing table.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn main() -> Result<(), rdmsg::Error> {
    /// let connector = rdmsg::Connector::new().source(([10, 8, 0, 2], 0));
    /// let endpoint = connector.connect("10.8.0.1:7471")?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn source(mut self, address: impl Into<SocketAddr>) -> Self {
        self.config.source = Some(address.into());
        self
    }

    /// Sets a name for the connection in log lines, metrics and `rdmsg top`.
    ///
    /// The log prints the name after the number of the connection, such as `conn 26 "orders" to
    /// 10.0.0.2:7000`, and escapes quotation marks, backslashes and control characters. Prometheus
    /// metrics contain the name as the label `label`. There, only backslashes, quotation marks and
    /// line feeds are escaped. The peer does not see the name. Several connections can have the
    /// same name.
    ///
    /// Up to 64 bytes; with a longer name connecting fails with [`Error::InvalidConfig`]. An empty
    /// text means no name, which is the default.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn main() -> Result<(), rdmsg::Error> {
    /// let endpoint = rdmsg::Connector::new().label("orders").connect("10.8.0.1:7471")?;
    /// assert_eq!(endpoint.info().label.as_deref(), Some("orders"));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn label(mut self, label: &str) -> Self {
        self.config.label = Label::new(label);
        self
    }

    /// Sets bytes that the listener's program can read before it accepts the connection.
    ///
    /// A [`RequestListener`](crate::RequestListener) provides them as
    /// [`Request::private_data`](crate::Request::private_data), and an accepted endpoint as
    /// [`Info::peer_data`](crate::Info::peer_data). They can be credentials, such as a token, but
    /// they are not encrypted. [`persist`](Self::persist) sends them again whenever it reconnects.
    /// A connection that [resumes](Config::resume) does not send them again, because the peer's
    /// engine recognizes the connection's session without involving the peer's program.
    ///
    /// Up to [`PRIVATE_DATA_MAX`](Self::PRIVATE_DATA_MAX) (4096) bytes over every transport, and at
    /// most the smaller [`eager_size`](Config::eager_size) of the two sides. The limit is 20 bytes
    /// if either eager size is below 160 bytes. If the data exceed the connector's own limit,
    /// connecting fails with [`Error::PrivateDataTooLong`]. Default: none.
    ///
    /// Up to 20 bytes are part of the connect request. Longer data follow in a separate frame,
    /// which costs one round trip. If the peer's version does not know this frame, or if the data
    /// exceed the `eager_size` of the peer, connecting fails with
    /// [`PeerIncompatible`](CloseReason::PeerIncompatible). Connecting fails with
    /// [`PeerBusy`](CloseReason::PeerBusy) if the listener is closed or does not answer within its
    /// `connect_timeout`; with [`retry_refused`](Self::retry_refused) the connector then sends the
    /// data again.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn main() -> Result<(), rdmsg::Error> {
    /// let token = [7; 16];
    /// let endpoint = rdmsg::Connector::new().private_data(&token).connect("10.8.0.1:7471")?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn private_data(mut self, data: &[u8]) -> Self {
        self.private_data = data.to_vec();
        self
    }

    /// Adds addresses at which a lost connection tries to reach the peer.
    ///
    /// These addresses are used only with [`Config::resume`], and not for the first connect. Each
    /// must lead to the same listener of the peer, or to another listener of that listener's
    /// [`Engine`]. A lost connection first tries its own address and transport. Next it tries that
    /// address over the other transport, then these addresses in order, and then repeats the
    /// sequence. With [`TransportChoice::Auto`] it tries each address over RDMA and over TCP. A
    /// transport in the text of an address ([`ToAddresses`]) applies to that address.
    ///
    /// This method looks up host names. Default: none, so that a lost connection tries only its own
    /// address.
    ///
    /// # Errors
    ///
    /// [`Error::AddressLookup`] for an unknown name.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// use rdmsg::{Config, Connector};
    ///
    /// # fn main() -> Result<(), rdmsg::Error> {
    /// let config = Config::default().with(|config| config.resume = Duration::from_secs(30));
    /// let connector = Connector::new().config(&config).alternatives("10.8.1.1:7471")?;
    /// let endpoint = connector.connect("10.8.0.1:7471")?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn alternatives(mut self, addresses: impl ToAddresses) -> Result<Self, Error> {
        let addresses = addresses.to_addresses()?;
        let transport = addresses.transport();
        let all = addresses.as_slice().iter();
        self.alternatives
            .extend(all.map(|address| (*address, transport)));
        Ok(self)
    }

    /// Sets the engine that serves the connection. Default: [`Engine::shared`].
    ///
    /// A connection over `memory://` ignores this setting. Its listener is in the same process, so
    /// the connection uses the listener's engine.
    #[must_use]
    pub fn engine(mut self, engine: &Engine) -> Self {
        self.engine = Some(engine.clone());
        self
    }

    /// Connects, trying the addresses of a host name one after the other.
    ///
    /// [`connect_timeout`](Config::connect_timeout) (default 5 s) limits the time for all addresses
    /// together: each address gets an equal share of the remaining time. The call returns within
    /// the limit or shortly afterwards, even on a busy host. Only the lookup of a host name has no
    /// time limit.
    ///
    /// # Errors
    ///
    /// If the host has several addresses and all fail, the call returns the error for the last
    /// address.
    ///
    /// * [`Error::InvalidConfig`] when a value of the configuration is invalid.
    /// * [`Error::PrivateDataTooLong`] above [`PRIVATE_DATA_MAX`](Self::PRIVATE_DATA_MAX) bytes.
    /// * [`Error::AddressLookup`] for an unknown host name.
    /// * [`Error::Source`] when the connector cannot connect from its [`source`](Self::source)
    ///   address.
    /// * [`Error::Connect`] with the reason when no connection was established in time.
    /// * If the transport must be RDMA: [`Error::NoRdma`] when the machine has no RDMA connection
    ///   manager, [`Error::PermissionDenied`] when this process has no permission to use it, and
    ///   [`Error::Loopback`] for an address that no device serves.
    /// * [`Error::LockedMemory`] or [`Error::SharedReceivesExhausted`] when there is no memory for
    ///   the connection's buffers.
    /// * [`Error::EngineShutDown`] when the connector's engine was shut down.
    pub fn connect(&self, address: impl ToAddresses) -> Result<Endpoint, Error> {
        self.try_all(address).inspect_err(count_failure)
    }

    fn try_all(&self, address: impl ToAddresses) -> Result<Endpoint, Error> {
        self.check()?;
        let addresses = address.to_addresses()?;
        let engine = self.engine_for(&addresses).or_else(|error| {
            if !(self.config.retry_refused && error.is_refusal()) {
                return Err(error);
            }
            // The in-memory transport has no timer that retries a connect, so this thread waits
            // until a listener is bound.
            wait_for_engine(addresses.as_slice(), self.config.connect_timeout).ok_or(error)
        })?;
        let mut attempts = self.attempts(&addresses);
        let mut failed = None;
        while let Some(attempt) = attempts.next(failed.as_ref()) {
            match self.try_once(&attempt, &engine) {
                Ok(endpoint) => {
                    attempts.succeeded();
                    return Ok(endpoint);
                }
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.unwrap_or(Error::TimedOut))
    }

    /// Connects to a [`StreamListener`](crate::StreamListener).
    ///
    /// # Errors
    ///
    /// The errors of [`connect`](Self::connect), as [`io::Error`]s.
    pub fn connect_stream(&self, address: impl ToAddresses) -> io::Result<Stream> {
        let mut connector = self.clone();
        connector.config.stream = true;
        Ok(connector.connect(address)?.into())
    }

    /// Starts a connect that a task can await.
    ///
    /// Works like [`connect`](Self::connect), but without blocking: another thread looks up a host
    /// name, and [`connect_timeout`](Config::connect_timeout) begins when the addresses are known.
    /// The returned [`Connecting`] is a future that yields the [`Endpoint`], on any runtime.
    /// Dropping it cancels the connection attempt.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`], [`Error::PrivateDataTooLong`] and [`Error::EngineShutDown`], and
    /// [`Error::AddressLookup`] for a text that is not an address. The future returns the other
    /// errors of [`connect`](Self::connect), including the one for an unknown host name.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run() -> Result<(), rdmsg::Error> {
    /// let endpoint = rdmsg::Connector::new().start("10.8.0.1:7471")?.await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn start(&self, address: impl ToAddresses) -> Result<Connecting, Error> {
        self.clone().into_connecting(&address)
    }

    /// Starts a connect to a [`StreamListener`](crate::StreamListener), like
    /// [`start`](Self::start).
    ///
    /// Convert the resulting endpoint with [`Stream::from`].
    ///
    /// # Errors
    ///
    /// The errors of [`start`](Self::start).
    pub fn start_stream(&self, address: impl ToAddresses) -> Result<Connecting, Error> {
        let mut connector = self.clone();
        connector.config.stream = true;
        connector.into_connecting(&address)
    }

    fn into_connecting(self, address: &impl ToAddresses) -> Result<Connecting, Error> {
        Connecting::new(self, address).inspect_err(count_failure)
    }

    /// Checks the configuration and the private data.
    fn check(&self) -> Result<(), Error> {
        self.config.check()?;
        // Private data that do not fit into the connect request are sent in a frame, so they must
        // not exceed the eager size. The peer answers with a frame of up to `REPLY_DATA_MAX` bytes,
        // which must not exceed the eager size either.
        let (limit, place) = match self.config.eager_size.map(|size| size as usize) {
            Some(..REPLY_DATA_MAX) => (
                REQUEST_DATA_MAX,
                "a connect request while eager_size is below 160; raise eager_size in the Config",
            ),
            Some(size @ ..PRIVATE_DATA_MAX) => (
                size,
                "a connect request with this eager_size; raise eager_size in the Config",
            ),
            Some(_) | None => (PRIVATE_DATA_MAX, "a connect request"),
        };
        check_private_data(&self.private_data, limit, place)
    }

    /// Returns the engine for a connect. `known` contains the addresses, or is `None` if the host
    /// name has not been looked up yet. For a connection over the in-memory transport this engine
    /// is provisional: the connection later uses the engine of its listener.
    pub(crate) fn ready_engine(&self, known: Option<&Addresses>) -> Result<Engine, Error> {
        self.check()?;
        match &self.engine {
            Some(engine) => engine.for_transport(self.is_in_memory(known)),
            None if self.is_in_memory(known) => Engine::in_memory(),
            None => Engine::shared(),
        }
    }

    /// Returns the engine that serves a connection to one of these addresses. Over the in-memory
    /// transport, this is the listener's engine.
    fn engine_for(&self, addresses: &Addresses) -> Result<Engine, Error> {
        if !self.is_in_memory(Some(addresses)) {
            return self.ready_engine(Some(addresses));
        }
        let mut engines = addresses.as_slice().iter().map(|address| {
            engine_of(*address).ok_or(Error::Connect {
                peer: *address,
                reason: CloseReason::Refused,
            })
        });
        let first = engines.next().unwrap_or(Err(Error::TimedOut));
        first.or_else(|error| engines.find_map(Result::ok).ok_or(error))
    }

    /// Returns the connector for a pair within this process. It has the configuration, the private
    /// data and the label of this connector, and defaults otherwise.
    pub(crate) fn for_pair(&self) -> Self {
        let mut connector = Self {
            config: self.config.clone(),
            private_data: self.private_data.clone(),
            ..Self::default()
        };
        connector.config.source = None;
        connector
    }

    fn is_in_memory(&self, known: Option<&Addresses>) -> bool {
        let named = known.and_then(Addresses::transport);
        let choice = named.unwrap_or(self.config.transport);
        choice.resolved() == TransportChoice::Memory
    }

    fn attempts(&self, addresses: &Addresses) -> Attempts {
        Attempts::new(
            addresses,
            self.config.transport,
            self.config.connect_timeout,
            HOSTS_WITHOUT_RDMA.get(),
        )
    }

    fn try_once(&self, attempt: &Attempt, engine: &Engine) -> Result<Endpoint, Error> {
        let (reply, result) = bounded(1);
        engine.send(self.command(attempt, Reply::Caller(reply)))?;
        let established =
            wait_for_reply(engine.handle(), &result, attempt.address, attempt.deadline)?;
        Ok(Endpoint::new(established, engine.clone()))
    }

    fn command(&self, attempt: &Attempt, reply: Reply) -> Command {
        let alternatives = self.alternatives.iter();
        let alternatives = alternatives
            .flat_map(|(address, choice)| paths(*address, choice.unwrap_or(self.config.transport)));
        Command::Connect {
            path: PeerPath::new(attempt.address, attempt.transport),
            others: attempt.other.into_iter().chain(alternatives).collect(),
            config: self.config.clone(),
            data: self.private_data.clone(),
            deadline: attempt.deadline,
            reply,
        }
    }
}

/// Establishes connections.
impl Endpoint {
    /// Connects to a [`Listener`](crate::Listener), with the default [`Config`] and engine.
    ///
    /// Tries the addresses of a host name one after the other, all within the default
    /// [`connect_timeout`](Config::connect_timeout) of 5 s. Use [`Connector`] to set another
    /// timeout or configuration, private data or an [`Engine`].
    ///
    /// # Errors
    ///
    /// * [`Error::AddressLookup`] for an unknown host name.
    /// * [`Error::Connect`] with the reason when no connection was established in time.
    /// * If the transport must be RDMA: [`Error::NoRdma`] when the machine has no RDMA connection
    ///   manager, [`Error::PermissionDenied`] when this process has no permission to use it, and
    ///   [`Error::Loopback`] for an address that no device serves.
    /// * [`Error::LockedMemory`] when there is no memory for the connection's buffers.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use rdmsg::Endpoint;
    ///
    /// # fn main() -> Result<(), rdmsg::Error> {
    /// let endpoint = Endpoint::connect("10.8.0.1:7471")?;
    /// endpoint.send(b"hello")?;
    /// assert_eq!(*endpoint.recv()?, *b"hello");
    /// endpoint.close()
    /// # }
    /// ```
    pub fn connect(address: impl ToAddresses) -> Result<Self, Error> {
        Connector::new().connect(address)
    }
}

/// Establishes connections.
impl Stream {
    /// Connects to a [`StreamListener`](crate::StreamListener) with the default [`Config`].
    ///
    /// Use [`Connector::connect_stream`] to set a configuration.
    ///
    /// # Errors
    ///
    /// The errors of [`Endpoint::connect`], as [`io::Error`]s.
    pub fn connect<A: ToAddresses>(address: A) -> io::Result<Self> {
        Connector::new().connect_stream(address)
    }

    /// Connects like [`connect`](Self::connect), within `timeout`. A timeout of less than 10 ms,
    /// except zero, is raised to 10 ms. A timeout above 10 min is lowered to 10 min.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) for a timeout of zero, and the errors of
    /// [`connect`](Self::connect).
    pub fn connect_timeout(address: impl ToAddresses, timeout: Duration) -> io::Result<Self> {
        let mut connector = Connector::new();
        connector.config.connect_timeout = match timeout {
            // The check of the configuration rejects this value later.
            Duration::ZERO => timeout,
            _ => timeout.clamp(Duration::from_millis(10), Duration::from_secs(600)),
        };
        connector.connect_stream(address)
    }
}

const _: () = assert!(REQUEST_DATA_MAX <= REPLY_DATA_MAX);

/// Returns an error if the private data is longer than `limit` bytes. `place` describes the request
/// or reply that carries the data, and becomes a part of the error text.
pub(crate) fn check_private_data(
    data: &[u8],
    limit: usize,
    place: &'static str,
) -> Result<(), Error> {
    if data.len() > limit {
        return Err(Error::PrivateDataTooLong {
            len: data.len(),
            limit,
            place,
        });
    }
    Ok(())
}
