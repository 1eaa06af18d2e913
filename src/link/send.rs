//! How messages leave: in the caller's thread, copied into a slot of the ring, or lent to the peer
//! from memory of their own.

use std::{
    array,
    io::IoSlice,
    mem,
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    core::Core,
    cork::{LONGEST, total},
    link::Link,
    outbox::Outbox,
    reports::refused_send,
};
use crate::{
    error::{Error, TrySendError},
    proto::{BatchRoom, Capabilities, MOST_PARTS, PART_HEADER_LEN},
    remote_access::RemoteAccess,
    status::OsError,
    transport::{Checked, Exposed, OneSidedOp, OutboundBuffer, Region, RemoteRegion},
};

/// How long a sender waits for another thread that took completions before. The thread may have
/// ended, or left that to the sender.
const TAKER_PATIENCE: Duration = Duration::from_secs(5);

/// A message that is to be sent. What was prepared for it is kept from one try to the next.
#[derive(Debug)]
pub(crate) struct Sending<'a> {
    content: Content<'a>,
    len: usize,
    id: Option<u64>,
}

#[derive(Debug)]
enum Content<'a> {
    /// The application's bytes, one part after the other.
    Parts(&'a [IoSlice<'a>]),
    /// Memory that the application filled, or a copy that was needed because the message is large.
    Memory(OutboundBuffer),
    /// A large message that the device knows: the peer can read it as soon as it is told where it
    /// is.
    Exposed(Exposed),
    /// It is in flight, or it is not known how much of it the peer has seen.
    Gone,
}

/// What an attempt to send came to, where there is room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attempt {
    Sent,
    /// The message is large, and has to be exposed to the peer before it is announced.
    NotExposed,
}

impl<'a> Sending<'a> {
    /// The bytes of `parts`, one after the other. With an `id` its completion is told.
    pub(crate) fn new(parts: &'a [IoSlice<'a>], id: Option<u64>) -> Self {
        Self {
            content: Content::Parts(parts),
            len: total(parts),
            id,
        }
    }

    /// What is in `memory`.
    pub(crate) fn owned(memory: OutboundBuffer, id: Option<u64>) -> Self {
        Self {
            len: memory.len(),
            content: Content::Memory(memory),
            id,
        }
    }

    /// The memory, where the message was not sent.
    pub(crate) fn into_memory(self) -> Option<OutboundBuffer> {
        match self.content {
            Content::Memory(memory) => Some(memory),
            Content::Exposed(exposed) => Some(exposed.take_back()),
            Content::Parts(_) | Content::Gone => None,
        }
    }
}

impl Link {
    /// Sends a message, or returns why not.
    pub(crate) fn try_send(
        self: &Arc<Self>,
        message: &mut Sending<'_>,
    ) -> Result<(), TrySendError> {
        loop {
            match self.with_core(|core| core.try_send(message))? {
                Attempt::Sent => return Ok(()),
                // Copying and registering takes time, so it is done without the locks; the next
                // attempt finds the room taken or not.
                Attempt::NotExposed => self.expose(message).map_err(TrySendError::Failed)?,
            }
        }
    }

    /// Whether a place for one more completion may become free without the calling thread, which
    /// has waited for this long: another one takes completions, or all that have ids are still in
    /// flight, so that there is nothing to take.
    pub(crate) fn is_place_to_come(&self, waited: Duration) -> bool {
        let mut core = self.core();
        let grouped = core.completions.as_ref();
        let grouped = grouped.and_then(Outbox::group_is_taken_elsewhere);
        let is_taken = || grouped.unwrap_or_else(|| self.taker.is_elsewhere());
        !core.has_reports() || (waited < TAKER_PATIENCE && is_taken())
    }

    /// Exposes a large message to the peer, from memory of this connection's.
    fn expose(&self, message: &mut Sending<'_>) -> Result<(), Error> {
        let allocator = self.allocator().ok_or_else(|| self.disconnected())?;
        let buffer = match mem::replace(&mut message.content, Content::Gone) {
            Content::Parts(parts) => {
                message.content = Content::Parts(parts);
                let mut buffer = allocator.buffer(message.len).map_err(Error::from_os)?;
                let mut to = buffer.bytes_mut();
                for part in parts {
                    let (here, rest) = to.split_at_mut(part.len());
                    here.copy_from_slice(part);
                    to = rest;
                }
                buffer
            }
            Content::Memory(buffer) => buffer,
            content @ (Content::Exposed(_) | Content::Gone) => {
                message.content = content;
                return Ok(());
            }
        };
        let (content, result) = match allocator.expose(buffer) {
            Ok(exposed) => (Content::Exposed(exposed), Ok(())),
            Err((buffer, error)) => (Content::Memory(buffer), Err(Error::from_os(error))),
        };
        message.content = content;
        result
    }

    /// Allocates a buffer of `len` bytes for a message of this connection's.
    pub(crate) fn buffer(&self, len: usize) -> Result<OutboundBuffer, Error> {
        let allocator = self.allocator().ok_or_else(|| self.disconnected())?;
        allocator.buffer(len).map_err(Error::from_os)
    }

    /// Whether this connection made the buffer, and so may send it.
    pub(crate) fn owns(&self, buffer: &OutboundBuffer) -> bool {
        self.allocator()
            .is_some_and(|allocator| allocator.owns(buffer))
    }
}

impl Core {
    /// Sends a message, if there is room for it.
    fn try_send(&mut self, message: &mut Sending<'_>) -> Result<Attempt, TrySendError> {
        self.check_not_ended()?;
        let len = message.len;
        let refused = |refused| refused_send(refused, len);
        if self.holds_back() {
            // What was taken before goes first.
            self.conn.may_send(len).map_err(refused)?;
            return Err(TrySendError::Full);
        }
        let eager = self.conn.is_eager(message.len);
        // Most messages are eager and have no id: nothing to find out first.
        if !eager || message.id.is_some() {
            if message.len > LONGEST {
                // Whatever the peer takes.
                return Err(TrySendError::Failed(Error::MessageTooLong {
                    len: message.len,
                    limit: LONGEST as u64,
                }));
            }
            self.conn.may_send(message.len).map_err(refused)?;
            if message.id.is_some() && !self.may_report_one_more() {
                return Err(TrySendError::Failed(Error::CompletionsNotTaken));
            }
        }
        let Some(queues) = &mut self.queues else {
            return Err(TrySendError::Failed(Error::Disconnected(self.reason())));
        };
        let reported = message.id.is_some();
        let large = matches!(message.content, Content::Exposed(_));
        let posted = match &message.content {
            Content::Parts(parts) if eager => {
                let transmit = self.conn.send(message.len).map_err(refused)?;
                queues.post_send(&transmit, parts, reported)
            }
            Content::Memory(memory) if eager => {
                let transmit = self.conn.send(message.len).map_err(refused)?;
                queues.post_send(&transmit, &[IoSlice::new(memory.bytes())], reported)
            }
            Content::Parts(_) | Content::Memory(_) => return Ok(Attempt::NotExposed),
            Content::Exposed(exposed) => {
                let descriptor = exposed.descriptor();
                let transmit = self.conn.send_large(&descriptor).map_err(refused)?;
                let descriptor = descriptor.emit();
                queues.post_send(&transmit, &[IoSlice::new(&descriptor)], false)
            }
            Content::Gone => return Ok(Attempt::Sent),
        };
        if let Err(error) = posted {
            return Err(self.post_failed(error));
        }
        if let Content::Exposed(exposed) = mem::replace(&mut message.content, Content::Gone) {
            queues.in_flight.expose(exposed);
        }
        match message.id {
            id if large => self.order.large(id),
            Some(id) => self.order.small(id),
            None => {}
        }
        Ok(Attempt::Sent)
    }

    /// A work request could not be posted: the connection ends. Where that was refused because it
    /// ends already, who sends waits until the reason is known.
    pub(super) fn post_failed(&mut self, error: OsError) -> TrySendError {
        self.conn.handle_post_failure(error, Instant::now());
        if self.conn.is_ending_for_a_cause_to_come() {
            return TrySendError::Full;
        }
        TrySendError::Failed(Error::Disconnected(self.reason()))
    }
}

/// Several messages in one frame: what costs is the frame.
impl Link {
    /// Sends the first of these messages, of which there is at least one, in one frame: as many as
    /// fit. Returns how many.
    pub(crate) fn try_send_some(
        self: &Arc<Self>,
        messages: &[IoSlice<'_>],
    ) -> Result<usize, TrySendError> {
        match self.with_core(|core| core.try_send_batch(messages))? {
            // Alone it needs no length before it, and it may be a large one.
            0 | 1 => {
                self.try_send(&mut Sending::new(&messages[..1], None))?;
                Ok(1)
            }
            count => Ok(count),
        }
    }
}

impl Core {
    /// Sends the first of these messages in one frame, and returns how many, if it is worth it.
    fn try_send_batch(&mut self, messages: &[IoSlice<'_>]) -> Result<usize, TrySendError> {
        self.check_not_ended()?;
        if self.holds_back() {
            // What was taken before goes first.
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
        // The frame has room for each, so its length fits.
        let lens: [[u8; PART_HEADER_LEN]; MOST_PARTS] = array::from_fn(|number| {
            let len = messages.get(number).map_or(0, |message| message.len());
            (len as u32).to_be_bytes()
        });
        let mut parts = [IoSlice::new(&[]); 2 * MOST_PARTS];
        for ((pair, len), message) in parts.chunks_exact_mut(2).zip(&lens).zip(&messages[..count]) {
            pair[0] = IoSlice::new(len);
            pair[1] = IoSlice::new(message);
        }
        // At most MOST_PARTS.
        let transmit = self.conn.send_batch(count as u32, len).map_err(refused)?;
        queues
            .post_send(&transmit, &parts[..2 * count], false)
            .map_err(|error| self.post_failed(error))?;
        Ok(count)
    }
}

/// How many of the first messages fit, and their bytes with their lengths.
fn fitting(messages: &[IoSlice<'_>], room: BatchRoom) -> (usize, usize) {
    let (mut count, mut bytes) = (0, 0_usize);
    for message in messages.iter().take(room.messages.min(MOST_PARTS)) {
        let more = bytes + PART_HEADER_LEN;
        match more.checked_add(message.len()) {
            Some(more) if more <= room.bytes => bytes = more,
            Some(_) | None => break,
        }
        count += 1;
    }
    (count, bytes)
}

/// One-sided operations.
impl Link {
    /// Registers memory that peers may access as `access` says.
    pub(crate) fn region(
        self: &Arc<Self>,
        len: usize,
        access: RemoteAccess,
    ) -> Result<Region, Error> {
        let allocator = self.allocator().ok_or_else(|| self.disconnected())?;
        let region = allocator.region(len, access).map_err(Error::from_os)?;
        if access.write {
            self.with_core(|core| core.conn.allow_immediates());
        }
        Ok(region)
    }

    /// What both devices can do, as long as there is a connection.
    pub(crate) fn capabilities(&self) -> Option<Capabilities> {
        let core = self.core();
        core.queues.as_ref()?;
        core.conn.capabilities()
    }

    /// Checks what can be checked on this side.
    pub(crate) fn check(
        &self,
        op: OneSidedOp,
        here: (&Region, Range<usize>),
        there: (&RemoteRegion, u64),
        id: u64,
    ) -> Result<Checked, Error> {
        Checked::new(self.allocator().as_deref(), op, here, there, id)
    }

    /// Starts an operation, or returns why not.
    pub(crate) fn try_operate(self: &Arc<Self>, checked: &Checked) -> Result<(), TrySendError> {
        self.with_core(|core| core.try_operate(checked))
    }
}

impl Core {
    fn try_operate(&mut self, checked: &Checked) -> Result<(), TrySendError> {
        self.check_not_ended()?;
        if let Some(able) = self.conn.capabilities() {
            // This side's has been asked.
            checked
                .op
                .check(able, || "the peer's device".to_owned())
                .map_err(TrySendError::Failed)?;
        }
        if self.holds_back() {
            // What was taken before goes first.
            self.conn
                .may_send(0)
                .map_err(|refused| refused_send(refused, 0))?;
            return Err(TrySendError::Full);
        }
        if !self.may_report_one_more() {
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
            .map_err(|error| self.post_failed(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_are_sent_as_fit() {
        let bytes = [7; 100];
        let messages: Vec<_> = [10, 0, 86, 1].map(|len| IoSlice::new(&bytes[..len])).into();
        let fits = |messages_: usize, bytes| {
            let room = BatchRoom {
                messages: messages_,
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
        let many = vec![IoSlice::new(b""); MOST_PARTS + 1];
        let room = BatchRoom {
            messages: 1000,
            bytes: 1000,
        };
        assert_eq!(fitting(&many, room), (MOST_PARTS, 4 * MOST_PARTS));
    }
}
