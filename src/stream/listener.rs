use std::{
    io, iter,
    net::SocketAddr,
    os::fd::BorrowedFd,
    sync::atomic::{AtomicBool, Ordering},
    task::{Context, Poll, ready},
};

use super::Stream;
use crate::{Listener, TransportKind};

/// Accepts [`Stream`]s on an address, as [`std::net::TcpListener`] does.
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
    listener: Listener,
    nonblocking: AtomicBool,
}

impl StreamListener {
    pub(crate) fn new(listener: Listener) -> Self {
        Self {
            listener,
            nonblocking: AtomicBool::new(false),
        }
    }

    /// Accepts the next stream, with the peer's address.
    ///
    /// # Errors
    ///
    /// Those of [`Listener::accept`], as [`io::Error`]s, and
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) where it may not wait.
    pub fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        let endpoint = if self.nonblocking.load(Ordering::Relaxed) {
            let accepted = self.listener.try_accept()?;
            accepted.ok_or(io::ErrorKind::WouldBlock)?
        } else {
            self.listener.accept()?
        };
        let peer = endpoint.peer_addr();
        Ok((endpoint.into(), peer))
    }

    /// Accepts the next stream, for a task.
    ///
    /// See [`Listener::poll_accept`].
    ///
    /// # Errors
    ///
    /// Those of [`Listener::accept`], as [`io::Error`]s.
    pub fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(Stream, SocketAddr)>> {
        let endpoint = ready!(self.listener.poll_accept(cx))?;
        let peer = endpoint.peer_addr();
        Poll::Ready(Ok((endpoint.into(), peer)))
    }

    /// Returns an iterator over the streams that come in. It ends when the listener does.
    pub fn incoming(&self) -> impl Iterator<Item = io::Result<Stream>> + '_ {
        let mut endpoints = self.listener.incoming();
        iter::from_fn(move || {
            if self.nonblocking.load(Ordering::Relaxed) {
                return Some(self.accept().map(|(stream, _)| stream));
            }
            let endpoint = endpoints.next()?;
            Some(endpoint.map(Stream::from).map_err(io::Error::from))
        })
    }

    /// Sets whether [`accept`](Self::accept) fails with
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) instead of waiting.
    ///
    /// # Errors
    ///
    /// None.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the address that this listens on.
    ///
    /// # Errors
    ///
    /// None.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.listener.local_addr())
    }

    /// Returns the transports over which this listens.
    #[must_use]
    pub fn transports(&self) -> &'static [TransportKind] {
        self.listener.transports()
    }

    /// Returns a file descriptor for event loops, readable while there is a stream to accept.
    ///
    /// See [`Listener::event_fd`].
    ///
    /// # Errors
    ///
    /// Those of [`Listener::event_fd`].
    pub fn event_fd(&self) -> io::Result<BorrowedFd<'_>> {
        Ok(self.listener.event_fd()?)
    }
}
