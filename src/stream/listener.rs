use std::{
    io, iter,
    net::SocketAddr,
    os::fd::BorrowedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
};

use super::{Stream, options::ListenerTtl};
use crate::{endpoint::Endpoint, listener::Listener, transport_choice::Transport};

/// A listener that accepts [`Stream`]s on an address, like [`std::net::TcpListener`].
///
/// # Examples
///
/// ```no_run
/// use std::io::{Read, Write};
///
/// # fn main() -> std::io::Result<()> {
/// let listener = rdmsg::StreamListener::bind("0.0.0.0:7471")?;
/// loop {
///     let (mut stream, peer) = listener.accept()?;
///     println!("connected to {peer}");
///     std::thread::spawn(move || std::io::copy(&mut stream.try_clone()?, &mut stream));
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct StreamListener {
    shared: Arc<Shared>,
}

/// The state that all handles to a listener share.
#[derive(Debug)]
struct Shared {
    listener: Listener,
    nonblocking: AtomicBool,
    ttl: ListenerTtl,
}

impl StreamListener {
    pub(crate) fn new(listener: Listener) -> Self {
        Self::from_parts(listener, ListenerTtl::default(), false)
    }

    pub(crate) fn from_parts(listener: Listener, ttl: ListenerTtl, nonblocking: bool) -> Self {
        Self {
            shared: Arc::new(Shared {
                listener,
                nonblocking: AtomicBool::new(nonblocking),
                ttl,
            }),
        }
    }

    /// Returns the parts of the listener. Fails if there is another handle.
    #[cfg(feature = "tokio")]
    pub(crate) fn into_parts(self) -> io::Result<(Listener, ListenerTtl)> {
        let shared = Arc::into_inner(self.shared).ok_or_else(super::is_shared)?;
        Ok((shared.listener, shared.ttl))
    }

    /// Returns another handle to the same listener.
    ///
    /// All handles share the non-blocking mode and the time to live. The listener closes when its
    /// last handle is dropped.
    ///
    /// # Errors
    ///
    /// Never fails. It returns a `Result` for compatibility with
    /// [`TcpListener::try_clone`](std::net::TcpListener::try_clone).
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            shared: Arc::clone(&self.shared),
        })
    }

    /// Accepts the next stream. Also returns the peer's address.
    ///
    /// # Errors
    ///
    /// * The errors of [`Listener::accept`], as [`io::Error`]s.
    /// * [`WouldBlock`](io::ErrorKind::WouldBlock) in non-blocking mode when there is no stream to
    ///   accept.
    pub fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        let endpoint = if self.shared.nonblocking.load(Ordering::Relaxed) {
            let accepted = self.shared.listener.try_accept()?;
            accepted.ok_or(io::ErrorKind::WouldBlock)?
        } else {
            self.shared.listener.accept()?
        };
        Ok(self.shared.stream(endpoint))
    }

    /// Accepts the next stream, for a task. Also returns the peer's address.
    ///
    /// See [`Listener::poll_accept`].
    ///
    /// # Errors
    ///
    /// The errors of [`Listener::accept`], as [`io::Error`]s.
    pub fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(Stream, SocketAddr)>> {
        let endpoint = ready!(self.shared.listener.poll_accept(cx))?;
        Poll::Ready(Ok(self.shared.stream(endpoint)))
    }

    /// Returns an iterator that accepts streams.
    ///
    /// The iterator waits for each stream, and ends when the listener ends. In non-blocking mode
    /// the iterator returns the results of [`accept`](Self::accept), including the errors, and
    /// never ends.
    pub fn incoming(&self) -> impl Iterator<Item = io::Result<Stream>> + '_ {
        let mut endpoints = self.shared.listener.incoming();
        iter::from_fn(move || {
            if self.shared.nonblocking.load(Ordering::Relaxed) {
                return Some(self.accept().map(|(stream, _)| stream));
            }
            let endpoint = endpoints.next()?;
            let stream = endpoint.map(|endpoint| self.shared.stream(endpoint).0);
            Some(stream.map_err(io::Error::from))
        })
    }

    /// Sets the non-blocking mode. In this mode, [`accept`](Self::accept) fails with
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) instead of waiting.
    ///
    /// # Errors
    ///
    /// Never fails. It returns a `Result` for compatibility with `TcpListener`.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.shared
            .nonblocking
            .store(nonblocking, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the error that ended the listener. Returns `None` if the listener is open or was
    /// closed by the program.
    ///
    /// # Errors
    ///
    /// Never fails. It returns a `Result` for compatibility with `TcpListener`.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        Ok(self.shared.listener.end().map(io::Error::from))
    }

    /// Returns the time to live set by [`set_ttl`](Self::set_ttl), or the system default.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](io::ErrorKind::Unsupported) if the listener accepts no TCP connections.
    pub fn ttl(&self) -> io::Result<u32> {
        self.shared.ttl.get(&self.shared.listener)
    }

    /// Sets the [time to live](Stream::set_ttl), from 1 to 255 hops. It applies to streams over TCP
    /// that are accepted later. Streams over other transports are not affected.
    ///
    /// # Errors
    ///
    /// * [`InvalidInput`](io::ErrorKind::InvalidInput) if `ttl` is not in the range 1 to 255.
    /// * [`Unsupported`](io::ErrorKind::Unsupported) if the listener accepts no TCP connections.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.shared.ttl.set(ttl, &self.shared.listener)
    }

    /// Returns the address of the listener.
    ///
    /// # Errors
    ///
    /// Never fails. It returns a `Result` for compatibility with `TcpListener`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.shared.listener.local_addr())
    }

    /// Returns the transports over which the listener accepts streams.
    #[must_use]
    pub fn transports(&self) -> &'static [Transport] {
        self.shared.listener.transports()
    }

    /// Returns a file descriptor for event loops. It is readable while there is a stream to accept.
    ///
    /// See [`Listener::event_fd`].
    ///
    /// # Errors
    ///
    /// The errors of [`Listener::event_fd`].
    pub fn event_fd(&self) -> io::Result<BorrowedFd<'_>> {
        Ok(self.shared.listener.event_fd()?)
    }
}

impl Shared {
    fn stream(&self, accepted: Endpoint) -> (Stream, SocketAddr) {
        self.ttl.apply(&accepted);
        let peer = accepted.peer_addr();
        (accepted.into(), peer)
    }
}
