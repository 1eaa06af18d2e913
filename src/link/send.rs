//! Sends messages, batches and bytes of a stream, and starts one-sided operations. All of this runs
//! under the lock of `core`. A message is either copied into a send buffer, or exposed in memory
//! that the peer reads.
//!
//! Only the module `calls` uses `try_send` and similar functions, so they are inlined there.

use std::{io::IoSlice, mem, time::Instant};

use super::{
    core::Core,
    cork::{Cork, LONGEST_TO_JOIN},
    fragments,
};
use crate::{
    error::{Error, TrySendError},
    proto::{self, BatchRoom, MAX_PARTS, PART_HEADER_LEN, SendMethod, SendRefused, Transmit},
    status::OsError,
    transport::{Allocator, Checked, Exposed, OutboundBuffer, PostError, WorkQueues},
};

/// The maximum length in bytes of an object in memory.
const LONGEST: usize = isize::MAX as usize;

/// A batch of at most this number of messages uses arrays of this length. Longer batches use arrays
/// of length [`MAX_PARTS`].
const SHORT_BATCH: usize = 16;

/// A message to send. If the message is refused, this value keeps the copy or the registered memory
/// for the next attempt.
#[derive(Debug)]
pub(crate) struct Sending<'a> {
    content: Content<'a>,
    len: usize,
    id: Option<u64>,
    /// The generation of the connection over which the message is exposed.
    generation: u32,
}

#[derive(Debug)]
enum Content<'a> {
    /// The application's bytes, in consecutive parts.
    Parts(&'a [IoSlice<'a>]),
    /// Memory that the application has filled, or a copy of a large message.
    Memory(OutboundBuffer),
    /// A large message in memory that the peer can read after the announcement.
    Exposed(Exposed),
    /// Nothing: the message was posted, and the peer may have received a part of it.
    Sent,
}

/// The result of a send attempt that was not refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attempt {
    Sent,
    /// The message is large. The caller must expose it to the peer, and then try again.
    NotExposed,
}

impl<'a> Sending<'a> {
    /// Creates a message from the bytes of all `parts`, in order. If there is an `id`, the
    /// completion of the message is reported with this id.
    pub(crate) fn new(parts: &'a [IoSlice<'a>], id: Option<u64>) -> Self {
        Self {
            content: Content::Parts(parts),
            len: total(parts),
            id,
            generation: 0,
        }
    }

    /// Creates a message from the bytes in `memory`.
    pub(crate) fn owned(memory: OutboundBuffer, id: Option<u64>) -> Self {
        Self {
            len: memory.len(),
            content: Content::Memory(memory),
            id,
            generation: 0,
        }
    }

    /// Returns the message's own memory. Returns `None` if the message was sent, or if it consists
    /// of the application's bytes.
    pub(crate) fn into_memory(self) -> Option<OutboundBuffer> {
        match self.content {
            Content::Memory(memory) => Some(memory),
            Content::Exposed(exposed) => Some(exposed.into_buffer()),
            Content::Parts(_) | Content::Sent => None,
        }
    }

    /// Ends the exposure of the message to the peer, and keeps its memory.
    fn end_exposure(&mut self) {
        if let Content::Exposed(exposed) = mem::replace(&mut self.content, Content::Sent) {
            self.content = Content::Memory(exposed.into_buffer());
        }
    }

    /// Exposes a large message to the peer. First copies the message if its bytes are not in memory
    /// of the current connection. `generation` is the number of that connection in its session.
    pub(super) fn expose(&mut self, allocator: &Allocator, generation: u32) -> Result<(), Error> {
        self.generation = generation;
        let buffer = match mem::replace(&mut self.content, Content::Sent) {
            Content::Parts(parts) => {
                self.content = Content::Parts(parts);
                copied(parts, self.len, allocator)?
            }
            Content::Memory(buffer) if allocator.owns(&buffer) => buffer,
            Content::Memory(buffer) => {
                let copied = copied(&[IoSlice::new(buffer.bytes())], self.len, allocator);
                copied.inspect_err(|_| self.content = Content::Memory(buffer))?
            }
            content @ (Content::Exposed(_) | Content::Sent) => {
                self.content = content;
                return Ok(());
            }
        };
        let (content, result) = match allocator.expose(buffer) {
            Ok(exposed) => (Content::Exposed(exposed), Ok(())),
            Err((buffer, error)) => (Content::Memory(buffer), Err(Error::from_os(error))),
        };
        self.content = content;
        result
    }
}

/// Copies `len` bytes into memory from the connection's allocator.
fn copied(
    parts: &[IoSlice<'_>],
    len: usize,
    allocator: &Allocator,
) -> Result<OutboundBuffer, Error> {
    let mut buffer = allocator.buffer(len).map_err(Error::from_os)?;
    let mut to = buffer.bytes_mut();
    for part in parts {
        let (here, rest) = to.split_at_mut(part.len());
        here.copy_from_slice(part);
        to = rest;
    }
    Ok(buffer)
}

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
            fragments::post(&mut self.conn, queues, parts, len, count, reported).map_err(refused)?
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
        // Filling an array for the longest batch would cost more than posting a short batch.
        let posted = if count <= SHORT_BATCH {
            post_batch::<SHORT_BATCH>(queues, &transmit, batch)
        } else {
            post_batch::<MAX_PARTS>(queues, &transmit, batch)
        };
        posted.or_else(|error| self.handle_post_error(error))?;
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

/// Posts a frame that contains at most `N` messages. A length field precedes each message.
fn post_batch<const N: usize>(
    queues: &mut WorkQueues,
    transmit: &Transmit,
    messages: &[IoSlice<'_>],
) -> Result<(), PostError> {
    let mut lens = [[0; PART_HEADER_LEN]; N];
    let mut parts = [[IoSlice::new(&[]); 2]; N];
    for ((part, len), message) in parts.iter_mut().zip(&mut lens).zip(messages) {
        // Each message fits into the frame, so its length fits into 32 bits.
        *len = (message.len() as u32).to_be_bytes();
        *part = [IoSlice::new(len), IoSlice::new(message)];
    }
    queues.post_send(transmit, parts[..messages.len()].as_flattened(), false)
}

/// Returns the number of messages, counted from the first, that fit into a frame. The second value
/// is the total length in bytes of these messages and their length fields.
fn fitting(messages: &[IoSlice<'_>], room: BatchRoom) -> (usize, usize) {
    let (mut count, mut bytes) = (0, 0_usize);
    for message in messages.iter().take(room.messages.min(MAX_PARTS)) {
        let more = bytes + PART_HEADER_LEN;
        match more.checked_add(message.len()) {
            Some(more) if more <= room.bytes => bytes = more,
            Some(_) | None => break,
        }
        count += 1;
    }
    (count, bytes)
}

/// Returns the total length of `parts` in bytes, or `usize::MAX` if the sum is larger. The sum can
/// be larger, because several parts may refer to the same bytes. A result of `usize::MAX` is always
/// above the maximum length of a message.
pub(crate) fn total(parts: &[IoSlice<'_>]) -> usize {
    sum(parts.iter().map(|part| part.len()))
}

fn sum(lens: impl Iterator<Item = usize>) -> usize {
    lens.fold(0, usize::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_sends_the_messages_that_fit() {
        let bytes = [7; 100];
        let messages: Vec<_> = [10, 0, 86, 1].map(|len| IoSlice::new(&bytes[..len])).into();
        let fits = |count: usize, bytes| {
            let room = BatchRoom {
                messages: count,
                bytes,
            };
            fitting(&messages, room)
        };
        assert_eq!(fits(100, 1000), (4, 113));
        assert_eq!(fits(100, 113), (4, 113));
        assert_eq!(fits(100, 112), (3, 108));
        assert_eq!(fits(2, 112), (2, 18));
        assert_eq!(fits(1, 112), (1, 14));
        assert_eq!(fits(100, 13), (0, 0));
        let many = vec![IoSlice::new(b""); MAX_PARTS + 1];
        let room = BatchRoom {
            messages: 1000,
            bytes: 1000,
        };
        assert_eq!(fitting(&many, room), (MAX_PARTS, 4 * MAX_PARTS));
    }

    #[test]
    fn sum_of_lengths_does_not_wrap_around() {
        assert_eq!(sum([].into_iter()), 0);
        assert_eq!(sum([1, 0, 2].into_iter()), 3);
        // The sum is 2⁶⁴ + 15 if `usize` has 64 bits. With wrap-around it would be 15.
        let quarter = usize::MAX / 4 + 1;
        let lens = [quarter, quarter, quarter, quarter, 15];
        assert_eq!(sum(lens.into_iter()), usize::MAX);
        assert!(sum(lens.into_iter()) > LONGEST);
    }
}
