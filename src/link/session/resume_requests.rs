//! Handles the peer's requests to resume a session, and the peer's reports of closed sessions.

use std::time::{Duration, Instant};

use log::Level;

use super::{Doubt, Recovery, Side, State, Step};
use crate::{
    link::completion::{Completion, Ended},
    proto::{CloseReason, Note, ResumeRefused, ResumeRequest, SessionOver, Violation},
};

/// The time limit for a pong over the previous connection. When a request to resume arrives, this
/// side sends a ping over that connection. If the pong does not arrive in time, this side accepts
/// the peer's next request. A peer that was merely slow, and still used the previous connection,
/// then loses that connection, but can resume the session with another request.
const ANSWER: Duration = Duration::from_millis(250);

/// Functions that the engine's thread calls.
impl Recovery<'_> {
    /// Checks the peer's request to resume the session. Returns true if the request is valid and
    /// the peer no longer uses the previous connection. That connection has then been ended, and
    /// delivers no further messages. Returns false while the peer may still use the previous
    /// connection; the caller then refuses the request, and the peer retries. Returns an error if
    /// the request is invalid.
    ///
    /// Before the call, the caller must have handled all completions that have arrived.
    pub(crate) fn supersede(
        &mut self,
        request: &ResumeRequest,
        now: Instant,
    ) -> Result<bool, ResumeRefused> {
        let Some(session) = &mut self.core.session else {
            return Err(ResumeRefused::Stale);
        };
        session.messages.confirm(self.core.conn.unconfirmed());
        session
            .messages
            .check_attempt(request.epoch, request.received)?;
        if self.is_in_use(now) {
            return Ok(false);
        }
        let Some(session) = &mut self.core.session else {
            return Err(ResumeRefused::Stale);
        };
        session.messages.take_attempt(request.epoch);
        match &mut session.state {
            State::Working(_) => self.lose(now),
            // The attempt has no established connection and has delivered no messages, so it can be
            // abandoned immediately.
            State::Suspended(suspension) if matches!(suspension.step, Step::Attempt(_)) => {
                suspension.step = Step::Lost;
                self.core.cm_ops.clear();
            }
            State::Suspended(_) => {}
        }
        Ok(true)
    }

    /// Checks whether the peer may still use the connection. The first call sends a ping, and so
    /// does a call after the pong has arrived. Returns true if the pong has arrived or its time
    /// limit has not passed. Returns false if no pong arrived in time, if no ping can be sent, or
    /// if there is no connection.
    fn is_in_use(&mut self, now: Instant) -> bool {
        let Some(session) = &mut self.core.session else {
            return false;
        };
        let State::Working(doubt) = &mut session.state else {
            return false;
        };
        //= PROTOCOL.md#sessions
        //# While the last connection works on the passive side, that side must not give it up
        //# because of a request alone: it sends a Ping over the connection, and refuses the request
        //# if the Pong comes.
        match doubt {
            Some(doubt) if !self.core.conn.has_proof(doubt.answer) => now < doubt.until,
            // The peer abandons a connection before it requests to resume. Only a pong to a ping
            // that was sent after the request therefore proves that the peer still uses the
            // connection. Other frames may be older than the request.
            Some(_) | None => {
                let until = now + ANSWER;
                *doubt = self
                    .core
                    .conn
                    .prove_arrival()
                    .map(|answer| Box::new(Doubt { answer, until }));
                doubt.is_some()
            }
        }
    }
}

impl Recovery<'_> {
    /// Handles the peer's report that it closed the session while this side had no connection.
    /// Reports to the application the messages that have arrived at the peer. Returns how the
    /// session ended. Returns `None` if the session is not suspended, or if the message counts in
    /// the report are impossible.
    pub(super) fn conclude(&mut self, over: SessionOver) -> Option<Ended> {
        let core = &mut *self.core;
        let session = core.session.as_mut()?;
        let State::Suspended(suspension) = &session.state else {
            return None;
        };
        let missing = over.sent.wrapping_sub(session.messages.received());
        let arrived = if i32::try_from(missing).is_err() {
            let expected = "at least the number of messages that have arrived";
            Err(Violation::new("sent", over.sent.into(), expected))
        } else {
            let arrived = session.messages.resume(over.received);
            arrived.map(|arrived| arrived.filter_map(|kept| kept.id).collect::<Vec<_>>())
        };
        let arrived = match arrived {
            Ok(arrived) => arrived,
            Err(violation) => {
                let text = format_args!("the peer violated the protocol: {violation}");
                core.deferred.log(Note::new(Level::Warn, text));
                return None;
            }
        };
        let reason = match &suspension.reason {
            _ if missing > 0 => CloseReason::Truncated {
                missing: missing.into(),
            },
            reason if reason.is_clean() => reason.clone(),
            _ if session.closing.is_some() => CloseReason::LocallyClosed,
            _ => CloseReason::PeerClosed,
        };
        let delivered = !session.messages.has_messages_to_resend();
        for id in arrived {
            core.reports.report(Completion::Sent(id));
        }
        Some(Ended { reason, delivered })
    }

    /// On the passive side, returns the message counts of a session that either side has closed.
    /// The engine stores them, and reports them to a peer that later asks to resume the session.
    /// Returns `None` on the active side, and for a session that was lost without a close or that
    /// the application has aborted. This function checks both `closing` and `is_aborted`, because
    /// the drop of the final handle after an abort sets `closing`.
    pub(super) fn counts_at_close(&self, reason: &CloseReason) -> Option<SessionOver> {
        let session = self.core.session.as_deref()?;
        if let Side::Active(_) = session.side {
            return None;
        }
        let closes = reason.is_clean() || matches!(reason, CloseReason::Truncated { .. });
        let closes_cut_off = session.closing.is_some() && !session.is_aborted && reason.is_loss();
        if !(closes || closes_cut_off) {
            return None;
        }
        let before = session.messages.received();
        let received = match session.state {
            State::Working(_) => before.wrapping_add(self.core.conn.delivered_messages()),
            State::Suspended(_) => before,
        };
        let sent = session.messages.sent();
        Some(SessionOver { received, sent })
    }
}

#[cfg(test)]
mod tests {
    use std::{
        net::{Ipv4Addr, SocketAddr},
        sync::{Arc, Mutex},
    };

    use super::*;
    use crate::{
        config::Config,
        link::{
            core::Core,
            inbox::inbox,
            session::{LinkSession, PeerPath, Route},
        },
        proto::{Connection, Unconfirmed},
        transport_choice::Transport,
    };

    /// Returns the passive side of a session in which one message has to be sent again.
    fn passive() -> Core {
        let (config, now) = (Config::default(), Instant::now());
        let nowhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let path = PeerPath::new(nowhere, Transport::Tcp);
        let route = Arc::new(Mutex::new(Route::new(path, None)));
        let mut session = LinkSession::new(Side::Passive, &config, route);
        let one = Unconfirmed {
            messages: 1,
            large: 0,
            max_messages: 1,
        };
        session.messages.keep(false, || one, |_| ());
        session.messages.suspend(0, one);
        let conn = Connection::connect(config.params(Transport::Tcp), 0, b"", now);
        let mut core = Core::new(conn, inbox().0, Arc::default(), 1);
        core.session = Some(Box::new(session));
        core
    }

    #[test]
    fn close_over_a_loss_leaves_numbers() {
        let mut core = passive();
        core.close(Instant::now());
        let over = SessionOver {
            received: 0,
            sent: 1,
        };
        let left = core
            .recovery()
            .counts_at_close(&CloseReason::PeerDisconnected);
        assert_eq!(left, Some(over));
    }

    #[test]
    fn close_after_an_abort_leaves_no_numbers() {
        let mut core = passive();
        core.abort(0, Instant::now());
        core.close(Instant::now());
        let left = core
            .recovery()
            .counts_at_close(&CloseReason::PeerDisconnected);
        assert_eq!(left, None);
    }
}
