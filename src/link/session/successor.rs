//! Resumes a session over a new connection after the loss of the previous connection. Resends the
//! messages that the peer has not received.

use std::{io::IoSlice, mem, time::Instant};

use log::Level;

use super::{Recovery, Side, State, Step, Suspension};
#[cfg(feature = "tokio")]
use crate::link::deferred::DeferredAction;
use crate::{
    error::TrySendError,
    link::{
        completion::Completion,
        core::SystemClock,
        pending_send::{Attempt, Sending},
    },
    os::{lock, millis},
    proto::{CloseReason, Note, SESSION_ID_LEN, SessionId, Violation},
    transport::Allocator,
};

/// Functions for the connection that replaces a lost one.
impl Recovery<'_> {
    /// Handles the establishment of a connection. The connection may begin a session, resume a
    /// session, or have no session.
    pub(crate) fn established(&mut self) {
        let core = &mut *self.core;
        let Some(session) = &mut core.session else {
            return;
        };
        let has_session = core.conn.has_session();
        if !has_session && matches!(session.state, State::Working(_)) {
            core.session = None;
            return;
        }
        let data = core.conn.peer_data();
        let received = match &session.state {
            State::Working(_) => {
                let Side::Active(paths) = &mut session.side else {
                    session.peer_data = data.into();
                    return;
                };
                paths.arrived(Instant::now());
                match data.split_first_chunk::<SESSION_ID_LEN>() {
                    Some((id, data)) => {
                        session.id = Some(SessionId(*id));
                        session.peer_data = data.into();
                    }
                    None => core.session = None,
                }
                return;
            }
            State::Suspended(suspension) => match &session.side {
                Side::Active(_) => data.try_into().ok().map(u32::from_be_bytes),
                Side::Passive => Some(suspension.peer_received),
            },
        };
        //= PROTOCOL.md#sessions
        //# A reply without bit 4, or with another length, is a violation as well.
        let violation = Violation::new("session", data.len() as u64, "a length of 4 bytes");
        let resumed = received.filter(|_| has_session).ok_or(violation);
        let arrived = resumed.and_then(|received| {
            let arrived = session.messages.resume(received)?;
            Ok(arrived.filter_map(|kept| kept.id).collect::<Vec<_>>())
        });
        match arrived {
            Ok(arrived) => {
                for id in arrived {
                    core.reports.report(Completion::Sent(id));
                }
                core.deferred.arrived = true;
            }
            Err(violation) => {
                return core.conn.handle_violation(violation, Instant::now());
            }
        }
        let before = mem::replace(&mut session.state, State::Working(None));
        let State::Suspended(suspension) = before else {
            return;
        };
        let Suspension {
            since,
            reason,
            step,
            ..
        } = *suspension;
        let Step::Attempt(path) = step else {
            return;
        };
        // If the peer closed the session before the connection was lost, the peer repeats the close
        // over the new connection. This side only answers the repeated close, so `closing` is
        // cleared.
        if let CloseReason::PeerClosed | CloseReason::Truncated { .. } = reason {
            session.closing = None;
        }
        if let Some(paths) = session.paths() {
            paths.arrived(Instant::now());
        }
        if session.leaving {
            // Ignores an error, which means that the connection has ended, or that the peer does
            // not support Leave.
            let _ = core.conn.ask_to_leave();
        }
        let resent = session.messages.suspended_mut().count() as u64;
        let (gap, transport) = (since.elapsed(), path.transport);
        let text = format_args!(
            "resumed over {transport} after {gap:?}; {resent} messages are sent again"
        );
        lock(&session.route).path = path;
        let past = core.past.get_or_insert_default();
        past.resumes += 1;
        past.resent += resent;
        past.longest_gap_ms = past.longest_gap_ms.max(millis(gap));
        let number = past.resumes;
        core.deferred.log(Note::new(Level::Warn, text));
        #[cfg(feature = "tokio")]
        core.deferred.later.push(DeferredAction::EnterRuntime);
        // The application may have released messages since the attempt began, so the new connection
        // gets the current number of held messages.
        core.conn.set_held(session.held, SystemClock);
        if let Some(both) = core.conn.negotiated() {
            core.cork.fit(both.send_eager as usize);
        }
        core.deferred.drive = true;
        let resumed = Completion::Resumed {
            number,
            resent,
            transport,
        };
        core.reports
            .report_session_event(resumed, &mut core.deferred);
        self.send_requested_end();
    }

    /// Sends the Finish and the Close that the application has requested. Wakes the threads and
    /// tasks that wait to send. Does nothing while messages still have to be resent.
    fn send_requested_end(&mut self) {
        let core = &mut *self.core;
        let Some(session) = core
            .session
            .as_ref()
            .filter(|_| !core.blocks_new_messages())
        else {
            return;
        };
        let (finished, closing) = (session.finished, session.closing);
        if core.holds_back() {
            core.conn.hold();
        }
        if finished {
            // `finish` fails only if the connection has ended.
            let _ = core.conn.finish();
        }
        if closing.is_some() {
            core.conn.close(Instant::now());
        }
        core.deferred.room = true;
        core.deferred.wake = true;
        core.reports.report_room(&mut core.deferred);
    }

    /// Resends the next message. Returns true if the message was sent and there is another message
    /// to resend. Returns false if nothing is left to resend, or if the message cannot be sent yet.
    ///
    /// The engine's thread calls this function once per message, and releases the lock between two
    /// calls.
    pub(crate) fn send_again(&mut self, allocator: Option<&Allocator>) -> bool {
        let core = &mut *self.core;
        let next = match &mut core.session {
            Some(session) if matches!(session.state, State::Working(_)) => {
                session.messages.next_to_resend()
            }
            Some(_) | None => None,
        };
        let Some(kept) = next else { return false };
        let bytes = match &kept.memory {
            None => kept.copy.bytes(),
            Some(memory) => memory.bytes(),
        };
        let slices = [IoSlice::new(bytes)];
        let mut sending = Sending::new(&slices, kept.id);
        let mut sent = core.send_now(&mut sending);
        if let (Ok(Attempt::NotExposed), Some(allocator)) = (&sent, allocator) {
            sent = match sending.expose(allocator, core.generation) {
                Ok(()) => core.send_now(&mut sending),
                Err(error) => {
                    let text = format_args!("cannot resend a message: {error}");
                    core.deferred.log(Note::new(Level::Warn, text));
                    Err(TrySendError::Full)
                }
            };
        }
        drop(sending);
        if let Ok(Attempt::Sent) = sent {
            let more = core.blocks_new_messages();
            if !more {
                self.send_requested_end();
            }
            return more;
        }
        if let Some(session) = &mut core.session {
            let is_large = kept.memory.is_some();
            session.messages.put_back(kept, is_large);
        }
        false
    }
}
