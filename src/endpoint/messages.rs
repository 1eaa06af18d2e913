use std::{
    io::IoSlice,
    slice,
    time::{Duration, Instant},
};

use crossbeam_channel::TryRecvError;

use super::Endpoint;
use crate::{
    error::{Error, TrySendError},
    link::{Completion, Deadline, Handoff, Message, Outgoing, Taken},
};

/// How often a call that needs a place for its completion looks whether one has become free.
const PLACE_LOOKS: Duration = Duration::from_millis(1);

/// Messages.
impl Endpoint {
    /// Sends one message, waiting while the peer's window is full.
    ///
    /// The bytes are copied, so `message` may be reused on return. An empty message is a message.
    /// Messages arrive in the order of sending. `Ok` means that the library has it; that it has
    /// arrived is known from [`flush`](Self::flush), from [`send_with_id`](Self::send_with_id),
    /// from a successful [`close`](Self::close), or from an answer.
    ///
    /// The message is in flight on return, or with [`Config::hold_back`](crate::Config::hold_back)
    /// held back while the window is full: what does not fit there, and one with an id, waits.
    /// [`flush`](Self::flush), [`finish`](Self::finish) and [`close`](Self::close) include what is
    /// held back. [`try_send`](Self::try_send) and [`send_timeout`](Self::send_timeout) hold
    /// nothing back, and so tell whether the peer makes room.
    ///
    /// A message up to the eager size ([`Negotiated::send_eager`](crate::Negotiated::send_eager),
    /// by default 16 KiB) goes straight into a receive buffer of the peer. A longer one is read by
    /// the peer's library from this side's memory, whatever the peer's program is doing. At most 4
    /// of those and [`Config::large_memory`](crate::Config::large_memory) bytes are in flight at a
    /// time; `send` waits while there are more. [`send_owned`](Self::send_owned) saves the copy of
    /// a long message.
    ///
    /// This waits for as long as it takes: until there is room or the connection ends. See
    /// [`send_timeout`](Self::send_timeout) and [`try_send`](Self::try_send) for a bound.
    ///
    /// # Errors
    ///
    /// * [`Error::MessageTooLong`] above [`send_limit`](Self::send_limit). The connection goes on.
    /// * [`Error::Disconnected`] when the connection has ended.
    /// * [`Error::LockedMemory`] when the memory of a long message cannot be locked. The connection
    ///   goes on.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn main() -> Result<(), rdmsg::Error> {
    /// let endpoint = rdmsg::Endpoint::connect("10.8.0.1:7471")?;
    /// for line in ["first", "second"] {
    ///     endpoint.send(line.as_bytes())?;
    /// }
    /// endpoint.flush()?; // both have arrived
    /// # Ok(())
    /// # }
    /// ```
    pub fn send(&self, message: &[u8]) -> Result<(), Error> {
        self.send_vectored(slice::from_ref(&IoSlice::new(message)))
    }

    /// Sends one message, waiting no longer than `timeout` while the peer's window is full.
    ///
    /// The bytes are copied, so `message` may be reused on return.
    ///
    /// # Errors
    ///
    /// * [`Error::TimedOut`] when the window stayed full: nothing was sent, and the connection goes
    ///   on.
    /// * [`Error::MessageTooLong`] above [`send_limit`](Self::send_limit). The connection goes on.
    /// * [`Error::Disconnected`] when the connection has ended.
    /// * [`Error::LockedMemory`] when the memory of a long message cannot be locked. The connection
    ///   goes on.
    pub fn send_timeout(&self, message: &[u8], timeout: Duration) -> Result<(), Error> {
        let parts = [IoSlice::new(message)];
        self.send_until(&mut Outgoing::new(&parts, None), &Deadline::after(timeout))
    }

    /// Sends one message if there is room for it, and never waits.
    ///
    /// The bytes are copied, so `message` may be reused on return. When there is room after a
    /// [`TrySendError::Full`], the fd for [`Interest::Writable`](crate::Interest::Writable) becomes
    /// readable, and [`Completion::Room`] comes.
    ///
    /// # Errors
    ///
    /// * [`TrySendError::Full`] when the peer's window or the send ring is full: nothing was sent.
    /// * [`TrySendError::Failed`] with [`Error::MessageTooLong`], [`Error::Disconnected`] or
    ///   [`Error::LockedMemory`], for which waiting would not help.
    pub fn try_send(&self, message: &[u8]) -> Result<(), TrySendError> {
        self.try_send_vectored(slice::from_ref(&IoSlice::new(message)))
    }

    /// Sends one message that consists of several parts, waiting while the peer's window is full.
    ///
    /// The peer receives the parts one after the other, as a single message. They are copied, so
    /// they may be reused on return. While the window is full, it may be held back as
    /// [`send`](Self::send) says.
    ///
    /// # Errors
    ///
    /// * [`Error::MessageTooLong`] if the sum is above [`send_limit`](Self::send_limit). The
    ///   connection goes on.
    /// * [`Error::Disconnected`] when the connection has ended.
    /// * [`Error::LockedMemory`] when the memory of a long message cannot be locked. The connection
    ///   goes on.
    pub fn send_vectored(&self, parts: &[IoSlice<'_>]) -> Result<(), Error> {
        self.send_outgoing(&mut Outgoing::new(parts, None))
    }

    /// Sends one message and reports its arrival as a completion with this `id`.
    ///
    /// It waits while the peer's window is full. [`Completion::Sent`] with the id comes when this
    /// message and all that were sent before it have arrived: not before the peer's library has
    /// read every message above the eager size among them. [`Completion::Failed`] comes instead if
    /// the connection ends before that is known. Completions are in the order of sending, and are
    /// taken with [`next_completion`](Self::next_completion) or from
    /// [`completions`](Self::completions). Ids are the application's; they need not differ.
    ///
    /// A connection has places for [`Config::receive_window`](crate::Config::receive_window) +
    /// [`Config::send_depth`](crate::Config::send_depth) ids (default 32) whose operations are in
    /// flight or whose completions wait to be taken. If all are in use, this call waits while
    /// another thread takes completions: the thread that called `next_completion` or `completions`
    /// last is another one, and takes some within 5 s. In the thread that takes them itself it
    /// fails instead, because waiting would never end: take some, and repeat the call.
    ///
    /// # Errors
    ///
    /// After an error no completion comes, and nothing was sent.
    ///
    /// * [`Error::CompletionsNotTaken`] when too many completions wait to be taken, and no other
    ///   thread takes them.
    /// * [`Error::MessageTooLong`] above [`send_limit`](Self::send_limit). The connection goes on.
    /// * [`Error::Disconnected`] when the connection has ended.
    /// * [`Error::LockedMemory`] when the memory of a long message cannot be locked. The connection
    ///   goes on.
    pub fn send_with_id(&self, message: &[u8], id: u64) -> Result<(), Error> {
        let parts = [IoSlice::new(message)];
        self.send_outgoing(&mut Outgoing::new(&parts, Some(id)))
    }

    /// Sends the parts, one after the other, as one message if there is room, and never waits.
    ///
    /// # Errors
    ///
    /// Those of [`try_send`](Self::try_send).
    pub fn try_send_vectored(&self, parts: &[IoSlice<'_>]) -> Result<(), TrySendError> {
        self.try_send_outgoing(&mut Outgoing::new(parts, None))
    }

    /// Sends the parts, one after the other, as one message, waiting no longer than `timeout`.
    ///
    /// # Errors
    ///
    /// Those of [`send_timeout`](Self::send_timeout).
    pub fn send_vectored_timeout(
        &self,
        parts: &[IoSlice<'_>],
        timeout: Duration,
    ) -> Result<(), Error> {
        self.send_until(&mut Outgoing::new(parts, None), &Deadline::after(timeout))
    }

    /// Sends a message that is reported with this `id` if there is room, and never waits.
    ///
    /// # Errors
    ///
    /// Those of [`try_send`](Self::try_send), and [`Error::CompletionsNotTaken`] when too many
    /// completions wait to be taken. After an error no completion comes.
    pub fn try_send_with_id(&self, message: &[u8], id: u64) -> Result<(), TrySendError> {
        let parts = [IoSlice::new(message)];
        self.try_send_outgoing(&mut Outgoing::new(&parts, Some(id)))
    }

    /// Sends a message that is reported with this `id`, waiting no longer than `timeout`.
    ///
    /// # Errors
    ///
    /// Those of [`send_timeout`](Self::send_timeout), and [`Error::CompletionsNotTaken`] when too
    /// many completions wait to be taken, and no other thread took any in time. After an error no
    /// completion comes.
    pub fn send_with_id_timeout(
        &self,
        message: &[u8],
        id: u64,
        timeout: Duration,
    ) -> Result<(), Error> {
        let parts = [IoSlice::new(message)];
        let mut outgoing = Outgoing::new(&parts, Some(id));
        self.send_until(&mut outgoing, &Deadline::after(timeout))
    }

    pub(super) fn try_send_outgoing(&self, message: &mut Outgoing<'_>) -> Result<(), TrySendError> {
        self.try_in_room(|| self.inner.link.try_send(message))
    }

    /// Makes an attempt that does not wait for room. Where there is none, whoever watches for room
    /// is told of it.
    pub(super) fn try_in_room<T>(
        &self,
        mut attempt: impl FnMut() -> Result<T, TrySendError>,
    ) -> Result<T, TrySendError> {
        let mut result = attempt();
        if let Err(TrySendError::Full) = result {
            let link = &self.inner.link;
            // What makes room may have arrived already without any thread having polled.
            link.poll_once();
            link.want_room();
            result = attempt();
            if let Err(TrySendError::Full) = result {
                link.tell_of_room();
            } else {
                link.need_no_room();
            }
        }
        result
    }

    /// Sends a message however long it takes, and holds it back where there is no room, if it can
    /// be.
    pub(super) fn send_outgoing(&self, message: &mut Outgoing<'_>) -> Result<(), Error> {
        let link = &self.inner.link;
        let taken = match link.send_or_join(message) {
            Ok(taken) => taken,
            Err(TrySendError::Full | TrySendError::Failed(Error::CompletionsNotTaken)) => {
                // What makes room may have arrived already without any thread having polled.
                link.poll_again();
                self.wait_for_room(&Deadline::never(), || link.send_or_hold(message))?
            }
            Err(TrySendError::Failed(error)) => return Err(error),
        };
        if taken == Taken::Held {
            link.leave_held();
        }
        Ok(())
    }

    pub(super) fn send_until(
        &self,
        message: &mut Outgoing<'_>,
        deadline: &Deadline,
    ) -> Result<(), Error> {
        self.wait_for_room(deadline, || self.inner.link.try_send(message))
    }

    /// Repeats an attempt until it succeeds, fails, or the deadline passes.
    ///
    /// It repeats an attempt that lacks a place for its completion while the place may become free
    /// without the calling thread.
    pub(super) fn wait_for_room<T>(
        &self,
        deadline: &Deadline,
        mut attempt: impl FnMut() -> Result<T, TrySendError>,
    ) -> Result<T, Error> {
        let link = &self.inner.link;
        let mut lacked_since = None;
        loop {
            let done = link.wait_until(deadline, None, || match attempt() {
                Ok(done) => Some(Ok(done)),
                Err(TrySendError::Full) => None,
                Err(TrySendError::Failed(error)) => Some(Err(error)),
            });
            match done {
                Ok(Err(Error::CompletionsNotTaken))
                    if !deadline.is_over() && {
                        let since = lacked_since.get_or_insert_with(Instant::now);
                        link.is_place_to_come(since.elapsed())
                    } =>
                {
                    // A channel does not notify threads that wait for room in it.
                    let look = deadline.at_most(PLACE_LOOKS);
                    let _ = link.wait_until(&look, None, || None::<()>);
                }
                Ok(done) => return done,
                Err(_) => return Err(Error::TimedOut),
            }
        }
    }

    /// Receives the next message, waiting for as long as it takes.
    ///
    /// The waiting thread polls the completion queue itself, as [`Polling`](crate::Polling) says.
    /// The [`Message`] is a view of the buffer that the device wrote: no byte is copied. While it
    /// is held it occupies its place in the window, so that the peer's `send` waits when all places
    /// are taken; drop it, or copy its bytes out with [`Message::into_vec`], to make room.
    ///
    /// Completions of other kinds that come before the message are kept for
    /// [`next_completion`](Self::next_completion).
    ///
    /// # Errors
    ///
    /// [`Error::Disconnected`] when the connection has ended and all messages were received.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use rdmsg::{CloseReason, Error};
    ///
    /// # fn main() -> Result<(), rdmsg::Error> {
    /// # let endpoint = rdmsg::Endpoint::connect("10.8.0.1:7471")?;
    /// loop {
    ///     match endpoint.recv() {
    ///         Ok(message) => println!("{} bytes", message.len()),
    ///         Err(Error::Disconnected(CloseReason::PeerClosed)) => break, // that was all
    ///         Err(error) => return Err(error),
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn recv(&self) -> Result<Message, Error> {
        self.recv_until(&Deadline::never())
    }

    /// Receives the next message, waiting no longer than `timeout`.
    ///
    /// The waiting thread polls the completion queue itself, as [`Polling`](crate::Polling) says.
    ///
    /// # Errors
    ///
    /// * [`Error::TimedOut`] when no message came. The connection goes on.
    /// * [`Error::Disconnected`] when the connection has ended and all messages were received.
    pub fn recv_timeout(&self, timeout: Duration) -> Result<Message, Error> {
        self.recv_until(&Deadline::after(timeout))
    }

    /// Receives the next message if there is one, and never waits.
    ///
    /// Returns `None` when there is no message. It polls the completion queue once if nothing has
    /// been delivered yet.
    ///
    /// # Errors
    ///
    /// [`Error::Disconnected`] when the connection has ended and all messages were received.
    pub fn try_recv(&self) -> Result<Option<Message>, Error> {
        let handoff = Handoff::default();
        let link = &self.inner.link;
        link.look(&handoff, || self.take_from(&handoff)).transpose()
    }

    fn recv_until(&self, deadline: &Deadline) -> Result<Message, Error> {
        let handoff = Handoff::default();
        self.inner
            .link
            .wait_until(deadline, Some(&handoff), || self.take_from(&handoff))
            .unwrap_or(Err(Error::TimedOut))
    }

    pub(super) fn take_from(&self, handoff: &Handoff) -> Option<Result<Message, Error>> {
        if let Some(message) = handoff.take() {
            return Some(Ok(message));
        }
        if self.has_nothing() {
            self.update_readiness();
            return None;
        }
        self.take_what_came()
    }

    /// Whether there is neither a completion nor an end to take, nor bytes of a stream. A wait
    /// calls [`take_from`](Self::take_from) several times, and most of these calls find nothing.
    #[inline]
    fn has_nothing(&self) -> bool {
        let inner = &*self.inner;
        inner.completions.is_empty() && inner.link.goes_on() && !inner.has_bytes()
    }

    #[inline(never)]
    fn take_what_came(&self) -> Option<Result<Message, Error>> {
        let taken = self.take();
        match self.inner.inflow.get() {
            None => taken,
            Some(inflow) => self.take_bytes_before(taken, inflow),
        }
    }

    /// Takes the next message from the channel, and keeps what comes before it for
    /// `next_completion`.
    pub(super) fn take(&self) -> Option<Result<Message, Error>> {
        let taken = loop {
            if self.inner.completions.is_empty() {
                if self.inner.link.goes_on() {
                    break None;
                }
                break self.take_end().or_else(|| self.take_finish());
            }
            match self.inner.completions.try_recv() {
                Ok(Completion::Received(message)) => break Some(Ok(message)),
                Ok(Completion::Disconnected(reason)) => {
                    break Some(Err(Error::Disconnected(reason)));
                }
                Ok(Completion::Finished) => break Some(Err(Error::PeerFinished)),
                // Who receives messages alone does not ask for it.
                Ok(Completion::Room) => {}
                Ok(other) => self.set_aside(other),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => break self.take_end(),
            }
        };
        self.update_readiness();
        taken
    }

    /// After the peer's Finish was taken, every other call says so as well.
    fn take_finish(&self) -> Option<Result<Message, Error>> {
        // In this order: its messages are in the channel before it is said to have finished.
        let finished = self.inner.link.peer_has_finished() && self.inner.completions.is_empty();
        finished.then_some(Err(Error::PeerFinished))
    }

    /// Tells the peer that this side sends no more messages: half close.
    ///
    /// The peer receives everything that was sent before, then its [`recv`](Self::recv) returns
    /// [`Error::PeerFinished`], or [`Completion::Finished`] comes. It may go on sending, and this
    /// side receiving. Sends of this side fail with [`Error::Finished`] from now on; one-sided
    /// operations go on, except for [`write_with_imm`](Self::write_with_imm). It does not wait, and
    /// a second call does nothing. The connection stays until one side closes it.
    ///
    /// # Errors
    ///
    /// [`Error::Disconnected`] when the connection has ended or is being closed.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use rdmsg::Error;
    ///
    /// # fn main() -> Result<(), rdmsg::Error> {
    /// # let endpoint = rdmsg::Endpoint::connect("10.8.0.1:7471")?;
    /// endpoint.send(b"the last question")?;
    /// endpoint.finish()?;
    /// loop {
    ///     match endpoint.recv() {
    ///         Ok(answer) => println!("{} bytes", answer.len()),
    ///         Err(Error::PeerFinished) => break,
    ///         Err(error) => return Err(error),
    ///     }
    /// }
    /// endpoint.close()
    /// # }
    /// ```
    pub fn finish(&self) -> Result<(), Error> {
        self.inner.link.finish()?;
        self.refuse_late_writes();
        Ok(())
    }

    /// Waits until everything that was sent so far has arrived at the peer's library.
    ///
    /// Everything includes one-sided operations. It takes one exchange with the peer, and the time
    /// in which the peer reads messages above the eager size. It does not say whether the peer's
    /// program has received the messages.
    ///
    /// # Errors
    ///
    /// [`Error::Disconnected`] when the connection has ended: it is not known what has arrived.
    pub fn flush(&self) -> Result<(), Error> {
        self.flush_until(&Deadline::never())
    }

    /// Waits no longer than `timeout` until everything that was sent so far has arrived.
    ///
    /// Arrived means: at the peer's library, and one-sided operations are done.
    ///
    /// # Errors
    ///
    /// * [`Error::TimedOut`] when the peer's answer has not come in time. The connection goes on.
    /// * [`Error::Disconnected`] when the connection has ended: it is not known what has arrived.
    pub fn flush_timeout(&self, timeout: Duration) -> Result<(), Error> {
        self.flush_until(&Deadline::after(timeout))
    }

    fn flush_until(&self, deadline: &Deadline) -> Result<(), Error> {
        let link = &self.inner.link;
        let mut flush = link.flush()?;
        link.wait_until(deadline, None, || link.is_flushed(&mut flush))
            .unwrap_or(Err(Error::TimedOut))
    }
}
