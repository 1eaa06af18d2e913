//! Sessions: the state that survives the loss of a connection, including the messages that a
//! session stores for a possible resend.

use std::{
    io::IoSlice,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use super::{completion::Ended, core::Core};
use crate::{
    config::Config,
    proto::{CloseReason, Connection, PART_HEADER_LEN, Proof, Session, SessionId, parts},
    transport::OutboundBuffer,
};

mod peer_paths;
mod resume_requests;
mod successor;
mod suspension;

pub(crate) use self::{
    peer_paths::{PeerPath, PeerPaths, Route},
    suspension::{Next, PathsOfAttempt, Resume},
};

/// The session of a connection. Until both hellos are known, this is only the session that this
/// side offers.
pub(crate) struct LinkSession {
    pub(super) messages: Session<Kept>,
    /// The session id; `None` until the passive side has chosen it.
    pub(super) id: Option<SessionId>,
    pub(super) side: Side,
    /// The route of the current connection or, while there is none, of the last connection.
    pub(super) route: Arc<Mutex<Route>>,
    /// The maximum duration of a suspension.
    pub(super) timeout: Duration,
    /// The maximum duration of a close.
    pub(super) close_timeout: Duration,
    pub(super) state: State,
    /// Whether the application has finished sending.
    pub(super) finished: bool,
    /// Whether the application has called `ask_to_leave`, which notifies the peer that this side
    /// wants to end the connection soon. If so, each new connection repeats the notification.
    pub(super) leaving: bool,
    /// The deadline of a close that the application has started.
    pub(super) closing: Option<Instant>,
    /// Whether the application has aborted the connection.
    pub(super) is_aborted: bool,
    /// The private data of the peer's application, from the first hello.
    pub(super) peer_data: Box<[u8]>,
    /// The number of messages from earlier connections that the application has not released.
    pub(super) held: u32,
}

/// The size matters, because a server can have many idle sessions.
const _: () = assert!(size_of::<LinkSession>() <= 200);

/// The role of this side in the session.
pub(crate) enum Side {
    /// This side connects, over one of these paths.
    Active(Box<PeerPaths>),
    Passive,
}

/// The functions of a session that change the whole connection: they handle its loss, the attempts
/// to resume, and the next connection. All of them run under the lock of the state machine.
///
/// The engine's thread makes the attempts: see `engine/reactor/sessions.rs`.
pub(crate) struct Recovery<'a> {
    pub(super) core: &'a mut Core,
}

pub(super) enum State {
    /// The session has a connection. A `Doubt` exists while this side checks whether the peer has
    /// abandoned the connection.
    Working(Option<Box<Doubt>>),
    /// The connection was lost.
    Suspended(Box<Suspension>),
}

/// A pending check of whether the peer still uses the connection. The check begins when a request
/// to resume the session arrives.
pub(super) struct Doubt {
    /// The pong that proves that the peer still uses the connection.
    pub(super) answer: Proof,
    /// The deadline for the pong.
    pub(super) until: Instant,
}

pub(super) struct Suspension {
    pub(super) since: Instant,
    pub(super) deadline: Instant,
    /// The reason for the loss.
    pub(super) reason: CloseReason,
    /// Whether the peer closed after it had received all messages.
    pub(super) delivered: bool,
    pub(super) step: Step,
    /// The number of failed attempts to resume.
    pub(super) failed: u32,
    /// The path of the last attempt of the active side, and the reason for its failure; `None`
    /// after the engine's thread has taken it.
    pub(super) last_failure: Option<(PeerPath, CloseReason)>,
    /// The number of messages that the peer has received, according to its request to resume.
    pub(super) peer_received: u32,
}

impl Suspension {
    /// Returns how the session ends if it is not resumed.
    pub(super) fn end(&self) -> Ended {
        Ended {
            reason: self.reason.clone(),
            delivered: self.delivered,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// The transport of the lost connection has yet to be removed.
    Lost,
    /// The next attempt begins at this time.
    Idle(Instant),
    /// A connection over this path is being established.
    Attempt(PeerPath),
}

/// A message that may have to be sent again.
#[derive(Default)]
pub(super) struct Kept {
    /// The bytes of a message up to the eager size.
    pub(super) copy: Copied,
    /// The bytes of a longer message; `None` until the connection over which the message was
    /// exposed is lost.
    pub(super) memory: Option<OutboundBuffer>,
    pub(super) id: Option<u64>,
}

/// A copy of a message. Copies of later messages reuse the memory.
pub(super) struct Copied {
    /// The length of the message in bytes.
    len: usize,
    /// The bytes of a message of up to [`SHORT`] bytes.
    short: [u8; SHORT],
    /// The bytes of a longer message.
    long: Vec<u8>,
}

/// The maximum length in bytes of a message that [`Copied`] stores inline.
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
        // If the message has between `SHORT / 2` and `SHORT` bytes, copies its first and its last
        // `SHORT / 2` bytes, which may overlap. These two copies of a fixed length take 10
        // instructions, while a call of `memcpy` takes 23.
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

    /// Stores a copy of a message that was sent.
    pub(super) fn keep(&mut self, conn: &Connection, message: &[IoSlice<'_>], id: Option<u64>) {
        let write = |kept: &mut Kept| {
            kept.id = id;
            kept.copy.set(message);
        };
        self.messages.keep(false, || conn.unconfirmed(), write);
    }

    /// Stores a copy of a message that was sent without an id.
    #[inline(always)]
    pub(super) fn keep_bytes(&mut self, conn: &Connection, message: &[u8]) {
        let write = |kept: &mut Kept| {
            kept.id = None;
            kept.copy.set_bytes(message);
        };
        self.messages.keep(false, || conn.unconfirmed(), write);
    }

    /// Records a sent message above the eager size. Its bytes stay in the exposed memory.
    pub(super) fn keep_large(&mut self, conn: &Connection, id: Option<u64>) {
        let write = |kept: &mut Kept| {
            kept.id = id;
            kept.copy.set(&[]);
        };
        self.messages.keep(true, || conn.unconfirmed(), write);
    }

    /// Stores copies of the messages of a batch, in which a length field precedes each message.
    pub(super) fn keep_parts(&mut self, conn: &Connection, payload: &[u8]) {
        for (start, len) in parts(payload) {
            let message = &payload[start as usize..][..len as usize];
            self.keep_bytes(conn, message);
        }
        debug_assert!(
            payload.len() >= PART_HEADER_LEN,
            "a batch must contain a message"
        );
    }

    /// Returns the paths to the peer; `None` on the passive side.
    pub(super) fn paths(&mut self) -> Option<&mut PeerPaths> {
        match &mut self.side {
            Side::Active(paths) => Some(paths),
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
