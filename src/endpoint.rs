use std::{
    fmt,
    net::{SocketAddr, ToSocketAddrs},
    os::fd::BorrowedFd,
    sync::Arc,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, TryRecvError};

use crate::{
    Completion, Connector, Error, Message, TrySendError,
    engine::{Engine, Link},
};

/// An established connection that carries whole messages in both directions, in order.
///
/// Clones are handles of the same connection and may be used by different threads at once. When the last one is dropped the
/// connection is closed in the background, as by [`Endpoint::close`].
///
/// ```no_run
/// # fn main() -> Result<(), rdmsg::Error> {
/// let endpoint = rdmsg::Endpoint::connect("10.8.0.1:7471")?;
/// endpoint.send(b"hello")?;
/// let answer = endpoint.recv()?;
/// println!("{} bytes", answer.len());
/// drop(answer);
/// endpoint.close()
/// # }
/// ```
#[derive(Clone)]
pub struct Endpoint {
    inner: Arc<Inner>,
}

struct Inner {
    link: Arc<Link>,
    /// Here and not in the link: unread messages hold the link, so it must not hold them.
    completions: Receiver<Completion>,
    /// Keeps the engine's thread alive.
    engine: Engine,
    local: Option<SocketAddr>,
}

impl Endpoint {
    pub(crate) fn new(
        link: Arc<Link>,
        completions: Receiver<Completion>,
        engine: Engine,
        local: Option<SocketAddr>,
    ) -> Self {
        Self {
            inner: Arc::new(Inner {
                link,
                completions,
                engine,
                local,
            }),
        }
    }

    /// Connects to a listener of this crate, with the default [`Config`](crate::Config), on the [shared engine](Engine::shared).
    ///
    /// Addresses that a name stands for are tried in turn. For everything else there is [`Connector`].
    ///
    /// # Errors
    ///
    /// [`Error::AddressLookup`] for an unknown name, [`Error::Connect`] with the reason where no connection came about within the
    /// default [`connect_timeout`](crate::Config::connect_timeout), [`Error::NoRdma`] where this machine has no connection manager.
    pub fn connect(address: impl ToSocketAddrs + fmt::Debug) -> Result<Self, Error> {
        Connector::new().connect(address)
    }

    /// As [`Endpoint::connect`], within `timeout` instead of the default.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::connect`].
    pub fn connect_timeout(
        address: impl ToSocketAddrs + fmt::Debug,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let mut connector = Connector::new();
        connector.config.connect_timeout = timeout;
        connector.connect(address)
    }

    /// Sends one message, waiting while the peer's window is full.
    ///
    /// The bytes are copied, so `message` is free again on return. An empty message is a message. The order of messages is kept.
    /// `Ok` says that the message is on its way; that it arrived is known from a successful [`close`](Self::close), or from an answer.
    ///
    /// # Errors
    ///
    /// [`Error::MessageTooLong`] above [`send_limit`](Self::send_limit), [`Error::Disconnected`] when the connection has ended.
    pub fn send(&self, message: &[u8]) -> Result<(), Error> {
        self.send_until(message, None)
    }

    /// As [`send`](Self::send), waiting no longer than `timeout`.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send), and [`Error::TimedOut`] when the window stayed full: then nothing was sent.
    pub fn send_timeout(&self, message: &[u8], timeout: Duration) -> Result<(), Error> {
        self.send_until(message, deadline(timeout))
    }

    /// As [`send`](Self::send), without waiting.
    ///
    /// # Errors
    ///
    /// [`TrySendError::Full`] when the peer's window is full, [`TrySendError::Failed`] with what [`send`](Self::send) would return.
    pub fn try_send(&self, message: &[u8]) -> Result<(), TrySendError> {
        let link = &self.inner.link;
        let mut told = link.take_room();
        let mut result = link.try_send(message);
        if let Err(TrySendError::Full) = result {
            // What makes room may have arrived already, and nobody may have looked.
            link.look();
            link.want_room();
            result = link.try_send(message);
            if !matches!(result, Err(TrySendError::Full)) {
                link.need_no_room();
                told |= link.take_room();
            }
        }
        if told {
            self.show();
        }
        result
    }

    fn send_until(&self, message: &[u8], deadline: Option<Instant>) -> Result<(), Error> {
        let sent =
            self.inner
                .link
                .wait_until(deadline, || match self.inner.link.try_send(message) {
                    Ok(()) => Some(Ok(())),
                    Err(TrySendError::Full) => None,
                    Err(TrySendError::Failed(error)) => Some(Err(error)),
                });
        sent.unwrap_or(Err(Error::TimedOut))
    }

    /// Receives the next message, waiting for as long as it takes.
    ///
    /// The waiting thread polls the completion queue itself, as [`Polling`](crate::Polling) says.
    ///
    /// # Errors
    ///
    /// [`Error::Disconnected`] when the connection has ended and all messages were received.
    pub fn recv(&self) -> Result<Message, Error> {
        self.recv_until(None)
    }

    /// As [`recv`](Self::recv), waiting no longer than `timeout`.
    ///
    /// # Errors
    ///
    /// As [`recv`](Self::recv), and [`Error::TimedOut`] when no message came.
    pub fn recv_timeout(&self, timeout: Duration) -> Result<Message, Error> {
        self.recv_until(deadline(timeout))
    }

    /// As [`recv`](Self::recv), without waiting: `None` when there is no message.
    ///
    /// # Errors
    ///
    /// As [`recv`](Self::recv).
    pub fn try_recv(&self) -> Result<Option<Message>, Error> {
        if let Some(received) = self.take() {
            return received.map(Some);
        }
        self.inner.link.poll();
        self.take().transpose()
    }

    fn recv_until(&self, deadline: Option<Instant>) -> Result<Message, Error> {
        self.inner
            .link
            .wait_until(deadline, || self.take())
            .unwrap_or(Err(Error::TimedOut))
    }

    /// Takes the next message from the channel.
    fn take(&self) -> Option<Result<Message, Error>> {
        let taken = self.inner.completions.try_recv();
        self.show();
        match taken {
            Ok(Completion::Received(message)) => Some(Ok(message)),
            Ok(Completion::Disconnected(reason)) => Some(Err(Error::Disconnected(reason))),
            // The end itself may have been taken already, by this or another handle.
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => self
                .inner
                .link
                .ended()
                .filter(|_| self.inner.completions.is_empty())
                .map(|(reason, _)| Err(Error::Disconnected(reason))),
        }
    }

    /// Everything that happens on this connection, as a channel: for [`crossbeam_channel::select!`] over several connections.
    ///
    /// Messages taken here are not returned by [`recv`](Self::recv), and the other way round. While no thread waits in `recv` the
    /// engine's thread feeds the channel; a thread that has just been in `recv` may delay that by some milliseconds.
    #[must_use]
    pub fn completions(&self) -> &Receiver<Completion> {
        &self.inner.completions
    }

    /// A file descriptor for event loops: `epoll`, `poll`, mio, polling, or tokio's `AsyncFd` over a
    /// [`try_clone_to_owned`](BorrowedFd::try_clone_to_owned). It is made when it is first asked for.
    ///
    /// It is readable while [`try_recv`](Self::try_recv) has something to return: a message, or the connection's end, and that for
    /// good. When [`try_send`](Self::try_send) was refused as [full](TrySendError::Full), it is readable as well from when there is room
    /// until the next `try_send`, by whichever thread. It is level-triggered: register it for reading, never read or write it, and
    /// after an event call `try_recv` until there is nothing. Handles that are clones have one fd between them, which is closed with
    /// the connection's last handle and message.
    ///
    /// What is taken from [`completions`](Self::completions) is not seen here at once: the fd may stay readable until the next
    /// `try_recv`. Once the fd was asked for, the engine's thread polls this connection at all times, so that the fd is never late.
    ///
    /// # Errors
    ///
    /// [`Error::Os`] when the process has no file descriptor left.
    pub fn event_fd(&self) -> Result<BorrowedFd<'_>, Error> {
        self.inner.link.event_fd().map_err(Error::from_os)
    }

    /// Has the fd show whether there is anything to take.
    fn show(&self) {
        self.inner.link.show(|| !self.inner.completions.is_empty());
    }

    /// Closes the connection and waits until that is done, at most [`close_timeout`](crate::Config::close_timeout) and some.
    ///
    /// Sends of other threads fail from now on. What was sent before is delivered, the peer is told, and its answer awaited. The
    /// peer receives all messages, then [`CloseReason::PeerClosed`](crate::CloseReason::PeerClosed). Messages that arrived here can still be received.
    ///
    /// `Ok` says that everything is with the peer's library and that the peer has answered. Whether its application reads it is the
    /// application's to say: one that drops its endpoint with messages unread drops those.
    ///
    /// # Errors
    ///
    /// [`Error::Undelivered`] when it is not known that everything that was sent arrived, with the reason for which the
    /// connection ended.
    pub fn close(&self) -> Result<(), Error> {
        self.inner.link.close();
        match self.inner.link.wait_until(None, || self.inner.link.ended()) {
            Ok((_, true)) => Ok(()),
            Ok((reason, false)) => Err(Error::Undelivered(reason)),
            // Without a deadline it cannot time out.
            Err(_) => Err(Error::TimedOut),
        }
    }

    /// Ends the connection at once. What was sent and has not arrived is lost. The peer sees
    /// [`CloseReason::PeerAborted`](crate::CloseReason::PeerAborted) with `code`, if the notice reaches it.
    pub fn abort(&self, code: u32) {
        self.inner.link.abort(code);
    }

    /// The largest message in bytes that can be sent: the smaller of the peer's and this side's
    /// [`eager_size`](crate::Config::eager_size). 0 when the connection has ended.
    #[must_use]
    pub fn send_limit(&self) -> u64 {
        self.inner.link.send_limit()
    }

    /// What the two sides told each other when the connection was established.
    #[must_use]
    pub fn negotiated(&self) -> Option<crate::Negotiated> {
        self.inner.link.negotiated()
    }

    /// The private data that the peer's program gave: with its connect request, or with its acceptance.
    #[must_use]
    pub fn peer_data(&self) -> Vec<u8> {
        self.inner.link.peer_data()
    }

    /// The peer's address.
    #[must_use]
    pub fn peer_addr(&self) -> SocketAddr {
        self.inner.link.peer_addr()
    }

    /// This side's address.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.inner.local
    }

    /// The engine that serves this connection.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.inner.engine
    }
}

/// The end of a wait that begins now. A time beyond what the clock can say is for ever.
fn deadline(timeout: Duration) -> Option<Instant> {
    Instant::now().checked_add(timeout)
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("link", &self.inner.link)
            .field("local", &self.inner.local)
            .finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.link.abandon();
    }
}
