use std::io;

use crate::{
    addresses::ToAddresses,
    config::Config,
    engine::Engine,
    error::Error,
    listener::{Listener, RequestListener},
    stream::StreamListener,
};

/// Listens with a configuration or an engine of its own: [`Listener::builder`].
///
/// # Examples
///
/// ```no_run
/// use rdmsg::{Config, Listener};
///
/// # fn main() -> Result<(), rdmsg::Error> {
/// let config = Config::default().with_backlog(1000);
/// let listener = Listener::builder().config(config).bind("0.0.0.0:7471")?;
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
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// Sets the engine that serves the listener and its connections. Default: [`Engine::shared`].
    #[must_use]
    pub fn engine(mut self, engine: &Engine) -> Self {
        self.engine = Some(engine.clone());
        self
    }

    /// Listens on an address.
    ///
    /// # Errors
    ///
    /// Those of [`Listener::bind_with`] and [`Engine::shared`].
    pub fn bind(&self, address: impl ToAddresses) -> Result<Listener, Error> {
        match &self.engine {
            Some(engine) => Listener::bind_with(address, &self.config, engine),
            None => Listener::bind_with(address, &self.config, &Engine::shared()?),
        }
    }

    /// Listens on an address, and leaves each request to the program.
    ///
    /// # Errors
    ///
    /// Those of [`Listener::bind_with`] and [`Engine::shared`].
    pub fn bind_requests(&self, address: impl ToAddresses) -> Result<RequestListener, Error> {
        match &self.engine {
            Some(engine) => RequestListener::bind_with(address, &self.config, engine),
            None => RequestListener::bind_with(address, &self.config, &Engine::shared()?),
        }
    }

    /// Listens for [`Stream`](crate::Stream)s.
    ///
    /// # Errors
    ///
    /// Those of [`bind`](Self::bind), as [`io::Error`]s.
    pub fn bind_stream(&self, address: impl ToAddresses) -> io::Result<StreamListener> {
        let mut builder = self.clone();
        builder.config.stream = true;
        Ok(StreamListener::new(builder.bind(address)?))
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
