//! Sessions: the messages that are kept while a connection works, and the calls that wait for its
//! successor.

use std::{
    io::IoSlice,
    mem,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use super::{
    completion::Ended,
    core::Core,
    send::refused_send,
    ways::{Route, Way, Ways},
};
use crate::{
    config::Config,
    error::{Error, TrySendError},
    proto::{
        CloseReason, Connection, PART_HEADER_LEN, Proof, Session, SessionId, Statistics, parts,
    },
    transport::OutboundBuffer,
};

/// The session of a connection. Until both hellos are known, it is the session that this side
/// offers.
pub(crate) struct LinkSession {
    pub(super) messages: Session<Kept>,
    /// The identity, once the passive side has chosen one.
    pub(super) id: Option<SessionId>,
    pub(super) side: Side,
    /// The way of the last connection.
    pub(super) route: Arc<Mutex<Route>>,
    /// The time limit of a suspension.
    pub(super) timeout: Duration,
    /// The time limit of a close.
    pub(super) close_timeout: Duration,
    pub(super) state: State,
    /// Whether the application has finished sending.
    pub(super) finished: bool,
    /// Whether the application has asked to leave.
    pub(super) leaving: bool,
    /// The deadline of a close that the application has begun.
    pub(super) closing: Option<Instant>,
    /// Whether the application has aborted.
    pub(super) is_aborted: bool,
    /// The private data of the peer's application in the first hello.
    pub(super) peer_data: Box<[u8]>,
    /// The number of messages of earlier connections that the application has not released.
    pub(super) held: u32,
}

/// The size is bounded, because a server has many idle sessions.
const _: () = assert!(size_of::<LinkSession>() <= 200);

/// Which side of the session this is.
pub(crate) enum Side {
    /// This side connects, over these ways.
    Active(Box<Ways>),
    Passive,
}

pub(super) enum State {
    /// There is a connection, which the peer may have left.
    Working(Option<Box<Doubt>>),
    /// The connection was lost.
    Suspended(Box<Suspension>),
}

/// The check of a connection that the peer may have left, because a request to resume its session
/// has arrived.
pub(super) struct Doubt {
    /// The pong that proves that the peer uses the connection.
    pub(super) answer: Proof,
    /// The deadline of the pong.
    pub(super) until: Instant,
}

pub(super) struct Suspension {
    pub(super) since: Instant,
    pub(super) deadline: Instant,
    /// The reason of the loss.
    pub(super) reason: CloseReason,
    /// Whether the peer has received all messages, and closed.
    pub(super) delivered: bool,
    pub(super) step: Step,
    /// The number of attempts that failed.
    pub(super) failed: u32,
    /// The number of messages that the peer has received, from its request.
    pub(super) peer_received: u32,
}

impl Suspension {
    /// Returns the end of a session that is not resumed.
    pub(super) fn end(&self) -> Ended {
        Ended {
            reason: self.reason.clone(),
            delivered: self.delivered,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// The transport of the last connection is not removed yet.
    Lost,
    /// The next attempt begins at this time.
    Idle(Instant),
    /// A connection is being established over this way.
    Attempt(Way),
}

/// A message that may have to be sent again.
#[derive(Default)]
pub(super) struct Kept {
    /// The bytes of a message up to the eager size.
    pub(super) copy: Copied,
    /// The bytes of a longer one, after the loss of the connection over which it was exposed.
    pub(super) memory: Option<OutboundBuffer>,
    pub(super) id: Option<u64>,
}

/// A copy of a message, in memory that the next message at the same place reuses.
pub(super) struct Copied {
    /// The length of the message in bytes.
    len: usize,
    /// The message, if it has at most this length.
    short: [u8; SHORT],
    /// Any other message.
    long: Vec<u8>,
}

/// The maximum length in bytes of a message whose copy is in [`Copied`] itself.
const SHORT: usize = 64;

impl Default for Copied {
    fn default() -> Self {
        Self {
            len: 0,
            short: [0; SHORT],
            long: Vec::new(),
        }
    }
}

impl Copied {
    pub(super) fn bytes(&self) -> &[u8] {
        self.short.get(..self.len).unwrap_or(&self.long)
    }

    fn set(&mut self, parts: &[IoSlice<'_>]) {
        if let [part] = parts {
            return self.set_bytes(part);
        }
        self.long.clear();
        for part in parts {
            self.long.extend_from_slice(part);
        }
        self.len = self.long.len();
        if let Some(short) = self.short.get_mut(..self.len) {
            short.copy_from_slice(&self.long);
        }
    }

    #[inline(always)]
    fn set_bytes(&mut self, bytes: &[u8]) {
        self.len = bytes.len();
        // Two copies of a fixed length, which may overlap, take 10 instructions. A call of `memcpy`
        // takes 23.
        if let Some(short) = self.short.get_mut(..bytes.len())
            && let (Some(first), Some(last)) = (bytes.first_chunk(), bytes.last_chunk())
        {
            if let Some(to) = short.first_chunk_mut::<{ SHORT / 2 }>() {
                *to = *first;
            }
            if let Some(to) = short.last_chunk_mut::<{ SHORT / 2 }>() {
                *to = *last;
            }
        } else {
            self.set_other(bytes);
        }
    }

    #[inline(never)]
    fn set_other(&mut self, bytes: &[u8]) {
        if let Some(short) = self.short.get_mut(..bytes.len()) {
            short.copy_from_slice(bytes);
        } else {
            self.long.clear();
            self.long.extend_from_slice(bytes);
        }
    }
}

impl LinkSession {
    pub(super) fn new(side: Side, config: &Config, route: Arc<Mutex<Route>>) -> Self {
        Self {
            messages: Session::default(),
            id: None,
            side,
            route,
            timeout: config.resume,
            close_timeout: config.close_timeout,
            state: State::Working(None),
            finished: false,
            leaving: false,
            closing: None,
            is_aborted: false,
            peer_data: Box::default(),
            held: 0,
        }
    }

    /// Keeps a copy of a message that was sent.
    pub(super) fn keep(&mut self, conn: &Connection, message: &[IoSlice<'_>], id: Option<u64>) {
        let write = |kept: &mut Kept| {
            kept.id = id;
            kept.copy.set(message);
        };
        self.messages.keep(false, || conn.unconfirmed(), write);
    }

    /// Keeps a copy of a message that was sent and has no id.
    #[inline(always)]
    pub(super) fn keep_bytes(&mut self, conn: &Connection, message: &[u8]) {
        let write = |kept: &mut Kept| {
            kept.id = None;
            kept.copy.set_bytes(message);
        };
        self.messages.keep(false, || conn.unconfirmed(), write);
    }

    /// Keeps a message above the eager size.
    pub(super) fn keep_large(&mut self, conn: &Connection, id: Option<u64>) {
        let write = |kept: &mut Kept| {
            kept.id = id;
            kept.copy.set(&[]);
        };
        self.messages.keep(true, || conn.unconfirmed(), write);
    }

    /// Keeps the messages of a batch, in which a length field precedes each.
    pub(super) fn keep_parts(&mut self, conn: &Connection, payload: &[u8]) {
        for (start, len) in parts(payload) {
            let message = &payload[start as usize..][..len as usize];
            self.keep_bytes(conn, message);
        }
        debug_assert!(payload.len() >= PART_HEADER_LEN, "a batch has messages");
    }

    /// Returns the ways to the peer, if this side connects.
    pub(super) fn ways(&mut self) -> Option<&mut Ways> {
        match &mut self.side {
            Side::Active(ways) => Some(ways),
            Side::Passive => None,
        }
    }

    pub(super) fn suspension(&mut self) -> Option<&mut Suspension> {
        match &mut self.state {
            State::Working(_) => None,
            State::Suspended(suspension) => Some(suspension),
        }
    }
}

/// Queries of the connection's handles.
impl Core {
    /// Whether the connection was ever established.
    pub(super) fn was_established(&self) -> bool {
        self.established || self.generation > 0
    }

    /// Whether the connection is lost, and its successor is not established.
    pub(super) fn is_suspended(&self) -> bool {
        let session = self.session.as_ref();
        session.is_some_and(|session| matches!(session.state, State::Suspended(_)))
    }

    /// Whether new messages have to wait, because the connection is lost or earlier messages are
    /// being sent again.
    #[inline]
    pub(super) fn blocks_new_messages(&self) -> bool {
        match &self.session {
            None => false,
            Some(session) => {
                !session.messages.is_open()
                    || self.conn.close_reason().is_some_and(CloseReason::is_loss)
            }
        }
    }

    /// Whether the connection of a session is lost, or is about to be replaced.
    pub(super) fn is_lost(&self) -> bool {
        let is_loss = || self.conn.close_reason().is_some_and(CloseReason::is_loss);
        self.is_suspended() || (self.has_session() && is_loss())
    }

    /// Whether the application has closed the connection of a session.
    pub(super) fn is_closing(&self) -> bool {
        let session = self.session.as_ref();
        session.is_some_and(|session| session.closing.is_some())
    }

    /// Whether the connection has a session.
    pub(super) fn has_session(&self) -> bool {
        self.session.is_some()
    }

    /// Returns the low 16 bits of the number of the attempt that established the connection, which
    /// both sides know: 0 for the first connection, and without a session.
    #[inline]
    pub(super) fn epoch(&self) -> u16 {
        self.session
            .as_ref()
            .map_or(0, |session| session.messages.epoch() as u16)
    }

    /// Refuses a send after the end, and puts off one that has to wait for the session.
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

    /// Whether [`check_sendable`](Self::check_sendable) accepts a message, or the state machine
    /// refuses it.
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

    /// Returns the counters of the connection, with those of its predecessors.
    pub(super) fn statistics(&self) -> Statistics {
        let mut all = self.conn.statistics();
        if self.is_suspended() {
            all = Statistics::ZERO;
        }
        if let Some(past) = &self.past {
            all += **past;
        }
        all
    }

    /// Returns the private data of the peer's application.
    pub(super) fn peer_data(&self) -> &[u8] {
        match &self.session {
            Some(session) if self.established || self.is_suspended() => &session.peer_data,
            _ => self.conn.peer_data(),
        }
    }

    /// Stops sending. A suspended session continues until its last message has arrived, or
    /// `close_timeout` has passed. A working one remembers the close for the next connection.
    pub(super) fn close(&mut self, now: Instant) {
        let blocked = self.blocks_new_messages();
        if let Some(session) = self
            .session
            .as_mut()
            .filter(|_| self.established || blocked)
        {
            let deadline = now + session.close_timeout;
            let deadline = *session.closing.get_or_insert(deadline);
            if let Some(suspension) = session.suspension() {
                suspension.deadline = suspension.deadline.min(deadline);
            }
        }
        if blocked {
            self.deferred.drive = true;
        } else {
            self.conn.close(now);
        }
    }

    /// Ends the connection at once, with the application's `code`.
    pub(super) fn abort(&mut self, code: u32, now: Instant) {
        if self.is_suspended() {
            return self.cut_off(CloseReason::LocallyAborted);
        }
        if let Some(session) = &mut self.session {
            session.is_aborted = true;
        }
        self.conn.abort(code, now);
    }

    /// Finishes sending.
    pub(super) fn finish(&mut self) -> Result<(), Error> {
        self.check_not_ended()?;
        let barred = self.blocks_new_messages();
        if !barred {
            let finished = self.conn.finish();
            finished.map_err(|refused| refused_send(refused, 0))?;
        }
        if let Some(session) = &mut self.session {
            session.finished = true;
        }
        Ok(())
    }

    /// Whether the peer's Finish came over an earlier connection.
    pub(super) fn take_first_finish(&mut self) -> bool {
        !mem::replace(&mut self.finish_came, true)
    }
}
