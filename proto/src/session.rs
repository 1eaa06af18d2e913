//! A session, which outlives its connections.
//!
//! Each side numbers the messages that it sends. The numbers start at 0, and continue across all
//! connections of the session. Each side keeps a message until it knows that the peer's library has
//! received the message. The loss of a connection *suspends* the session. The active side, which
//! established the first connection, then connects again. Its request contains the number of
//! messages that it has received, and the reply contains the number of messages that the passive
//! side has received. Each side then resends the messages that the other side has not received,
//! before any new message.
//!
//! One rule, *fence before count*, ensures that every message is delivered once: before a side
//! states the number of messages that it has received, its previous connection must be unable to
//! deliver more. The active side drains the previous connection before it sends the request. The
//! passive side drains the previous connection when the request arrives, before it replies. Only
//! the active side connects, and each of its attempts has a higher epoch than all earlier attempts.
//! Therefore the passive side does not mistake a delayed request for a new request.
//!
//! A sent message is *unconfirmed* if the peer might not have received it. Grants confirm messages,
//! because a side grants at most its window beyond the messages that it has released. Therefore at
//! most `window - available` of the sent messages are unconfirmed, where `available` is the credit
//! that the sender has left. Large messages, which are longer than the eager size, are an
//! exception: a large message and all messages behind it stay unconfirmed until the peer reports
//! the large message as taken. Sessions need no additional frames or acknowledgements.

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

/// The identity of a session: random bits that the passive side chooses. These bits are secret and
/// never logged, because any peer that knows them can take over the session.
#[derive(Clone, Copy)]
pub struct SessionId(pub [u8; SESSION_ID_LEN]);

impl PartialEq for SessionId {
    /// Compares all bytes in constant time, so that the duration does not reveal the number of
    /// equal bytes.
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
    /// The number of this attempt to resume the session. An accepted attempt invalidates all
    /// attempts with lower epochs.
    pub epoch: u32,
    /// The total number of messages that the active side has received.
    pub received: u32,
}

impl ResumeRequest {
    /// Serializes the request. These bytes replace the application's bytes in the private data.
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

    /// Parses the bytes after the hello of a connect request that resumes a session. Returns `None`
    /// if the length is wrong.
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
    /// The total number of messages that the passive side has received.
    pub received: u32,
    /// The total number of messages that the passive side has sent.
    pub sent: u32,
}

/// The reason why the passive side does not resume a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResumeRefused {
    /// The passive side has already processed a request with this epoch or a higher one.
    Stale,
    /// The peer states an impossible number of received messages: more than this side has sent, or
    /// fewer than the peer has already confirmed.
    Impossible(Violation),
}

/// Bounds on the number of unconfirmed messages of a connection. A message is unconfirmed if it was
/// sent and the peer might not have received it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unconfirmed {
    /// The maximum number of unconfirmed messages according to the peer's grants. Messages above
    /// the eager size can raise the actual number above this number: see `large`.
    pub messages: u32,
    /// The number of messages above the eager size that the peer has not read. The first of these
    /// messages, and all messages behind it, are unconfirmed.
    pub large: u32,
    /// The maximum number of messages that can be unconfirmed at the same time, if the peer follows
    /// the protocol.
    pub max_messages: u32,
}

/// One side of a session. The side keeps its unconfirmed messages as values of type `M`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Session<M> {
    /// The epoch of the last attempt to resume the session.
    epoch: u32,
    /// The number of messages received over earlier connections of the session.
    received: u32,
    /// The number of the oldest kept message, or of the next message if none is kept.
    front: u32,
    /// The newest messages sent over the current connection. Once the ring has its maximum length,
    /// [`Unconfirmed::max_messages`], the next message overwrites the oldest message.
    ring: Vec<Kept<M>>,
    /// The index in `ring` at which the next message is stored.
    next: u32,
    /// The number of sent messages that [`confirm`](Self::confirm) has not discarded, minus `next`,
    /// modulo 2³². Between two calls of `confirm`, the number of these messages can exceed the
    /// length of the ring, because the oldest of them were overwritten. A peer that follows the
    /// protocol has received the overwritten messages.
    kept_at_wrap: u32,
    /// Messages of earlier connections that must be resent, oldest first.
    to_resend: VecDeque<Kept<M>>,
    /// Whether no new message may be sent, because the session is suspended or messages must be
    /// resent first.
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
            kept_at_wrap: 0,
            to_resend: VecDeque::new(),
            is_closed: false,
        }
    }
}

impl<M: Default> Session<M> {
    // Functions for a session whose connection works:

    /// Keeps a message that was sent. `write` receives an earlier message or the default value, and
    /// must overwrite this value with the message. `known` is called only if `next` has reached the
    /// end of the ring.
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
            None => self.keep_at_ring_end(is_large, known(), write),
        }
    }

    /// Keeps a message when `next` has reached the end of the ring. Either extends the ring, or
    /// continues at its beginning.
    #[cold]
    fn keep_at_ring_end(&mut self, is_large: bool, known: Unconfirmed, write: impl FnOnce(&mut M)) {
        if self.ring.len() < known.max_messages as usize {
            self.ring.push(Kept::default());
        } else {
            self.confirm(known);
            self.kept_at_wrap = self.kept();
            self.next = 0;
        }
        let kept = &mut self.ring[self.next as usize];
        kept.is_large = is_large;
        write(&mut kept.message);
        self.next += 1;
    }

    /// Returns the number of unconfirmed messages that were sent over this connection.
    fn kept(&self) -> u32 {
        self.kept_at_wrap.wrapping_add(self.next)
    }

    /// Discards the kept messages that the peer has received. `known` bounds the number of messages
    /// that the peer might not have received.
    pub fn confirm(&mut self, known: Unconfirmed) {
        let untaken = match known.large.checked_sub(1) {
            None => 0,
            Some(newer) => {
                let indices = (1..).zip(self.kept_indices());
                let mut large = indices.filter(|(_, at)| self.ring[*at].is_large);
                large
                    .nth(newer as usize)
                    .map_or(u32::MAX, |(count, _)| count)
            }
        };
        let before = self.kept();
        let kept = known.messages.max(untaken);
        let kept = kept.min(before).min(self.ring.len() as u32);
        self.front = self.front.wrapping_add(before - kept);
        self.kept_at_wrap = kept.wrapping_sub(self.next);
    }

    /// Returns the indices of the kept messages in the ring, newest first.
    fn kept_indices(&self) -> impl Iterator<Item = usize> + use<M> {
        let (next, len) = (self.next as usize, self.ring.len());
        (0..next)
            .rev()
            .chain((next..len).rev())
            .take(self.kept() as usize)
    }

    // Functions for a session whose connection was lost:

    /// Suspends the session after the loss of a connection. The connection has delivered `received`
    /// messages, and can deliver nothing more. Returns the number of messages that were sent over
    /// this connection and may have to be resent. These are the first messages that
    /// [`suspended_mut`](Self::suspended_mut) returns.
    pub fn suspend(&mut self, received: u32, known: Unconfirmed) -> usize {
        self.received = self.received.wrapping_add(received);
        self.confirm(known);
        for at in self.kept_indices() {
            self.to_resend.push_front(mem::take(&mut self.ring[at]));
        }
        let kept = self.kept();
        self.ring = Vec::new();
        self.next = 0;
        self.kept_at_wrap = 0;
        self.is_closed = true;
        kept as usize
    }

    /// Returns the messages that may have to be resent, oldest first. The flag of each message is
    /// true if the message is above the eager size.
    pub fn suspended_mut(
        &mut self,
    ) -> impl DoubleEndedIterator<Item = (&mut M, bool)> + ExactSizeIterator {
        let to_resend = self.to_resend.iter_mut();
        to_resend.map(|kept| (&mut kept.message, kept.is_large))
    }

    /// Returns the epoch of the last attempt to resume, or 0 before the first attempt. If a new
    /// request has the same epoch, the peer refuses the request as stale.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Begins the next attempt to resume, and returns the epoch of this attempt.
    pub fn begin_attempt(&mut self) -> u32 {
        self.epoch = self.epoch.wrapping_add(1);
        self.epoch
    }

    /// Returns the total number of messages that this side has received. The session must be
    /// suspended, because messages that arrived over a working connection are not counted yet.
    #[must_use]
    pub fn received(&self) -> u32 {
        self.received
    }

    /// Returns the total number of messages that this side has sent.
    #[must_use]
    pub fn sent(&self) -> u32 {
        let unconfirmed = self.kept() as usize + self.to_resend.len();
        self.front.wrapping_add(unconfirmed as u32)
    }

    /// Checks the peer's request to resume the session. `received` is the number of messages that
    /// the peer claims to have received.
    pub fn check_attempt(&self, epoch: u32, received: u32) -> Result<(), ResumeRefused> {
        //= PROTOCOL.md#sessions
        //# The passive side rejects a request with code 8, and changes nothing, if its epoch is not
        //# higher than the last one.
        if epoch <= self.epoch {
            return Err(ResumeRefused::Stale);
        }
        self.check_received(received)
            .map_err(ResumeRefused::Impossible)
    }

    /// Records the epoch of a request that [`check_attempt`](Self::check_attempt) has accepted.
    pub fn take_attempt(&mut self, epoch: u32) {
        self.epoch = epoch;
    }

    fn check_received(&self, received: u32) -> Result<(), Violation> {
        //= PROTOCOL.md#sessions
        //# A number above the number of messages sent, or below the number of messages known to be
        //# received, is a violation.
        let unconfirmed = self.kept() as usize + self.to_resend.len();
        if received.wrapping_sub(self.front) as usize > unconfirmed {
            return Err(Violation::new(
                "received",
                received.into(),
                "a number of messages that were sent and not yet confirmed",
            ));
        }
        Ok(())
    }

    /// Resumes the session over a new connection. Must be called before anything is sent over this
    /// connection. `received` is the total number of messages that the peer has received. Removes
    /// and returns the kept messages that the peer has received.
    pub fn resume(&mut self, received: u32) -> Result<impl Iterator<Item = M>, Violation> {
        debug_assert_eq!(
            self.kept(),
            0,
            "no message may be sent before the session resumes"
        );
        self.check_received(received)?;
        let count = received.wrapping_sub(self.front) as usize;
        self.front = received;
        self.is_closed = count < self.to_resend.len();
        Ok(self.to_resend.drain(..count).map(|kept| kept.message))
    }

    /// Returns whether new messages may be sent: the session has a connection, and no messages wait
    /// to be resent.
    #[inline]
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.is_closed
    }

    /// Returns whether messages must be resent before any new message.
    #[must_use]
    pub fn has_messages_to_resend(&self) -> bool {
        !self.to_resend.is_empty()
    }

    /// Removes and returns the next message to resend. The caller must either send and
    /// [keep](Self::keep) the message, or [put it back](Self::put_back).
    pub fn next_to_resend(&mut self) -> Option<M> {
        let next = self.to_resend.pop_front();
        self.is_closed = self.has_messages_to_resend();
        next.map(|kept| kept.message)
    }

    /// Puts a message back at the front of the queue of messages to resend, because the message
    /// could not be sent yet.
    pub fn put_back(&mut self, message: M, is_large: bool) {
        self.to_resend.push_front(Kept { message, is_large });
        self.is_closed = true;
    }
}
