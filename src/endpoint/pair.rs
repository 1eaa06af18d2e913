use std::{
    io,
    net::{Ipv6Addr, SocketAddr},
};

use super::Endpoint;
use crate::{
    addresses::Addresses,
    config::Config,
    connector::Connector,
    engine::Engine,
    error::Error,
    listener::{Listener, ListenerBuilder},
    stream::Stream,
    transport_choice::TransportChoice,
};

/// Creates two connected endpoints within this process, for tests.
impl Endpoint {
    /// Returns two connected endpoints within this process, with the default [`Config`].
    ///
    /// The connection uses no socket, no port and no thread: see [unit
    /// tests](crate::guide::connecting#unit-tests). Neither endpoint has a special role. Use
    /// [`Connector::pair`] to set a configuration or private data.
    ///
    /// # Errors
    ///
    /// [`Error::Os`] when the process has no free memory or file descriptor.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), rdmsg::Error> {
    /// let (client, server) = rdmsg::Endpoint::pair()?;
    /// client.send(b"hello")?;
    /// assert_eq!(server.recv()?, b"hello");
    /// client.close()
    /// # }
    /// ```
    pub fn pair() -> Result<(Self, Self), Error> {
        Connector::new().pair()
    }
}

/// Creates two connected streams within this process, for tests.
impl Stream {
    /// Returns two connected streams within this process, with the default [`Config`].
    ///
    /// See [`Endpoint::pair`]. Use [`Connector::pair_stream`] to set a configuration.
    ///
    /// # Errors
    ///
    /// Fails when the process has no free memory or file descriptor.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::io::{Read, Write};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let (mut client, mut server) = rdmsg::Stream::pair()?;
    /// client.write_all(b"hello")?;
    /// drop(client);
    /// let mut text = String::new();
    /// server.read_to_string(&mut text)?;
    /// assert_eq!(text, "hello");
    /// # Ok(())
    /// # }
    /// ```
    pub fn pair() -> io::Result<(Self, Self)> {
        Connector::new().pair_stream()
    }
}

/// Creates both sides of a connection within this process, for tests.
impl Connector {
    /// Returns two connected endpoints within this process, both with the connector's
    /// configuration.
    ///
    /// The connector's [private data](Self::private_data) and [label](Self::label) apply to the
    /// first endpoint: it sends the data, and the second endpoint has no label. The pair ignores
    /// the connector's [engine](Self::engine), [source](Self::source),
    /// [alternatives](Self::alternatives) and [transport](Config::transport). Each pair has an
    /// engine of its own, an [`Engine::in_memory`].
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidConfig`] when a value of the configuration is invalid.
    /// * [`Error::PrivateDataTooLong`] above [`PRIVATE_DATA_MAX`](Self::PRIVATE_DATA_MAX) bytes.
    /// * [`Error::Os`] when the process has no free memory or file descriptor.
    ///
    /// # Examples
    ///
    /// ```
    /// use rdmsg::{Config, Connector};
    ///
    /// # fn main() -> Result<(), rdmsg::Error> {
    /// let config = Config::default().with(|config| config.receive_window = Some(4));
    /// let (client, server) = Connector::new().config(&config).pair()?;
    /// assert_eq!(client.info().negotiated.unwrap().send_window, 4);
    /// # drop(server);
    /// # Ok(())
    /// # }
    /// ```
    pub fn pair(&self) -> Result<(Endpoint, Endpoint), Error> {
        let engine = Engine::in_memory()?;
        let listener = builder(&self.config, &engine).bind(nowhere())?;
        let near = self.for_pair().connect(address_of(listener.local_addr()))?;
        Ok((near, listener.accept()?))
    }

    /// Returns two connected streams within this process, both with the connector's configuration.
    ///
    /// See [`pair`](Self::pair) for the settings that apply.
    ///
    /// # Errors
    ///
    /// The errors of [`pair`](Self::pair), as [`io::Error`]s.
    pub fn pair_stream(&self) -> io::Result<(Stream, Stream)> {
        let engine = Engine::in_memory()?;
        let listener = builder(&self.config, &engine).bind_stream(nowhere())?;
        let address = address_of(listener.local_addr()?);
        let near = self.for_pair().connect_stream(address)?;
        Ok((near, listener.accept()?.0))
    }
}

/// Returns the builder of a listener whose connections can resume after the listener has ended.
fn builder(config: &Config, engine: &Engine) -> ListenerBuilder {
    let mut builder = Listener::builder().config(config).engine(engine);
    builder.config.listening.is_of_pair = true;
    builder
}

/// Returns an address of the in-memory transport, with port 0. The engine replaces port 0 with an
/// unused port.
fn nowhere() -> Addresses {
    address_of((Ipv6Addr::LOCALHOST, 0).into())
}

fn address_of(address: SocketAddr) -> Addresses {
    Addresses::new(vec![address]).over(TransportChoice::Memory)
}
