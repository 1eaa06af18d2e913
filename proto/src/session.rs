//! A conversation that outlives its connections: the messages that each side keeps, and the numbers
//! by which both sides agree on the messages that have arrived.
//!
//! Each side numbers the messages that it sends, from 0, over all connections of the session. It
//! keeps each message until the peer's library is known to have received it. A connection that is
//! lost *suspends* the session. The side that connected first then connects again: its request
//! carries the number of messages that it has received, and the reply carries the peer's number.
//! Each side then sends everything from the other's number on, before anything new.
//!
//! Every message is delivered once because of one rule, *fence before count*: a side states the
//! number of messages that it has received only after its last connection can deliver nothing more.
//! The active side has drained its connection before it sends the request. The passive side drains
//! its own when the request arrives, before it replies. Only the active side connects, and each of
//! its attempts has a higher epoch, so no late request is taken for a new one.
//!
//! A message is known to be received when a grant implies it: a side grants at most its window
//! beyond what it has released, so at most `window - available` of the messages sent are not known
//! to be received. A message above the eager size, and everything behind it, is known to be
//! received when it is taken. This costs no frame and no acknowledgement.

use std::{
    collections::VecDeque,
    fmt,
    hash::{Hash, Hasher},
    hint::black_box,
};

use crate::reason::Violation;

#[cfg(test)]
mod exhaustive;

/// The number of bytes of a [`SessionId`].
pub const SESSION_ID_LEN: usize = 12;

/// The number of bytes of a [`ResumeRequest`].
const REQUEST_LEN: usize = SESSION_ID_LEN + 8;

/// The name of a session, random bits that the passive side chooses: it is the permission to take
/// the session over, so no log shows it.
#[derive(Clone, Copy)]
pub struct SessionId(pub [u8; SESSION_ID_LEN]);

impl PartialEq for SessionId {
    /// Compares all bytes, so the time does not depend on the number of equal ones.
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

/// The request of a connection that resumes a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResumeRequest {
    /// The session.
    pub id: SessionId,
    /// The number of this attempt. A higher one makes all lower ones void.
    pub epoch: u32,
    /// The number of messages that the active side has received in all.
    pub received: u32,
}

impl ResumeRequest {
    /// Serializes the request: the bytes of the application in the private data.
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

    /// Parses the bytes behind the hello of a request that resumes.
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

/// The numbers of a session that the passive side has closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub struct SessionOver {
    /// The number of messages that it has received in all.
    pub received: u32,
    /// The number of messages that it has sent in all.
    pub sent: u32,
}

/// Why the passive side does not resume a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResumeRefused {
    /// A later attempt has come already.
    Stale,
    /// The peer claims to have received a message that was not sent, or not to have received one
    /// that it has confirmed.
    Impossible(Violation),
}

/// One side of a session, with its unconfirmed messages as values of `M`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Session<M> {
    /// The epoch of the last attempt.
    epoch: u32,
    /// The number of messages received over earlier connections.
    received: u32,
    /// The number of the oldest message that is kept, or of the next one.
    front: u32,
    /// Messages of this connection that are not known to be received, oldest first.
    kept: VecDeque<Kept<M>>,
    /// The number of those in `kept` that are above the eager size.
    large: u32,
    /// Messages of earlier connections that will be sent again, oldest first.
    again: VecDeque<M>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
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
            kept: VecDeque::new(),
            large: 0,
            again: VecDeque::new(),
        }
    }
}

impl<M> Session<M> {
    // While a connection works.

    /// Keeps a message that was sent.
    pub fn keep(&mut self, message: M, is_large: bool) {
        self.large += u32::from(is_large);
        self.kept.push_back(Kept { message, is_large });
    }

    /// Takes the oldest message, if it is known to be received: at most `unconfirmed` messages of
    /// this connection are not, and `untaken` of those above the eager size are not read.
    pub fn take_confirmed(&mut self, unconfirmed: u32, untaken: u32) -> Option<M> {
        if self.kept.len() <= unconfirmed as usize {
            return None;
        }
        if self.kept.front()?.is_large {
            if self.large <= untaken {
                return None;
            }
            self.large -= 1;
        }
        self.front = self.front.wrapping_add(1);
        self.kept.pop_front().map(|kept| kept.message)
    }

    // The loss of a connection.

    /// The connection was lost, and can deliver nothing more: it has delivered `received` messages.
    /// Returns the number of messages that were sent over it and may have to be sent again. They
    /// are the oldest.
    pub fn suspend(&mut self, received: u32) -> usize {
        self.received = self.received.wrapping_add(received);
        let sent = self.kept.len();
        for Kept { message, .. } in self.kept.drain(..).rev() {
            self.again.push_front(message);
        }
        self.large = 0;
        sent
    }

    /// Returns the messages that will be sent again, oldest first.
    pub fn suspended_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut M> + ExactSizeIterator {
        self.again.iter_mut()
    }

    /// Returns the epoch of the last attempt, from 0. The peer refuses it as late.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Begins another attempt to resume. Returns its epoch.
    pub fn begin_attempt(&mut self) -> u32 {
        self.epoch = self.epoch.wrapping_add(1);
        self.epoch
    }

    /// Returns the number of messages that were received in all, once the session is suspended.
    #[must_use]
    pub fn received(&self) -> u32 {
        self.received
    }

    /// Returns the number of messages that were sent in all.
    #[must_use]
    pub fn sent(&self) -> u32 {
        let unconfirmed = self.kept.len() + self.again.len();
        self.front.wrapping_add(unconfirmed as u32)
    }

    /// Judges an attempt of the peer to resume, which has received `received` messages.
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

    /// Takes note of the peer's attempt, after [`check_attempt`](Self::check_attempt).
    pub fn take_attempt(&mut self, epoch: u32) {
        self.epoch = epoch;
    }

    fn check_received(&self, received: u32) -> Result<(), Violation> {
        //= PROTOCOL.md#sessions
        //# A number above that of the messages sent, or below that of the messages known to be
        //# received, is a violation.
        let unconfirmed = self.kept.len() + self.again.len();
        if received.wrapping_sub(self.front) as usize > unconfirmed {
            return Err(Violation::new(
                "received",
                received.into(),
                "a number of messages that were sent and not yet confirmed",
            ));
        }
        Ok(())
    }

    /// A connection resumes the session: the peer has received this many messages in all. Returns
    /// those of them that were to be sent again. Nothing has been sent over the connection.
    pub fn resume(&mut self, received: u32) -> Result<impl Iterator<Item = M>, Violation> {
        debug_assert!(self.kept.is_empty(), "nothing is sent before the number");
        self.check_received(received)?;
        let count = received.wrapping_sub(self.front) as usize;
        self.front = received;
        Ok(self.again.drain(..count))
    }

    /// Whether messages are to be sent again, before any other.
    #[must_use]
    pub fn repeats(&self) -> bool {
        !self.again.is_empty()
    }

    /// Takes the next message that is to be sent again. The caller sends it, and so
    /// [keeps](Self::keep) it, or [puts it back](Self::put_back).
    pub fn next_again(&mut self) -> Option<M> {
        self.again.pop_front()
    }

    /// Puts a message back for which there is no room.
    pub fn put_back(&mut self, message: M) {
        self.again.push_front(message);
    }
}
