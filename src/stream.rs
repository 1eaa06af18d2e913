use std::{
    fmt,
    io::{self, BufRead, IoSlice, Read, Write},
    net::{Shutdown, SocketAddr},
    os::fd::BorrowedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use self::options::Timeout;
use crate::{
    endpoint::Endpoint,
    error::Error,
    interest::Interest,
    link::{Deadline, total},
    local::{Local, StandIn},
    os::PerProcess,
    transport_choice::Transport,
};

#[cfg(not(feature = "tokio"))]
use self::{end::StreamEnd, reading::Reading, turns::Turns};

mod end;
mod halves;
mod listener;
mod options;
mod reading;
mod turns;

#[cfg(feature = "tokio")]
pub(crate) use self::{end::StreamEnd, options::ListenerTtl, reading::Reading, turns::Turns};
pub use self::{
    halves::{ReadHalf, WriteHalf},
    listener::StreamListener,
};

/// A connection that carries bytes in both directions, like [`std::net::TcpStream`].
///
/// The bytes travel in messages of an [`Endpoint`]. A reader that keeps up with the peer reads the
/// bytes from the buffer that the device wrote, without an intermediate copy, and [`BufRead`]
/// returns a reference to that buffer. Writes behave as follows:
///
/// * While the peer's window is not full, each write is sent immediately, as one message. There is
///   no Nagle delay to disable. While the window is full, the stream collects written bytes, and
///   later sends them together. Once it has collected one frame of the
///   [eager size](crate::Config::eager_size), it collects only writes of up to 16 KiB. Longer
///   writes wait.
/// * A write that is a few times as long as the eager size is sent in several frames. The peer
///   reads a longer write from this side's memory, in pieces of 1 MiB.
/// * A blocking write accepts all bytes. A write that times out or does not wait returns the number
///   of bytes that it accepted, and fails if it accepted none.
///
/// Bytes that have arrived are stored until they are read. If the peer does not read, the stream
/// accepts about [`Config::stream_buffer`](crate::Config::stream_buffer) bytes (4 MiB), regardless
/// of the length of each write. Further writes wait.
///
/// Differences from `TcpStream`:
///
/// * At the end of file, [`read`](Read::read) returns 0. The end means that the peer called
///   [`shutdown`](Self::shutdown) or dropped its stream. If the peer vanished, or exited without
///   dropping its stream, the read fails.
/// * Dropping the last handle ends both directions. Written bytes are delivered in the background;
///   a process that exits normally waits for the delivery (see [the guide](crate::guide::ending)).
///   Unread bytes are dropped, without a reset. After a [`set_linger`](Self::set_linger) with zero,
///   dropping resets the connection.
/// * If the peer has closed, a write fails after this side has read to the end of the stream. Until
///   then, writes accept and discard up to 64 KiB in total, so that a program that writes between
///   reads can continue to read. A TCP socket similarly accepts some bytes before the peer's reset
///   arrives.
/// * There is a separate file descriptor for each [interest](Self::event_fd), instead of one for
///   reading and writing.
///
/// A stream cannot connect to an endpoint, nor an endpoint to a stream; the error names the
/// mismatch. To use an endpoint as a stream, convert it with [`Stream::from`] on both sides.
///
/// # Examples
///
/// ```no_run
/// use std::io::{BufRead, Write};
///
/// # fn main() -> std::io::Result<()> {
/// let mut stream = rdmsg::Stream::connect("10.8.0.1:7471")?;
/// stream.write_all(b"hello\n")?;
/// let mut line = String::new();
/// stream.read_line(&mut line)?;
/// # Ok(())
/// # }
/// ```
pub struct Stream {
    shared: Local<Shared>,
    /// A copy of the bytes that [`BufRead::fill_buf`] returns. The copy is used only if there is
    /// another handle, because that handle might consume the original bytes.
    unread_copy: Vec<u8>,
}

/// The state that all handles to a stream share.
struct Shared {
    endpoint: StreamEnd,
    turns: Turns,
    nonblocking: AtomicBool,
    read_timeout: Timeout,
    write_timeout: Timeout,
}

impl Stream {
    /// Shuts down one or both directions.
    ///
    /// * [`Shutdown::Write`]: the peer reads the bytes that were written before, and then the end.
    ///   Further writes fail with [`BrokenPipe`](io::ErrorKind::BrokenPipe).
    /// * [`Shutdown::Read`]: reads of this side, including waiting ones, return bytes that have
    ///   arrived, or 0 if there are none. The peer is not notified. Bytes that it sends later are
    ///   buffered, and the next read returns them; when the buffer is full, the peer's writes wait.
    ///
    /// # Errors
    ///
    /// [`NotConnected`](io::ErrorKind::NotConnected) when the connection has ended.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        if matches!(how, Shutdown::Read | Shutdown::Both) {
            self.shared.endpoint.stop();
        }
        if matches!(how, Shutdown::Write | Shutdown::Both) {
            let finished = self.shared.endpoint.finish();
            finished.map_err(|error| io::Error::new(io::ErrorKind::NotConnected, error))?;
        }
        Ok(())
    }

    /// Returns another handle to the same stream.
    ///
    /// All handles share the timeouts and the non-blocking mode.
    ///
    /// # Errors
    ///
    /// Never fails. It returns a `Result` for compatibility with
    /// [`TcpStream::try_clone`](std::net::TcpStream::try_clone).
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            shared: self.shared.clone(),
            unread_copy: Vec::new(),
        })
    }

    /// Splits the stream into its directions, for use by two threads.
    ///
    /// Dropping the write half shuts down its direction.
    #[must_use]
    pub fn split(self) -> (ReadHalf, WriteHalf) {
        let writing = Self {
            shared: self.shared.clone(),
            unread_copy: Vec::new(),
        };
        (ReadHalf::new(self), WriteHalf::new(writing))
    }

    /// Copies the next bytes without consuming them. If none have arrived, waits as
    /// [`read`](Read::read) does.
    ///
    /// Copies the bytes that have arrived, up to the length of `buf`. Returns the number of copied
    /// bytes. A later read into a buffer of this length returns the same bytes.
    ///
    /// # Errors
    ///
    /// The errors of [`read`](Read::read).
    pub fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.shared
            .read_with(|reading, endpoint| reading.peek(endpoint, buf))
    }

    /// Sets the time limit of reads; `None`, the default, means no limit.
    ///
    /// A read that times out fails with [`WouldBlock`](io::ErrorKind::WouldBlock).
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) for a duration of zero.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.shared.read_timeout.set(timeout)
    }

    /// Sets the time limit of writes that wait for the peer; `None`, the default, means no limit.
    ///
    /// A write that times out returns the number of bytes that it accepted. It fails with
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) if it accepted none.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) for a duration of zero.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.shared.write_timeout.set(timeout)
    }

    /// Returns the time limit of reads; `None` means no limit.
    ///
    /// # Errors
    ///
    /// Never fails. It returns a `Result` for compatibility with `TcpStream`.
    pub fn read_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(self.shared.read_timeout.get())
    }

    /// Returns the time limit of writes; `None` means no limit.
    ///
    /// # Errors
    ///
    /// Never fails. It returns a `Result` for compatibility with `TcpStream`.
    pub fn write_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(self.shared.write_timeout.get())
    }

    /// Sets whether reads and writes that would have to wait fail with
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) instead.
    ///
    /// # Errors
    ///
    /// Never fails. It returns a `Result` for compatibility with `TcpStream`.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.shared
            .nonblocking
            .store(nonblocking, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the error that ended the connection. Returns `None` while the connection is open,
    /// and after a clean close by either side.
    ///
    /// # Errors
    ///
    /// Never fails. It returns a `Result` for compatibility with `TcpStream`.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        Ok(self.shared.endpoint.end_error())
    }

    /// Returns this side's address.
    ///
    /// # Errors
    ///
    /// Never fails. It returns a `Result` for compatibility with `TcpStream`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.shared.original().endpoint.local_addr())
    }

    /// Returns the peer's address.
    ///
    /// # Errors
    ///
    /// Never fails. It returns a `Result` for compatibility with `TcpStream`.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.shared.original().endpoint.peer_addr())
    }

    /// Returns the transport of the connection.
    #[must_use]
    pub fn transport(&self) -> Transport {
        self.shared.original().endpoint.transport()
    }

    /// Returns a file descriptor for event loops. It is readable while the condition of `interest`
    /// holds.
    ///
    /// See [`Endpoint::event_fd`].
    ///
    /// # Errors
    ///
    /// The errors of [`Endpoint::event_fd`].
    pub fn event_fd(&self, interest: Interest) -> io::Result<BorrowedFd<'_>> {
        Ok(self.shared.endpoint.event_fd(interest)?)
    }
}

impl StandIn for Shared {
    fn stand_in() -> &'static Self {
        static ENDED: PerProcess<Stream> = PerProcess::new(|| {
            Stream::from_parts(StreamEnd::new(Endpoint::forked()), Turns::default(), false)
        });
        ENDED.get().shared.original()
    }
}

impl Shared {
    /// Returns the deadline of a call, or `None` in non-blocking mode.
    fn deadline(&self, timeout: &Timeout) -> Option<Deadline> {
        if self.nonblocking.load(Ordering::Relaxed) {
            return None;
        }
        Some(timeout.get().map_or_else(Deadline::never, Deadline::after))
    }

    /// Waits for bytes or the end of the stream. Then calls `take`, and returns its result.
    fn read_with<T>(&self, take: impl FnOnce(&mut Reading, &Endpoint) -> T) -> io::Result<T> {
        let deadline = self.deadline(&self.read_timeout);
        let turn = match &deadline {
            Some(deadline) => self.turns.wait(deadline),
            // If another thread has the turn, a call in non-blocking mode does not wait. It fails
            // with `WouldBlock`.
            None => self.turns.take(),
        };
        let mut turn = turn.ok_or(io::ErrorKind::WouldBlock)?;
        read_in_turn(&mut turn, &self.endpoint, deadline.as_ref(), take)
    }

    /// Reads like [`read_with`](Self::read_with). Needs no turn, because this is the only handle.
    fn read_alone<T>(&mut self, take: impl FnOnce(&mut Reading, &Endpoint) -> T) -> io::Result<T> {
        let deadline = self.deadline(&self.read_timeout);
        let reading = self.turns.get_mut();
        read_in_turn(reading, &self.endpoint, deadline.as_ref(), take)
    }

    /// Writes the bytes of these parts, in order. Returns the number of bytes written.
    fn write(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        if parts.iter().all(|part| part.is_empty()) {
            return Ok(0);
        }
        let deadline = self.deadline(&self.write_timeout);
        let write = |parts: &[IoSlice<'_>]| match &deadline {
            Some(deadline) => self.endpoint.write_bytes(parts, deadline),
            None => self.endpoint.try_write_bytes(parts).map_err(Error::from),
        };
        let mut written = write(parts).map_err(write_error)?;
        let len = total(parts);
        if written < len {
            // Like a write to a socket, this write fails only if it has accepted no bytes.
            let mut parts = parts.to_vec();
            let mut rest = &mut parts[..];
            IoSlice::advance_slices(&mut rest, written);
            while written < len
                && let Ok(more) = write(rest)
            {
                written += more;
                IoSlice::advance_slices(&mut rest, more);
            }
        }
        Ok(written)
    }
}

/// Waits for bytes or the end of the stream. Then calls `take`, and returns its result. The caller
/// must have the turn or the only handle.
fn read_in_turn<T>(
    reading: &mut Reading,
    endpoint: &StreamEnd,
    deadline: Option<&Deadline>,
    take: impl FnOnce(&mut Reading, &Endpoint) -> T,
) -> io::Result<T> {
    reading
        .fill(endpoint, endpoint.stopped(), deadline)
        .map_err(read_error)?;
    let taken = take(reading, endpoint);
    reading.announce(endpoint);
    Ok(taken)
}

pub(crate) fn write_error(error: Error) -> io::Error {
    match error {
        Error::TimedOut | Error::WindowFull => io::ErrorKind::WouldBlock.into(),
        Error::Disconnected(ref reason) if reason.is_clean() => {
            io::Error::new(io::ErrorKind::BrokenPipe, error)
        }
        error => error.into(),
    }
}

pub(crate) fn read_error(error: Error) -> io::Error {
    match error {
        Error::TimedOut => io::ErrorKind::WouldBlock.into(),
        error => error.into(),
    }
}

impl From<Endpoint> for Stream {
    /// Converts an endpoint into a stream. The peer must also convert its endpoint.
    ///
    /// Do not use other handles to the endpoint afterwards: messages that they receive would be
    /// missing in the stream, and messages that they send would be mixed into it.
    fn from(endpoint: Endpoint) -> Self {
        endpoint.carry_bytes();
        Self::from_parts(StreamEnd::new(endpoint), Turns::default(), false)
    }
}

/// Functions for conversions between tokio streams and synchronous streams.
impl Stream {
    pub(crate) fn from_parts(endpoint: StreamEnd, turns: Turns, nonblocking: bool) -> Self {
        Self {
            shared: Local::new(Arc::new(Shared {
                endpoint,
                turns,
                nonblocking: AtomicBool::new(nonblocking),
                read_timeout: Timeout::default(),
                write_timeout: Timeout::default(),
            })),
            unread_copy: Vec::new(),
        }
    }

    /// Returns the parts of the stream. Fails if there is another handle.
    #[cfg(feature = "tokio")]
    pub(crate) fn into_parts(self) -> io::Result<(StreamEnd, Turns)> {
        if self.shared.is_inherited() {
            return Err(Error::Forked.into());
        }
        let shared = self.shared.into_inner().ok_or_else(is_shared)?;
        Ok((shared.endpoint, shared.turns))
    }
}

/// Returns the error of a conversion to a tokio type while there is another handle.
#[cfg(feature = "tokio")]
pub(crate) fn is_shared() -> io::Error {
    let text = "another handle is still in use; drop it before the conversion";
    io::Error::new(io::ErrorKind::ResourceBusy, text)
}

impl Read for &Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        self.shared
            .read_with(|reading, endpoint| reading.read(endpoint, buf))
    }
}

impl Read for Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self.shared.get_mut() {
            Some(alone) if !buf.is_empty() => {
                alone.read_alone(|reading, endpoint| reading.read(endpoint, buf))
            }
            Some(_) | None => (&*self).read(buf),
        }
    }
}

impl BufRead for Stream {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.shared.get_mut().is_none() {
            self.unread_copy.clear();
            let copy = &mut self.unread_copy;
            self.shared
                .read_with(|reading, _| copy.extend_from_slice(reading.bytes()))?;
            return Ok(&self.unread_copy);
        }
        let Some(alone) = self.shared.get_mut() else {
            return Ok(&[]);
        };
        alone.read_alone(|_, _| ())?;
        Ok(alone.turns.get_mut().bytes())
    }

    fn consume(&mut self, count: usize) {
        if let Some(Shared {
            endpoint, turns, ..
        }) = self.shared.get_mut()
        {
            let reading = turns.get_mut();
            reading.consume(count);
            return reading.announce(endpoint);
        }
        // If another handle is waiting for bytes now, that handle has already consumed the bytes
        // that `fill_buf` returned.
        if let Some(mut reading) = self.shared.turns.wait_for_bytes() {
            reading.consume(count);
            reading.announce(&self.shared.endpoint);
        }
    }
}

impl Write for &Stream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.shared.write(&[IoSlice::new(buf)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.shared.write(parts)
    }

    /// Does nothing, because written bytes are sent as soon as the peer's window is not full.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Write for Stream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        (&*self).write(buf)
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        (&*self).write_vectored(parts)
    }

    /// Does nothing, because written bytes are sent as soon as the peer's window is not full.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream")
            .field("endpoint", &self.shared.original().endpoint)
            .finish_non_exhaustive()
    }
}

/// Poll methods for tasks, on any runtime.
///
/// Futures call these methods, which never block. After a method has returned
/// [`Pending`](Poll::Pending), the task is woken when another call may succeed. Only one task at a
/// time can wait to read, and only one can wait to write. If another handle is already waiting to
/// read, that handle reads first. See [`Endpoint::poll_recv`](crate::Endpoint::poll_recv).
impl Stream {
    /// Reads some bytes. Returns 0 at the end of the stream.
    ///
    /// # Errors
    ///
    /// The errors of [`read`](io::Read::read), except for timeouts.
    pub fn poll_read(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        if buf.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let shared = &*self.shared;
        let mut reading = ready!(shared.turns.poll(cx));
        ready!(reading.poll_fill(cx, &shared.endpoint, shared.endpoint.stopped()))
            .map_err(read_error)?;
        let count = reading.read(&shared.endpoint, buf);
        reading.announce(&shared.endpoint);
        Poll::Ready(Ok(count))
    }

    /// Writes some of these bytes. Returns the number of bytes written.
    ///
    /// # Errors
    ///
    /// The errors of [`write`](io::Write::write), except for timeouts.
    pub fn poll_write(&self, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    /// Writes some of the bytes of these parts, in order. Returns the number of bytes written.
    ///
    /// # Errors
    ///
    /// The errors of [`write`](io::Write::write), except for timeouts.
    pub fn poll_write_vectored(
        &self,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if parts.iter().all(|part| part.is_empty()) {
            return Poll::Ready(Ok(0));
        }
        let written = self.shared.endpoint.poll_write_bytes(cx, parts);
        written.map_err(write_error)
    }
}
