//! Sends messages, batches, control messages and bytes of a stream, and starts one-sided
//! operations. All of this runs under the lock of `core`.
//!
//! Only the module `calls` uses `try_send` and similar functions, so they are inlined there.

use std::{io::IoSlice, mem, time::Instant};

use super::{
    core::Core,
    cork::{Cork, LONGEST_TO_JOIN},
    fragments::{fitting, post_batch, post_fragments},
    pending_send::{Attempt, Content, LONGEST, Sending, total},
};
use crate::{
    error::{Error, TrySendError},
    proto::{self, CONTROL_WINDOW, CloseReason, ControlRefused, SendMethod, SendRefused, Transmit},
    status::OsError,
    transport::{Checked, Exposed, PostError},
};

/// A flush in progress. It covers all messages that were sent before it.
#[derive(Debug)]
pub(crate) enum Flush {
    /// The flush waits until the held bytes are sent. The value is the total number of bytes that
    /// had been added to the cork when the flush began.
    Held(u64),
    /// The peer's library was asked for a confirmation, over the connection with this generation.
    Asked(proto::Flush, u32),
    /// The session is suspended. The peer's library will be asked for a confirmation after all kept
    /// messages have been sent again.
    Suspended,
}

/// Messages.
impl Core {
    /// Returns an error if the connection has ended or is closing, or `Full` if a send has to wait
    /// for the session.
    #[inline]
    pub(super) fn check_sendable(&self) -> Result<(), TrySendError> {
        let is_open = match &self.session {
            None => true,
            Some(session) => {
                session.messages.is_open() && session.closing.is_none() && !self.conn.is_ending()
            }
        };
        if is_open && self.ended.is_none() {
            return Ok(());
        }
        self.check_session_sendable()
    }

    /// Returns whether the caller can pass a message to the state machine directly. Unlike
    /// [`check_sendable`](Self::check_sendable), this function does not check for a close, because
    /// after a close the state machine itself refuses messages.
    #[inline(always)]
    pub(super) fn may_be_sendable(&self) -> bool {
        let session = self.session.as_ref();
        self.ended.is_none() && session.is_none_or(|session| session.messages.is_open())
    }

    #[inline(never)]
    fn check_session_sendable(&self) -> Result<(), TrySendError> {
        if let Some(ended) = &self.ended {
            return Err(Error::Disconnected(ended.reason.clone()).into());
        }
        match &self.session {
            Some(session) if session.closing.is_some() => {
                Err(Error::Disconnected(CloseReason::LocallyClosed).into())
            }
            Some(_) if self.blocks_new_messages() => Err(TrySendError::Full),
            Some(_) | None => Ok(()),
        }
    }

    /// Sends a message if the window has room for it.
    #[inline]
    pub(super) fn try_send(&mut self, message: &mut Sending<'_>) -> Result<Attempt, TrySendError> {
        self.check_sendable()?;
        let len = message.len;
        let refused = |refused| refused_send(refused, len);
        if self.holds_back() {
            // Held messages must be sent before this one.
            self.conn.may_send(len).map_err(refused)?;
            return Err(TrySendError::Full);
        }
        let method = self.method_for(message);
        // Most messages fit into a frame and have no id. They need no check here, because the state
        // machine checks them when it sends them.
        if method != SendMethod::Frame || message.id.is_some() {
            if message.len > LONGEST {
                // No peer can accept a message of this length.
                return Err(TrySendError::Failed(Error::MessageTooLong {
                    len: message.len,
                    limit: LONGEST as u64,
                }));
            }
            self.conn.may_send(message.len).map_err(refused)?;
            if message.id.is_some() && !self.has_report_slot() {
                return Err(TrySendError::Failed(Error::CompletionsNotTaken));
            }
        }
        self.send_checked(message, method)
    }

    /// Does the same as [`try_send`](Self::try_send) for a message that has been checked.
    pub(super) fn send_now(&mut self, message: &mut Sending<'_>) -> Result<Attempt, TrySendError> {
        let method = self.method_for(message);
        self.send_checked(message, method)
    }

    /// Returns the method for sending this message now: a frame, fragments, or an announcement.
    #[inline(always)]
    fn method_for(&self, message: &Sending<'_>) -> SendMethod {
        if self.conn.is_eager(message.len) {
            return SendMethod::Frame;
        }
        match message.content {
            Content::Exposed(_) if message.generation == self.generation => {
                SendMethod::Announcement
            }
            _ => self.conn.send_method(message.len),
        }
    }

    /// Sends a message without an id if it fits into a frame and the window has room. Returns false
    /// if the caller has to use [`try_send`](Self::try_send), which returns the reason for a
    /// refusal.
    #[inline]
    pub(super) fn send_at_once(&mut self, message: &[u8]) -> bool {
        if !self.may_be_sendable() || self.holds_back() {
            return false;
        }
        let Some(queues) = &mut self.queues else {
            return false;
        };
        let Some(transmit) = self.conn.send_at_once(message.len()) else {
            return false;
        };
        if let Err(outcome) = queues.post_message(&transmit, message)
            && self.handle_post_error(outcome).is_err()
        {
            return false;
        }
        if let Some(session) = &mut self.session {
            session.keep_bytes(&self.conn, message);
        }
        true
    }

    #[inline(always)]
    fn send_checked(
        &mut self,
        message: &mut Sending<'_>,
        method: SendMethod,
    ) -> Result<Attempt, TrySendError> {
        if let Content::Exposed(_) = message.content
            && message.generation != self.generation
        {
            // The memory is exposed over an earlier connection. The current connection may have
            // another eager size, so the message may need no exposure.
            message.end_exposure();
        }
        match &mut message.content {
            Content::Sent => {}
            Content::Exposed(exposed) => {
                if let Err(error) = self.announce(exposed, message.id) {
                    if exposed.is_bound() {
                        // The memory window is bound to the queue pair. The queue pair may be
                        // destroyed before the message is dropped or sent again.
                        message.end_exposure();
                    }
                    return Err(error);
                }
            }
            Content::Parts(_) | Content::Memory(_) if method == SendMethod::Announcement => {
                return Ok(Attempt::NotExposed);
            }
            Content::Parts(parts) => self.send_parts(parts, message.len, method, message.id)?,
            Content::Memory(memory) => {
                let parts = [IoSlice::new(memory.bytes())];
                self.send_parts(&parts, message.len, method, message.id)?;
            }
        }
        if let Content::Exposed(exposed) = mem::replace(&mut message.content, Content::Sent)
            && let Some(queues) = &mut self.queues
        {
            queues.expose(exposed);
        }
        Ok(Attempt::Sent)
    }

    /// Sends a message of `len` bytes in one frame or in fragments.
    #[inline(always)]
    fn send_parts(
        &mut self,
        parts: &[IoSlice<'_>],
        len: usize,
        method: SendMethod,
        id: Option<u64>,
    ) -> Result<(), TrySendError> {
        let refused = |refused| refused_send(refused, len);
        let reported = id.is_some();
        let Some(queues) = &mut self.queues else {
            return Err(TrySendError::Failed(Error::Disconnected(self.reason())));
        };
        let posted = if let SendMethod::Fragments(count) = method {
            post_fragments(&mut self.conn, queues, parts, len, count, reported).map_err(refused)?
        } else {
            let transmit = self.conn.send(len).map_err(refused)?;
            queues.post_send(&transmit, parts, reported)
        };
        posted.or_else(|outcome| self.handle_post_error(outcome))?;
        if let Some(session) = &mut self.session {
            session.keep(&self.conn, parts, id);
        }
        if let Some(id) = id {
            self.reports.order.small(id);
        }
        Ok(())
    }

    /// Announces a message, which the peer then reads from this side's memory.
    fn announce(&mut self, exposed: &mut Exposed, id: Option<u64>) -> Result<(), TrySendError> {
        let descriptor = exposed.descriptor();
        let refused = |refused| refused_send(refused, descriptor.len as usize);
        let Some(queues) = &mut self.queues else {
            return Err(TrySendError::Failed(Error::Disconnected(self.reason())));
        };
        let transmit = self.conn.send_large(&descriptor).map_err(refused)?;
        queues
            .announce(&transmit, exposed)
            .or_else(|outcome| self.handle_post_error(outcome))?;
        if let Some(session) = &mut self.session {
            session.keep_large(&self.conn, id);
        }
        self.reports.order.large(id);
        Ok(())
    }

    /// Handles a post that failed, or after which the engine has to poll. Returns an error only if
    /// nothing was posted.
    #[cold]
    pub(super) fn handle_post_error(&mut self, outcome: PostError) -> Result<(), TrySendError> {
        match outcome {
            PostError::PollBoth => {
                self.deferred.drive = true;
                Ok(())
            }
            PostError::Failed(error) => Err(self.post_failed(error)),
        }
    }

    /// Ends the connection because a work request could not be posted. Returns the error for the
    /// caller of the send. If the connection was already ending and the reason is not known yet,
    /// returns `Full`, so that the caller waits for the reason.
    pub(super) fn post_failed(&mut self, error: OsError) -> TrySendError {
        self.conn.handle_post_failure(error, Instant::now());
        if self.conn.awaits_end_cause() {
            return TrySendError::Full;
        }
        TrySendError::Failed(Error::Disconnected(self.reason()))
    }

    /// Sends the longest prefix of `messages` that fits into one frame, if this prefix contains at
    /// least two messages. Returns the number of messages in the prefix. A result of 0 or 1 means
    /// that nothing was sent. If held messages must be sent first, sends nothing and returns 0.
    #[inline]
    pub(super) fn try_send_batch(
        &mut self,
        messages: &[IoSlice<'_>],
    ) -> Result<usize, TrySendError> {
        self.check_sendable()?;
        if self.holds_back() {
            // Held messages must be sent before these.
            return Ok(0);
        }
        let refused = |refused| refused_send(refused, 0);
        let room = self.conn.batch_room().map_err(refused)?;
        let (count, len) = fitting(messages, room);
        if count < 2 {
            return Ok(count);
        }
        let Some(queues) = &mut self.queues else {
            return Err(TrySendError::Failed(Error::Disconnected(self.reason())));
        };
        // The cast is lossless, because the count is at most `MAX_PARTS`.
        let transmit = self.conn.send_batch(count as u32, len).map_err(refused)?;
        let batch = &messages[..count];
        post_batch(queues, &transmit, batch).or_else(|error| self.handle_post_error(error))?;
        if let Some(session) = &mut self.session {
            for message in batch {
                session.keep(&self.conn, &[IoSlice::new(message)], None);
            }
        }
        Ok(count)
    }
}

/// Functions for the bytes of a stream, and for held bytes.
impl Core {
    /// Sends or holds bytes from the start of `parts`. Returns the number of bytes accepted, or
    /// `None` if the caller has to send them as a large message.
    #[inline]
    pub(super) fn try_write(
        &mut self,
        parts: &[IoSlice<'_>],
    ) -> Result<Option<usize>, TrySendError> {
        self.check_sendable()?;
        let len = total(parts);
        if !self.conn.is_eager(len) {
            return Ok(None);
        }
        let sent = self.conn.may_send(len).and_then(|()| {
            self.uncork();
            self.conn.send(len)
        });
        match sent {
            Ok(transmit) => self.post_bytes(&transmit, parts).map(|()| Some(len)),
            Err(SendRefused::Blocked) => {
                let most = self.most_held_back(len);
                match self.hold_back(|cork, longest| cork.extend(parts, longest, most)) {
                    0 => Err(TrySendError::Full),
                    taken => Ok(Some(taken)),
                }
            }
            Err(refused) => Err(refused_send(refused, len)),
        }
    }

    /// Returns the limit on the number of bytes that the cork holds after a write of `len` bytes.
    /// For a long write the limit is 0. Regardless of the limit, the cork may hold one frame.
    fn most_held_back(&self, len: usize) -> usize {
        if len > LONGEST_TO_JOIN {
            return 0;
        }
        usize::try_from(self.conn.most_held_back()).unwrap_or(usize::MAX)
    }

    /// Returns whether a write of `len` bytes can add at least one byte to the held bytes.
    #[cfg(feature = "tokio")]
    pub(super) fn may_join(&mut self, len: usize) -> bool {
        let most = self.most_held_back(len);
        self.conn.is_eager(len) && self.hold_back(|cork, longest| cork.room(longest, most) > 0)
    }

    fn post_bytes(
        &mut self,
        transmit: &Transmit,
        parts: &[IoSlice<'_>],
    ) -> Result<(), TrySendError> {
        let Some(queues) = &mut self.queues else {
            return Err(TrySendError::Failed(Error::Disconnected(self.reason())));
        };
        queues
            .post_send(transmit, parts, false)
            .or_else(|error| self.handle_post_error(error))?;
        if let Some(session) = &mut self.session {
            session.keep(&self.conn, parts, None);
        }
        Ok(())
    }

    /// Returns whether held messages must be sent before any other message.
    pub(super) fn holds_back(&self) -> bool {
        !self.cork.is_empty()
    }

    /// Calls `join` with the cork and the maximum payload of a frame, so that `join` can add bytes.
    /// The connection does not finish or close until the held bytes are sent. If the application
    /// can no longer send, does not call `join`, and returns the default value.
    fn hold_back<T: Default>(&mut self, join: impl FnOnce(&mut Cork, usize) -> T) -> T {
        let sides = self.conn.negotiated();
        let longest = sides.map_or(0, |sides| sides.send_eager as usize);
        if !self.conn.hold() {
            return T::default();
        }
        let taken = join(&mut self.cork, longest);
        if self.cork.is_empty() {
            self.conn.release_ending();
        }
        taken
    }

    /// Sends held messages while the window has room. Returns whether it sent any.
    pub(super) fn uncork(&mut self) -> bool {
        let mut sent = false;
        while self.holds_back() {
            match self.uncork_some() {
                Ok(()) => sent = true,
                // The window is full, the session blocks new messages, or the peer accepts no
                // further messages. In the last case the held messages are lost.
                Err(_) => break,
            }
        }
        sent
    }

    fn uncork_some(&mut self) -> Result<(), SendRefused> {
        if self.blocks_new_messages() {
            return Err(SendRefused::Blocked);
        }
        let room = self.conn.held_room()?;
        let front = self.cork.front(room);
        let payload = self.cork.payload(front);
        // The cast is lossless, because the count is at most the number of messages in a frame.
        let transmit = self.conn.send_held(front.count as u32, payload.len())?;
        let posted = match &mut self.queues {
            Some(queues) => queues.post_send(&transmit, &[IoSlice::new(payload)], false),
            None => Ok(()),
        };
        if let Some(session) = &mut self.session {
            match front.count {
                1 => session.keep(&self.conn, &[IoSlice::new(payload)], None),
                _ => session.keep_parts(&self.conn, payload),
            }
        }
        if let Err(error) = posted {
            // If posting failed, the connection ends, and the reason for its end contains the
            // error.
            let _ = self.handle_post_error(error);
        }
        self.cork.mark_sent(front);
        if self.cork.is_empty() {
            self.conn.release_ending();
        }
        Ok(())
    }

    /// Starts a flush, which asks the peer's library whether all messages sent so far have arrived.
    /// If the session is suspended or messages are held, only a later call of [`ask`](Self::ask)
    /// asks the peer's library.
    pub(super) fn flush(&mut self) -> Result<Flush, Error> {
        self.check_not_ended()?;
        if self.blocks_new_messages() {
            return Ok(Flush::Suspended);
        }
        if self.holds_back() {
            return Ok(Flush::Held(self.cork.joined()));
        }
        self.ask()
    }

    /// Asks the peer's library whether all sent messages have arrived.
    pub(super) fn ask(&mut self) -> Result<Flush, Error> {
        let asked = self.conn.flush();
        asked
            .map(|asked| Flush::Asked(asked, self.generation))
            .map_err(|refused| refused_send(refused, 0).into())
    }
}

/// Control messages, which overtake the messages that wait for credit.
impl Core {
    /// Sends a control message. If the session's connection is lost, the message is stored, and
    /// sent over the next connection.
    pub(super) fn send_control(&mut self, message: &[u8]) -> Result<(), Error> {
        self.check_open()?;
        let sent = if self.is_lost() {
            self.conn.keep_control_message(message)
        } else {
            self.conn.send_control_message(message)
        };
        sent.map_err(|refused| match refused {
            ControlRefused::NotTaken => not_supported("send_control"),
            ControlRefused::TooLong { limit } => Error::ControlMessageTooLong {
                len: message.len(),
                limit,
            },
            ControlRefused::Full => Error::ControlMessagesNotTaken {
                untaken: CONTROL_WINDOW,
            },
            ControlRefused::Closed(reason) => Error::Disconnected(reason),
        })
    }

    /// Notifies the peer that the application wants to end the connection soon. A session repeats
    /// this notification on each new connection.
    pub(crate) fn ask_to_leave(&mut self) -> Result<(), Error> {
        self.check_open()?;
        if !self.is_lost() {
            self.conn.ask_to_leave().map_err(|refused| match refused {
                ControlRefused::Closed(reason) => Error::Disconnected(reason),
                ControlRefused::NotTaken
                | ControlRefused::TooLong { .. }
                | ControlRefused::Full => not_supported("ask_to_leave"),
            })?;
        }
        if let Some(session) = &mut self.session {
            session.leaving = true;
        }
        Ok(())
    }

    /// Returns an error if the connection has ended or the application has closed it.
    fn check_open(&self) -> Result<(), Error> {
        self.check_not_ended()?;
        if (self.session.as_ref()).is_some_and(|session| session.closing.is_some()) {
            return Err(Error::Disconnected(CloseReason::LocallyClosed));
        }
        Ok(())
    }
}

/// One-sided operations.
impl Core {
    /// Starts a one-sided operation if the send queue has room for it.
    #[inline]
    pub(super) fn try_operate(&mut self, checked: &Checked) -> Result<(), TrySendError> {
        if checked.epoch != self.epoch() {
            return Err(TrySendError::Failed(Error::StaleRegion));
        }
        self.check_sendable()?;
        if let Some(able) = self.conn.capabilities() {
            // Checks whether the devices support the operation. The access rights of this side's
            // region were already checked.
            checked
                .op
                .check(able, || "the peer's device".to_owned())
                .map_err(TrySendError::Failed)?;
        }
        if self.holds_back() {
            // Held messages must be sent before this operation.
            self.conn
                .may_send(0)
                .map_err(|refused| refused_send(refused, 0))?;
            return Err(TrySendError::Full);
        }
        if !self.has_report_slot() {
            return Err(TrySendError::Failed(Error::CompletionsNotTaken));
        }
        let slot = self
            .conn
            .operate(checked.takes_receive())
            .map_err(|refused| refused_send(refused, checked.len()))?;
        let Some(queues) = &mut self.queues else {
            return Err(TrySendError::Failed(Error::Disconnected(self.reason())));
        };
        queues
            .post_operation(slot, checked)
            .or_else(|error| self.handle_post_error(error))
    }
}

/// Converts a refusal of the state machine to the error of the call. `len` is the length of the
/// refused message in bytes.
pub(super) fn refused_send(refused: SendRefused, len: usize) -> TrySendError {
    TrySendError::Failed(match refused {
        SendRefused::Blocked => return TrySendError::Full,
        SendRefused::TooLong { limit } => Error::MessageTooLong { len, limit },
        SendRefused::Finished => Error::Finished,
        SendRefused::Closed(reason) => Error::Disconnected(reason),
    })
}

/// Returns the error for an operation that the peer does not support, according to the peer's
/// hello.
fn not_supported(operation: &'static str) -> Error {
    Error::NotSupported {
        operation,
        device: "the peer".into(),
        because: "it is a stream, or its version of rdmsg has no control messages",
    }
}
