use std::{io::IoSlice, mem::ManuallyDrop, sync::atomic::Ordering, time::Duration};

use super::Endpoint;
use crate::{
    error::{Error, TrySendError},
    link::{Completion, Deadline, Handoff, Message, Sending},
    outgoing::{Content, Outgoing},
    send_buffer::SendBuffer,
    transport::OutboundBuffer,
};

/// The interval at which a waiting call checks whether the channel has room for the completion of
/// the call's message.
const ROOM_CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// Sends and receives messages.
impl Endpoint {
    /// Sends one message, waiting while the peer's window is full.
    ///
    /// The message is a reference to bytes (`&[u8]`, `&Vec<u8>`, `&str` …), a [`SendBuffer`], or an
    /// [`Outgoing`] that consists of several parts or has an id. Referenced bytes are copied; the
    /// bytes of a `SendBuffer` are not. An empty message is also delivered. Messages arrive in the
    /// order of sending. `Ok` means that the library has accepted the message. Its arrival is
    /// confirmed by [`flush`](Self::flush), by the completion of a message [with an
    /// id](Outgoing::with_id), by a successful [`close`](Self::close), or by an answer from the
    /// peer.
    ///
    /// A message up to the eager size ([`Negotiated::send_eager`](crate::Negotiated::send_eager),
    /// by default 16 KiB over RDMA) is sent straight into a receive buffer of the peer. A longer
    /// message of up to 3 eager sizes over RDMA, or 16 over TCP, is sent into several buffers if
    /// enough of them are free. Any other message is a long message: it stays in the memory of this
    /// side until the peer's library reads it. The peer's program need not do anything for that. At
    /// most 4 long messages, and [`Config::large_memory`](crate::Config::large_memory) bytes, are
    /// in flight at a time; `send` waits while one of these limits is reached. A [`SendBuffer`]
    /// avoids copying a long message.
    ///
    /// This method waits without a time limit, until there is room or the connection ends.
    /// [`send_timeout`](Self::send_timeout) has a time limit, and [`try_send`](Self::try_send) does
    /// not wait.
    ///
    /// # Errors
    ///
    /// * [`Error::MessageTooLong`] above [`Info::send_limit`](crate::Info::send_limit). The
    ///   connection stays open.
    /// * [`Error::Disconnected`] when the connection has ended.
    /// * [`Error::LockedMemory`] when the memory of a long message cannot be locked. The connection
    ///   stays open.
    /// * [`Error::CompletionsNotTaken`] for a message with an id when the program has left too many
    ///   completions untaken, and no other thread takes them.
    /// * [`Error::ForeignMemory`] for a buffer of another connection.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn main() -> Result<(), rdmsg::Error> {
    /// let endpoint = rdmsg::Endpoint::connect("10.8.0.1:7471")?;
    /// for line in ["first", "second"] {
    ///     endpoint.send(line)?;
    /// }
    /// endpoint.flush()?; // both have arrived
    /// # Ok(())
    /// # }
    /// ```
    pub fn send<'a>(&self, message: impl Into<Outgoing<'a>>) -> Result<(), Error> {
        // Most messages are sent by `send_at_once`. That method sends only borrowed bytes, so such
        // a message needs no destructor.
        let message = ManuallyDrop::new(message.into());
        if self.send_at_once(&message) {
            return Ok(());
        }
        self.send_slowly(ManuallyDrop::into_inner(message))
    }

    /// Receives the next message. Waits for a message without a time limit.
    ///
    /// The waiting thread itself polls the completion queue, as [`Polling`](crate::Polling)
    /// describes. The [`Message`] is a view of the buffer that the device wrote, so no byte is
    /// copied. Until the program drops the message, the message occupies one credit of the window;
    /// the peer's `send` waits when no credit is left. To free the credit, drop the message, or
    /// copy its bytes with [`Message::into_vec`].
    ///
    /// When completions of other kinds precede the message, they are stored for
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

    /// Closes the connection, and waits until the peer has acknowledged everything that was sent.
    ///
    /// Once this method is called, sends of other threads fail. The call delivers earlier messages,
    /// notifies the peer and waits for its answer. This takes at most
    /// [`close_timeout`](crate::Config::close_timeout) (default 5 s), and up to 2 s more until all
    /// work requests have completed. Keepalive continues during the close, so waiting for a dead
    /// peer takes at most [`keepalive_interval`](crate::Config::keepalive_interval) +
    /// [`keepalive_timeout`](crate::Config::keepalive_timeout). The peer receives all messages,
    /// then [`CloseReason::PeerClosed`](crate::CloseReason::PeerClosed). Messages that have already
    /// arrived here can still be received.
    ///
    /// `Ok` means that the peer's library has received and acknowledged everything. It does not
    /// mean that the peer's application has read everything: an application that drops its endpoint
    /// drops its unread messages. A connection that is dropped without `close` is closed in the
    /// same way, but a failure is only logged.
    ///
    /// # Errors
    ///
    /// * [`Error::Undelivered`], with the reason for which the connection ended, if it is not known
    ///   whether everything that was sent has arrived.
    /// * [`Error::Disconnected`] with [`CloseReason::Truncated`](crate::CloseReason::Truncated) if
    ///   everything that was sent has arrived, but the peer disconnected before this side had read
    ///   all messages.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use rdmsg::Error;
    ///
    /// # fn main() -> Result<(), rdmsg::Error> {
    /// # let endpoint = rdmsg::Endpoint::connect("10.8.0.1:7471")?;
    /// endpoint.send(b"the last record")?;
    /// match endpoint.close() {
    ///     Ok(()) => println!("everything has arrived"),
    ///     Err(Error::Undelivered(reason)) => println!("send it again elsewhere: {reason}"),
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn close(&self) -> Result<(), Error> {
        self.inner.link.close();
        let link = &self.inner.link;
        match link.wait_until(&Deadline::never(), None, || link.ended()) {
            Ok(ended) => super::verdict(ended),
            // The wait cannot time out, because it has no deadline.
            Err(_) => Err(Error::TimedOut),
        }
    }

    /// Sends one message, waiting no longer than `timeout` while the peer's window is full.
    ///
    /// # Errors
    ///
    /// * [`Error::TimedOut`] when the window stayed full: nothing was sent, and the connection
    ///   stays open.
    /// * All errors of [`send`](Self::send).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// use rdmsg::Error;
    ///
    /// # fn main() -> Result<(), rdmsg::Error> {
    /// # let endpoint = rdmsg::Endpoint::connect("10.8.0.1:7471")?;
    /// match endpoint.send_timeout(b"news", Duration::from_secs(1)) {
    ///     Err(Error::TimedOut) => println!("the peer receives nothing"),
    ///     sent => sent?,
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn send_timeout<'a>(
        &self,
        message: impl Into<Outgoing<'a>>,
        timeout: Duration,
    ) -> Result<(), Error> {
        let message = message.into();
        if self.send_at_once(&message) {
            return Ok(());
        }
        let deadline = Deadline::after(timeout);
        self.with_sending(message, |sending| {
            self.wait_for_room(&deadline, || self.inner.link.try_send(sending))
        })
    }

    /// Sends one message if there is room for it, without waiting.
    ///
    /// When room becomes available after a [`TrySendError::Full`], the fd for
    /// [`Interest::Writable`](crate::Interest::Writable) becomes readable. If the program has not
    /// requested this fd, [`Completion::Room`] is delivered instead.
    ///
    /// # Errors
    ///
    /// * [`TrySendError::Full`] when the peer's window or the send queue is full: nothing was sent.
    /// * [`TrySendError::Failed`] with an error of [`send`](Self::send) that waiting would not
    ///   resolve.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use rdmsg::{SendBuffer, TrySendError};
    ///
    /// # fn main() -> Result<(), rdmsg::Error> {
    /// # let endpoint = rdmsg::Endpoint::connect("10.8.0.1:7471")?;
    /// let mut frame = SendBuffer::new(&endpoint, 1 << 20)?;
    /// frame.fill(7);
    /// match endpoint.try_send(&mut frame) {
    ///     Err(TrySendError::Full) => println!("no room for {} bytes", frame.len()),
    ///     sent => sent?,
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn try_send<'a>(&self, message: impl Into<Outgoing<'a>>) -> Result<(), TrySendError> {
        let message = message.into();
        if self.send_at_once(&message) {
            return Ok(());
        }
        self.with_sending(message, |sending| {
            self.try_in_room(|| self.inner.link.try_send(sending))
        })
    }

    /// Receives the next message, waiting no longer than `timeout`.
    ///
    /// The waiting thread itself polls the completion queue, as [`Polling`](crate::Polling)
    /// describes.
    ///
    /// # Errors
    ///
    /// * [`Error::TimedOut`] when no message arrived in time. The connection stays open.
    /// * [`Error::Disconnected`] when the connection has ended and all messages were received.
    pub fn recv_timeout(&self, timeout: Duration) -> Result<Message, Error> {
        self.recv_until(&Deadline::after(timeout))
    }

    /// Receives the next message if there is one, without waiting.
    ///
    /// Returns `None` when there is no message. Polls the completion queue once if no completion is
    /// stored yet.
    ///
    /// # Errors
    ///
    /// [`Error::Disconnected`] when the connection has ended and all messages were received.
    pub fn try_recv(&self) -> Result<Option<Message>, Error> {
        let handoff = Handoff::default();
        let link = &self.inner.link;
        link.look(&handoff, || self.take_from(&handoff)).transpose()
    }

    /// Sends the message, and waits while the peer's window is full.
    #[inline(never)]
    fn send_slowly(&self, message: Outgoing<'_>) -> Result<(), Error> {
        self.with_sending(message, |sending| self.send_until_taken(sending))
    }

    /// Sends the message if it consists of borrowed bytes, is short and has no id, and if there is
    /// room. Returns true if the message was sent.
    #[inline(always)]
    pub(super) fn send_at_once(&self, message: &Outgoing<'_>) -> bool {
        match (&message.content, message.id) {
            (Content::Bytes(bytes), None) => self.inner.link.send_at_once(bytes),
            _ => false,
        }
    }

    /// Calls `send` with a message. If `send` fails, a [`SendBuffer`] keeps its memory, unless the
    /// peer may have read a part of it.
    pub(super) fn with_sending<T, E: From<Error>>(
        &self,
        message: Outgoing<'_>,
        send: impl FnOnce(&mut Sending<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        match message.content {
            Content::Bytes(bytes) => {
                let parts = [IoSlice::new(bytes)];
                send(&mut Sending::new(&parts, message.id))
            }
            Content::Parts(parts) => send(&mut Sending::new(parts, message.id)),
            Content::Buffer(mut buffer) => self.with_buffer(&mut buffer, message.id, send),
            Content::Borrowed(buffer) => self.with_buffer(buffer, message.id, send),
        }
    }

    fn with_buffer<T, E: From<Error>>(
        &self,
        buffer: &mut SendBuffer,
        id: Option<u64>,
        send: impl FnOnce(&mut Sending<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let Some(memory) = buffer.memory().take() else {
            return send(&mut Sending::new(&[], id));
        };
        if !self.inner.link.owns(&memory) {
            *buffer.memory() = Some(memory);
            // An ended connection owns no buffers. So report its end; `ForeignMemory` would be
            // misleading.
            let error = match self.inner.link.ended() {
                Some(ended) => Error::Disconnected(ended.reason),
                None => Error::ForeignMemory,
            };
            return Err(error.into());
        }
        let mut sending = Sending::owned(memory, id);
        let result = send(&mut sending);
        // `sending` contains no memory if the message was sent, or if the peer may have read a part
        // of it.
        *buffer.memory() = sending.into_memory();
        result
    }

    /// Allocates memory for a message of this connection. Waits while the connection is suspended.
    pub(crate) fn outbound_buffer(
        &self,
        len: usize,
        deadline: &Deadline,
    ) -> Result<OutboundBuffer, Error> {
        match self.inner.link.try_buffer(len) {
            Err(TrySendError::Full) => {
                self.wait_for_room(deadline, || self.inner.link.try_buffer(len))
            }
            Err(TrySendError::Failed(error)) => Err(error),
            Ok(buffer) => Ok(buffer),
        }
    }

    /// Allocates memory for a message of this connection, without waiting.
    pub(crate) fn try_outbound_buffer(&self, len: usize) -> Result<OutboundBuffer, TrySendError> {
        self.try_in_room(|| self.inner.link.try_buffer(len))
    }

    /// Calls `attempt` without waiting. If there is no room, polls once and calls `attempt` a
    /// second time. If there is still no room, requests a notification of later room.
    pub(super) fn try_in_room<T>(
        &self,
        mut attempt: impl FnMut() -> Result<T, TrySendError>,
    ) -> Result<T, TrySendError> {
        let mut result = attempt();
        if let Err(TrySendError::Full) = result {
            let link = &self.inner.link;
            // A completion that no thread has polled yet may contain a grant.
            link.poll_once();
            link.prepare_room_fd();
            result = attempt();
            if let Err(TrySendError::Full) = result {
                link.request_room_report();
            } else {
                link.need_no_room();
            }
        }
        result
    }

    /// Sends a message, and waits for room without a time limit.
    fn send_until_taken(&self, sending: &mut Sending<'_>) -> Result<(), Error> {
        let link = &self.inner.link;
        match link.try_send(sending) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full | TrySendError::Failed(Error::CompletionsNotTaken)) => {
                // A completion that no thread has polled yet may contain a grant.
                link.poll_again();
                self.wait_for_room(&Deadline::never(), || link.try_send(sending))
            }
            Err(TrySendError::Failed(error)) => Err(error),
        }
    }

    /// Repeats an attempt that is refused as full, until it succeeds or fails, or until the
    /// deadline expires.
    ///
    /// If the attempt fails because the channel has no room for the message's completion, repeats
    /// the attempt only while another thread takes completions.
    pub(super) fn wait_for_room<T>(
        &self,
        deadline: &Deadline,
        mut attempt: impl FnMut() -> Result<T, TrySendError>,
    ) -> Result<T, Error> {
        let link = &self.inner.link;
        let mut untaken_since = None;
        let checks_stalls = link.checks_stalls_after();
        loop {
            let look = checks_stalls.map(|after| deadline.at_most(after));
            let done = link.wait_until(look.as_ref().unwrap_or(deadline), None, || {
                match attempt() {
                    Ok(done) => Some(Ok(done)),
                    Err(TrySendError::Full) => None,
                    Err(TrySendError::Failed(error)) => Some(Err(error)),
                }
            });
            match done {
                Ok(Err(Error::CompletionsNotTaken))
                    if !deadline.is_over() && link.may_free_report_slot(&mut untaken_since) =>
                {
                    // A channel does not notify threads when completions are taken from it, so this
                    // thread polls.
                    let look = deadline.at_most(ROOM_CHECK_INTERVAL);
                    let _ = link.wait_until(&look, None, || None::<()>);
                }
                Ok(done) => return done,
                Err(_) if checks_stalls.is_some() && !deadline.is_over() => link.check_stall(),
                Err(_) => return Err(Error::TimedOut),
            }
        }
    }

    #[inline]
    fn recv_until(&self, deadline: &Deadline) -> Result<Message, Error> {
        let handoff = Handoff::default();
        let link = &self.inner.link;
        let may_have_unread = link.may_have_unread.load(Ordering::Relaxed);
        if may_have_unread && let Some(message) = self.take_listed() {
            return Ok(message);
        }
        let was_polled = !may_have_unread && link.poll_first(&handoff);
        match handoff.take() {
            Some(message) => Ok(message),
            None => self.wait_for_message(was_polled, deadline, &handoff),
        }
    }

    /// Takes the next message if another completion follows it in the queue. The fd for event loops
    /// then stays readable, so this method does not update the fd.
    #[inline]
    fn take_listed(&self) -> Option<Message> {
        self.inner.completions.take_message_before_others()
    }

    #[inline(never)]
    fn wait_for_message(
        &self,
        was_polled: bool,
        deadline: &Deadline,
        handoff: &Handoff,
    ) -> Result<Message, Error> {
        let ready = || self.take_from(handoff);
        let link = &self.inner.link;
        link.wait_after_poll(was_polled, deadline, handoff, ready)
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
        self.take_arrived()
    }

    /// Returns true if [`take_from`](Self::take_from) has nothing to return: the completion queue
    /// is empty, the connection has not ended, the peer has not finished sending, and a stream has
    /// no unread bytes. Clears `may_have_unread` if the completion queue is empty. The check must
    /// be cheap, because a waiting thread repeats it and usually finds nothing.
    #[inline]
    fn has_nothing(&self) -> bool {
        let inner = &*self.inner;
        let is_empty = inner.completions.is_empty();
        if is_empty {
            inner.link.may_have_unread.store(false, Ordering::Relaxed);
        }
        is_empty && inner.link.is_receiving() && !inner.has_bytes()
    }

    #[inline(never)]
    fn take_arrived(&self) -> Option<Result<Message, Error>> {
        let taken = self.take();
        match self.inner.inflow.get() {
            None => taken,
            Some(inflow) => self.take_bytes_before(taken, inflow),
        }
    }

    /// Removes the next message from the queue, and stores the completions before it for
    /// `next_completion`.
    pub(super) fn take(&self) -> Option<Result<Message, Error>> {
        let taken = loop {
            if self.inner.completions.is_empty() {
                if self.inner.link.is_receiving() {
                    break None;
                }
                break self.take_end().or_else(|| self.take_finish());
            }
            match self.inner.completions.take() {
                Some(Completion::Received(message)) => break Some(Ok(message)),
                Some(Completion::Disconnected(reason)) => {
                    break Some(Err(Error::Disconnected(reason)));
                }
                Some(Completion::Finished) => break Some(Err(Error::PeerFinished)),
                // A program that calls `recv` does not need these completions, so they are dropped.
                Some(
                    Completion::Room | Completion::Suspended { .. } | Completion::Resumed { .. },
                ) => {}
                Some(other) => self.set_aside(other),
                None => break self.take_end(),
            }
        };
        self.update_readiness();
        taken
    }

    /// Returns the peer's Finish if all messages were taken. Later calls return it again.
    fn take_finish(&self) -> Option<Result<Message, Error>> {
        // The link reports the peer as finished only after the peer's messages are in the queue. So
        // `peer_has_finished` must be called before the queue is checked.
        let finished = self.inner.link.peer_has_finished() && self.inner.completions.is_empty();
        finished.then_some(Err(Error::PeerFinished))
    }

    /// Sends a control message, which the peer receives even while the window is full of messages.
    ///
    /// Use control messages for short notices that must not wait behind messages, such as the
    /// cancellation of a request. The peer gets [`Completion::Control`], even if its program holds
    /// so many messages that its window is full. Control messages arrive in the order of sending.
    /// They are not ordered relative to other messages: a control message can arrive before a
    /// message that was sent earlier. They can be sent after [`finish`](Self::finish), and a
    /// successful [`close`](Self::close) confirms them, as [`flush`](Self::flush) does. On a
    /// connection with [`Config::resume`](crate::Config::resume) each arrives exactly once, even if
    /// the connection is lost.
    ///
    /// This method never waits. A control message has at most 256 bytes, and at most the peer's
    /// [`eager_size`](crate::Config::eager_size). At most 2 control messages may be in flight or
    /// not yet dropped by the peer's program.
    ///
    /// # Errors
    ///
    /// * [`Error::ControlMessagesNotTaken`] while 2 earlier control messages are in flight or not
    ///   yet dropped.
    /// * [`Error::ControlMessageTooLong`] for a control message above these lengths.
    /// * [`Error::NotSupported`] when the peer does not accept control messages, because it is a
    ///   [`Stream`](crate::Stream) or uses an earlier version of this crate.
    /// * [`Error::Disconnected`] when the connection has ended or is being closed.
    ///
    /// After any error except `Disconnected` the connection stays open, and nothing was sent.
    ///
    /// # Examples
    ///
    /// ```
    /// use rdmsg::{Completion, Endpoint};
    ///
    /// # fn main() -> Result<(), rdmsg::Error> {
    /// let (client, server) = Endpoint::pair()?;
    /// client.send(b"request 7")?;
    /// client.send_control(b"cancel 7")?;
    /// loop {
    ///     match server.next_completion()? {
    ///         Completion::Received(request) => assert_eq!(request, b"request 7"),
    ///         Completion::Control(notice) => break assert_eq!(notice, b"cancel 7"),
    ///         other => panic!("{other:?}"),
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn send_control(&self, message: &[u8]) -> Result<(), Error> {
        let link = &self.inner.link;
        match link.send_control(message) {
            Err(Error::ControlMessagesNotTaken { .. }) => {
                // A completion that no thread has polled yet may contain a grant.
                link.poll_once();
                link.send_control(message)
            }
            sent => sent,
        }
    }

    /// Notifies the peer that this side wants to end the connection soon.
    ///
    /// The peer gets [`Completion::PeerLeaving`] once, even if its program holds so many messages
    /// that its window is full. The peer's program should then begin no new work on the connection.
    /// A server calls this method before it stops, and closes the connection after its last
    /// answers. The connection itself does not change: both sides can continue to send. This method
    /// never waits, and a second call does nothing. With [`Config::resume`](crate::Config::resume)
    /// the peer gets the notice even if the connection is lost.
    ///
    /// # Errors
    ///
    /// * [`Error::NotSupported`] when the peer does not support this notice, because it is a
    ///   [`Stream`](crate::Stream) or uses an earlier version of this crate. The connection stays
    ///   open.
    /// * [`Error::Disconnected`] when the connection has ended or is being closed.
    ///
    /// # Examples
    ///
    /// ```
    /// use rdmsg::{Completion, Endpoint};
    ///
    /// # fn main() -> Result<(), rdmsg::Error> {
    /// let (client, server) = Endpoint::pair()?;
    /// server.ask_to_leave()?;
    /// let told = client.next_completion()?;
    /// assert!(matches!(told, Completion::PeerLeaving));
    /// // The client connects elsewhere, and closes this connection after its last answer.
    /// client.close()
    /// # }
    /// ```
    pub fn ask_to_leave(&self) -> Result<(), Error> {
        self.inner.link.ask_to_leave()
    }

    /// Ends the sending direction of this side, which can still receive messages (half-close).
    ///
    /// The peer receives everything that was sent before. Then its [`recv`](Self::recv) returns
    /// [`Error::PeerFinished`], or it gets [`Completion::Finished`]. The peer can continue to send,
    /// and this side can continue to receive. Later sends of this side fail with
    /// [`Error::Finished`]. One-sided operations remain possible, except for
    /// [`write_with_imm`](crate::OneSided::write_with_imm). This method does not wait, and a second
    /// call does nothing. The connection stays open until one side closes it.
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
    /// This includes one-sided operations. The call takes one round trip, plus the time that the
    /// peer needs to read large messages. It does not confirm that the peer's program has received
    /// the messages.
    ///
    /// # Errors
    ///
    /// [`Error::Disconnected`] when the connection has ended: messages may be lost.
    pub fn flush(&self) -> Result<(), Error> {
        self.flush_until(&Deadline::never())
    }

    /// Waits until everything that was sent so far has arrived, but no longer than `timeout`.
    ///
    /// # Errors
    ///
    /// * [`Error::TimedOut`] when the peer's answer did not arrive in time. The connection stays
    ///   open.
    /// * [`Error::Disconnected`] when the connection has ended: messages may be lost.
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

/// Sends batches of messages.
impl Endpoint {
    /// Sends these messages in order, and waits while the peer's window is full. Returns the number
    /// of messages sent.
    ///
    /// Each message arrives separately, as if it had been sent by [`send`](Self::send), but several
    /// messages share a frame. A frame carries up to 64 messages, within the peer's eager size and
    /// window, and costs about the same for one message as for 64. The bytes are copied. Each
    /// message uses one credit. Messages of one frame share a receive buffer, which becomes free
    /// when the last of them is dropped.
    ///
    /// If an error occurs after some messages were sent, returns the number of these messages; the
    /// next call returns the error. An empty batch sends nothing.
    ///
    /// # Errors
    ///
    /// The errors of [`send`](Self::send) for the first message: nothing was sent.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use std::io::IoSlice;
    ///
    /// # fn main() -> Result<(), rdmsg::Error> {
    /// let endpoint = rdmsg::Endpoint::connect("10.8.0.1:7471")?;
    /// let quotes = ["RDMA 17.2", "TCP 3.1", "UDP 2.9"];
    /// let batch = quotes.map(|quote| IoSlice::new(quote.as_bytes()));
    /// assert_eq!(endpoint.send_batch(&batch)?, quotes.len());
    /// # Ok(())
    /// # }
    /// ```
    pub fn send_batch(&self, messages: &[IoSlice<'_>]) -> Result<usize, Error> {
        let never = Deadline::never();
        let mut sent = 0;
        while let rest @ [_, ..] = &messages[sent..] {
            match self.wait_for_room(&never, || self.send_some(rest)) {
                Ok(some) => sent += some,
                Err(error) if sent == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(sent)
    }

    /// Sends messages while there is room. Returns the number of messages sent.
    pub(super) fn send_some(&self, messages: &[IoSlice<'_>]) -> Result<usize, TrySendError> {
        let mut sent = 0;
        while let rest @ [_, ..] = &messages[sent..] {
            match self.inner.link.try_send_some(rest) {
                Ok(some) => sent += some,
                Err(error) if sent == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(sent)
    }
}
