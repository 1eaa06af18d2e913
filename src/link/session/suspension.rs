//! The state of a session between the loss of a connection and the next connection: the loss, the
//! attempts to resume, and the trials of RDMA.

use std::{
    mem,
    sync::Arc,
    time::{Duration, Instant},
};

use log::Level;

use super::{LinkSession, PeerPath, Recovery, Side, State, Step, Suspension};
use crate::{
    link::{
        completion::{Completion, Ended},
        core::SystemClock,
        message::{Batches, MessageOwner, Storage},
        sent_order::CompletedSend,
    },
    proto::{CloseReason, CmInput, Connection, Note, ResumeRequest, SessionId},
    transport::{Exposed, Posted},
};

/// The maximum wait before the second round of attempts. A round consists of one attempt over each
/// path. This maximum doubles after each round, up to [`LONGEST_WAIT`].
const FIRST_WAIT: Duration = Duration::from_millis(25);
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// The next step of the engine's thread for a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Remove the transport of the lost connection.
    Remove,
    /// On the active side, begin an attempt. On the passive side, wait for the peer's attempt until
    /// the deadline of the session.
    Attempt,
    /// Test whether RDMA works over this path.
    TryRdma(PeerPath, ResumeRequest),
    Nothing,
}

/// An attempt of the active side to resume the session.
pub(crate) struct Resume {
    pub(crate) path: PeerPath,
    pub(crate) request: ResumeRequest,
    /// The remaining time before the session expires.
    pub(crate) left: Duration,
}

/// The paths of a session while its active side attempts to resume.
pub(crate) struct PathsOfAttempt {
    /// The path of the attempt.
    pub(crate) attempted: PeerPath,
    pub(crate) others: Vec<PeerPath>,
}

/// Returns whether an attempt that failed for this `reason` ends the whole session. A protocol
/// violation of the peer ends only the attempt. Some failures may be caused by another program at
/// the peer's address. Such a failure ends the session only if an earlier connection over this path
/// has reached the peer (`is_known`).
fn ends_session(reason: &CloseReason, is_known: bool) -> bool {
    match reason {
        CloseReason::SessionLost
        | CloseReason::NotRdmsg
        | CloseReason::PeerIsRsocket
        | CloseReason::PeerIncompatible(_) => is_known,
        reason => matches!(
            reason,
            CloseReason::PeerAborted(_)
                | CloseReason::LocallyClosed
                | CloseReason::LocallyAborted
                | CloseReason::WakerPanicked
                | CloseReason::Forked
        ),
    }
}

/// Functions for the loss of a connection.
impl Recovery<'_> {
    /// Handles the end of a connection, or the failure of an attempt to resume. Returns `None` if
    /// the session survives. Returns the [`Ended`] to report to the application if there is no
    /// session or the session has ended.
    pub(crate) fn survive(&mut self, mut ended: Ended) -> Option<Ended> {
        // If messages still have to be resent, the peer has closed without receiving them.
        ended.delivered &= !self.core.sends_again();
        let over = self.core.conn.session_over();
        if let Some(ended) = over.and_then(|over| self.conclude(over)) {
            return Some(ended);
        }
        let core = &mut *self.core;
        let Some(session) = &mut core.session else {
            return Some(ended);
        };
        let now = Instant::now();
        match &mut session.state {
            State::Working(_)
                if core.established
                    && !session.is_aborted
                    && (core.conn.is_lost(&ended.reason)
                        // The peer might not know the result of the close. The peer is on the
                        // passive side and cannot request to resume the session, so this side does
                        // so.
                        || (matches!(session.side, Side::Active(_))
                            && core.conn.leaves_peer_in_doubt(&ended.reason))) =>
            {
                if !ended.reason.is_loss() {
                    session.closing.get_or_insert(now + session.close_timeout);
                }
                self.suspend(ended, now);
                None
            }
            State::Working(_) => Some(ended),
            State::Suspended(suspension) => {
                let is_over = suspension.deadline <= now;
                let is_known = match &session.side {
                    Side::Active(paths) => paths.is_known(),
                    Side::Passive => true,
                };
                if is_over || ends_session(&ended.reason, is_known) {
                    let mut end = suspension.end();
                    if !is_over && end.reason.is_loss() {
                        end.reason = ended.reason;
                    }
                    return Some(end);
                }
                suspension.failed += 1;
                suspension.step = Step::Lost;
                if let Side::Active(paths) = &mut session.side {
                    let (path, reason) = (paths.present(), &ended.reason);
                    let text = format_args!("cannot resume the session over {path} yet: {reason}");
                    core.deferred.log(Note::new(Level::Debug, text));
                    suspension.last_failure = Some((path, reason.clone()));
                    if *reason == CloseReason::PeerBusy {
                        suspension.failed = paths.busy(suspension.failed);
                    } else {
                        paths.failed();
                    }
                }
                core.cm_ops.clear();
                core.established = false;
                core.liveness = None;
                core.deferred.drive = true;
                None
            }
        }
    }

    /// Suspends the session. The lost connection must already have delivered all messages that
    /// arrived over it.
    fn suspend(&mut self, ended: Ended, now: Instant) {
        let core = &mut *self.core;
        core.end_exposures();
        let Some(session) = &mut core.session else {
            return;
        };
        let Ended { reason, delivered } = ended;
        let mut known = core.conn.unconfirmed();
        if delivered {
            (known.messages, known.large) = (0, 0);
        }
        let received = core.conn.delivered_messages();
        let unconfirmed = session.messages.suspend(received, known);
        session.held += core.conn.held_messages();
        let past = core.past.get_or_insert_default();
        **past += core.conn.statistics().counters();
        // Only the first `unconfirmed` of the kept messages were sent over the lost connection.
        // `waiting` contains the ids that have not been reported yet; they belong to the newest
        // messages sent over that connection. A kept message whose id has already been reported
        // loses its id here.
        let mut waiting: Vec<_> = core.reports.order.abandon().collect();
        for (kept, _) in session.messages.suspended_mut().take(unconfirmed).rev() {
            match kept.id {
                Some(id) if waiting.last() == Some(&id) => {
                    waiting.pop();
                }
                _ => kept.id = None,
            }
        }
        // The remaining ids belong to messages that the session no longer stores, because the peer
        // has received them.
        for id in waiting {
            core.reports.report(Completion::Sent(id));
        }
        let exposed = core.queues.as_mut().map(|queues| {
            for posted in queues.in_flight.slots.iter() {
                if let Posted::Operation(operation) = posted {
                    core.reports.report(operation.lost(true, &reason));
                }
            }
            queues.take_exposed()
        });
        // The kept large messages were exposed after all other large messages, so `exposed` ends
        // with their memory. The peer has read the earlier large messages, even if `exposed` still
        // contains their memory.
        let mut exposed = exposed.into_iter().flatten().rev();
        for (kept, is_large) in session.messages.suspended_mut().rev() {
            if is_large && kept.memory.is_none() {
                kept.memory = exposed.next().map(Exposed::into_buffer);
            }
        }
        while let Some(gone) = core.reports.unproven.take() {
            // The session resends messages, so only the outcome of writes is unknown.
            if let CompletedSend::Write(id) = gone {
                let reason = reason.clone();
                core.reports
                    .report(Completion::OutcomeUnknown { id, reason });
            }
        }
        core.batches = Batches::default();
        core.cm_ops.clear();
        core.liveness = None;
        core.established = false;
        core.generation += 1;
        core.ring = None;
        let is_for_better = session.paths().is_some_and(|paths| paths.lost(now));
        core.deferred.log(if is_for_better {
            Note::new(
                Level::Info,
                format_args!("switches to RDMA, which works again"),
            )
        } else {
            let text = format_args!("was lost, and its session is suspended: {reason}");
            Note::new(Level::Warn, text)
        });
        let suspended = Completion::Suspended {
            reason: reason.clone(),
        };
        let deadline = now + session.timeout;
        session.state = State::Suspended(Box::new(Suspension {
            since: now,
            deadline: session
                .closing
                .map_or(deadline, |close| close.min(deadline)),
            reason,
            delivered,
            step: Step::Lost,
            failed: 0,
            last_failure: None,
            peer_received: 0,
        }));
        core.deferred.drive = true;
        core.reports
            .report_session_event(suspended, &mut core.deferred);
    }

    /// Ends the session. On the passive side, stores the message counts of a closed session.
    /// Reports the failure of the kept messages that were not resent. The caller reports the other
    /// unconfirmed messages, whose ids are in `order`.
    pub(crate) fn fail_kept(&mut self, reason: &CloseReason) {
        self.core.over = self.counts_at_close(reason);
        if let Some(session) = &mut self.core.session {
            for (kept, _) in session.messages.suspended_mut() {
                self.core.reports.report_failed(kept.id, reason);
            }
        }
        self.core.session = None;
        self.core.ring = None;
    }

    /// Handles the release of a message that arrived over an earlier connection. Reduces the number
    /// of such messages that the application holds, so that the peer can send more.
    pub(crate) fn release_from_earlier_connection(&mut self, storage: Storage) {
        let (Storage::Buffer(_) | Storage::Part(_)) = storage else {
            return;
        };
        if let Some(session) = &mut self.core.session {
            session.held = session.held.saturating_sub(1);
            self.core.conn.set_held(session.held, SystemClock);
        }
    }
}

/// Functions that the engine's thread calls.
impl Recovery<'_> {
    /// Returns the next step of the engine's thread. Begins a trial of RDMA if one is due.
    pub(crate) fn next_step(&mut self, now: Instant) -> Next {
        let suspension = self.core.session.as_mut().and_then(|it| it.suspension());
        match suspension.map(|suspension| suspension.step) {
            Some(Step::Lost) => Next::Remove,
            Some(Step::Idle(at)) if at <= now => Next::Attempt,
            Some(Step::Idle(_) | Step::Attempt(_)) => Next::Nothing,
            None => match self.begin_trial(now) {
                Some((path, request)) => Next::TryRdma(path, request),
                None => Next::Nothing,
            },
        }
    }

    /// Schedules the next attempt, after the transport of the lost connection was removed.
    /// `fraction`, a random number between 0 and 1, varies the wait before the attempt.
    pub(crate) fn removed(&mut self, fraction: f64, now: Instant) {
        let Some(session) = &mut self.core.session else {
            return;
        };
        if let State::Suspended(suspension) = &mut session.state {
            let rounds = match &session.side {
                Side::Active(paths) => paths.rounds(suspension.failed),
                Side::Passive => (0, false),
            };
            let wait = match rounds {
                (0, _) | (_, true) => Duration::ZERO,
                (rounds, false) => (FIRST_WAIT * (1 << (rounds - 1).min(6))).min(LONGEST_WAIT),
            };
            let wait = wait / 2 + wait.mul_f64(fraction / 2.0);
            suspension.step = Step::Idle(now + wait);
        }
    }

    /// Returns the time at which the engine's thread has to handle the connection again.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let session = self.core.session.as_ref();
        match session.map(|session| (&session.state, &session.side)) {
            Some((State::Suspended(suspension), side)) => match (suspension.step, side) {
                (Step::Idle(at), Side::Active(_)) => Some(at.min(suspension.deadline)),
                (Step::Idle(_), Side::Passive) => Some(suspension.deadline),
                (Step::Lost, _) => None,
                (Step::Attempt(_), _) => {
                    let deadline = Some(suspension.deadline).filter(|_| self.attempt_waits());
                    let times = [self.core.conn.next_timeout(), deadline];
                    times.into_iter().flatten().min()
                }
            },
            Some((State::Working(_), _)) | None => {
                let times = [
                    self.core.conn.next_timeout(),
                    self.close_by(),
                    self.next_trial_at(),
                ];
                times.into_iter().flatten().min()
            }
        }
    }

    /// Returns whether the current attempt of the active side waits for its turn, so that it can be
    /// given up.
    fn attempt_waits(&self) -> bool {
        let session = self.core.session.as_ref();
        let is_active = session.is_some_and(|it| matches!(it.side, Side::Active(_)));
        is_active && self.core.conn.is_waiting_to_connect()
    }

    /// Returns the deadline of a close that waits until messages are resent; `None` if no close
    /// waits.
    pub(super) fn close_by(&self) -> Option<Instant> {
        let session = self.core.session.as_ref()?;
        session
            .closing
            .filter(|_| session.messages.has_messages_to_resend())
    }

    /// Ends the session if its time limit or the deadline of its close has passed. Returns whether
    /// the session ended.
    pub(crate) fn expire(&mut self, now: Instant) -> bool {
        let is_close_overdue = self.close_by().is_some_and(|deadline| deadline <= now);
        let attempt_waits = self.attempt_waits();
        let Some(session) = &mut self.core.session else {
            return false;
        };
        match &session.state {
            State::Working(_) if is_close_overdue => self.core.cut_off(CloseReason::LocallyClosed),
            State::Suspended(suspension)
                if (attempt_waits || !matches!(suspension.step, Step::Attempt(_)))
                    && suspension.deadline <= now =>
            {
                let ended = suspension.end();
                self.core.end(ended);
            }
            State::Working(_) | State::Suspended(_) => return false,
        }
        true
    }

    /// Returns whether a connection that resumes the session is being established.
    pub(crate) fn is_resuming(&mut self) -> bool {
        let suspension = self.core.session.as_mut().and_then(|it| it.suspension());
        suspension.is_some_and(|it| matches!(it.step, Step::Attempt(_)))
    }

    /// Returns the paths of a session whose active side attempts to resume. Returns `None` if no
    /// such attempt is in progress.
    pub(crate) fn paths_of_attempt(&mut self) -> Option<PathsOfAttempt> {
        let session = self.core.session.as_mut()?;
        let Step::Attempt(attempted) = session.suspension()?.step else {
            return None;
        };
        let others = session.paths()?.others().collect();
        Some(PathsOfAttempt { attempted, others })
    }

    /// Returns the path of the last attempt of the active side, with the reason for its failure.
    /// Returns each failure once.
    pub(crate) fn take_failure(&mut self) -> Option<(PeerPath, CloseReason)> {
        let session = self.core.session.as_mut()?;
        session.suspension()?.last_failure.take()
    }

    /// Ends the session if it is suspended. Returns whether it was suspended. The engine calls this
    /// function for the oldest sessions when too many are suspended. It also calls this function
    /// for all suspended sessions of the passive side when the engine is being drained or shut down
    /// and no listener remains at which the peers could resume them.
    pub(crate) fn end_suspended(&mut self) -> bool {
        let suspension = self.core.session.as_mut().and_then(|it| it.suspension());
        let Some(ended) = suspension.map(|suspension| suspension.end()) else {
            return false;
        };
        self.core.end(ended);
        true
    }

    /// Begins an attempt of the active side to resume the session. Returns `None` if the time limit
    /// of the session has expired.
    pub(crate) fn resume(&mut self, now: Instant) -> Option<Resume> {
        let session = self.core.session.as_mut()?;
        let path = session.paths()?.present();
        let id = session.id?;
        let left = session.suspension()?.deadline.checked_duration_since(now)?;
        let request = ResumeRequest {
            id,
            epoch: session.messages.begin_attempt(),
            received: session.messages.received(),
        };
        Some(Resume {
            path,
            request,
            left,
        })
    }

    /// Returns the number of messages from earlier connections that the application has not
    /// released.
    pub(crate) fn held_by_application(&self) -> u16 {
        let held = self.core.session.as_ref().map_or(0, |session| session.held);
        u16::try_from(held).unwrap_or(u16::MAX)
    }

    /// Begins an attempt over `path`, with the state machine `conn`. Messages of the new connection
    /// return their buffers and credits to `ring`.
    pub(crate) fn attempt(
        &mut self,
        conn: Connection,
        path: PeerPath,
        ring: Arc<dyn MessageOwner>,
    ) {
        let mut last = mem::replace(&mut self.core.conn, conn);
        self.core.conn.resume_control_messages(&mut last);
        self.core.ring = Some(ring);
        if let Some(suspension) = self.core.session.as_mut().and_then(|it| it.suspension()) {
            suspension.step = Step::Attempt(path);
        }
    }

    /// Returns whether both this side and the peer's request offer a session.
    pub(crate) fn offers_session(&self) -> bool {
        self.core.session.is_some() && self.core.conn.has_session()
    }

    /// Begins a session on the passive side, after this side has accepted the peer's first request
    /// and has chosen the session id.
    pub(crate) fn begin_session(&mut self, id: SessionId) {
        if let Some(session) = &mut self.core.session {
            session.id = Some(id);
        }
    }

    /// Continues without a session. The passive side calls this before it accepts the peer's first
    /// request.
    pub(crate) fn decline_session(&mut self) {
        self.core.session = None;
        self.core.conn.decline_session();
    }

    /// Returns the number of messages that this side has received, for the reply to the peer's
    /// request to resume the session. Returns `None` if the request cannot be accepted now: the
    /// session is not suspended, the transport of the lost connection has not been removed yet, or
    /// another attempt is in progress.
    pub(crate) fn accept_attempt(&mut self) -> Option<u32> {
        let session = self.core.session.as_mut()?;
        match session.suspension()?.step {
            Step::Idle(_) => Some(session.messages.received()),
            Step::Lost | Step::Attempt(_) => None,
        }
    }

    /// Ends the connection as if it had been lost. Does nothing if the session is already
    /// suspended.
    pub(crate) fn lose(&mut self, now: Instant) {
        if !self.core.is_suspended() {
            self.core.conn.handle_cm_event(CmInput::Disconnected, now);
        }
    }

    /// Stores the number of messages that the peer has received, according to its request to
    /// resume. The attempt that begins next uses this number.
    pub(crate) fn set_peer_received(&mut self, received: u32) {
        if let Some(suspension) = self.core.session.as_mut().and_then(|it| it.suspension()) {
            suspension.peer_received = received;
        }
    }
}

/// Trials of RDMA, and the paths of a session.
impl Recovery<'_> {
    /// Appends further paths to the session's list, which begins with the path of the first
    /// connection.
    pub(crate) fn add_paths(&mut self, others: Vec<PeerPath>) {
        if let Some(paths) = self
            .core
            .session
            .as_mut()
            .and_then(|session| session.paths())
        {
            paths.add(others);
        }
    }

    /// Begins a trial of a path over RDMA if a trial is due. Returns the path, and the request that
    /// the trial connection sends. The request is outdated on purpose: the peer refuses it as busy,
    /// which proves that the path works, and the session stays unchanged.
    pub(super) fn begin_trial(&mut self, now: Instant) -> Option<(PeerPath, ResumeRequest)> {
        let is_open = self.may_move();
        let session = self.core.session.as_mut().filter(|_| is_open)?;
        let id = session.id?;
        let path = session.paths()?.begin_trial(now)?;
        let request = ResumeRequest {
            id,
            epoch: session.messages.epoch(),
            received: session.messages.received(),
        };
        Some((path, request))
    }

    /// Returns true if the session may switch to another connection. This requires that the current
    /// connection is established, that no messages remain to be resent, and that neither side is
    /// ending it.
    fn may_move(&self) -> bool {
        let stays_open = |session: &LinkSession| session.closing.is_none() && !session.is_aborted;
        self.core.established
            && !self.core.blocks_new_messages()
            && self.core.conn.close_reason().is_none()
            && self.core.ended.is_none()
            && self.core.session.as_deref().is_some_and(stays_open)
    }

    /// Ends a trial. If the path `works` and the session may switch, ends the current connection.
    /// The session then resumes over the tested path.
    pub(crate) fn end_trial(&mut self, works: bool, now: Instant) {
        let may_move = self.may_move();
        let paths = self
            .core
            .session
            .as_mut()
            .and_then(|session| session.paths());
        if paths.is_some_and(|paths| paths.end_trial(works && may_move, now)) {
            self.lose(now);
        }
    }

    /// Returns the time of the next trial of RDMA; `None` if no trial is scheduled.
    pub(crate) fn next_trial_at(&self) -> Option<Instant> {
        match &self.core.session.as_ref()?.side {
            Side::Active(paths) if self.may_move() => paths.next_trial_at(),
            Side::Active(_) | Side::Passive => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::{
        config::Config,
        link::{
            core::Core,
            inbox::inbox,
            session::{PeerPaths, Route},
        },
        proto::Unconfirmed,
        transport_choice::Transport,
    };

    /// Returns the active side of a session with two paths, whose attempt to resume waits for its
    /// turn.
    fn attempting(now: Instant, deadline: Instant) -> Core {
        let path = |host| PeerPath::new(([10, 8, 0, host], 7471).into(), Transport::Tcp);
        let config = Config::default();
        let params = config.params(Transport::Tcp);
        let conn = Connection::connect(params, 0, b"", now);
        let mut core = Core::new(conn, inbox().0, Arc::default(), 1);
        let mut paths = PeerPaths::new(path(1));
        paths.add([path(2)]);
        let route = Arc::new(Mutex::new(Route::new(path(1), None)));
        let mut session = LinkSession::new(Side::Active(Box::new(paths)), &config, route);
        let none = Unconfirmed {
            messages: 0,
            large: 0,
            max_messages: 1,
        };
        session.messages.suspend(0, none);
        session.state = State::Suspended(Box::new(Suspension {
            since: now,
            deadline,
            reason: CloseReason::PeerDisconnected,
            delivered: false,
            step: Step::Attempt(path(1)),
            failed: 0,
            last_failure: None,
            peer_received: 0,
        }));
        core.session = Some(Box::new(session));
        core
    }

    #[test]
    fn session_expires_while_its_attempt_waits_for_a_turn() {
        let now = Instant::now();
        let ms = Duration::from_millis;
        let mut core = attempting(now, now + ms(900));
        assert_eq!(core.recovery().next_timeout(), Some(now + ms(900)));
        assert!(!core.recovery().expire(now + ms(899)));
        assert!(core.recovery().expire(now + ms(900)));
        let ended = core.ended.unwrap();
        assert_eq!(ended.reason, CloseReason::PeerDisconnected);
        // An attempt that has begun may succeed, so it ends by its own time limit.
        let mut core = attempting(now, now + ms(900));
        core.conn.begin_setup(now);
        assert!(!core.recovery().expire(now + ms(900)));
        assert!(core.ended.is_none());
    }

    #[test]
    fn close_bounds_the_wait_of_an_attempt_for_its_turn() {
        let now = Instant::now();
        let mut core = attempting(now, now + Duration::from_secs(300));
        core.close(now);
        let by = now + Config::default().close_timeout;
        assert_eq!(
            core.recovery().next_timeout().map(|at| at <= by),
            Some(true)
        );
        assert!(core.recovery().expire(by));
    }

    #[test]
    fn failure_of_an_attempt_is_taken_once() {
        let now = Instant::now();
        let mut core = attempting(now, now + Duration::from_secs(300));
        let paths = core.recovery().paths_of_attempt().unwrap();
        assert_eq!(paths.others.len(), 1);
        assert!(!paths.others.contains(&paths.attempted));
        let ended = Ended {
            reason: CloseReason::PeerBusy,
            delivered: false,
        };
        assert!(core.recovery().survive(ended).is_none());
        let failure = Some((paths.attempted, CloseReason::PeerBusy));
        assert_eq!(core.recovery().take_failure(), failure);
        assert_eq!(core.recovery().take_failure(), None);
        assert!(core.recovery().paths_of_attempt().is_none());
    }
}
