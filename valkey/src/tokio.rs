//! Streams for tasks on a tokio runtime.
//!
//! ```no_run
//! use rdmsg_valkey::tokio::Stream;
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//!
//! # async fn f() -> std::io::Result<()> {
//! let address = "10.8.0.1:6379".parse().unwrap();
//! let mut stream = Stream::connect(address).await?;
//! stream.write_all(b"PING\r\n").await?;
//! let mut reply = [0; 7];
//! stream.read_exact(&mut reply).await?;
//! # Ok(())
//! # }
//! ```
//!
//! Redis clients that accept any asynchronous stream can use this stream, for example
//! `redis::aio::MultiplexedConnection::new`.

use std::{
    future::poll_fn,
    io, mem,
    net::SocketAddr,
    os::fd::{AsFd, AsRawFd, RawFd},
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Wake, Waker, ready},
    thread,
};

use rdma_verbs::{cm::EventChannel, verbs::CompletionChannel};
use rdmsg_os::lock;
use tokio::{
    io::{AsyncRead, AsyncWrite, Interest, ReadBuf, unix::AsyncFd},
    time::timeout,
};

use crate::{
    Config,
    connection::Connection,
    link::{Link, Opening},
};

/// A connection to a Valkey server or client, for tasks.
///
/// The stream implements [`AsyncRead`] and [`AsyncWrite`]. After `tokio::io::split`, two tasks can
/// use the two halves concurrently. `shutdown` waits until all written bytes have arrived, then
/// closes the connection. If the stream is dropped without `shutdown`, another thread waits up to
/// [`Config::linger`] for the written bytes to arrive, then closes the connection.
#[derive(Debug)]
pub struct Stream {
    /// `None` only while the stream is being dropped.
    connection: Option<Connection>,
    done: AsyncFd<Watched<CompletionChannel>>,
    events: AsyncFd<Watched<EventChannel>>,
    tasks: Arc<Tasks>,
}

/// A channel whose descriptor the runtime watches.
#[derive(Debug)]
struct Watched<T>(T);

/// A channel of `rdma-verbs`, whose descriptor does not change while the channel exists.
trait Channel: AsFd {}

impl Channel for CompletionChannel {}
impl Channel for EventChannel {}

impl<T: Channel> AsRawFd for Watched<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// The wakers of the task that waits to read and of the task that waits to write. The runtime
/// stores only one waker per descriptor, and that waker wakes both tasks.
#[derive(Debug, Default)]
struct Tasks(Mutex<[Option<Waker>; 2]>);

const READER: usize = 0;
const WRITER: usize = 1;

impl Tasks {
    /// Replaces a waker. Drops the previous one without the lock, because that can run foreign
    /// code.
    fn set(&self, task: usize, waker: Option<Waker>) {
        let previous = mem::replace(&mut lock(&self.0)[task], waker);
        drop(previous);
    }
}

impl Wake for Tasks {
    fn wake(self: Arc<Self>) {
        let tasks = lock(&self.0).each_mut().map(Option::take);
        tasks.into_iter().flatten().for_each(Waker::wake);
    }
}

#[allow(unsafe_code)]
fn watch<T: Channel>(channel: T) -> io::Result<AsyncFd<Watched<T>>> {
    // SAFETY: the registered value owns its channel. `rdma-verbs` keeps the channel's descriptor
    // open and unchanged until the value is dropped.
    let watched = unsafe { AsyncFd::register_with_interest(Watched(channel), Interest::READABLE) };
    watched.map_err(Into::into)
}

impl Stream {
    /// Connects to an address.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Stream::connect`](crate::Stream::connect) for this address.
    ///
    /// # Panics
    ///
    /// Panics if the future is polled outside of a tokio runtime with I/O and time enabled.
    pub async fn connect(address: SocketAddr) -> io::Result<Self> {
        Self::connect_with(address, &Config::default()).await
    }

    /// Connects as [`connect`](Self::connect) does, with a configuration.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`connect`](Self::connect), and `InvalidInput` if the configuration is
    /// invalid.
    ///
    /// # Panics
    ///
    /// Panics in the same case as [`connect`](Self::connect).
    pub async fn connect_with(address: SocketAddr, config: &Config) -> io::Result<Self> {
        let connect = Self::connect_without_limit(address, config);
        timeout(config.connect_timeout, connect).await?
    }

    async fn connect_without_limit(address: SocketAddr, config: &Config) -> io::Result<Self> {
        let mut opening = Opening::new(address, config)?;
        let events = watch(opening.events().clone())?;
        loop {
            if let Some(event) = opening.events().poll_event()? {
                if opening.step(&event)? {
                    break;
                }
                continue;
            }
            let mut ready = events.readable().await?;
            // Clear the readiness before the poll below. Then an event that arrives after this poll
            // makes the descriptor ready again.
            ready.clear_ready();
            if let Some(event) = opening.events().poll_event()?
                && opening.step(&event)?
            {
                break;
            }
        }
        // Deregister the descriptor, because the stream registers it again below.
        drop(events);
        let link = opening.connect(config)?;
        let (done, events) = (link.done().clone(), link.events().clone());
        let stream = Self {
            connection: Some(Connection::new(link, config)?),
            done: watch(done)?,
            events: watch(events)?,
            tasks: Arc::default(),
        };
        poll_fn(|context| {
            stream.poll(READER, context, |link| match link.error() {
                Some(error) => Some(Err(error)),
                None => link.is_ready().then_some(Ok(())),
            })
        })
        .await?;
        Ok(stream)
    }

    /// Returns the local address of the connection.
    ///
    /// # Errors
    ///
    /// Returns `AddrNotAvailable` if the connection has no local address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.connection()?.local_addr()
    }

    /// Returns the address of the peer.
    ///
    /// # Errors
    ///
    /// Returns `AddrNotAvailable` if the peer has no address.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.connection()?.peer_addr()
    }

    fn connection(&self) -> io::Result<&Connection> {
        let none = || io::ErrorKind::NotConnected.into();
        self.connection.as_ref().ok_or_else(none)
    }

    /// Calls `ready` for the reading or the writing task. If `ready` returns `None`, returns
    /// `Pending`, and the next completion or connection-manager event wakes the task.
    fn poll<T>(
        &self,
        task: usize,
        context: &mut Context<'_>,
        mut ready: impl FnMut(&mut Link) -> Option<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let waiting = &self.connection()?.waiting;
        waiting.check()?;
        // The waker is stored first, because the other task may handle the completion that this
        // task waits for.
        self.tasks.set(task, Some(context.waker().clone()));
        let both = Waker::from(Arc::clone(&self.tasks));
        let mut both = Context::from_waker(&both);
        loop {
            // Request an event, then poll the queue, then sleep. In another order, this task could
            // miss a completion.
            let (value, progress) = waiting.with(|link| {
                let first = link.progress(false);
                if let Some(value) = ready(link) {
                    return (Some(value), first);
                }
                let armed = link.arm();
                // A consumed event counts as progress, even if the queue was empty: the keepalive
                // thread may have polled the completion that raised the event.
                let progress = first | link.progress(true) | matches!(armed, Ok(true));
                let value = ready(link).or_else(|| armed.err().map(Err));
                (value, progress)
            });
            if value.is_some() {
                self.tasks.set(task, None);
            }
            if progress {
                // This task may have consumed the event that would have woken the other task.
                // Therefore wake the other task, which may be able to continue.
                let other = lock(&self.tasks.0)[1 - task].take();
                other.into_iter().for_each(Waker::wake);
            }
            if let Some(value) = value {
                return Poll::Ready(value);
            }
            if progress {
                continue;
            }
            match (
                self.done.poll_read_ready(&mut both)?,
                self.events.poll_read_ready(&mut both)?,
            ) {
                (Poll::Pending, Poll::Pending) => return Poll::Pending,
                (done, events) => {
                    // Clear the readiness, because the loop now reads all pending events. Only a
                    // later event makes the descriptor ready again.
                    consume(done);
                    consume(events);
                }
            }
        }
    }

    /// Closes the connection. If written bytes have not arrived yet, starts a thread that waits for
    /// them and then closes the connection. In a forked child, does not close the connection, which
    /// belongs to the parent.
    fn close(&mut self) {
        let Some(connection) = self.connection.take() else {
            return;
        };
        let is_inherited = connection.waiting.check().is_err();
        if is_inherited || connection.waiting.with(|link| link.is_drained()) {
            return;
        }
        // If the thread cannot be started, `spawn` drops the closure. This closes the connection in
        // the current thread.
        let closing = thread::Builder::new().name("valkey-close".into());
        let _ = closing.spawn(move || drop(connection));
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.close();
    }
}

/// Clears the readiness of a descriptor, so that the next poll waits for a new event.
fn consume<T: AsRawFd>(ready: Poll<::tokio::io::unix::AsyncFdReadyGuard<'_, T>>) {
    if let Poll::Ready(mut guard) = ready {
        guard.clear_ready();
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let len = ready!(self.poll(READER, context, |link| {
            link.read(into.initialize_unfilled())
        }))?;
        into.advance(len);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll(WRITER, context, |link| link.write(bytes))
    }

    /// Does nothing, because a write already sends the bytes.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll(WRITER, context, |link| {
            link.is_drained().then(|| {
                link.close();
                Ok(())
            })
        }))?;
        // The reading task must wake up to read the end of the stream.
        Arc::clone(&self.tasks).wake();
        Poll::Ready(Ok(()))
    }
}
