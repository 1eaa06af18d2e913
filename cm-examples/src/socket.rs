//! Byte streams over RDMA or over TCP, with the same methods.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    os::fd::AsFd,
    time::Duration,
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, poll},
};
use rdmsg::rsocket::{Config, Listener, Stream};

/// A connection.
#[derive(Debug)]
#[expect(clippy::exhaustive_enums, reason = "there are these two")]
pub enum Socket {
    /// Over TCP.
    Tcp(TcpStream),
    /// Over RDMA.
    Rdma(Stream),
}

/// A listener for connections.
#[derive(Debug)]
#[expect(clippy::exhaustive_enums, reason = "there are these two")]
pub enum Acceptor {
    /// Over TCP.
    Tcp(TcpListener),
    /// Over RDMA.
    Rdma(Listener),
}

impl Acceptor {
    /// Listens, over TCP if there is no configuration for RDMA.
    ///
    /// # Errors
    ///
    /// If the address is not available.
    pub fn bind(address: SocketAddr, config: Option<&Config>) -> io::Result<Self> {
        Ok(match config {
            Some(config) => Self::Rdma(Listener::bind_with(address, config)?),
            None => Self::Tcp(TcpListener::bind(address)?),
        })
    }

    /// Waits for a connection.
    ///
    /// # Errors
    ///
    /// If the listener has ended.
    pub fn accept(&self) -> io::Result<Socket> {
        Ok(match self {
            Self::Tcp(listener) => Socket::tcp(listener.accept()?.0)?,
            Self::Rdma(listener) => Socket::Rdma(listener.accept()?.0),
        })
    }
}

impl Socket {
    /// Connects, over TCP if there is no configuration for RDMA.
    ///
    /// # Errors
    ///
    /// If there is no connection.
    pub fn connect(address: SocketAddr, config: Option<&Config>) -> io::Result<Self> {
        match config {
            Some(config) => Ok(Self::Rdma(Stream::connect_with(address, config)?)),
            None => Self::tcp(TcpStream::connect(address)?),
        }
    }

    fn tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self::Tcp(stream))
    }

    /// Sets whether calls that would block return `WouldBlock` instead.
    ///
    /// # Errors
    ///
    /// Errors of the socket.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_nonblocking(nonblocking)?,
            Self::Rdma(stream) => stream.set_nonblocking(nonblocking),
        }
        Ok(())
    }

    /// Sets the time limit of blocking calls.
    ///
    /// # Errors
    ///
    /// Errors of the socket.
    pub fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => {
                stream.set_read_timeout(Some(timeout))?;
                stream.set_write_timeout(Some(timeout))?;
            }
            Self::Rdma(stream) => {
                stream.set_read_timeout(Some(timeout));
                stream.set_write_timeout(Some(timeout));
            }
        }
        Ok(())
    }

    /// Waits until the stream is readable.
    ///
    /// # Errors
    ///
    /// `TimedOut`, if it is not in time.
    pub fn wait_readable(&self, timeout: Duration) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => wait(stream, PollFlags::POLLIN, timeout),
            Self::Rdma(stream) => stream.wait_readable(Some(timeout)),
        }
    }

    /// Waits until the stream is writable.
    ///
    /// # Errors
    ///
    /// `TimedOut`, if it is not in time.
    pub fn wait_writable(&self, timeout: Duration) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => wait(stream, PollFlags::POLLOUT, timeout),
            Self::Rdma(stream) => stream.wait_writable(Some(timeout)),
        }
    }

    /// Probes the peer every `interval`.
    ///
    /// # Errors
    ///
    /// Errors of the socket.
    pub fn set_keepalive(&self, interval: Duration) -> io::Result<()> {
        use nix::sys::socket::{setsockopt, sockopt};
        match self {
            Self::Tcp(stream) => {
                setsockopt(stream, sockopt::KeepAlive, &true)?;
                let seconds = u32::try_from(interval.as_secs()).unwrap_or(u32::MAX);
                Ok(setsockopt(stream, sockopt::TcpKeepIdle, &seconds)?)
            }
            Self::Rdma(stream) => stream.set_keepalive(Some(interval)),
        }
    }

    /// Shuts both directions down.
    ///
    /// # Errors
    ///
    /// Errors of the socket.
    pub fn shutdown(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Self::Rdma(stream) => stream.shutdown(Shutdown::Both),
        }
    }
}

fn wait(stream: &TcpStream, flags: PollFlags, timeout: Duration) -> io::Result<()> {
    let millis = u16::try_from(timeout.as_millis()).unwrap_or(u16::MAX);
    match poll(&mut [PollFd::new(stream.as_fd(), flags)], millis) {
        Ok(0) => Err(io::ErrorKind::TimedOut.into()),
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

impl Read for Socket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(into),
            Self::Rdma(stream) => stream.read(into),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Rdma(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.flush(),
            Self::Rdma(stream) => stream.flush(),
        }
    }
}
