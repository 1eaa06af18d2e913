//! Sessions: the messages that are kept while a connection works, and the time between its loss and
//! its successor.
//!
//! All of it is under the lock of the core. The engine's thread makes the attempts: see
//! `engine/reactor/sessions.rs`.

use std::{
    io::IoSlice,
    mem,
    sync::Arc,
    time::{Duration, Instant},
};

use log::Level;

use super::{
    completion::{Completion, Ended},
    core::Core,
    message::{Home, Place},
    reports::{report, report_failed},
    send::{Attempt, Sending},
};
use crate::{
    error::{Error, TrySendError},
    proto::{
        CloseReason, Connection, Note, PART_HEADER_LEN, ResumeRequest, SESSION_ID_LEN, Session,
        SessionId, Statistics, Violation, parts,
    },
    transport::{Allocator, OutboundBuffer, Posted},
};

/// The wait before the second attempt. It doubles from attempt to attempt.
const FIRST_WAIT: Duration = Duration::from_millis(25);
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// The number of buffers for copies that are kept for reuse.
const SPARE: usize = 64;

/// The session of a connection. Until both hellos are known, that which this side offers.
pub(crate) struct LinkSession {
    messages: Session<Kept>,
    /// The identity, once the passive side has chosen one.
    id: Option<SessionId>,
    is_active: bool,
    /// The bound on a suspension.
    timeout: Duration,
    /// The bound on a close.
    close_timeout: Duration,
    state: State,
    /// Whether this side has said that it sends no more messages.
    finished: bool,
    /// Until when a close waits that the application has begun.
    closing: Option<Instant>,
    /// Whether the application has aborted.
    is_aborted: bool,
    /// The application's bytes in the peer's first hello.
    peer_data: Vec<u8>,
    /// Messages of earlier connections that the application has.
    held: u32,
    /// Buffers of messages that are no longer kept.
    spare: Vec<Vec<u8>>,
}

enum State {
    /// There is a connection.
    Working,
    /// The connection was lost.
    Suspended(Suspension),
}

struct Suspension {
    since: Instant,
    deadline: Instant,
    /// Why the connection was lost.
    reason: CloseReason,
    step: Step,
    /// The number of attempts that failed.
    failed: u32,
    /// The number of messages that the peer has received, from its request.
    peer_received: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The transport of the last connection is still there.
    Lost,
    /// Nothing is under way until this time.
    Idle(Instant),
    /// A connection is being established.
    Attempt,
}

/// What the engine's thread does next for a suspended session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Remove the transport.
    Remove,
    /// Begin an attempt, if this side connects, or wait for the peer until the deadline.
    Attempt,
    Nothing,
}

/// A message that may have to be sent again.
struct Kept {
    bytes: Bytes,
    id: Option<u64>,
}

enum Bytes {
    Copy(Vec<u8>),
    /// The memory is exposed to the peer.
    Exposed,
    Memory(OutboundBuffer),
}

impl LinkSession {
    pub(crate) fn new(is_active: bool, timeout: Duration, close_timeout: Duration) -> Self {
        Self {
            messages: Session::default(),
            id: None,
            is_active,
            timeout,
            close_timeout,
            state: State::Working,
            finished: false,
            closing: None,
            is_aborted: false,
            peer_data: Vec::new(),
            held: 0,
            spare: Vec::new(),
        }
    }

    /// Keeps a message that was sent, and lets those go that the peer is known to have received.
    pub(super) fn keep(&mut self, conn: &Connection, message: &[IoSlice<'_>], id: Option<u64>) {
        let mut copy = self.spare.pop().unwrap_or_default();
        for part in message {
            copy.extend_from_slice(part);
        }
        let bytes = Bytes::Copy(copy);
        self.messages.keep(Kept { bytes, id }, false);
        self.trim(conn);
    }

    /// Keeps a message above the eager size.
    pub(super) fn keep_large(&mut self, conn: &Connection, id: Option<u64>) {
        let bytes = Bytes::Exposed;
        self.messages.keep(Kept { bytes, id }, true);
        self.trim(conn);
    }

    /// Keeps the messages of a batch, each behind its length.
    pub(super) fn keep_parts(&mut self, conn: &Connection, payload: &[u8]) {
        for (start, len) in parts(payload) {
            let message = &payload[start as usize..][..len as usize];
            self.keep(conn, &[IoSlice::new(message)], None);
        }
        debug_assert!(payload.len() >= PART_HEADER_LEN, "a batch has messages");
    }

    fn trim(&mut self, conn: &Connection) {
        let (unconfirmed, untaken) = conn.unconfirmed();
        while let Some(kept) = self.messages.take_confirmed(unconfirmed, untaken) {
            if let Bytes::Copy(mut copy) = kept.bytes
                && self.spare.len() < SPARE
            {
                copy.clear();
                self.spare.push(copy);
            }
        }
    }

    fn suspension(&mut self) -> Option<&mut Suspension> {
        match &mut self.state {
            State::Working => None,
            State::Suspended(suspension) => Some(suspension),
        }
    }
}

/// The questions of the connection's handles.
impl Core {
    /// Whether the connection is lost, and its successor is not established.
    pub(super) fn is_suspended(&self) -> bool {
        let session = self.session.as_ref();
        session.is_some_and(|session| matches!(session.state, State::Suspended(_)))
    }

    /// Whether nothing new is sent: the connection is lost, or earlier messages are sent again.
    #[inline]
    pub(super) fn is_barred(&self) -> bool {
        match &self.session {
            None => false,
            Some(session) => {
                matches!(session.state, State::Suspended(_))
                    || session.messages.repeats()
                    || self.conn.close_reason().is_some_and(CloseReason::is_loss)
            }
        }
    }

    /// Whether the connection has a session.
    pub(super) fn has_session(&self) -> bool {
        self.session.is_some()
    }

    /// Refuses a send after the end, and puts off one that has to wait for the session.
    #[inline]
    pub(super) fn check_sendable(&self) -> Result<(), TrySendError> {
        if self.ended.is_none() && self.session.is_none() {
            return Ok(());
        }
        self.check_session_sendable()
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
            Some(_) if self.is_barred() => Err(TrySendError::Full),
            Some(_) | None => Ok(()),
        }
    }

    /// Returns the counters of the connection, with those of its predecessors.
    pub(super) fn statistics(&self) -> Statistics {
        let mut all = self.conn.statistics();
        if self.is_suspended() {
            all = Statistics::ZERO;
        }
        all += self.past;
        all
    }

    /// Returns the bytes of the peer's application.
    pub(super) fn peer_data(&self) -> &[u8] {
        match &self.session {
            Some(session) if self.established || self.is_suspended() => &session.peer_data,
            _ => self.conn.peer_data(),
        }
    }

    /// Stops sending. A session that is suspended goes on until its last message has arrived, or
    /// `close_timeout` has passed.
    pub(super) fn close(&mut self, now: Instant) {
        if !self.is_barred() {
            return self.conn.close(now);
        }
        if let Some(session) = &mut self.session {
            let deadline = now + session.close_timeout;
            let deadline = *session.closing.get_or_insert(deadline);
            if let Some(suspension) = session.suspension() {
                suspension.deadline = suspension.deadline.min(deadline);
            }
            self.deferred.drive = true;
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

    /// Sends no more messages.
    pub(super) fn finish(&mut self) -> Result<(), Error> {
        self.check_not_ended()?;
        let barred = self.is_barred();
        if !barred {
            let finished = self.conn.finish();
            finished.map_err(|refused| super::send::refused_send(refused, 0))?;
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

/// The loss of a connection.
impl Core {
    /// Returns the end of a connection, unless its session survives it.
    pub(super) fn survive(&mut self, ended: Ended) -> Option<Ended> {
        let Some(session) = &mut self.session else {
            return Some(ended);
        };
        let now = Instant::now();
        match &mut session.state {
            State::Working
                if self.established && self.conn.is_lost(&ended.reason) && !session.is_aborted =>
            {
                if !ended.reason.is_loss() {
                    session.closing.get_or_insert(now + session.close_timeout);
                }
                self.suspend(ended.reason, now);
                None
            }
            State::Working => Some(ended),
            State::Suspended(suspension) => {
                let delivered = false;
                let is_over = suspension.deadline <= now;
                if is_over || ended.reason.ends_session() {
                    let reason = if is_over || !suspension.reason.is_loss() {
                        suspension.reason.clone()
                    } else {
                        ended.reason
                    };
                    return Some(Ended { reason, delivered });
                }
                let text = format_args!("cannot resume yet: {}", ended.reason);
                self.deferred.log(Note::new(Level::Debug, text));
                suspension.failed += 1;
                suspension.step = Step::Lost;
                self.cm_ops.clear();
                self.deferred.drive = true;
                None
            }
        }
    }

    /// The connection was lost, and has delivered everything that had come.
    fn suspend(&mut self, reason: CloseReason, now: Instant) {
        let Some(session) = &mut self.session else {
            return;
        };
        session.trim(&self.conn);
        session.messages.suspend(self.conn.delivered_messages());
        session.held += self.conn.held_messages();
        self.past += self.conn.statistics().counters();
        // Ids that wait are those of the last messages; others have been reported.
        let mut waiting: Vec<_> = self.order.abandon().collect();
        for kept in session.messages.suspended_mut().rev() {
            match kept.id {
                Some(id) if waiting.last() == Some(&id) => {
                    waiting.pop();
                }
                _ => kept.id = None,
            }
        }
        // The peer has received what is not kept.
        for id in waiting {
            report(&mut self.completions, Completion::Sent(id));
        }
        let exposed = self.queues.as_mut().map(|queues| {
            for posted in queues.in_flight.slots.iter() {
                if let Posted::Operation(operation) = posted {
                    report_failed(Some(operation.id), &reason, &mut self.completions);
                }
            }
            queues.in_flight.take_exposed()
        });
        let mut exposed = exposed.into_iter().flatten();
        for kept in session.messages.suspended_mut() {
            if let Bytes::Exposed = kept.bytes
                && let Some(exposed) = exposed.next()
            {
                kept.bytes = Bytes::Memory(exposed.take_back());
            }
        }
        self.unproven = super::sent_order::Unproven::default();
        self.batches = super::message::Batches::default();
        self.cm_ops.clear();
        self.life = None;
        self.established = false;
        self.generation += 1;
        self.ring = None;
        let text = format_args!("lost its connection, and resumes: {reason}");
        self.deferred.log(Note::new(Level::Warn, text));
        let deadline = now + session.timeout;
        session.state = State::Suspended(Suspension {
            since: now,
            deadline: session
                .closing
                .map_or(deadline, |close| close.min(deadline)),
            reason,
            step: Step::Lost,
            failed: 0,
            peer_received: 0,
        });
        self.deferred.drive = true;
        self.deferred.wake = true;
    }

    /// Reports the messages that a suspended session did not deliver.
    pub(super) fn fail_kept(&mut self, reason: &CloseReason) {
        if let Some(session) = &mut self.session {
            session.messages.suspend(0);
            for kept in session.messages.suspended_mut() {
                // Those of a connection that works are in the order.
                if matches!(session.state, State::Suspended(_)) {
                    report_failed(kept.id, reason, &mut self.completions);
                }
            }
        }
        self.session = None;
        self.ring = None;
    }

    /// Takes back a message's place in the ring of an earlier connection.
    pub(super) fn give_back_late(&mut self, place: Place) {
        let (Place::Buffer(_) | Place::Part(_)) = place else {
            return;
        };
        if let Some(session) = &mut self.session {
            session.held = session.held.saturating_sub(1);
        }
        self.conn.widen();
    }
}

/// The engine's thread.
impl Core {
    /// Returns what the engine's thread does next.
    pub(crate) fn next_of_session(&mut self, now: Instant) -> Next {
        let suspension = self.session.as_mut().and_then(|it| it.suspension());
        match suspension.map(|suspension| suspension.step) {
            Some(Step::Lost) => Next::Remove,
            Some(Step::Idle(at)) if at <= now => Next::Attempt,
            Some(Step::Idle(_) | Step::Attempt) | None => Next::Nothing,
        }
    }

    /// The transport of the last connection is gone. The next attempt follows after a wait, which
    /// `fraction` varies: it is between 0 and 1.
    pub(crate) fn removed(&mut self, fraction: f64, now: Instant) {
        if let Some(suspension) = self.session.as_mut().and_then(|it| it.suspension()) {
            let wait = match suspension.failed {
                0 => Duration::ZERO,
                failed => (FIRST_WAIT * (1 << (failed - 1).min(6))).min(LONGEST_WAIT),
            };
            let wait = wait / 2 + wait.mul_f64(fraction / 2.0);
            suspension.step = Step::Idle(now + wait);
        }
    }

    /// Returns the time at which the engine's thread looks at the connection again.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let session = self.session.as_ref();
        match session.map(|session| (&session.state, session.is_active)) {
            Some((State::Suspended(suspension), is_active)) => match suspension.step {
                Step::Idle(at) if is_active => Some(at.min(suspension.deadline)),
                Step::Idle(_) => Some(suspension.deadline),
                Step::Lost => None,
                Step::Attempt => self.conn.next_timeout(),
            },
            Some((State::Working, _)) | None => self.conn.next_timeout(),
        }
    }

    /// Ends a suspension whose time is over. Returns whether it has.
    pub(super) fn expire_session(&mut self, now: Instant) -> bool {
        let Some(suspension) = self.session.as_mut().and_then(|it| it.suspension()) else {
            return false;
        };
        if suspension.step == Step::Attempt || suspension.deadline > now {
            return false;
        }
        let reason = suspension.reason.clone();
        self.cut_off(reason);
        true
    }

    /// Begins an attempt of the active side: returns its request, and the time that is left.
    pub(crate) fn resume_request(&mut self, now: Instant) -> Option<(ResumeRequest, Duration)> {
        let session = self.session.as_mut().filter(|session| session.is_active)?;
        let id = session.id?;
        let left = session.suspension()?.deadline.checked_duration_since(now)?;
        let request = ResumeRequest {
            id,
            epoch: session.messages.begin_attempt(),
            received: session.messages.received(),
        };
        Some((request, left))
    }

    /// Takes the number of messages that the application has of earlier connections.
    pub(crate) fn held_of_session(&self) -> u16 {
        let held = self.session.as_ref().map_or(0, |session| session.held);
        u16::try_from(held).unwrap_or(u16::MAX)
    }

    /// An attempt begins, with this state machine. Messages of its connection give their place back
    /// to `ring`.
    pub(crate) fn attempt(&mut self, conn: Connection, ring: Arc<dyn Home>) {
        self.conn = conn;
        self.ring = Some(ring);
        if let Some(suspension) = self.session.as_mut().and_then(|it| it.suspension()) {
            suspension.step = Step::Attempt;
        }
    }

    /// Which of the session's connections this is, from 0.
    pub(crate) fn generation(&self) -> u32 {
        self.generation
    }

    /// The passive side accepts a first request, and chooses the identity of a session. Returns
    /// whether there is one.
    pub(crate) fn begin_session(&mut self, id: SessionId) -> bool {
        if !self.conn.has_session() {
            self.session = None;
        }
        match &mut self.session {
            Some(session) => {
                session.id = Some(id);
                session.peer_data = self.conn.peer_data().to_vec();
                true
            }
            None => false,
        }
    }

    /// The peer asks to resume the session. Returns the number of messages that this side has
    /// received, or `None` before the last connection has been removed.
    pub(crate) fn accept_attempt(&mut self) -> Option<u32> {
        let session = self.session.as_mut()?;
        match session.suspension()?.step {
            Step::Idle(_) => Some(session.messages.received()),
            Step::Lost | Step::Attempt => None,
        }
    }

    /// Judges the peer's request, and fences the last connection: it delivers nothing more.
    pub(crate) fn fence(
        &mut self,
        request: &ResumeRequest,
        now: Instant,
    ) -> Result<(), crate::proto::ResumeRefused> {
        let Some(session) = &mut self.session else {
            return Err(crate::proto::ResumeRefused::Stale);
        };
        session
            .messages
            .check_attempt(request.epoch, request.received)?;
        session.messages.take_attempt(request.epoch);
        match &mut session.state {
            State::Working => {
                use crate::proto::CmInput;
                self.conn.handle_cm_event(CmInput::Disconnected, now);
            }
            // A connection that is not established has delivered nothing.
            State::Suspended(suspension) if suspension.step == Step::Attempt => {
                suspension.step = Step::Lost;
                self.cm_ops.clear();
            }
            State::Suspended(_) => {}
        }
        Ok(())
    }

    /// The peer's number from its request, for the attempt that begins.
    pub(crate) fn set_peer_received(&mut self, received: u32) {
        if let Some(suspension) = self.session.as_mut().and_then(|it| it.suspension()) {
            suspension.peer_received = received;
        }
    }
}

/// The successor of a lost connection.
impl Core {
    /// A connection is established: it begins a session, resumes it, or has none.
    pub(super) fn session_established(&mut self) {
        let Some(session) = &mut self.session else {
            return;
        };
        if !self.conn.has_session() {
            self.session = None;
            return;
        }
        let data = self.conn.peer_data();
        let received = match &session.state {
            State::Working => {
                if session.is_active {
                    match data.split_first_chunk::<SESSION_ID_LEN>() {
                        Some((id, data)) => {
                            session.id = Some(SessionId(*id));
                            session.peer_data = data.to_vec();
                        }
                        None => self.session = None,
                    }
                }
                return;
            }
            State::Suspended(suspension) if !session.is_active => Some(suspension.peer_received),
            State::Suspended(_) => data.try_into().ok().map(u32::from_be_bytes),
        };
        let violation = Violation::new("session", data.len() as u64, "4 bytes of a number");
        let resumed = received.ok_or(violation);
        let arrived = resumed.and_then(|received| {
            let arrived = session.messages.resume(received)?;
            Ok(arrived.filter_map(|kept| kept.id).collect::<Vec<_>>())
        });
        match arrived {
            Ok(arrived) => {
                for id in arrived {
                    report(&mut self.completions, Completion::Sent(id));
                }
                self.deferred.arrived = true;
            }
            Err(violation) => {
                return self.conn.handle_violation(violation, Instant::now());
            }
        }
        let State::Suspended(suspension) = mem::replace(&mut session.state, State::Working) else {
            return;
        };
        let again = session.messages.suspended_mut().count();
        let text = format_args!(
            "resumed after {:?}; {again} messages are sent again",
            suspension.since.elapsed()
        );
        self.past.resumes += 1;
        self.past.resent += again as u64;
        self.deferred.log(Note::new(Level::Warn, text));
        self.deferred.drive = true;
        self.deferred.wake = true;
        self.go_on();
    }

    /// If everything was sent again, does what had to wait for that.
    fn go_on(&mut self) {
        let Some(session) = self.session.as_ref().filter(|_| !self.is_barred()) else {
            return;
        };
        let (finished, closing) = (session.finished, session.closing);
        if self.holds_back() {
            self.conn.hold();
        }
        if finished {
            // It is refused at the end of the connection alone.
            let _ = self.conn.finish();
        }
        if closing.is_some() {
            self.conn.close(Instant::now());
        }
        self.deferred.room = true;
        self.deferred.wake = true;
        self.room_came();
    }

    /// Sends the next message again. Returns whether there is another one to send now. The engine's
    /// thread calls it once for each, and releases the lock in between.
    pub(super) fn send_again(&mut self, allocator: Option<&Allocator>) -> bool {
        let next = match &mut self.session {
            Some(session) if matches!(session.state, State::Working) => {
                session.messages.next_again()
            }
            Some(_) | None => None,
        };
        let Some(kept) = next else { return false };
        let bytes = match &kept.bytes {
            Bytes::Copy(copy) => copy,
            Bytes::Memory(memory) => memory.bytes(),
            Bytes::Exposed => &[],
        };
        let slices = [IoSlice::new(bytes)];
        let mut sending = Sending::new(&slices, kept.id);
        let mut sent = self.send_now(&mut sending);
        if let (Ok(Attempt::NotExposed), Some(allocator)) = (&sent, allocator) {
            sent = match sending.expose(allocator, self.generation) {
                Ok(()) => self.send_now(&mut sending),
                Err(error) => {
                    let text = format_args!("cannot send a message again: {error}");
                    self.deferred.log(Note::new(Level::Warn, text));
                    Err(TrySendError::Full)
                }
            };
        }
        drop(sending);
        if let Ok(Attempt::Sent) = sent {
            let more = self.is_barred();
            if !more {
                self.go_on();
            }
            return more;
        }
        if let Some(session) = &mut self.session {
            session.messages.put_back(kept);
        }
        false
    }
}
