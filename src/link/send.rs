//! How messages leave: in the caller's thread, copied into a slot of the ring, or lent to the peer
//! from memory of their own.

use std::{
    io::IoSlice,
    mem,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    core::Core,
    link::Link,
    outbox::Outbox,
    parts::{LONGEST, total},
    refused::refused_send,
};
use crate::{
    error::{Error, TrySendError},
    status::OsError,
    transport::{Exposed, OutboundBuffer},
};

/// How long a sender waits for another thread that took completions before. The thread may have
/// ended, or left that to the sender.
const TAKER_PATIENCE: Duration = Duration::from_secs(5);

/// A message that is to be sent. What was prepared for it is kept from one try to the next.
#[derive(Debug)]
pub(crate) struct Outgoing<'a> {
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

/// How a message was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    Sent,
    /// It leaves as soon as there is room.
    Held,
}

/// What an attempt to send came to, where there is room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attempt {
    Taken(Taken),
    /// The message is large, and has to be exposed to the peer before it is announced.
    NotExposed,
}

impl<'a> Outgoing<'a> {
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

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Whether its completion is told.
    pub(super) fn is_reported(&self) -> bool {
        self.id.is_some()
    }

    /// Copies its bytes by `copy`, and forgets them where that says that it did.
    pub(super) fn take_bytes(&mut self, copy: impl FnOnce(&[IoSlice<'_>]) -> bool) -> bool {
        let taken = match &self.content {
            Content::Parts(parts) => copy(parts),
            Content::Memory(memory) => copy(&[IoSlice::new(memory.bytes())]),
            Content::Exposed(_) | Content::Gone => false,
        };
        if taken {
            self.content = Content::Gone;
        }
        taken
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
        message: &mut Outgoing<'_>,
    ) -> Result<(), TrySendError> {
        self.attempt(message, Core::try_send).map(drop)
    }

    pub(super) fn attempt(
        self: &Arc<Self>,
        message: &mut Outgoing<'_>,
        attempt: impl Fn(&mut Core, &mut Outgoing<'_>) -> Result<Attempt, TrySendError>,
    ) -> Result<Taken, TrySendError> {
        loop {
            match self.with_core(|core| attempt(core, message))? {
                Attempt::Taken(taken) => return Ok(taken),
                // Copying and registering takes time, so it is done without the locks; the next
                // attempt finds the room taken or not.
                Attempt::NotExposed => self.expose(message).map_err(TrySendError::Failed)?,
            }
        }
    }

    /// Whether there is room for a message that is not large.
    pub(crate) fn check_room(self: &Arc<Self>) -> Result<(), TrySendError> {
        self.with_core(|core| {
            core.check_not_ended()?;
            core.conn
                .may_send(0)
                .map_err(|refused| refused_send(refused, 0))?;
            if core.holds_back() {
                return Err(TrySendError::Full);
            }
            Ok(())
        })
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
    fn expose(&self, message: &mut Outgoing<'_>) -> Result<(), Error> {
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
    pub(super) fn try_send(&mut self, message: &mut Outgoing<'_>) -> Result<Attempt, TrySendError> {
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
            Content::Gone => return Ok(Attempt::Taken(Taken::Sent)),
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
        Ok(Attempt::Taken(Taken::Sent))
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
