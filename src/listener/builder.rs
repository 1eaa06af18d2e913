//! Configures and binds listeners. Binding can retry while the address is in use.

use std::{
    io,
    net::TcpListener,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use crate::{
    addresses::{Addresses, ToAddresses},
    config::{Config, Inherited, Label},
    engine::Engine,
    error::Error,
    listener::{Listener, RequestListener},
    stream::StreamListener,
    transport_choice::TransportChoice,
};

/// Configures a listener. Returned by [`Listener::builder`].
///
/// # Examples
///
/// ```no_run
/// use rdmsg::{Config, Listener};
///
/// # fn main() -> Result<(), rdmsg::Error> {
/// let mut config = Config::default();
/// config.receive_window = Some(64);
/// let listener = Listener::builder().config(&config).backlog(1000).bind("0.0.0.0:7471")?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct ListenerBuilder {
    pub(crate) config: Config,
    engine: Option<Engine>,
    within: Duration,
}

/// The first delay between two attempts to bind an address that is in use.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// The maximum delay between two attempts to bind an address that is in use.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

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
    /// Default: [`Engine::shared`], or a new [`Engine::in_memory`] for a listener with
    /// [`TransportChoice::Memory`].
    #[must_use]
    pub fn engine(mut self, engine: &Engine) -> Self {
        self.engine = Some(engine.clone());
        self
    }

    /// Sets a name for the listener and its connections in log lines, metrics and `rdmsg top`.
    ///
    /// [`Connector::label`](crate::Connector::label) is the counterpart for the connecting side.
    /// The label has up to 64 bytes; `bind` fails with [`Error::InvalidConfig`] for a longer label.
    /// Default: no label. An empty text also means no label.
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

    /// Sets the maximum number of connections that wait until the program accepts them.
    ///
    /// These connections are established, and each occupies the memory of a connection. Over RDMA
    /// this memory counts towards the limit on locked memory. Further requests are rejected
    /// immediately; their connectors get [`PeerBusy`](crate::CloseReason::PeerBusy).
    ///
    /// For a [`RequestListener`] the value is the maximum number of waiting requests. A request
    /// occupies the memory of a connection only if it has more than 20 bytes of private data.
    ///
    /// 1 to 65535, default 128.
    #[must_use]
    pub fn backlog(mut self, backlog: u16) -> Self {
        self.config.listening.backlog = backlog;
        self
    }

    /// Sets the maximum number of connections that are requested but not established yet.
    ///
    /// Further requests are rejected immediately; their connectors get
    /// [`PeerBusy`](crate::CloseReason::PeerBusy). A peer that requests a connection and then stays
    /// silent occupies one of these connections and its memory, until
    /// [`connect_timeout`](Config::connect_timeout) has passed since the accept. So this value
    /// limits the memory cost of silent peers, and `connect_timeout` limits the delay that they
    /// cause for other peers.
    ///
    /// 1 to 65535, default 256.
    #[must_use]
    pub fn half_open(mut self, half_open: u16) -> Self {
        self.config.listening.half_open = half_open;
        self
    }

    /// Sets whether a listener on one address binds again after it lost its device or address.
    ///
    /// The first attempt is made after 100 ms. Later delays are longer, up to 2 s. The attempts end
    /// when one succeeds or when the listener is dropped. Only the log reports the loss and the
    /// attempts. The option has no effect on the listener's connections, which end when they lose
    /// their device or address. A listener on all addresses (`0.0.0.0`, `[::]`) does not need this
    /// option, because it accepts requests on all devices, including devices that are added later.
    /// A listener that also listens over TCP always binds again over RDMA.
    ///
    /// Default `false`: a listener without TCP that loses its device or address ends with
    /// [`Error::ListenerEnded`].
    #[must_use]
    pub fn rebind(mut self, rebind: bool) -> Self {
        self.config.listening.rebind = rebind;
        self
    }

    /// Sets how long `bind` retries while another listener uses the address.
    ///
    /// Use this option to restart a server: the new process waits until the old process has closed
    /// its listener. The pause between two attempts is at most 100 ms. The calling thread sleeps
    /// during the pauses. The listeners of `rdmsg::tokio` sleep in a blocking thread of the
    /// runtime. The log reports the beginning of the wait once (level `info`). When the time has
    /// passed, `bind` fails with the [`Error::Bind`] of the last attempt.
    ///
    /// Default zero: only one attempt.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// # fn main() -> Result<(), rdmsg::Error> {
    /// let builder = rdmsg::Listener::builder().bind_within(Duration::from_secs(10));
    /// let listener = builder.bind("0.0.0.0:7471")?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn bind_within(mut self, time: Duration) -> Self {
        self.within = time;
        self
    }

    /// Sets whether several sockets can listen on the same TCP port: `SO_REUSEPORT`, see socket(7).
    ///
    /// All of these sockets must set this option and belong to the same user. The kernel
    /// distributes the requests among them. RDMA has no such option: a second listener on a port
    /// fails to bind over RDMA, and with [`TransportChoice::Auto`] it listens over TCP only.
    ///
    /// Default `false`.
    #[must_use]
    pub fn reuse_port(mut self, reuse: bool) -> Self {
        self.config.listening.reuse_port = reuse;
        self
    }

    /// Listens over TCP on this bound socket, for instance one from systemd's socket activation.
    ///
    /// The address of [`bind`](Self::bind) must have the socket's port. If the ports differ, `bind`
    /// fails with an [`Error::Bind`] that contains `EINVAL`. Over RDMA the address is bound as
    /// usual. The socket becomes non-blocking. It stays open in this process while the builder or
    /// the listener exists.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use std::{net::TcpListener, os::fd::{FromRawFd, OwnedFd}};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// // The first descriptor of sd_listen_fds(3), if LISTEN_PID is this process.
    /// // SAFETY: systemd passed descriptor 3 to this process, and nothing else uses it.
    /// let socket = TcpListener::from(unsafe { OwnedFd::from_raw_fd(3) });
    /// let address = socket.local_addr()?;
    /// let listener = rdmsg::Listener::builder().inherit(socket).bind(address)?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn inherit(mut self, socket: TcpListener) -> Self {
        self.config.listening.inherited = Some(Inherited(Arc::new(socket)));
        self
    }

    /// Listens on an address, and accepts each request.
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidConfig`] when a value of the configuration is invalid.
    /// * [`Error::EngineShutDown`] when the engine was shut down.
    /// * The errors of [`Listener::bind`].
    pub fn bind(&self, address: impl ToAddresses) -> Result<Listener, Error> {
        self.retry(address, |addresses, engine| {
            Listener::bind_to(addresses, &self.config, engine)
        })
    }

    /// Listens on an address. The program accepts or rejects each request.
    ///
    /// # Errors
    ///
    /// The errors of [`bind`](Self::bind).
    pub fn bind_requests(&self, address: impl ToAddresses) -> Result<RequestListener, Error> {
        self.retry(address, |addresses, engine| {
            RequestListener::bind_to(addresses, &self.config, engine)
        })
    }

    /// Listens for [`Stream`](crate::Stream)s.
    ///
    /// # Errors
    ///
    /// The errors of [`bind`](Self::bind), as [`io::Error`]s.
    pub fn bind_stream(&self, address: impl ToAddresses) -> io::Result<StreamListener> {
        let mut config = self.config.clone();
        config.stream = true;
        let listener = self.retry(address, |addresses, engine| {
            Listener::bind_to(addresses, &config, engine)
        })?;
        Ok(StreamListener::new(listener))
    }

    /// Binds the address. While the address is in use, retries until the time of `bind_within` has
    /// passed.
    fn retry<T>(
        &self,
        address: impl ToAddresses,
        bind: impl Fn(Addresses, &Engine) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let (addresses, engine) = self.ready(&address)?;
        let began = Instant::now();
        let mut pause = FIRST_PAUSE;
        loop {
            match bind(addresses.clone(), &engine) {
                Err(error) if error.is_address_in_use() => {
                    let left = self.within.saturating_sub(began.elapsed());
                    if left.is_zero() {
                        return Err(error);
                    }
                    if pause == FIRST_PAUSE {
                        info!(
                            Listener,
                            "listener: {error}; retrying for up to {:?}", self.within
                        );
                    }
                    thread::sleep(pause.min(left));
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                bound => return bound,
            }
        }
    }

    /// Returns whether `bind` may sleep.
    #[cfg(feature = "tokio")]
    pub(crate) fn may_wait(&self) -> bool {
        !self.within.is_zero()
    }

    /// Checks the configuration and looks up the address. Returns the addresses and the listener's
    /// engine.
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
    /// Returns a builder for a listener. Its counterpart is [`Connector`](crate::Connector).
    #[must_use]
    pub fn builder() -> ListenerBuilder {
        ListenerBuilder::default()
    }
}

impl StreamListener {
    /// Listens on an address with the default [`Config`].
    ///
    /// Use [`ListenerBuilder::bind_stream`](crate::ListenerBuilder::bind_stream) to set a
    /// configuration.
    ///
    /// # Errors
    ///
    /// The errors of [`Listener::bind`], as [`io::Error`]s.
    pub fn bind<A: ToAddresses>(address: A) -> io::Result<Self> {
        Listener::builder().bind_stream(address)
    }
}
