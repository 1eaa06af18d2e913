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
    /// tests](crate::guide::connecting#unit-tests). Neither endpoint has a special role.
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
        Self::pair_with(&Config::default())
    }

    /// Returns two connected endpoints within this process, both with this configuration.
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidConfig`] when a value of the configuration is invalid.
    /// * [`Error::Os`] when the process has no free memory or file descriptor.
    ///
    /// # Examples
    ///
    /// ```
    /// use rdmsg::{Config, Endpoint};
    ///
    /// # fn main() -> Result<(), rdmsg::Error> {
    /// let config = Config::default().with(|config| config.receive_window = Some(4));
    /// let (client, server) = Endpoint::pair_with(&config)?;
    /// assert_eq!(client.info().negotiated.unwrap().send_window, 4);
    /// # drop(server);
    /// # Ok(())
    /// # }
    /// ```
    pub fn pair_with(config: &Config) -> Result<(Self, Self), Error> {
        let engine = Engine::in_memory()?;
        let listener = builder(config, &engine).bind(nowhere())?;
        let near = Connector::new()
            .config(config)
            .connect(address_of(listener.local_addr()))?;
        Ok((near, listener.accept()?))
    }
}

/// Creates two connected streams within this process, for tests.
impl Stream {
    /// Returns two connected streams within this process, with the default [`Config`].
    ///
    /// See [`Endpoint::pair`].
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
        Self::pair_with(&Config::default())
    }

    /// Returns two connected streams within this process, both with this configuration.
    ///
    /// # Errors
    ///
    /// The errors of [`Endpoint::pair_with`], as [`io::Error`]s.
    pub fn pair_with(config: &Config) -> io::Result<(Self, Self)> {
        let engine = Engine::in_memory()?;
        let listener = builder(config, &engine).bind_stream(nowhere())?;
        let near = Connector::new()
            .config(config)
            .connect_stream(address_of(listener.local_addr()?))?;
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
