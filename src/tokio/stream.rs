use std::{
    io::{self, IoSlice},
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll},
};

use ::tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf};

use super::stream_halves::{OwnedReadHalf, OwnedWriteHalf, ReuniteError};
use crate::{Connector, Endpoint, ToAddresses, TransportKind};

/// A connection that carries bytes in both directions, as
/// [`tokio::net::TcpStream`] does.
///
/// Reads, writes and ends are as those of [`rdmsg::Stream`](crate::Stream). As an
/// [`AsyncBufRead`] it lends the buffers that the device wrote. A write that is pending has taken
/// nothing, and a read that is pending has lost nothing.
///
/// # Examples
///
/// ```no_run
/// use tokio::io::{AsyncBufReadExt, AsyncWriteExt};
///
/// # async fn run() -> std::io::Result<()> {
/// let mut stream = rdmsg::tokio::Stream::connect("10.8.0.1:7471").await?;
/// stream.write_all(b"hello\n").await?;
/// let mut line = String::new();
/// stream.read_line(&mut line).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Stream {
    read: OwnedReadHalf,
    write: OwnedWriteHalf,
}

impl Stream {
    /// Connects to a [`StreamListener`](super::StreamListener) with the default
    /// [`Config`](crate::Config).
    ///
    /// # Errors
    ///
    /// Those of [`Endpoint::connect`], as [`io::Error`]s.
    ///
    /// # Panics
    ///
    /// Outside of a runtime with I/O enabled.
    pub async fn connect(address: impl ToAddresses) -> io::Result<Self> {
        Self::connect_with(&Connector::new(), address).await
    }

    /// Connects with a configuration, private data or an engine of its own.
    ///
    /// # Errors
    ///
    /// Those of [`Connector::connect`], as [`io::Error`]s.
    ///
    /// # Panics
    ///
    /// Outside of a runtime with I/O enabled.
    pub async fn connect_with(
        connector: &Connector,
        address: impl ToAddresses,
    ) -> io::Result<Self> {
        let endpoint = connector.start_stream(address)?.await?;
        Self::new(endpoint)
    }

    /// Makes a stream of an endpoint. Its peer has to do the same.
    ///
    /// Other handles of the endpoint must not be used any more.
    ///
    /// # Errors
    ///
    /// When the runtime cannot watch it.
    ///
    /// # Panics
    ///
    /// Outside of a runtime with I/O enabled.
    #[track_caller]
    pub fn new(endpoint: Endpoint) -> io::Result<Self> {
        endpoint.enter_runtime()?;
        Ok(Self {
            read: OwnedReadHalf::new(endpoint.clone()),
            write: OwnedWriteHalf::new(endpoint),
        })
    }

    /// Splits the stream into its directions, for two tasks. Neither waits for the other.
    #[must_use]
    pub fn into_split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        (self.read, self.write)
    }

    /// Copies bytes that are next without taking them. Waits for some as a read does.
    ///
    /// # Errors
    ///
    /// Those of a read.
    pub async fn peek(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.read.peek(buf).await
    }

    /// Returns this side's address.
    ///
    /// # Errors
    ///
    /// [`AddrNotAvailable`](io::ErrorKind::AddrNotAvailable) where it is not known.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let local = self.endpoint().local_addr();
        local.ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
    }

    /// Returns the peer's address.
    ///
    /// # Errors
    ///
    /// None; it is as that of tokio's stream is.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.endpoint().peer_addr())
    }

    /// Does nothing: nothing is ever delayed.
    ///
    /// # Errors
    ///
    /// None.
    pub fn set_nodelay(&self, _nodelay: bool) -> io::Result<()> {
        Ok(())
    }

    /// Returns `true`: nothing is ever delayed.
    ///
    /// # Errors
    ///
    /// None.
    pub fn nodelay(&self) -> io::Result<bool> {
        Ok(true)
    }

    /// Returns what carries the connection.
    #[must_use]
    pub fn transport(&self) -> TransportKind {
        self.endpoint().transport()
    }

    /// Returns the connection, for what does not wait.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        self.read.endpoint()
    }
}

impl OwnedReadHalf {
    /// Makes a stream of its halves again.
    ///
    /// # Errors
    ///
    /// [`ReuniteError`], with both, where they are not of one stream.
    pub fn reunite(self, write: OwnedWriteHalf) -> Result<Stream, ReuniteError> {
        if self.endpoint() == write.endpoint() {
            Ok(Stream { read: self, write })
        } else {
            Err(ReuniteError(self, write))
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.read).poll_read(cx, buf)
    }
}

impl AsyncBufRead for Stream {
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        Pin::new(&mut self.get_mut().read).poll_fill_buf(cx)
    }

    fn consume(mut self: Pin<&mut Self>, count: usize) {
        Pin::new(&mut self.read).consume(count);
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.write).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.write).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.write.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.write).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.write).poll_shutdown(cx)
    }
}
