use std::{
    collections::VecDeque,
    fmt,
    io::IoSlice,
    net::SocketAddr,
    os::fd::BorrowedFd,
    slice,
    sync::{Arc, Mutex, atomic::Ordering},
    time::Duration,
};

use crossbeam_channel::{Receiver, TryRecvError};

pub use self::owned::NotSent;
use crate::{
    CloseReason, Completion, DeviceCounters, Error, Interest, Message, Statistics, TrySendError,
    engine::{Engine, Established},
    link::{Deadline, Ended, Handoff, Outgoing, Owner},
    sync::lock,
};

/// An established connection that carries whole messages in both directions, in order.
///
/// Clones are handles of the same connection and may be used by different threads at once. When the
/// last one is dropped the connection is closed in the background, as by [`Endpoint::close`]. A
/// process that ends normally waits for that, and closes what is still open: see [the crate's
/// documentation](crate#when-the-process-ends).
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
    link: Owner,
    /// Here and not in the link: unread messages hold the link, so it must not hold them.
    completions: Receiver<Completion>,
    /// Completions that a `recv` came across. They are for `next_completion`.
    aside: Mutex<VecDeque<Completion>>,
    /// Keeps the engine's thread alive.
    engine: Engine,
    local: Option<SocketAddr>,
}

impl Endpoint {
    pub(crate) fn new(established: Established, engine: Engine) -> Self {
        let Established {
            link,
            completions,
            local,
        } = established;
        Self {
            inner: Arc::new(Inner {
                link,
                completions,
                aside: Mutex::new(VecDeque::new()),
                engine,
                local,
            }),
        }
    }

    /// Sends one message, waiting while the peer's window is full.
    ///
    /// The bytes are copied, so `message` is free again on return. An empty message is a message.
    /// The order of messages is kept. `Ok` says that the message is on its way; that it arrived is
    /// known from [`flush`](Self::flush), from a successful [`close`](Self::close), from
    /// [`send_with_id`](Self::send_with_id), or from an answer.
    ///
    /// Up to the eager size ([`Negotiated::send_eager`](crate::Negotiated::send_eager)) a message
    /// goes right into a buffer that waits for it. A longer one is read by the peer's library from
    /// this side's memory, while its program may be doing something else; of those at most 4, and
    /// [`Config::large_memory`](crate::Config::large_memory) bytes, are on their way at a time, and
    /// `send` waits for the rest. To save the copy of a long message use
    /// [`send_owned`](Self::send_owned).
    ///
    /// # Errors
    ///
    /// [`Error::MessageTooLong`] above [`send_limit`](Self::send_limit), [`Error::Disconnected`]
    /// when the connection has ended, [`Error::LockedMemory`] when the memory of a long message
    /// cannot be locked.
    pub fn send(&self, message: &[u8]) -> Result<(), Error> {
        self.send_vectored(slice::from_ref(&IoSlice::new(message)))
    }

    /// As [`send`](Self::send), of one message made of several parts, one after the other.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    pub fn send_vectored(&self, parts: &[IoSlice<'_>]) -> Result<(), Error> {
        self.send_until(&mut Outgoing::new(parts, None), &Deadline::never())
    }

    /// As [`send`](Self::send), and [`Completion::Sent`] with this `id` tells when the message has
    /// arrived, with all that were sent before it, or [`Completion::Failed`] that this is not
    /// known. It comes in the order of sending: not before the peer's library has read every
    /// message above the eager size that was sent before this one.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send), and [`Error::CompletionsNotTaken`]. After an error no completion
    /// comes.
    pub fn send_with_id(&self, message: &[u8], id: u64) -> Result<(), Error> {
        let parts = [IoSlice::new(message)];
        self.send_until(&mut Outgoing::new(&parts, Some(id)), &Deadline::never())
    }

    /// As [`send`](Self::send), waiting no longer than `timeout`.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send), and [`Error::TimedOut`] when the window stayed full: then nothing
    /// was sent.
    pub fn send_timeout(&self, message: &[u8], timeout: Duration) -> Result<(), Error> {
        let parts = [IoSlice::new(message)];
        self.send_until(&mut Outgoing::new(&parts, None), &Deadline::after(timeout))
    }

    /// As [`send`](Self::send), without waiting.
    ///
    /// # Errors
    ///
    /// [`TrySendError::Full`] when the peer's window is full, [`TrySendError::Failed`] with what
    /// [`send`](Self::send) would return.
    pub fn try_send(&self, message: &[u8]) -> Result<(), TrySendError> {
        let parts = [IoSlice::new(message)];
        let mut outgoing = Outgoing::new(&parts, None);
        let link = &self.inner.link;
        let mut result = link.try_send(&mut outgoing);
        if let Err(TrySendError::Full) = result {
            // What makes room may have arrived already, and nobody may have looked.
            link.poll_once();
            link.want_room();
            result = link.try_send(&mut outgoing);
            if !matches!(result, Err(TrySendError::Full)) {
                link.need_no_room();
            }
        }
        result
    }

    fn send_until(&self, message: &mut Outgoing<'_>, deadline: &Deadline) -> Result<(), Error> {
        let link = &self.inner.link;
        match link.try_send(message) {
            Ok(()) => Ok(()),
            Err(TrySendError::Failed(error)) => Err(error),
            Err(TrySendError::Full) => self.wait_for_room(deadline, || link.try_send(message)),
        }
    }

    /// Tries again and again, until it works, cannot work, or the time is over.
    fn wait_for_room(
        &self,
        deadline: &Deadline,
        mut attempt: impl FnMut() -> Result<(), TrySendError>,
    ) -> Result<(), Error> {
        let done = self
            .inner
            .link
            .wait_until(deadline, None, || match attempt() {
                Ok(()) => Some(Ok(())),
                Err(TrySendError::Full) => None,
                Err(TrySendError::Failed(error)) => Some(Err(error)),
            });
        done.unwrap_or(Err(Error::TimedOut))
    }

    /// Waits until everything that was sent so far on this connection has arrived at the peer's
    /// library, and one-sided operations are done. Whether the peer's program has looked at it is
    /// another matter.
    ///
    /// It takes one exchange with the peer, and as long as the peer takes to read messages above
    /// the eager size.
    ///
    /// # Errors
    ///
    /// [`Error::Disconnected`] when the connection has ended: then it is not known what arrived.
    pub fn flush(&self) -> Result<(), Error> {
        self.flush_until(&Deadline::never())
    }

    /// As [`flush`](Self::flush), waiting no longer than `timeout`.
    ///
    /// # Errors
    ///
    /// As [`flush`](Self::flush), and [`Error::TimedOut`].
    pub fn flush_timeout(&self, timeout: Duration) -> Result<(), Error> {
        self.flush_until(&Deadline::after(timeout))
    }

    fn flush_until(&self, deadline: &Deadline) -> Result<(), Error> {
        let link = &self.inner.link;
        let flush = link.flush()?;
        link.wait_until(deadline, None, || link.is_flushed(&flush))
            .unwrap_or(Err(Error::TimedOut))
    }

    /// Receives the next message, waiting for as long as it takes.
    ///
    /// The waiting thread polls the completion queue itself, as [`Polling`](crate::Polling) says.
    ///
    /// # Errors
    ///
    /// [`Error::Disconnected`] when the connection has ended and all messages were received.
    pub fn recv(&self) -> Result<Message, Error> {
        self.recv_until(&Deadline::never())
    }

    /// As [`recv`](Self::recv), waiting no longer than `timeout`.
    ///
    /// # Errors
    ///
    /// As [`recv`](Self::recv), and [`Error::TimedOut`] when no message came.
    pub fn recv_timeout(&self, timeout: Duration) -> Result<Message, Error> {
        self.recv_until(&Deadline::after(timeout))
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
        self.inner.link.poll_again();
        self.take().transpose()
    }

    fn recv_until(&self, deadline: &Deadline) -> Result<Message, Error> {
        let handoff = Handoff::default();
        self.inner
            .link
            .wait_until(deadline, Some(&handoff), || {
                handoff.take().map(Ok).or_else(|| self.take())
            })
            .unwrap_or(Err(Error::TimedOut))
    }

    /// Takes the next message from the channel, and puts aside what comes before it.
    fn take(&self) -> Option<Result<Message, Error>> {
        let taken = loop {
            // What a waiting thread finds most of the time.
            if self.inner.completions.is_empty() {
                break self.take_end();
            }
            match self.inner.completions.try_recv() {
                Ok(Completion::Received(message)) => break Some(Ok(message)),
                Ok(Completion::Disconnected(reason)) => {
                    break Some(Err(Error::Disconnected(reason)));
                }
                Ok(other) => {
                    self.inner.link.set_aside.fetch_add(1, Ordering::Relaxed);
                    self.aside().push_back(other);
                }
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => break self.take_end(),
            }
        };
        self.update_readiness();
        taken
    }

    /// The end, which this or another handle may have taken from the channel already.
    fn take_end<T>(&self) -> Option<Result<T, Error>> {
        self.inner
            .link
            .ended()
            .filter(|_| self.inner.completions.is_empty())
            .map(|ended| Err(Error::Disconnected(ended.reason)))
    }

    fn aside(&self) -> std::sync::MutexGuard<'_, VecDeque<Completion>> {
        lock(&self.inner.aside)
    }

    /// Takes whatever happened next on this connection, messages and all else, waiting for as long
    /// as it takes. The waiting thread polls the completion queue itself, as in
    /// [`recv`](Self::recv).
    ///
    /// # Errors
    ///
    /// [`Error::Disconnected`] when [`Completion::Disconnected`] was taken before.
    pub fn next_completion(&self) -> Result<Completion, Error> {
        self.next_until(&Deadline::never())
    }

    /// As [`next_completion`](Self::next_completion), waiting no longer than `timeout`.
    ///
    /// # Errors
    ///
    /// As [`next_completion`](Self::next_completion), and [`Error::TimedOut`] when nothing
    /// happened.
    pub fn next_completion_timeout(&self, timeout: Duration) -> Result<Completion, Error> {
        self.next_until(&Deadline::after(timeout))
    }

    /// As [`next_completion`](Self::next_completion), without waiting: `None` when nothing
    /// happened.
    ///
    /// # Errors
    ///
    /// As [`next_completion`](Self::next_completion).
    pub fn try_next_completion(&self) -> Result<Option<Completion>, Error> {
        if let Some(completion) = self.take_any() {
            return completion.map(Some);
        }
        self.inner.link.poll_again();
        self.take_any().transpose()
    }

    fn next_until(&self, deadline: &Deadline) -> Result<Completion, Error> {
        self.inner
            .link
            .wait_until(deadline, None, || self.take_any())
            .unwrap_or(Err(Error::TimedOut))
    }

    fn take_any(&self) -> Option<Result<Completion, Error>> {
        let taken = match self.take_aside() {
            Some(completion) => Some(Ok(completion)),
            None => match self.inner.completions.try_recv() {
                Ok(completion) => Some(Ok(completion)),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => self.take_end(),
            },
        };
        self.update_readiness();
        taken
    }

    fn take_aside(&self) -> Option<Completion> {
        if self.inner.link.set_aside.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let completion = self.aside().pop_front()?;
        self.inner.link.set_aside.fetch_sub(1, Ordering::Relaxed);
        Some(completion)
    }

    /// Everything that happens on this connection, as a channel: for [`crossbeam_channel::select!`]
    /// over several connections.
    ///
    /// What is taken here is not returned by [`recv`](Self::recv) or
    /// [`next_completion`](Self::next_completion), and the other way round: completions that a
    /// `recv` comes across while it looks for a message are kept for `next_completion`. While no
    /// thread waits in `recv` the engine's thread feeds the channel; a thread that has just been in
    /// `recv` may delay that by some milliseconds.
    #[must_use]
    pub fn completions(&self) -> &Receiver<Completion> {
        &self.inner.completions
    }

    /// A file descriptor for event loops: `epoll`, `poll`, mio, polling, or tokio's `AsyncFd` over
    /// a [`try_clone_to_owned`](BorrowedFd::try_clone_to_owned). There is one for each
    /// [`Interest`], made when it is first asked for. Whichever it is, register it for *reading*,
    /// and never read or write it.
    ///
    /// * [`Interest::Readable`]: while [`try_next_completion`](Self::try_next_completion) has
    ///   something to return: a message, another completion, or the connection's end, and that for
    ///   good. Programs that ask for no other completions may call [`try_recv`](Self::try_recv)
    ///   instead.
    /// * [`Interest::Writable`]: from the beginning until a [`try_send`](Self::try_send) is refused
    ///   as [full](TrySendError::Full), again from when there is room until the next one is
    ///   refused, and for good from the end on. It is readable nearly all the time, so a
    ///   level-triggered loop watches it only while it has something to send, as with a socket.
    ///
    /// Both are for level-triggered loops, and for edge-triggered ones: each arrival, and each time
    /// that there is room for a send that was refused, is a new edge. An edge-triggered loop calls
    /// `try_next_completion` or `try_recv` until there is nothing, and `try_send` until it is
    /// refused or there is nothing to send, before it waits. With `AsyncFd` have one for each
    /// interest; nothing and full are what `try_io` is told as
    /// [`WouldBlock`](std::io::ErrorKind::WouldBlock).
    ///
    /// Handles that are clones have these fds between them. They are closed with the connection's
    /// last handle and message.
    ///
    /// What is taken from [`completions`](Self::completions) is not seen here at once: the fd may
    /// stay readable until the next `try_next_completion` or `try_recv`. Once an fd was asked for,
    /// the engine's thread polls this connection at all times, so that the fd is never late.
    ///
    /// # Errors
    ///
    /// [`Error::Os`] when the process has no file descriptor left.
    pub fn event_fd(&self, interest: Interest) -> Result<BorrowedFd<'_>, Error> {
        self.inner.link.event_fd(interest).map_err(Error::from_os)
    }

    /// Makes the fd readable if there is anything to take.
    fn update_readiness(&self) {
        self.inner
            .link
            .update_readiness(|| !self.inner.completions.is_empty());
    }

    /// Closes the connection and waits until that is done, at most
    /// [`close_timeout`](crate::Config::close_timeout) and some.
    ///
    /// Sends of other threads fail from now on. What was sent before is delivered, the peer is
    /// told, and its answer awaited. The peer receives all messages, then
    /// [`CloseReason::PeerClosed`]. Messages that arrived here can still be received.
    ///
    /// `Ok` says that everything is with the peer's library and that the peer has answered. Whether
    /// its application reads it is the application's to say: one that drops its endpoint with
    /// messages unread drops those.
    ///
    /// # Errors
    ///
    /// [`Error::Undelivered`] when it is not known that everything that was sent arrived, with the
    /// reason for which the connection ended; [`Error::Disconnected`] with
    /// [`CloseReason::Truncated`] when everything that was sent arrived, but the peer left before
    /// all that it had sent could be read.
    pub fn close(&self) -> Result<(), Error> {
        self.inner.link.close();
        match self
            .inner
            .link
            .wait_until(&Deadline::never(), None, || self.inner.link.ended())
        {
            // What was sent from here arrived, but what came from there is not complete.
            Ok(Ended {
                reason: reason @ CloseReason::Truncated { .. },
                delivered: true,
            }) => Err(Error::Disconnected(reason)),
            Ok(ended) if ended.delivered => Ok(()),
            Ok(ended) => Err(Error::Undelivered(ended.reason)),
            // Without a deadline it cannot time out.
            Err(_) => Err(Error::TimedOut),
        }
    }

    /// Ends the connection at once. What was sent and has not arrived is lost. The peer sees
    /// [`CloseReason::PeerAborted`] with `code`, if the notice reaches it.
    pub fn abort(&self, code: u32) {
        self.inner.link.abort(code);
    }

    /// The largest message in bytes that can be sent: the peer's
    /// [`max_message`](crate::Config::max_message). 0 when the connection has ended.
    #[must_use]
    pub fn send_limit(&self) -> u64 {
        self.inner.link.send_limit()
    }

    /// What has gone through this connection, and what it holds now.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.inner.link.statistics()
    }

    /// What the device of this connection counts of all its connections: for telling a network that
    /// loses packets. It reads the kernel's files, so it is not for every message.
    #[must_use]
    pub fn device_counters(&self) -> DeviceCounters {
        self.inner.link.device_counters()
    }

    /// What the two sides told each other when the connection was established.
    #[must_use]
    pub fn negotiated(&self) -> Option<crate::Negotiated> {
        self.inner.link.negotiated()
    }

    /// The private data that the peer's program gave: with its connect request, or with its
    /// acceptance.
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

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("link", &*self.inner.link)
            .field("local", &self.inner.local)
            .finish_non_exhaustive()
    }
}

// At the end, so that the documentation begins with what most programs use.
mod one_sided;
mod owned;
