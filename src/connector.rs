use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use crossbeam_channel::bounded;

use crate::{
    Config, Endpoint, Engine, Error, ToAddresses, Transport, TransportKind,
    engine::{Command, Reply, wait_for_reply},
    proto::{REPLY_DATA_MAX, REQUEST_DATA_MAX},
};

/// Connects with a configuration, private data or an engine of its own.
///
/// [`Endpoint::connect`] is the short form with the defaults.
///
/// # Examples
///
/// ```no_run
/// # fn main() -> Result<(), rdmsg::Error> {
/// let mut config = rdmsg::Config::default();
/// config.retry_refused = true;
/// let connector = rdmsg::Connector::new().config(config).private_data(b"user 7")?;
/// let endpoint = connector.connect("10.8.0.1:7471")?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Connector {
    pub(crate) config: Config,
    private_data: Vec<u8>,
    engine: Option<Engine>,
}

impl Connector {
    /// The longest private data in bytes that fits a connect request, beside the library's own.
    pub const PRIVATE_DATA_MAX: usize = REQUEST_DATA_MAX;

    /// Creates a connector with the default [`Config`], no private data and the shared engine.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the configuration of the connection. Default: [`Config::default`].
    #[must_use]
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// Sets bytes for the listener's program, which reads them before it accepts.
    ///
    /// The listener's side has them as [`Request::private_data`](crate::Request::private_data).
    /// Default: none.
    ///
    /// # Errors
    ///
    /// [`Error::PrivateDataTooLong`] above [`Connector::PRIVATE_DATA_MAX`] bytes.
    pub fn private_data(mut self, data: &[u8]) -> Result<Self, Error> {
        check_private_data(data, REQUEST_DATA_MAX, "a connect request")?;
        self.private_data = data.to_vec();
        Ok(self)
    }

    /// Sets the engine that serves the connection. Default: [`Engine::shared`].
    #[must_use]
    pub fn engine(mut self, engine: &Engine) -> Self {
        self.engine = Some(engine.clone());
        self
    }

    /// Connects, and tries the addresses of a name one after the other.
    ///
    /// [`connect_timeout`](Config::connect_timeout) (default 5 s) bounds all of them together: each
    /// gets an equal share of the time that is left. The call returns within it, or a moment later,
    /// however busy this host is. Only the lookup of a name is not bounded.
    ///
    /// # Errors
    ///
    /// With several addresses, the error of the last one.
    ///
    /// * [`Error::InvalidConfig`] when a value of the configuration cannot work.
    /// * [`Error::AddressLookup`] for an unknown name.
    /// * [`Error::Connect`] with the reason when no connection was established in time.
    /// * [`Error::NoRdma`], [`Error::PermissionDenied`] or [`Error::Loopback`] when this machine
    ///   has no connection manager, this process has no right to use it, or no device serves the
    ///   address.
    /// * [`Error::LockedMemory`] or [`Error::SharedReceivesExhausted`] when there is no memory for
    ///   the connection's buffers.
    /// * [`Error::EngineShutDown`] when its engine was shut down.
    pub fn connect(&self, address: impl ToAddresses) -> Result<Endpoint, Error> {
        self.config.check()?;
        let engine = match &self.engine {
            Some(engine) => engine.clone(),
            None => Engine::shared()?,
        };
        let deadline = Instant::now() + self.config.connect_timeout;
        let addresses = address.to_addresses()?;
        let transport = addresses.transport().unwrap_or(self.config.transport);
        let mut left = addresses.as_slice();
        let mut result = Err(Error::TimedOut);
        while let Some((address, rest)) = left.split_first() {
            let now = Instant::now();
            let count = u32::try_from(left.len()).unwrap_or(u32::MAX);
            let share = deadline.saturating_duration_since(now) / count;
            let first = left.len() == addresses.as_slice().len();
            if share.is_zero() && !first {
                break;
            }
            result = self.connect_one(transport, *address, now + share, &engine);
            if result.is_ok() {
                break;
            }
            left = rest;
        }
        result
    }

    /// Connects to one address, over the first transport that leads there.
    fn connect_one(
        &self,
        transport: Transport,
        address: SocketAddr,
        deadline: Instant,
        engine: &Engine,
    ) -> Result<Endpoint, Error> {
        let over = |transport, deadline| self.connect_over(transport, address, deadline, engine);
        match transport {
            Transport::Rdma => over(TransportKind::Rdma, deadline),
            Transport::Tcp => over(TransportKind::Tcp, deadline),
            Transport::Auto => {
                let now = Instant::now();
                let half = now + deadline.saturating_duration_since(now) / 2;
                match over(TransportKind::Rdma, half) {
                    Err(error) if error.leaves_other_transports() => {
                        log::info!("{address}: over TCP, since not over RDMA: {error}");
                        over(TransportKind::Tcp, deadline)
                    }
                    result => result,
                }
            }
        }
    }

    fn connect_over(
        &self,
        transport: TransportKind,
        address: SocketAddr,
        deadline: Instant,
        engine: &Engine,
    ) -> Result<Endpoint, Error> {
        let (reply, result) = bounded(1);
        engine.send(Command::Connect {
            address,
            transport,
            config: self.config.clone(),
            data: self.private_data.clone(),
            deadline,
            reply: Reply::Caller(reply),
        })?;
        let established = wait_for_reply(&result, address, deadline)?;
        Ok(Endpoint::new(established, engine.clone()))
    }
}

/// Connecting.
impl Endpoint {
    /// Connects to a [`Listener`](crate::Listener), with the default [`Config`] and engine.
    ///
    /// The addresses of a name are tried one after the other, all within the default
    /// [`connect_timeout`](Config::connect_timeout) of 5 s. [`Connector`] takes a configuration,
    /// private data and an [`Engine`].
    ///
    /// # Errors
    ///
    /// * [`Error::AddressLookup`] for an unknown name.
    /// * [`Error::Connect`] with the reason when no connection was established in time.
    /// * [`Error::NoRdma`], [`Error::PermissionDenied`] or [`Error::Loopback`] when this machine
    ///   has no connection manager, this process has no right to use it, or no device serves the
    ///   address.
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

    /// Connects within `timeout`, with the default [`Config`] and engine.
    ///
    /// The timeout bounds all addresses of a name together, retries included. 10 ms to 10 min.
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidConfig`] for a timeout outside of these bounds.
    /// * [`Error::AddressLookup`] for an unknown name.
    /// * [`Error::Connect`] with the reason when no connection was established in time.
    /// * [`Error::NoRdma`], [`Error::PermissionDenied`] or [`Error::Loopback`] when this machine
    ///   has no connection manager, this process has no right to use it, or no device serves the
    ///   address.
    /// * [`Error::LockedMemory`] when there is no memory for the connection's buffers.
    pub fn connect_timeout(address: impl ToAddresses, timeout: Duration) -> Result<Self, Error> {
        let mut connector = Connector::new();
        connector.config.connect_timeout = timeout;
        connector.connect(address)
    }
}

/// Returns an error if private data does not fit.
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

const _: () = assert!(REQUEST_DATA_MAX <= REPLY_DATA_MAX);
