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

/// A connection that carries bytes in both directions, as
/// [`tokio::net::TcpStream`] does.
///
/// Reads, writes and ends are as those of [`rdmsg::Stream`](crate::Stream). As an
/// [`AsyncBufRead`](::tokio::io::AsyncBufRead) it lends the buffers that the device wrote. A write
/// that is pending has taken nothing, and a read that is pending has lost nothing.
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
    /// Those of [`Endpoint::connect`], as [`io::Error`]s.
    ///
    /// # Panics
    ///
    /// Outside of a runtime with I/O enabled.
    pub async fn connect(address: impl ToAddresses) -> io::Result<Self> {
        // No `Connector` is kept while it waits, which makes the future smaller by 200 bytes.
        let connecting = Connector::new().start_stream(address)?;
        Self::new(connecting.await?)
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
    /// Other handles of the endpoint must not be used afterwards.
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
        endpoint.carry_bytes();
        endpoint.enter_runtime()?;
        let end = Arc::new(StreamEnd::new(endpoint));
        Ok(Self::of(Reader::new(end, Turns::default())))
    }

    /// Makes a stream of one for threads. Bytes that have arrived are read from this one.
    ///
    /// Its timeouts end, and it need not be non-blocking.
    ///
    /// # Errors
    ///
    /// * [`ResourceBusy`](io::ErrorKind::ResourceBusy) if the stream has another handle.
    /// * When the runtime cannot watch it.
    ///
    /// The stream is dropped then.
    ///
    /// # Panics
    ///
    /// Outside of a runtime with I/O enabled.
    #[track_caller]
    pub fn from_std(stream: crate::stream::Stream) -> io::Result<Self> {
        let (end, turns) = stream.into_parts()?;
        end.enter_runtime()?;
        Ok(Self::of(Reader::new(Arc::new(end), turns)))
    }

    /// Makes a stream for threads of this one. Bytes that have arrived are read from that one.
    ///
    /// It is non-blocking, as that of tokio is: see
    /// [`set_nonblocking`](crate::Stream::set_nonblocking).
    ///
    /// # Errors
    ///
    /// None.
    pub fn into_std(self) -> io::Result<crate::stream::Stream> {
        drop(self.write);
        let (end, mut turns) = self.read.into_parts();
        let end = Arc::into_inner(end).ok_or_else(is_shared)?;
        end.leave_runtime();
        turns.get_mut().announce(&end);
        Ok(crate::stream::Stream::from_parts(end, turns, true))
    }

    /// Makes a stream of an endpoint that was accepted.
    #[track_caller]
    pub(super) fn accepted(endpoint: Endpoint) -> io::Result<Self> {
        let stream = Self::new(endpoint)?;
        stream.read.assume_readable();
        Ok(stream)
    }

    /// Makes a stream of its reading side.
    pub(super) fn of(read: Reader) -> Self {
        let write = Writer::new(Arc::clone(read.end()));
        Self { read, write }
    }

    /// Splits the stream into its directions, for one task. The stream is whole again when the
    /// halves are dropped, which finishes no direction.
    #[must_use]
    pub fn split(&mut self) -> (ReadHalf<'_>, WriteHalf<'_>) {
        (
            ReadHalf::new(&mut self.read),
            WriteHalf::new(&mut self.write),
        )
    }

    /// Splits the stream into its directions, for two tasks. Neither waits for the other.
    ///
    /// The stream ends when both halves are dropped. Dropping the writing half finishes its
    /// direction.
    #[must_use]
    pub fn into_split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        (
            OwnedReadHalf::new(self.read),
            OwnedWriteHalf::new(self.write),
        )
    }

    /// Returns the error that ended the connection, or `None` after a clean end.
    ///
    /// # Errors
    ///
    /// None.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        Ok(self.read.end().end_error())
    }

    /// Returns the time to live of this stream's packets: how many hops they may take.
    ///
    /// # Errors
    ///
    /// * [`Unsupported`](io::ErrorKind::Unsupported) over RDMA: the route has the limit of hops,
    ///   and no call reads it.
    /// * [`NotConnected`](io::ErrorKind::NotConnected) when the connection has ended.
    pub fn ttl(&self) -> io::Result<u32> {
        self.read.end().ttl()
    }

    /// Sets the time to live of this stream's packets, from 1 to 255 hops. Default: that of the
    /// system, most often 64.
    ///
    /// # Errors
    ///
    /// * [`InvalidInput`](io::ErrorKind::InvalidInput) for other numbers.
    /// * [`Unsupported`](io::ErrorKind::Unsupported) over RDMA: the limit of hops is set when the
    ///   route is resolved, and no call changes it. The stream continues.
    /// * [`NotConnected`](io::ErrorKind::NotConnected) when the connection has ended.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.read.end().set_ttl(ttl)
    }

    /// Returns the duration that [`set_linger`](Self::set_linger) has set.
    ///
    /// # Errors
    ///
    /// None.
    pub fn linger(&self) -> io::Result<Option<Duration>> {
        Ok(self.read.end().linger())
    }

    /// Sets how the stream ends when it or its last half is dropped. Default: `None`.
    ///
    /// * `None`: the peer reads the bytes that were written before, and then the end.
    /// * Zero: as [`set_zero_linger`](Self::set_zero_linger).
    /// * Any other duration: as `None`. A drop never blocks the thread.
    ///
    /// # Errors
    ///
    /// None.
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        self.read.end().set_linger(linger);
        Ok(())
    }

    /// Makes the drop of the stream, or of its last half, reset the connection.
    ///
    /// Bytes that have not arrived are lost, and a read of the peer fails with
    /// [`ConnectionReset`](io::ErrorKind::ConnectionReset).
    ///
    /// # Errors
    ///
    /// None.
    pub fn set_zero_linger(&self) -> io::Result<()> {
        self.set_linger(Some(Duration::ZERO))
    }

    /// Sets the value that [`nodelay`](Self::nodelay) returns. It has no other effect, because a
    /// stream never delays a write.
    ///
    /// # Errors
    ///
    /// None.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.read.end().set_nodelay(nodelay);
        Ok(())
    }

    /// Returns the value that [`set_nodelay`](Self::set_nodelay) has set. Default: `false`.
    ///
    /// # Errors
    ///
    /// None.
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
    /// Makes a stream of its halves again.
    ///
    /// # Errors
    ///
    /// [`ReuniteError`], with both, if they are not of one stream.
    #[expect(
        clippy::result_large_err,
        reason = "it holds the halves, as tokio's does"
    )]
    pub fn reunite(self, write: OwnedWriteHalf) -> Result<Stream, ReuniteError> {
        self.join(write).map(Stream::of)
    }
}

impl OwnedWriteHalf {
    /// Makes a stream of its halves again.
    ///
    /// # Errors
    ///
    /// [`ReuniteError`], with both, if they are not of one stream.
    #[expect(
        clippy::result_large_err,
        reason = "it holds the halves, as tokio's does"
    )]
    pub fn reunite(self, read: OwnedReadHalf) -> Result<Stream, ReuniteError> {
        read.reunite(self)
    }
}

impl TryFrom<crate::stream::Stream> for Stream {
    type Error = io::Error;

    /// As [`from_std`](Self::from_std).
    fn try_from(stream: crate::stream::Stream) -> io::Result<Self> {
        Self::from_std(stream)
    }
}

reading_methods!(Stream);
writing_methods!(Stream);
common_methods!(Stream, read, read, write);
