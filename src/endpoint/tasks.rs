use std::{
    future::Future,
    io::IoSlice,
    mem,
    pin::Pin,
    slice,
    sync::atomic::{AtomicBool, Ordering},
    task::{Context, Poll, ready},
};

use super::{Endpoint, NotSent};
use crate::{
    error::{Error, TrySendError},
    link::{Awaited, Completion, Flush, Handoff, Message, Outgoing, Taken},
    send_buffer::SendBuffer,
    sync::Seat,
};

/// Waiting as a task, on any runtime.
///
/// These are for futures: what is not there now has the task woken when it may be, and the call is
/// made again. They never block, and no file descriptor is needed. Dropping a future that uses them
/// loses nothing: what was not returned is there for the next call, and a message was sent whole or
/// not at all.
///
/// One task at a time may wait for messages or completions, one for room to send, and one for the
/// connection's end: of several that wait for the same, the one that called last is woken. With
/// [`std::future::poll_fn`] each becomes a future. The feature `tokio` has types with `async`
/// methods, for which no other thread stands between a task and the device; elsewhere the engine's
/// thread polls the connection from the first such call on.
impl Endpoint {
    /// Receives the next message.
    ///
    /// As [`recv`](Self::recv), for tasks.
    ///
    /// # Errors
    ///
    /// Those of [`recv`](Self::recv).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use std::future::poll_fn;
    ///
    /// # async fn serve(endpoint: rdmsg::Endpoint) -> Result<(), rdmsg::Error> {
    /// loop {
    ///     let question = poll_fn(|cx| endpoint.poll_recv(cx)).await?;
    ///     poll_fn(|cx| endpoint.poll_send(cx, &question)).await?;
    /// }
    /// # }
    /// ```
    pub fn poll_recv(&self, cx: &mut Context<'_>) -> Poll<Result<Message, Error>> {
        self.poll_recv_seated(cx, Awaited::Arrival.common())
    }

    pub(crate) fn poll_recv_seated(
        &self,
        cx: &mut Context<'_>,
        seat: Seat,
    ) -> Poll<Result<Message, Error>> {
        let handoff = Handoff::default();
        let who = (seat, Awaited::Arrival);
        self.inner
            .link
            .poll_task(cx, who, Some(&handoff), || self.take_from(&handoff))
    }

    /// Receives a message; returns `None` when `stopped` is set, which a
    /// [`wake`](Self::wake_waiting) makes known.
    pub(crate) fn poll_recv_unless(
        &self,
        cx: &mut Context<'_>,
        stopped: &AtomicBool,
    ) -> Poll<Result<Option<Message>, Error>> {
        let handoff = Handoff::default();
        let who = (Awaited::Arrival.common(), Awaited::Arrival);
        self.inner.link.poll_task(cx, who, Some(&handoff), || {
            let received = self.take_from(&handoff).map(|received| received.map(Some));
            let stopped = || stopped.load(Ordering::Acquire).then_some(Ok(None));
            received.or_else(stopped)
        })
    }

    /// Takes the next completion of any kind.
    ///
    /// As [`next_completion`](Self::next_completion), for tasks.
    ///
    /// # Errors
    ///
    /// Those of [`next_completion`](Self::next_completion).
    pub fn poll_next_completion(&self, cx: &mut Context<'_>) -> Poll<Result<Completion, Error>> {
        self.poll_next_completion_seated(cx, Awaited::Arrival.common())
    }

    pub(crate) fn poll_next_completion_seated(
        &self,
        cx: &mut Context<'_>,
        seat: Seat,
    ) -> Poll<Result<Completion, Error>> {
        let who = (seat, Awaited::Arrival);
        self.inner.link.poll_task(cx, who, None, || self.take_any())
    }

    /// Waits until there is room for a message up to the eager size.
    ///
    /// Where several tasks send, another may take the room.
    ///
    /// # Errors
    ///
    /// * [`Error::Finished`] after [`finish`](Self::finish).
    /// * [`Error::Disconnected`] when the connection has ended.
    pub fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let link = &self.inner.link;
        self.poll_for_room(cx, Awaited::Room.common(), || link.check_room())
    }

    /// Sends one message.
    ///
    /// As [`send`](Self::send), for tasks. The bytes are taken when it returns `Ready`, and not
    /// before.
    ///
    /// # Errors
    ///
    /// Those of [`send`](Self::send).
    pub fn poll_send(&self, cx: &mut Context<'_>, message: &[u8]) -> Poll<Result<(), Error>> {
        self.poll_send_vectored(cx, slice::from_ref(&IoSlice::new(message)))
    }

    /// Sends one message that consists of several parts.
    ///
    /// As [`send_vectored`](Self::send_vectored), for tasks.
    ///
    /// # Errors
    ///
    /// Those of [`send_vectored`](Self::send_vectored).
    pub fn poll_send_vectored(
        &self,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<Result<(), Error>> {
        self.poll_send_seated(cx, Awaited::Room.common(), parts, None)
    }

    pub(crate) fn poll_send_seated(
        &self,
        cx: &mut Context<'_>,
        seat: Seat,
        parts: &[IoSlice<'_>],
        id: Option<u64>,
    ) -> Poll<Result<(), Error>> {
        self.poll_send_outgoing(cx, seat, &mut Outgoing::new(parts, id))
    }

    /// As [`send_outgoing`](Self::send_outgoing), for tasks.
    fn poll_send_outgoing(
        &self,
        cx: &mut Context<'_>,
        seat: Seat,
        message: &mut Outgoing<'_>,
    ) -> Poll<Result<(), Error>> {
        let link = &self.inner.link;
        // What makes room may be there, and nobody has looked.
        let mut has_looked = false;
        let taken = ready!(self.poll_for_room(cx, seat, || {
            if mem::replace(&mut has_looked, true) {
                link.send_or_hold(message)
            } else {
                link.send_or_join(message)
            }
        }))?;
        if taken == Taken::Held {
            link.leave_held();
        }
        Poll::Ready(Ok(()))
    }

    /// Sends as many of these messages as there is room for, one after the other, and returns how
    /// many. It is pending while there is room for none.
    ///
    /// As [`try_send_batch`](Self::try_send_batch), for tasks.
    ///
    /// # Errors
    ///
    /// Those of [`send_batch`](Self::send_batch).
    pub fn poll_send_batch(
        &self,
        cx: &mut Context<'_>,
        messages: &[IoSlice<'_>],
    ) -> Poll<Result<usize, Error>> {
        self.poll_send_batch_seated(cx, Awaited::Room.common(), messages)
    }

    pub(crate) fn poll_send_batch_seated(
        &self,
        cx: &mut Context<'_>,
        seat: Seat,
        messages: &[IoSlice<'_>],
    ) -> Poll<Result<usize, Error>> {
        self.poll_for_room(cx, seat, || self.send_some(messages))
    }

    /// Sends the content of a buffer as one message, which is taken out of `buffer` then.
    ///
    /// As [`send_owned`](Self::send_owned), for tasks. While it is pending, and after an error that
    /// allows it, the buffer is still there.
    ///
    /// # Errors
    ///
    /// Those of [`send_owned`](Self::send_owned).
    ///
    /// # Panics
    ///
    /// Without a buffer.
    pub fn poll_send_owned(
        &self,
        cx: &mut Context<'_>,
        buffer: &mut Option<SendBuffer>,
    ) -> Poll<Result<(), Error>> {
        self.poll_send_owned_seated(cx, Awaited::Room.common(), buffer)
    }

    pub(crate) fn poll_send_owned_seated(
        &self,
        cx: &mut Context<'_>,
        seat: Seat,
        buffer: &mut Option<SendBuffer>,
    ) -> Poll<Result<(), Error>> {
        let taken = buffer.take().expect("a buffer to be sent");
        let mut polled = Poll::Pending;
        let sent = self.send_buffer(taken, None, |message| {
            polled = self.poll_send_outgoing(cx, seat, message);
            match &mut polled {
                Poll::Ready(Ok(())) => Ok(()),
                Poll::Ready(Err(error)) => Err(error.clone()),
                Poll::Pending => Err(Error::WindowFull),
            }
        });
        match (sent, polled) {
            (Ok(()), _) => Poll::Ready(Ok(())),
            (Err(not_sent), Poll::Pending) if matches!(not_sent.error, Error::WindowFull) => {
                *buffer = not_sent.buffer;
                Poll::Pending
            }
            (
                Err(NotSent {
                    error,
                    buffer: left,
                }),
                _,
            ) => {
                *buffer = left;
                Poll::Ready(Err(error))
            }
        }
    }

    pub(super) fn poll_for_room<T>(
        &self,
        cx: &mut Context<'_>,
        seat: Seat,
        mut attempt: impl FnMut() -> Result<T, TrySendError>,
    ) -> Poll<Result<T, Error>> {
        let who = (seat, Awaited::Room);
        self.inner
            .link
            .poll_task(cx, who, None, || match attempt() {
                Ok(done) => Some(Ok(done)),
                Err(TrySendError::Full) => None,
                Err(TrySendError::Failed(error)) => Some(Err(error)),
            })
    }

    /// Starts to wait until everything that was sent so far has arrived at the peer's library.
    ///
    /// As [`flush`](Self::flush), for tasks.
    ///
    /// # Errors
    ///
    /// [`Error::Disconnected`] when the connection has ended: it is not known what has arrived. The
    /// future returns the same.
    pub fn start_flush(&self) -> Result<Flushing, Error> {
        Ok(Flushing {
            flush: self.inner.link.flush()?,
            endpoint: self.clone(),
            seat: self.inner.link.poller.tasks.seat(),
        })
    }

    /// Closes the connection, and waits until everything that was sent is acknowledged.
    ///
    /// As [`close`](Self::close), for tasks. Closing begins with the first call, and goes on
    /// whether or not there is another one.
    ///
    /// # Errors
    ///
    /// Those of [`close`](Self::close).
    pub fn poll_close(&self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.poll_close_seated(cx, Awaited::Answer.common())
    }

    pub(crate) fn poll_close_seated(
        &self,
        cx: &mut Context<'_>,
        seat: Seat,
    ) -> Poll<Result<(), Error>> {
        let link = &self.inner.link;
        link.close();
        let who = (seat, Awaited::Answer);
        let ended = link.poll_task(cx, who, None, || link.ended());
        ended.map(super::verdict)
    }

    /// Has the tokio runtime in whose context this is called watch the connection.
    #[cfg(feature = "tokio")]
    #[track_caller]
    pub(crate) fn enter_runtime(&self) -> Result<(), Error> {
        self.inner.link.enter_runtime().map_err(Error::from_os)
    }

    /// No runtime watches the connection any more.
    #[cfg(feature = "tokio")]
    pub(crate) fn leave_runtime(&self) {
        self.inner.link.poller.leave_runtime();
    }

    /// A seat for a task that waits in a future of its own, which it [leaves](Self::leave_seat).
    #[cfg(feature = "tokio")]
    pub(crate) fn seat(&self) -> Seat {
        self.inner.link.poller.tasks.seat()
    }

    pub(crate) fn leave_seat(&self, seat: Seat) {
        self.inner.link.poller.tasks.leave(seat);
    }
}

/// Waits until everything that was sent before has arrived: see [`Endpoint::start_flush`].
#[derive(Debug)]
#[must_use = "a future does nothing unless it is awaited"]
pub struct Flushing {
    endpoint: Endpoint,
    flush: Flush,
    seat: Seat,
}

impl Future for Flushing {
    type Output = Result<(), Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self {
            endpoint,
            flush,
            seat,
        } = self.get_mut();
        let link = &endpoint.inner.link;
        let who = (*seat, Awaited::Answer);
        link.poll_task(cx, who, None, || link.is_flushed(flush))
    }
}

impl Drop for Flushing {
    fn drop(&mut self) {
        self.endpoint.leave_seat(self.seat);
    }
}
