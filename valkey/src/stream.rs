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
/// Clones refer to the same connection. Threads can share a connection; for example, one may read
/// while another writes. Dropping the last handle waits up to [`Config::linger`] for the written
/// bytes to arrive, then closes the connection. The protocol cannot close a single direction.
#[derive(Debug, Clone)]
pub struct Stream {
    connection: Arc<Connection>,
}

impl Stream {
    /// Tries the addresses in order, and connects to the first that accepts the connection.
    ///
    /// # Errors
    ///
    /// If several attempts fail, returns the error of the final attempt. The possible errors are:
    ///
    /// * `InvalidInput` if the name has no address;
    /// * `TimedOut` if a time limit expired;
    /// * `ConnectionRefused` if no program listens at the address;
    /// * `Unsupported` on an iWARP device;
    /// * `InvalidData` with a [`ProtocolError`](crate::ProtocolError) if the peer violated the
    ///   protocol;
    /// * in all other cases, the error of the name resolution, of the connection manager, or of the
    ///   device.
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

    /// Returns another handle to the same connection, as [`Clone`] does.
    ///
    /// # Errors
    ///
    /// Never fails. The signature is the same as that of
    /// [`TcpStream::try_clone`](std::net::TcpStream::try_clone).
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(self.clone())
    }

    /// Returns the local address of the connection.
    ///
    /// # Errors
    ///
    /// Returns `AddrNotAvailable` if the connection has no local address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.connection.local_addr()
    }

    /// Returns the address of the peer.
    ///
    /// # Errors
    ///
    /// Returns `AddrNotAvailable` if the peer has no address.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.connection.peer_addr()
    }

    /// Sets the time after which a read returns `TimedOut`, for all handles of the connection.
    /// `None`, the default, means no limit.
    ///
    /// # Errors
    ///
    /// Returns `InvalidInput` if the timeout is zero.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.set_timeout(READ, timeout)
    }

    /// Sets the time after which a write returns `TimedOut`, for all handles of the connection.
    /// `None`, the default, means no limit.
    ///
    /// # Errors
    ///
    /// Returns `InvalidInput` if the timeout is zero.
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

    /// Closes the connection for all of its handles, after the written bytes have arrived.
    ///
    /// Afterwards each side can still read the bytes that have arrived, and then reads the end of
    /// the stream.
    ///
    /// # Errors
    ///
    /// Returns `TimedOut` if some bytes do not arrive within [`Config::linger`]. Even then, this
    /// call closes the connection.
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
