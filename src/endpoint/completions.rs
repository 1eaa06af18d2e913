use std::{
    collections::VecDeque,
    os::fd::BorrowedFd,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use crossbeam_channel::Receiver;

use super::Endpoint;
use crate::{
    error::Error,
    interest::Interest,
    link::{Completion, Deadline, GroupQueue, Handoff},
    os::{Guard, lock},
};

/// Completions, channels, and file descriptors for event loops.
impl Endpoint {
    /// Returns the channel of this connection's completions.
    ///
    /// Use it with [`crossbeam_channel::select!`] over several connections. Each completion is
    /// delivered once: by the channel, by [`recv`](Self::recv), or by
    /// [`next_completion`](Self::next_completion). When `recv` finds completions before a message,
    /// it stores them for `next_completion`, and the channel does not deliver them. So use only one
    /// of the three ways to take completions. While the endpoint is in a [`Group`](crate::Group),
    /// the channel is empty.
    ///
    /// The engine's thread fills the channel while no thread waits in `recv`. For some milliseconds
    /// after a `recv` or `try_recv`, completions may be delayed.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use rdmsg::{Completion, Endpoint, crossbeam_channel::select};
    ///
    /// # fn serve(a: &Endpoint, b: &Endpoint) {
    /// loop {
    ///     let (name, completion) = select! {
    ///         recv(a.completions()) -> completion => ("a", completion),
    ///         recv(b.completions()) -> completion => ("b", completion),
    ///     };
    ///     match completion {
    ///         Ok(Completion::Received(message)) => println!("{name}: {} bytes", message.len()),
    ///         Ok(Completion::Disconnected(reason)) => println!("{name}: {reason}"),
    ///         Ok(_) => {}
    ///         Err(_) => break, // one connection has ended
    ///     }
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn completions(&self) -> &Receiver<Completion> {
        self.inner.link.poller.leave_loop();
        self.inner.link.taker.note_taking_thread();
        self.inner.completions.channel()
    }

    /// Takes the next completion of any kind. Waits for a completion without a time limit.
    ///
    /// Messages are completions, too: [`Completion::Received`]. The waiting thread itself polls the
    /// completion queue, as [`Polling`](crate::Polling) describes.
    ///
    /// # Errors
    ///
    /// [`Error::Disconnected`] after [`Completion::Disconnected`] has been taken.
    pub fn next_completion(&self) -> Result<Completion, Error> {
        self.next_until(&Deadline::never())
    }

    /// Takes the next completion of any kind, waiting no longer than `timeout`.
    ///
    /// # Errors
    ///
    /// * [`Error::TimedOut`] when no completion arrived in time. The connection stays open.
    /// * [`Error::Disconnected`] after [`Completion::Disconnected`] has been taken.
    pub fn next_completion_timeout(&self, timeout: Duration) -> Result<Completion, Error> {
        self.next_until(&Deadline::after(timeout))
    }

    /// Takes the next completion of any kind, without waiting.
    ///
    /// Returns `None` when there is no completion. Polls the completion queue once if no completion
    /// is stored yet.
    ///
    /// # Errors
    ///
    /// [`Error::Disconnected`] after [`Completion::Disconnected`] has been taken.
    pub fn try_next_completion(&self) -> Result<Option<Completion>, Error> {
        let handoff = Handoff::default();
        let received = || handoff.take().map(Completion::Received).map(Ok);
        let look = || received().or_else(|| self.take_any());
        self.inner.link.look(&handoff, look).transpose()
    }

    /// Returns a file descriptor for event loops. Each [`Interest`] has its own file descriptor.
    ///
    /// The fd works with `epoll`, `poll`, the crates mio and polling, and, as a copy from
    /// [`try_clone_to_owned`](BorrowedFd::try_clone_to_owned), with tokio's `AsyncFd`. The first
    /// call creates the fd. Register it for *reading*, even for `Interest::Writable`; never read
    /// from it or write to it yourself.
    ///
    /// * [`Interest::Readable`]: the fd is readable while
    ///   [`try_next_completion`](Self::try_next_completion) can return a message, another
    ///   completion, or the end of the connection. After the end, the fd stays readable. A program
    ///   that needs only messages may call [`try_recv`](Self::try_recv) instead.
    ///   Occasionally the fd is readable for an internal event of the library; then these calls
    ///   return nothing, and make the fd unreadable.
    /// * [`Interest::Writable`]: the fd is readable from the beginning until a
    ///   [`try_send`](Self::try_send) is refused as [full](crate::TrySendError::Full). It becomes
    ///   readable again when there is room, until the next refusal, and stays readable after the
    ///   end of the connection. Since the fd is readable nearly all the time, a level-triggered
    ///   loop should watch it only while the program has something to send, as with a socket.
    ///
    /// Both level-triggered and edge-triggered loops work: each arrival is a new edge, and so is
    /// room after a refused send. Before an edge-triggered loop waits, it must call
    /// `try_next_completion` or `try_recv` until the call returns `None`, and `try_send` until it
    /// is refused or no message is left. With tokio, create one `AsyncFd` for each interest. When a
    /// call returns `None` or `Full`, return [`WouldBlock`](std::io::ErrorKind::WouldBlock) from
    /// the closure of `try_io`.
    ///
    /// Clones of the endpoint share these fds. The library closes them when the last handle and the
    /// last message of the connection are dropped. Taking a completion from
    /// [`completions`](Self::completions) does not change the fd immediately: it may stay readable
    /// until the next `try_next_completion` or `try_recv`.
    ///
    /// Over RDMA, `try_next_completion` and `try_recv` poll the device in the loop's own thread, so
    /// no other thread is involved. When the loop's thread has not polled for about 20
    /// milliseconds, the engine's thread polls in its place. A loop must not call
    /// [`recv`](Self::recv), which blocks until the next message. The readable fd is itself an
    /// epoll instance, so it cannot be added to another epoll instance with `EPOLLEXCLUSIVE`.
    ///
    /// # Errors
    ///
    /// [`Error::Os`] when the process cannot open another file descriptor.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
    /// use rdmsg::{Endpoint, Interest};
    ///
    /// # fn serve(endpoint: &Endpoint) -> Result<(), Box<dyn std::error::Error>> {
    /// let epoll = Epoll::new(EpollCreateFlags::empty())?;
    /// let fd = endpoint.event_fd(Interest::Readable)?;
    /// epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
    /// let mut events = [EpollEvent::empty()];
    /// loop {
    ///     epoll.wait(&mut events, EpollTimeout::NONE)?;
    ///     while let Some(message) = endpoint.try_recv()? {
    ///         println!("{} bytes", message.len());
    ///     }
    /// }
    /// # }
    /// ```
    pub fn event_fd(&self, interest: Interest) -> Result<BorrowedFd<'_>, Error> {
        self.inner.link.event_fd(interest).map_err(Error::from_os)
    }

    /// Makes the fd for event loops readable if there is something to take: a completion, bytes of
    /// a stream, or the end of the connection. Makes the fd unreadable if there is nothing.
    pub(super) fn update_readiness(&self) {
        let inner = &*self.inner;
        let unread = || !inner.completions.is_empty() || inner.has_bytes();
        inner.link.update_readiness(unread);
    }

    pub(crate) fn next_until(&self, deadline: &Deadline) -> Result<Completion, Error> {
        self.inner
            .link
            .wait_until(deadline, None, || self.take_any())
            .unwrap_or(Err(Error::TimedOut))
    }

    pub(super) fn take_any(&self) -> Option<Result<Completion, Error>> {
        self.inner.link.taker.note_taking_thread();
        let taken = match self.take_set_aside() {
            Some(completion) => Some(Ok(completion)),
            None => match self.inner.completions.take() {
                Some(completion) => Some(Ok(completion)),
                None => self.take_end(),
            },
        };
        self.update_readiness();
        taken
    }

    /// Returns [`Error::Disconnected`] if the connection has ended and the queue is empty, even if
    /// another handle has already taken [`Completion::Disconnected`]. Returns [`Error::Grouped`]
    /// while the connection is in a group.
    pub(super) fn take_end<T>(&self) -> Option<Result<T, Error>> {
        let link = &self.inner.link;
        if link.is_grouped() {
            return Some(Err(Error::Grouped));
        }
        link.ended()
            .filter(|_| self.inner.completions.is_empty())
            .map(|ended| Err(Error::Disconnected(ended.reason)))
    }

    pub(super) fn take_set_aside(&self) -> Option<Completion> {
        if self.inner.link.set_aside.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let completion = self.lock_set_aside().pop_front()?;
        self.inner.link.set_aside.fetch_sub(1, Ordering::Relaxed);
        Some(completion)
    }

    pub(super) fn lock_set_aside(&self) -> Guard<'_, VecDeque<Completion>> {
        lock(&self.inner.lock_set_aside)
    }
}

/// Methods that a [`Group`](crate::Group) calls on its members.
impl Endpoint {
    /// Moves the pending completions to a group, and redirects all later ones to it.
    pub(crate) fn join(&self, queue: &Arc<GroupQueue>, key: u64) -> Result<(), Error> {
        let unread = || {
            self.take_set_aside()
                .or_else(|| self.inner.completions.take())
        };
        self.inner.link.join(queue, key, unread)?;
        self.update_readiness();
        Ok(())
    }

    /// Delivers later completions to this endpoint again. Returns whether the endpoint was in the
    /// group.
    pub(crate) fn leave(&self, queue: &Arc<GroupQueue>) -> bool {
        self.inner.link.leave(queue)
    }

    /// Stores a completion that preceded a message, so that `next_completion` returns it.
    pub(super) fn set_aside(&self, completion: Completion) {
        self.inner.link.set_aside.fetch_add(1, Ordering::Relaxed);
        self.lock_set_aside().push_back(completion);
        if self.inner.link.is_grouped() {
            // The connection has joined a group since this thread removed the completion from the
            // queue, so the completion must move to the group.
            self.inner.link.put_after_join(|| self.take_set_aside());
        }
    }
}
