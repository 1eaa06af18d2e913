use std::{
    collections::VecDeque,
    os::fd::BorrowedFd,
    sync::{Arc, MutexGuard, atomic::Ordering},
    time::Duration,
};

use crossbeam_channel::{Receiver, TryRecvError};

use super::Endpoint;
use crate::{
    error::Error,
    interest::Interest,
    link::{Completion, Deadline, GroupQueue, Handoff},
    os::lock,
};

/// Completions, channels and event loops.
impl Endpoint {
    /// Returns the channel of this connection's completions.
    ///
    /// It is for [`crossbeam_channel::select!`] over several connections. Each completion is taken
    /// once, by the channel, by [`recv`](Self::recv) or by
    /// [`next_completion`](Self::next_completion). Completions that a `recv` finds before a message
    /// are kept for `next_completion`, not put back into the channel. So a program takes
    /// completions in one way: here, with `next_completion`, or with `recv`. While the endpoint is
    /// in a [`Group`](crate::Group), the channel stays empty.
    ///
    /// While no thread waits in `recv`, the engine's thread feeds the channel; a thread that has
    /// just been in `recv` or `try_recv` may delay that by some milliseconds.
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
    ///         Err(_) => break, // one of them has ended
    ///     }
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn completions(&self) -> &Receiver<Completion> {
        self.inner.link.poller.leave_loop();
        self.inner.link.taker.note_taking_thread();
        &self.inner.completions
    }

    /// Takes the next completion of any kind, and waits for it without a limit.
    ///
    /// Messages are completions, too: [`Completion::Received`]. The waiting thread polls the
    /// completion queue itself, as [`Polling`](crate::Polling) says.
    ///
    /// # Errors
    ///
    /// [`Error::Disconnected`] when [`Completion::Disconnected`] was taken before.
    pub fn next_completion(&self) -> Result<Completion, Error> {
        self.next_until(&Deadline::never())
    }

    /// Takes the next completion of any kind, waiting no longer than `timeout`.
    ///
    /// # Errors
    ///
    /// * [`Error::TimedOut`] when there was no completion in time. The connection continues.
    /// * [`Error::Disconnected`] when [`Completion::Disconnected`] was taken before.
    pub fn next_completion_timeout(&self, timeout: Duration) -> Result<Completion, Error> {
        self.next_until(&Deadline::after(timeout))
    }

    /// Takes the next completion of any kind if there is one, and never waits.
    ///
    /// Returns `None` when there is no completion. It polls the completion queue once if nothing
    /// has been delivered yet.
    ///
    /// # Errors
    ///
    /// [`Error::Disconnected`] when [`Completion::Disconnected`] was taken before.
    pub fn try_next_completion(&self) -> Result<Option<Completion>, Error> {
        let handoff = Handoff::default();
        let received = || handoff.take().map(Completion::Received).map(Ok);
        let look = || received().or_else(|| self.take_any());
        self.inner.link.look(&handoff, look).transpose()
    }

    /// Returns a file descriptor for event loops, one for each [`Interest`].
    ///
    /// It serves `epoll`, `poll`, mio, polling, and tokio's `AsyncFd` over a
    /// [`try_clone_to_owned`](BorrowedFd::try_clone_to_owned). It is made when it is first asked
    /// for. Register either for *reading*; never read or write it yourself.
    ///
    /// * [`Interest::Readable`]: readable while [`try_next_completion`](Self::try_next_completion)
    ///   has something to return: a message, another completion, or the connection's end, which
    ///   lasts. Programs that ask for no other completions may call [`try_recv`](Self::try_recv)
    ///   instead. Occasionally it is readable for an internal event of the library; these calls
    ///   return nothing then, and make it unreadable.
    /// * [`Interest::Writable`]: readable from the beginning until a [`try_send`](Self::try_send)
    ///   is refused as [full](crate::TrySendError::Full), again once there is room until the next
    ///   one is refused, and always after the end. It is readable nearly all the time, so a
    ///   level-triggered loop watches it only while it has something to send, as with a socket.
    ///
    /// Level-triggered and edge-triggered loops both work: each arrival, and each time that there
    /// is room for a send that was refused, is a new edge. Before it waits, an edge-triggered loop
    /// calls `try_next_completion` or `try_recv` until it returns `None`, and `try_send` until it
    /// is refused or no message is left. With `AsyncFd` make one for each interest, and report
    /// nothing and full to `try_io` as [`WouldBlock`](std::io::ErrorKind::WouldBlock).
    ///
    /// Handles that are clones share these fds. They are closed with the connection's last handle
    /// and message. A completion that is taken from [`completions`](Self::completions) does not
    /// change the fd at once: it may stay readable until the next `try_next_completion` or
    /// `try_recv`.
    ///
    /// Over RDMA the loop's thread polls the device itself in `try_next_completion` and `try_recv`,
    /// with no other thread in between. For a loop that is busy the engine's thread takes over,
    /// after some 20 milliseconds. A loop does not call [`recv`](Self::recv), which would wait for
    /// the next message. The readable fd is an epoll itself, so it cannot be added to another one
    /// with `EPOLLEXCLUSIVE`.
    ///
    /// # Errors
    ///
    /// [`Error::Os`] when the process has no file descriptor left.
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

    /// Makes the fd readable if there is a completion to take.
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
            None => match self.inner.completions.try_recv() {
                Ok(completion) => Some(Ok(completion)),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => self.take_end(),
            },
        };
        self.update_readiness();
        taken
    }

    /// Returns the end of the connection, even if a handle has taken it from the channel before, or
    /// an error while a group gets the completions.
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

    pub(super) fn lock_set_aside(&self) -> MutexGuard<'_, VecDeque<Completion>> {
        lock(&self.inner.lock_set_aside)
    }
}

/// The calls that a [`Group`](crate::Group) makes on its members.
impl Endpoint {
    /// Moves the pending completions, and directs all later ones, to a group.
    pub(crate) fn join(&self, queue: &Arc<GroupQueue>, key: u64) -> Result<(), Error> {
        let unread = || {
            self.take_set_aside()
                .or_else(|| self.inner.completions.try_recv().ok())
        };
        self.inner.link.join(queue, key, unread)?;
        self.update_readiness();
        Ok(())
    }

    /// Directs later completions to this endpoint again.
    pub(crate) fn leave(&self, queue: &Arc<GroupQueue>) -> bool {
        self.inner.link.leave(queue)
    }

    /// Keeps a completion that came before a message, for `next_completion`.
    pub(super) fn set_aside(&self, completion: Completion) {
        self.inner.link.set_aside.fetch_add(1, Ordering::Relaxed);
        self.lock_set_aside().push_back(completion);
        if self.inner.link.is_grouped() {
            // The connection joined a group while this thread had the completion.
            self.inner.link.put_after_join(|| self.take_set_aside());
        }
    }
}
