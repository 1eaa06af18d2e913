use std::io;

use crate::{
    addresses::{Addresses, ToAddresses},
    config::{Config, Label},
    engine::Engine,
    error::Error,
    listener::{Listener, RequestListener},
    stream::StreamListener,
    transport_choice::TransportChoice,
};

/// Listens with a configuration or an engine of its own: [`Listener::builder`].
///
/// # Examples
///
/// ```no_run
/// use rdmsg::{Config, Listener};
///
/// # fn main() -> Result<(), rdmsg::Error> {
/// let mut config = Config::default();
/// config.receive_window = 64;
/// let listener = Listener::builder().config(&config).backlog(1000).bind("0.0.0.0:7471")?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct ListenerBuilder {
    config: Config,
    engine: Option<Engine>,
}

impl ListenerBuilder {
    /// Sets the configuration of all connections of the listener. Default: [`Config::default`].
    #[must_use]
    pub fn config(mut self, config: &Config) -> Self {
        let before = std::mem::replace(&mut self.config, config.clone());
        self.config.listening = before.listening;
        self.config.label = before.label;
        self
    }

    /// Sets the engine that serves the listener and its connections.
    ///
    /// Default: [`Engine::shared`]; within the process a new [`Engine::in_memory`].
    #[must_use]
    pub fn engine(mut self, engine: &Engine) -> Self {
        self.engine = Some(engine.clone());
        self
    }

    /// Sets a name for the listener and its connections in log lines, metrics and `rdmsg top`.
    ///
    /// [`Connector::label`](crate::Connector::label) is its counterpart. Up to 64 bytes; a longer
    /// one fails to bind, with [`Error::InvalidConfig`]. Default: none, as with an empty text.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn main() -> Result<(), rdmsg::Error> {
    /// let listener = rdmsg::Listener::builder().label("orders").bind("0.0.0.0:7471")?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn label(mut self, label: &str) -> Self {
        self.config.label = Label::new(label);
        self
    }

    /// Sets the number of connections that may wait in the listener to be accepted.
    ///
    /// They are established, and each has the memory of a connection. Over RDMA that counts
    /// against the limit on locked memory. For a [`RequestListener`] it
    /// is the number of requests that may wait. These have no such memory.
    /// Further requests are rejected at once; their connectors get
    /// [`PeerBusy`](crate::CloseReason::PeerBusy).
    ///
    /// 1 to 65535, default 128.
    #[must_use]
    pub fn backlog(mut self, backlog: u16) -> Self {
        self.config.listening.backlog = backlog;
        self
    }

    /// Sets the number of connections that may be on the way to being established.
    ///
    /// These were requested, or accepted and not established yet. Further requests are rejected at
    /// once; their connectors get [`PeerBusy`](crate::CloseReason::PeerBusy). A peer that requests
    /// a connection and then stays silent occupies a place, and the memory of a connection, for
    /// [`connect_timeout`](Config::connect_timeout) after it was accepted. So this value bounds the
    /// cost of such peers, and that time bounds the delay of others.
    ///
    /// 1 to 65535, default 256.
    #[must_use]
    pub fn half_open(mut self, half_open: u16) -> Self {
        self.config.listening.half_open = half_open;
        self
    }

    /// Sets whether a listener on one address binds itself again after it lost its device or
    /// address.
    ///
    /// Retries after 100 ms, backing off to 2 s, until it succeeds or is dropped, and reports that
    /// in the log only. Its connections end in any case. A listener on all addresses (`0.0.0.0`,
    /// `[::]`) does not need this, because it takes requests on all present devices.
    ///
    /// Default `false`: the listener ends with [`Error::ListenerEnded`].
    #[must_use]
    pub fn rebind(mut self, rebind: bool) -> Self {
        self.config.listening.rebind = rebind;
        self
    }

    /// Listens on an address. Each request is accepted.
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidConfig`] when a value of the configuration cannot work.
    /// * [`Error::EngineShutDown`] when the engine was shut down.
    /// * The errors of [`Listener::bind`].
    pub fn bind(&self, address: impl ToAddresses) -> Result<Listener, Error> {
        let (addresses, engine) = self.ready(&address)?;
        Listener::bind_to(addresses, &self.config, &engine)
    }

    /// Listens on an address, and leaves each request to the program.
    ///
    /// # Errors
    ///
    /// Those of [`bind`](Self::bind).
    pub fn bind_requests(&self, address: impl ToAddresses) -> Result<RequestListener, Error> {
        let (addresses, engine) = self.ready(&address)?;
        RequestListener::bind_to(addresses, &self.config, &engine)
    }

    /// Listens for [`Stream`](crate::Stream)s.
    ///
    /// # Errors
    ///
    /// Those of [`bind`](Self::bind), as [`io::Error`]s.
    pub fn bind_stream(&self, address: impl ToAddresses) -> io::Result<StreamListener> {
        let mut config = self.config.clone();
        config.stream = true;
        let (addresses, engine) = self.ready(&address)?;
        let listener = Listener::bind_to(addresses, &config, &engine)?;
        Ok(StreamListener::new(listener))
    }

    /// Looks the address up, and returns the engine of the listener.
    fn ready(&self, address: &impl ToAddresses) -> Result<(Addresses, Engine), Error> {
        self.config.check()?;
        let addresses = address.to_addresses()?;
        let choice = addresses.transport().unwrap_or(self.config.transport);
        let is_in_memory = choice.resolved() == TransportChoice::Memory;
        let engine = match &self.engine {
            Some(engine) => engine.for_transport(is_in_memory)?,
            None if is_in_memory => Engine::in_memory()?,
            None => Engine::shared()?,
        };
        Ok((addresses, engine))
    }
}

impl Listener {
    /// Returns a builder, the counterpart of [`Connector`](crate::Connector).
    #[must_use]
    pub fn builder() -> ListenerBuilder {
        ListenerBuilder::default()
    }
}

impl StreamListener {
    /// Listens on an address with the default [`Config`].
    ///
    /// See [`ListenerBuilder::bind_stream`](crate::ListenerBuilder::bind_stream) for a
    /// configuration of one's own.
    ///
    /// # Errors
    ///
    /// Those of [`Listener::bind`], as [`io::Error`]s.
    pub fn bind<A: ToAddresses>(address: A) -> io::Result<Self> {
        Listener::builder().bind_stream(address)
    }
}
