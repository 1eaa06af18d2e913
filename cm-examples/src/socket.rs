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

/// A connection over TCP or over RDMA.
#[derive(Debug)]
#[expect(clippy::exhaustive_enums, reason = "there are these two")]
pub enum Socket {
    /// A TCP socket.
    Tcp(TcpStream),
    /// A stream over RDMA.
    Rdma(Stream),
}

/// A listener over TCP or over RDMA.
#[derive(Debug)]
#[expect(clippy::exhaustive_enums, reason = "there are these two")]
pub enum Acceptor {
    /// A TCP socket that listens.
    Tcp(TcpListener),
    /// A listener for streams over RDMA.
    Rdma(Listener),
}

impl Acceptor {
    /// Starts listening over RDMA with `config`, or over TCP if `config` is `None`.
    ///
    /// # Errors
    ///
    /// Fails if the address is not available.
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
    /// Fails if the listener reports an error.
    pub fn accept(&self) -> io::Result<Socket> {
        Ok(match self {
            Self::Tcp(listener) => Socket::tcp(listener.accept()?.0)?,
            Self::Rdma(listener) => Socket::Rdma(listener.accept()?.0),
        })
    }
}

impl Socket {
    /// Connects over RDMA with `config`, or over TCP if `config` is `None`.
    ///
    /// # Errors
    ///
    /// Fails if the connection cannot be established.
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

    /// Sets the blocking mode. If `nonblocking` is true, a call that would block fails with
    /// `WouldBlock`.
    ///
    /// # Errors
    ///
    /// Fails if the socket reports an error.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_nonblocking(nonblocking)?,
            Self::Rdma(stream) => stream.set_nonblocking(nonblocking),
        }
        Ok(())
    }

    /// Sets the time limit of blocking reads and writes.
    ///
    /// # Errors
    ///
    /// Fails if the socket reports an error.
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
    /// Returns `TimedOut` if the stream is not readable within `timeout`.
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
    /// Returns `TimedOut` if the stream is not writable within `timeout`.
    pub fn wait_writable(&self, timeout: Duration) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => wait(stream, PollFlags::POLLOUT, timeout),
            Self::Rdma(stream) => stream.wait_writable(Some(timeout)),
        }
    }

    /// Enables keepalive probes, which the socket sends when the stream has been idle for
    /// `interval`.
    ///
    /// # Errors
    ///
    /// Fails if the socket reports an error.
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

    /// Shuts down both directions of the stream.
    ///
    /// # Errors
    ///
    /// Fails if the socket reports an error.
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
