use std::{
    io::{self, Read, Write},
    net::{SocketAddr, ToSocketAddrs},
    sync::Arc,
    time::Duration,
};

use rdmsg_os::lock;

use crate::{
    Config,
    connection::Connection,
    link::{Link, Opening},
    waiting::{deadline, left},
};

const READ: usize = 0;
const WRITE: usize = 1;

/// A connection to a Valkey server or client: a byte stream in both directions.
///
/// Clones refer to the same connection, and threads may share it: one may read while another
/// writes. When the last handle is dropped, it waits until all written bytes have arrived, for at
/// most [`Config::linger`], and closes the connection. The protocol cannot close one direction.
#[derive(Debug, Clone)]
pub struct Stream {
    connection: Arc<Connection>,
}

impl Stream {
    /// Connects to the first of these addresses that accepts, trying them in turn.
    ///
    /// # Errors
    ///
    /// `TimedOut`; `ConnectionRefused` if no program listens there; `Unsupported` on iWARP;
    /// `InvalidData` with a [`ProtocolError`](crate::ProtocolError); otherwise the errors of the
    /// connection manager for the last address.
    pub fn connect(address: impl ToSocketAddrs) -> io::Result<Self> {
        Self::connect_with(address, &Config::default())
    }

    /// Connects as [`connect`](Self::connect) does, with a configuration.
    ///
    /// # Errors
    ///
    /// Those of [`connect`](Self::connect), and `InvalidInput` for an invalid configuration.
    pub fn connect_with(address: impl ToSocketAddrs, config: &Config) -> io::Result<Self> {
        let text = "the name has no address";
        let mut result = Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        for address in address.to_socket_addrs()? {
            result = Self::connect_one(address, config);
            if result.is_ok() {
                break;
            }
        }
        result
    }

    fn connect_one(address: SocketAddr, config: &Config) -> io::Result<Self> {
        let until = deadline(Some(config.connect_timeout));
        let mut opening = Opening::new(address, config)?;
        loop {
            let wait = left(until)?.unwrap_or(Duration::MAX);
            if let Some(event) = opening.events().wait_event(wait)?
                && opening.step(&event)?
            {
                break;
            }
        }
        let stream = Self::new(opening.connect(config)?, config)?;
        stream
            .connection
            .waiting
            .wait(until, |link| match link.error() {
                Some(error) => Some(Err(error)),
                None => link.is_ready().then_some(Ok(())),
            })??;
        Ok(stream)
    }

    pub(crate) fn new(link: Link, config: &Config) -> io::Result<Self> {
        let connection = Connection::new(link, config)?;
        Ok(Self {
            connection: Arc::new(connection),
        })
    }

    /// Returns another handle of the same connection, as [`Clone`] does.
    ///
    /// # Errors
    ///
    /// None. The signature is that of [`TcpStream`](std::net::TcpStream::try_clone).
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(self.clone())
    }

    /// Returns the address of this side.
    ///
    /// # Errors
    ///
    /// `AddrNotAvailable` if it has none.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.connection.local_addr()
    }

    /// Returns the address of the peer.
    ///
    /// # Errors
    ///
    /// `AddrNotAvailable` if it has none.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.connection.peer_addr()
    }

    /// Sets the time after which reading returns `TimedOut`, for all handles of the connection.
    /// Default: `None`, unlimited.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for a timeout of zero.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.set_timeout(READ, timeout)
    }

    /// Sets the time after which writing returns `TimedOut`, for all handles of the connection.
    /// Default: `None`, unlimited.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for a timeout of zero.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.set_timeout(WRITE, timeout)
    }

    fn set_timeout(&self, index: usize, timeout: Option<Duration>) -> io::Result<()> {
        if timeout.is_some_and(|timeout| timeout.is_zero()) {
            let text = "a timeout must not be 0";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        lock(&self.connection.timeouts)[index] = timeout;
        Ok(())
    }

    /// Closes the connection for all of its handles, after written bytes have arrived.
    ///
    /// Both sides then read the bytes that have arrived, and the end of the stream.
    ///
    /// # Errors
    ///
    /// `TimedOut` if not all bytes have arrived within [`Config::linger`]. The connection is closed
    /// then as well.
    pub fn shutdown(&self) -> io::Result<()> {
        self.connection.waiting.check()?;
        self.connection.close()
    }
}

impl Read for &Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let until = deadline(self.connection.timeout(READ));
        self.connection
            .waiting
            .wait(until, |link| link.read(into))?
    }
}

impl Write for &Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let until = deadline(self.connection.timeout(WRITE));
        self.connection
            .waiting
            .wait(until, |link| link.write(bytes))?
    }

    /// Does nothing: written bytes are already being sent.
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

    /// Does nothing: written bytes are already being sent.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
