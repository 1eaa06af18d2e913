use std::{io, sync::Arc, time::Duration};

use super::{
    methods::{common_methods, reading_methods, writing_methods},
    reader::Reader,
    stream_halves::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, ReuniteError, WriteHalf},
    writer::Writer,
};
use crate::{
    addresses::ToAddresses,
    connector::Connector,
    endpoint::Endpoint,
    stream::{StreamEnd, Turns, is_shared},
    transport_choice::Transport,
};

/// A connection that carries bytes in both directions, like [`tokio::net::TcpStream`].
///
/// Reads, writes, and the end of the stream behave as in [`rdmsg::Stream`](crate::Stream).
/// [`AsyncBufRead`](::tokio::io::AsyncBufRead) returns references to the received bytes, without
/// copying them. A pending write has accepted no bytes, and dropping a pending read loses no bytes.
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
    read: Reader,
    write: Writer,
}

impl Stream {
    /// Connects to a [`StreamListener`](super::StreamListener) with the default
    /// [`Config`](crate::Config).
    ///
    /// # Errors
    ///
    /// The errors of [`Endpoint::connect`], as [`io::Error`]s.
    ///
    /// # Panics
    ///
    /// Panics outside of a tokio runtime that has I/O enabled.
    pub async fn connect(address: impl ToAddresses) -> io::Result<Self> {
        // The `Connector` is dropped before the wait, which makes the future 200 bytes smaller.
        let connecting = Connector::new().start_stream(address)?;
        Self::new(connecting.await?)
    }

    /// Connects with the settings of `connector`, such as a configuration, private data or an
    /// engine.
    ///
    /// # Errors
    ///
    /// The errors of [`Connector::connect`], as [`io::Error`]s.
    ///
    /// # Panics
    ///
    /// Panics outside of a tokio runtime that has I/O enabled.
    pub async fn connect_with(
        connector: &Connector,
        address: impl ToAddresses,
    ) -> io::Result<Self> {
        let endpoint = connector.start_stream(address)?.await?;
        Self::new(endpoint)
    }

    /// Converts an endpoint into a stream. The peer must also convert its endpoint.
    ///
    /// Do not use other handles to the endpoint afterwards.
    ///
    /// # Errors
    ///
    /// Fails when the runtime cannot register the connection.
    ///
    /// # Panics
    ///
    /// Panics outside of a tokio runtime that has I/O enabled.
    #[track_caller]
    pub fn new(endpoint: Endpoint) -> io::Result<Self> {
        endpoint.carry_bytes();
        endpoint.enter_runtime()?;
        let end = Arc::new(StreamEnd::new(endpoint));
        Ok(Self::of(Reader::new(end, Turns::default())))
    }

    /// Converts a synchronous stream into an asynchronous one. Bytes that have already arrived can
    /// still be read.
    ///
    /// `stream` may be in blocking or non-blocking mode. Its timeouts no longer apply.
    ///
    /// # Errors
    ///
    /// * [`ResourceBusy`](io::ErrorKind::ResourceBusy) if the stream has another handle.
    /// * Any error that the runtime returns when it registers the connection.
    ///
    /// If an error occurs, `stream` is dropped.
    ///
    /// # Panics
    ///
    /// Panics outside of a tokio runtime that has I/O enabled.
    #[track_caller]
    pub fn from_std(stream: crate::stream::Stream) -> io::Result<Self> {
        let (end, turns) = stream.into_parts()?;
        end.enter_runtime()?;
        Ok(Self::of(Reader::new(Arc::new(end), turns)))
    }

    /// Converts the stream into a synchronous one. Bytes that have already arrived can still be
    /// read.
    ///
    /// The result is in non-blocking mode, as with tokio's method: see
    /// [`set_nonblocking`](crate::Stream::set_nonblocking).
    ///
    /// # Errors
    ///
    /// Never fails. It returns a `Result` for compatibility with tokio's type.
    pub fn into_std(self) -> io::Result<crate::stream::Stream> {
        drop(self.write);
        let (end, mut turns) = self.read.into_parts();
        let end = Arc::into_inner(end).ok_or_else(is_shared)?;
        end.leave_runtime();
        turns.get_mut().announce(&end);
        Ok(crate::stream::Stream::from_parts(end, turns, true))
    }

    /// Creates a stream from an accepted endpoint.
    #[track_caller]
    pub(super) fn accepted(endpoint: Endpoint) -> io::Result<Self> {
        let stream = Self::new(endpoint)?;
        stream.read.assume_readable();
        Ok(stream)
    }

    /// Creates a stream from its reading side.
    pub(super) fn of(read: Reader) -> Self {
        let write = Writer::new(Arc::clone(read.end()));
        Self { read, write }
    }

    /// Splits the stream into a reading half and a writing half, for use by one task. After both
    /// halves have been dropped, the whole stream can be used again. Dropping a half does not shut
    /// down a direction.
    #[must_use]
    pub fn split(&mut self) -> (ReadHalf<'_>, WriteHalf<'_>) {
        (
            ReadHalf::new(&mut self.read),
            WriteHalf::new(&mut self.write),
        )
    }

    /// Splits the stream into a reading half and a writing half, for use by two tasks. Neither half
    /// waits for the other.
    ///
    /// The stream ends when both halves are dropped. Dropping the writing half shuts down the write
    /// direction.
    #[must_use]
    pub fn into_split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        (
            OwnedReadHalf::new(self.read),
            OwnedWriteHalf::new(self.write),
        )
    }

    /// Returns the error that ended the connection. Returns `None` while the connection is open,
    /// and after a clean close by either side.
    ///
    /// # Errors
    ///
    /// Never fails. It returns a `Result` for compatibility with tokio's type.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        Ok(self.read.end().end_error())
    }

    /// Returns the time to live of this stream's packets: the maximum number of hops.
    ///
    /// # Errors
    ///
    /// * [`Unsupported`](io::ErrorKind::Unsupported) over RDMA: the route determines the hop limit,
    ///   and no call returns it. An in-memory stream returns the same error, because it
    ///   sends no packets.
    /// * [`NotConnected`](io::ErrorKind::NotConnected) when the connection has ended.
    pub fn ttl(&self) -> io::Result<u32> {
        self.read.end().ttl()
    }

    /// Sets the time to live of this stream's packets, from 1 to 255 hops. If the program sets
    /// no value, the system default applies, usually 64.
    ///
    /// # Errors
    ///
    /// * [`InvalidInput`](io::ErrorKind::InvalidInput) if `ttl` is not in the range 1 to 255.
    /// * [`Unsupported`](io::ErrorKind::Unsupported) over RDMA: the hop limit is set when the route
    ///   is resolved, and no call changes it. An in-memory stream returns the same error,
    ///   because it sends no packets. In both cases the stream stays open.
    /// * [`NotConnected`](io::ErrorKind::NotConnected) when the connection has ended.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.read.end().set_ttl(ttl)
    }

    /// Returns the duration set by [`set_linger`](Self::set_linger).
    ///
    /// # Errors
    ///
    /// Never fails. It returns a `Result` for compatibility with tokio's type.
    pub fn linger(&self) -> io::Result<Option<Duration>> {
        Ok(self.read.end().linger())
    }

    /// Sets how the stream ends when it is dropped, or when both of its halves are dropped.
    /// Default: `None`.
    ///
    /// * `None`: the peer reads all bytes that were written, and then reaches the end of the
    ///   stream.
    /// * Zero: has the effect of [`set_zero_linger`](Self::set_zero_linger).
    /// * Any other duration has the effect of `None`. Dropping never blocks the thread.
    ///
    /// # Errors
    ///
    /// Never fails. It returns a `Result` for compatibility with tokio's type.
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        self.read.end().set_linger(linger);
        Ok(())
    }

    /// Makes the library reset the connection when the stream is dropped, or when both of its
    /// halves are dropped.
    ///
    /// Bytes that have not arrived are lost, and a read by the peer fails with
    /// [`ConnectionReset`](io::ErrorKind::ConnectionReset).
    ///
    /// # Errors
    ///
    /// Never fails. It returns a `Result` for compatibility with tokio's type.
    pub fn set_zero_linger(&self) -> io::Result<()> {
        self.set_linger(Some(Duration::ZERO))
    }

    /// Sets the value that [`nodelay`](Self::nodelay) returns. The value has no other effect,
    /// because a stream never delays writes.
    ///
    /// # Errors
    ///
    /// Never fails. It returns a `Result` for compatibility with tokio's type.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.read.end().set_nodelay(nodelay);
        Ok(())
    }

    /// Returns the value set by [`set_nodelay`](Self::set_nodelay). Default: `false`.
    ///
    /// # Errors
    ///
    /// Never fails. It returns a `Result` for compatibility with tokio's type.
    pub fn nodelay(&self) -> io::Result<bool> {
        Ok(self.read.end().nodelay())
    }

    /// Returns the transport of the connection.
    #[must_use]
    pub fn transport(&self) -> Transport {
        self.endpoint().transport()
    }
}

impl OwnedReadHalf {
    /// Joins the two halves of a stream.
    ///
    /// # Errors
    ///
    /// [`ReuniteError`], which contains both halves, if they belong to different streams.
    #[expect(
        clippy::result_large_err,
        reason = "the error contains both halves, as tokio's error does"
    )]
    pub fn reunite(self, write: OwnedWriteHalf) -> Result<Stream, ReuniteError> {
        self.join(write).map(Stream::of)
    }
}

impl OwnedWriteHalf {
    /// Joins the two halves of a stream.
    ///
    /// # Errors
    ///
    /// [`ReuniteError`], which contains both halves, if they belong to different streams.
    #[expect(
        clippy::result_large_err,
        reason = "the error contains both halves, as tokio's error does"
    )]
    pub fn reunite(self, read: OwnedReadHalf) -> Result<Stream, ReuniteError> {
        read.reunite(self)
    }
}

impl TryFrom<crate::stream::Stream> for Stream {
    type Error = io::Error;

    /// Works like [`from_std`](Self::from_std).
    fn try_from(stream: crate::stream::Stream) -> io::Result<Self> {
        Self::from_std(stream)
    }
}

reading_methods!(Stream);
writing_methods!(Stream);
common_methods!(Stream, read, read, write);
