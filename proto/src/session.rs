//! A session, which outlives its connections: the messages that each side keeps, and the numbers by
//! which both sides agree on the messages that have arrived.
//!
//! Each side numbers the messages that it sends, from 0, over all connections of the session. Each
//! side keeps a message until the peer's library is known to have received it. The loss of a
//! connection *suspends* the session. The active side, which established the first connection, then
//! connects again: its request carries the number of messages that it has received, and the reply
//! carries the number that the passive side has received. Each side then sends all messages from
//! the other side's number on, before any new message.
//!
//! Every message is delivered once because of one rule, *fence before count*: a side states the
//! number of messages that it has received only after its last connection can deliver nothing more.
//! The active side drains its connection before it sends the request. The passive side drains its
//! connection when the request arrives, before it replies. Only the active side connects, and each
//! of its attempts has a higher epoch, so the passive side does not mistake a late request for a
//! new one.
//!
//! Grants show which messages have been received: a side grants at most its window beyond the
//! messages that it has released, so at most `window - available` of the messages sent to it are
//! not known to be received. A message above the eager size, and each message behind it, is known
//! to be received only when that large message is taken. Neither needs an additional frame or
//! acknowledgement.

use std::{
    collections::VecDeque,
    fmt,
    hash::{Hash, Hasher},
    hint::black_box,
    mem,
};

use crate::reason::Violation;

#[cfg(test)]
mod exhaustive;

/// The length in bytes of a [`SessionId`].
pub const SESSION_ID_LEN: usize = 12;

/// The length in bytes of a [`ResumeRequest`].
const REQUEST_LEN: usize = SESSION_ID_LEN + 8;

/// The identity of a session: random bits that the passive side chooses. A peer that knows these
/// bits can take over the session, so they are not logged.
#[derive(Clone, Copy)]
pub struct SessionId(pub [u8; SESSION_ID_LEN]);

impl PartialEq for SessionId {
    /// Compares all bytes, so that the time does not reveal the number of equal bytes.
    fn eq(&self, other: &Self) -> bool {
        let pairs = self.0.iter().zip(&other.0);
        black_box(pairs.fold(0, |all, (a, b)| all | (a ^ b))) == 0
    }
}

impl Eq for SessionId {}

impl Hash for SessionId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionId")
    }
}

/// A request to resume a session, in the private data of a connect request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResumeRequest {
    /// The identity of the session.
    pub id: SessionId,
    /// The number of this attempt. An attempt with a higher number invalidates all attempts with
    /// lower numbers.
    pub epoch: u32,
    /// The number of messages that the active side has received in all.
    pub received: u32,
}

impl ResumeRequest {
    /// Serializes the request, which takes the place of the application's bytes in the private
    /// data.
    #[must_use]
    pub fn emit(&self) -> [u8; REQUEST_LEN] {
        //= PROTOCOL.md#sessions
        //# | 0 | 12 | session | the identity from the first reply |
        //# | 12 | 4 | epoch | the number of this attempt, from 1; it grows with each |
        //# | 16 | 4 | received | messages that the active side has received in all |
        let mut out = [0; REQUEST_LEN];
        out[..SESSION_ID_LEN].copy_from_slice(&self.id.0);
        out[SESSION_ID_LEN..][..4].copy_from_slice(&self.epoch.to_be_bytes());
        out[SESSION_ID_LEN + 4..].copy_from_slice(&self.received.to_be_bytes());
        out
    }

    /// Parses the bytes behind the hello of a connect request that resumes a session. Returns
    /// `None` if their number is wrong.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (id, rest) = bytes.split_first_chunk::<SESSION_ID_LEN>()?;
        let (epoch, rest) = rest.split_first_chunk::<4>()?;
        let received: &[u8; 4] = rest.try_into().ok()?;
        Some(Self {
            id: SessionId(*id),
            epoch: u32::from_be_bytes(*epoch),
            received: u32::from_be_bytes(*received),
        })
    }
}

/// The message counts of a session that the passive side has closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub struct SessionOver {
    /// The number of messages that the passive side has received in all.
    pub received: u32,
    /// The number of messages that the passive side has sent in all.
    pub sent: u32,
}

/// The reason why the passive side does not resume a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResumeRefused {
    /// The passive side has already processed a request with this epoch or a higher one.
    Stale,
    /// The number of received messages that the peer states is above the number of messages sent,
    /// or below the number of messages that the peer has confirmed.
    Impossible(Violation),
}

/// Bounds on the messages of a connection that are not known to be received.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unconfirmed {
    /// The maximum number of messages that are not known to be received.
    pub messages: u32,
    /// The number of messages above the eager size that the peer has not read. The peer has
    /// received neither these messages nor the messages behind the first of them.
    pub large: u32,
    /// The maximum number of messages that a correct peer ever leaves unconfirmed.
    pub most: u32,
}

/// One side of a session, which keeps its unconfirmed messages as values of `M`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Session<M> {
    /// The epoch of the last attempt to resume.
    epoch: u32,
    /// The number of messages received over earlier connections.
    received: u32,
    /// The number of the oldest kept message, or of the next message if none is kept.
    front: u32,
    /// The last messages sent over this connection. When the ring has [`Unconfirmed::most`]
    /// messages, the next message overwrites the oldest one.
    ring: Vec<Kept<M>>,
    /// The index in `ring` of the next message.
    next: u32,
    /// The number of messages sent over this connection that were not known to be received when
    /// `next` was 0 last. If the number of messages sent since exceeds the length of the ring, the
    /// ring lacks the oldest messages, which a correct peer has received.
    kept_before: u32,
    /// Messages of earlier connections that have to be sent again, oldest first.
    again: VecDeque<Kept<M>>,
    /// Whether the session is suspended, or messages have to be sent again before any new message.
    is_closed: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Kept<M> {
    message: M,
    is_large: bool,
}

impl<M> Default for Session<M> {
    fn default() -> Self {
        Self {
            epoch: 0,
            received: 0,
            front: 0,
            ring: Vec::new(),
            next: 0,
            kept_before: 0,
            again: VecDeque::new(),
            is_closed: false,
        }
    }
}

impl<M: Default> Session<M> {
    // These functions are called while a connection works.

    /// Keeps a message that was sent. `write` writes it over an earlier message.
    #[inline(always)]
    pub fn keep(
        &mut self,
        is_large: bool,
        known: impl FnOnce() -> Unconfirmed,
        write: impl FnOnce(&mut M),
    ) {
        match self.ring.get_mut(self.next as usize) {
            Some(kept) => {
                kept.is_large = is_large;
                write(&mut kept.message);
                self.next += 1;
            }
            None => self.turn(is_large, known(), write),
        }
    }

    /// Keeps a message at a new place at the end of the ring, or at the beginning of the ring.
    #[cold]
    fn turn(&mut self, is_large: bool, known: Unconfirmed, write: impl FnOnce(&mut M)) {
        if self.ring.len() < known.most as usize {
            self.ring.push(Kept::default());
        } else {
            self.confirm(known);
            self.kept_before = self.kept();
            self.next = 0;
        }
        let kept = &mut self.ring[self.next as usize];
        kept.is_large = is_large;
        write(&mut kept.message);
        self.next += 1;
    }

    /// Returns the number of messages sent over this connection that are not known to be received.
    fn kept(&self) -> u32 {
        self.kept_before.wrapping_add(self.next)
    }

    /// Forgets all kept messages that are known to be received. `known` is the bound on those that
    /// are not known to be received.
    pub fn confirm(&mut self, known: Unconfirmed) {
        let untaken = match known.large.checked_sub(1) {
            None => 0,
            Some(newer) => {
                let places = (1..).zip(self.places());
                let mut large = places.filter(|(_, at)| self.ring[*at].is_large);
                large
                    .nth(newer as usize)
                    .map_or(u32::MAX, |(count, _)| count)
            }
        };
        let before = self.kept();
        let kept = known.messages.max(untaken);
        let kept = kept.min(before).min(self.ring.len() as u32);
        self.front = self.front.wrapping_add(before - kept);
        self.kept_before = kept.wrapping_sub(self.next);
    }

    /// Returns the indices of the kept messages in the ring, newest first.
    fn places(&self) -> impl Iterator<Item = usize> + use<M> {
        let (next, len) = (self.next as usize, self.ring.len());
        (0..next)
            .rev()
            .chain((next..len).rev())
            .take(self.kept() as usize)
    }

    // These functions are called after the loss of a connection.

    /// Suspends the session after the loss of a connection. The connection has delivered `received`
    /// messages, and can deliver nothing more. Returns the number of messages that were sent over
    /// it and may have to be sent again. [`suspended_mut`](Self::suspended_mut) returns these
    /// messages first.
    pub fn suspend(&mut self, received: u32, known: Unconfirmed) -> usize {
        self.received = self.received.wrapping_add(received);
        self.confirm(known);
        for at in self.places() {
            self.again.push_front(mem::take(&mut self.ring[at]));
        }
        let kept = self.kept();
        self.ring = Vec::new();
        self.next = 0;
        self.kept_before = 0;
        self.is_closed = true;
        kept as usize
    }

    /// Returns the messages that may have to be sent again, oldest first, and whether each is above
    /// the eager size.
    pub fn suspended_mut(
        &mut self,
    ) -> impl DoubleEndedIterator<Item = (&mut M, bool)> + ExactSizeIterator {
        let again = self.again.iter_mut();
        again.map(|kept| (&mut kept.message, kept.is_large))
    }

    /// Returns the epoch of the last attempt to resume, or 0 before the first attempt. The peer
    /// refuses another request with this epoch as stale.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Begins another attempt to resume, and returns its epoch.
    pub fn begin_attempt(&mut self) -> u32 {
        self.epoch = self.epoch.wrapping_add(1);
        self.epoch
    }

    /// Returns the number of messages that this side has received in all. The session must be
    /// suspended.
    #[must_use]
    pub fn received(&self) -> u32 {
        self.received
    }

    /// Returns the number of messages that this side has sent in all.
    #[must_use]
    pub fn sent(&self) -> u32 {
        let unconfirmed = self.kept() as usize + self.again.len();
        self.front.wrapping_add(unconfirmed as u32)
    }

    /// Checks the peer's request to resume, which states that the peer has received `received`
    /// messages.
    pub fn check_attempt(&self, epoch: u32, received: u32) -> Result<(), ResumeRefused> {
        //= PROTOCOL.md#sessions
        //# The passive side refuses an epoch that is not higher than the last one with code 8, and
        //# changes nothing.
        if epoch <= self.epoch {
            return Err(ResumeRefused::Stale);
        }
        self.check_received(received)
            .map_err(ResumeRefused::Impossible)
    }

    /// Records the epoch of the peer's request, which [`check_attempt`](Self::check_attempt) has
    /// accepted.
    pub fn take_attempt(&mut self, epoch: u32) {
        self.epoch = epoch;
    }

    fn check_received(&self, received: u32) -> Result<(), Violation> {
        //= PROTOCOL.md#sessions
        //# A number above that of the messages sent, or below that of the messages known to be
        //# received, is a violation.
        let unconfirmed = self.kept() as usize + self.again.len();
        if received.wrapping_sub(self.front) as usize > unconfirmed {
            return Err(Violation::new(
                "received",
                received.into(),
                "a number of messages that were sent and not yet confirmed",
            ));
        }
        Ok(())
    }

    /// Resumes the session over a new connection, over which nothing has been sent yet. The peer
    /// has received `received` messages in all. Returns the kept messages that need not be sent
    /// again, because the peer has received them.
    pub fn resume(&mut self, received: u32) -> Result<impl Iterator<Item = M>, Violation> {
        debug_assert_eq!(self.kept(), 0, "nothing is sent before the number");
        self.check_received(received)?;
        let count = received.wrapping_sub(self.front) as usize;
        self.front = received;
        self.is_closed = count < self.again.len();
        Ok(self.again.drain(..count).map(|kept| kept.message))
    }

    /// Whether the session has a connection, over which new messages may be sent.
    #[inline]
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.is_closed
    }

    /// Whether messages have to be sent again before any new message.
    #[must_use]
    pub fn repeats(&self) -> bool {
        !self.again.is_empty()
    }

    /// Removes and returns the next message that has to be sent again. The caller either sends and
    /// [keeps](Self::keep) the message, or [puts it back](Self::put_back).
    pub fn next_to_resend(&mut self) -> Option<M> {
        let next = self.again.pop_front();
        self.is_closed = self.repeats();
        next.map(|kept| kept.message)
    }

    /// Puts back a message that could not be sent, because there was no room for it.
    pub fn put_back(&mut self, message: M, is_large: bool) {
        self.again.push_front(Kept { message, is_large });
        self.is_closed = true;
    }
}
