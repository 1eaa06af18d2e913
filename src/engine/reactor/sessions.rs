//! Resumes sessions: replaces a lost connection with a new connection. The connection's key and the
//! program's handles stay the same.

use std::{
    collections::HashMap,
    fs::File,
    io::Read,
    mem,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{super::listening::report_refusal, Reactor, new_key, random};
use crate::{
    config::Config,
    engine::connection_entry::{Entry, Role},
    link::{Next, PathsOfAttempt, PeerPath, Resume, attachment},
    proto::{
        CloseReason, CmCall, Connection, Params, Phase, Reject, ResumeRefused, ResumeRequest,
        SESSION_ID_LEN, SessionId, SessionOffer,
    },
    tally::Refusal,
    transport::{ConnectRequest, ConnectionId},
};

/// The time limit of one attempt to reconnect. It is short, because a new attempt is the fastest
/// way to notice that the network works again. It begins with the turn of the attempt: if it
/// included the wait for the turn, the attempts of many sessions would time out before they could
/// succeed, and their repetition would leave no processor time for the others.
const ATTEMPT: Duration = Duration::from_secs(2);

/// The time for which sessions avoid a path after an attempt over it has failed.
const AVOIDED: Duration = Duration::from_secs(10);

/// The maximum number of suspended sessions that wait for their peers to reconnect. If there are
/// more, the engine ends the oldest ones. Without this limit, peers that connect and never return
/// could occupy unlimited memory.
const MAX_SUSPENDED: usize = 1024;

impl Reactor {
    /// Performs the next step of a session: removes a lost connection, starts an attempt to
    /// reconnect, or starts a trial of RDMA. Returns true if the connection was lost and is being
    /// replaced. The caller must then not handle the connection any further.
    pub(super) fn recover(&mut self, key: u64) -> bool {
        let Some(entry) = self.links.get_mut(&key) else {
            return false;
        };
        let next = entry.link.core().recovery().next_step(Instant::now());
        match next {
            Next::Nothing => {
                if entry.asked.is_some() {
                    // The peer sent a newer request to resume before this connection was
                    // established, so this connection ends.
                    entry
                        .link
                        .in_engine(|core| core.recovery().lose(Instant::now()));
                }
                false
            }
            Next::Attempt => match entry.role {
                Role::Active => self.resume(key),
                Role::TryRdma(_) | Role::Passive(_) => false,
            },
            Next::TryRdma(path, request) => {
                self.try_rdma(key, path, &request);
                false
            }
            Next::Remove => {
                if attachment::try_release(&entry.link) {
                    self.remove_transport(key);
                } else {
                    self.poll_soon(key, None);
                }
                true
            }
        }
    }

    fn remove_transport(&mut self, key: u64) {
        self.delayed_disconnects.remove(&key);
        self.attended.forget(key);
        let Some(entry) = self.links.get_mut(&key) else {
            return;
        };
        if let Some((path, reason)) = entry.link.core().recovery().take_failure() {
            self.failed_paths.note(path, &reason, Instant::now());
        }
        let turns = entry.role.choose(&mut self.connects, &mut self.accepts);
        turns.leave(key);
        entry.discard_transport();
        let now = Instant::now();
        let next = {
            let mut core = entry.link.core();
            // The upper 32 bits of the random number become a fraction between 0 and 1.
            core.recovery()
                .removed((random() >> 32) as f64 / f64::from(u32::MAX), now);
            core.recovery().next_timeout()
        };
        self.timers.set(key, next);
        let is_passive = matches!(entry.role, Role::Passive(_));
        if let Some(asked) = entry.asked.take() {
            return self.accept_resume(key, *asked);
        }
        self.drive(key);
        if is_passive {
            self.suspended.retain(|other| *other != key);
            self.suspended.push_back(key);
            self.bound_suspended();
            self.end_unresumable();
        }
    }

    /// Ends the oldest suspended sessions if there are more than [`MAX_SUSPENDED`].
    fn bound_suspended(&mut self) {
        while self.suspended.len() > MAX_SUSPENDED
            && let Some(oldest) = self.suspended.pop_front()
        {
            let link = self.links.get(&oldest).map(|entry| Arc::clone(&entry.link));
            if let Some(link) = link
                && link.in_engine(|core| core.recovery().end_suspended())
            {
                warn_sparsely!(
                    Connection,
                    "{link}: the session ends, because more than {MAX_SUSPENDED} sessions are \
                     suspended and it is the oldest"
                );
                self.drive(oldest);
            }
        }
    }

    /// Ends suspended sessions that this host accepted, if the engine is being drained or shut down
    /// and has no listeners. Without a listener, their peers cannot resume them.
    pub(super) fn end_unresumable(&mut self) {
        self.drains.retain(|(_, caller)| caller.strong_count() > 0);
        let is_drained = self.refusing || !self.drains.is_empty();
        if !is_drained || !self.listeners.is_empty() {
            return;
        }
        for key in mem::take(&mut self.suspended) {
            // A session that is being resumed is skipped. It is added to this list again if the
            // attempt fails.
            let idle = self.links.get(&key).filter(|it| it.asked.is_none());
            let link = idle.map(|entry| Arc::clone(&entry.link));
            if let Some(link) = link
                && link.in_engine(|core| {
                    !core.recovery().is_resuming() && core.recovery().end_suspended()
                })
            {
                info!(
                    Connection,
                    "{link}: the session ends, because no listener is left at which the peer could \
                     resume it"
                );
                self.drive(key);
            }
        }
    }

    /// Starts an attempt to resume the session, as the connecting side. Returns false if the time
    /// limit of the session has expired.
    fn resume(&mut self, key: u64) -> bool {
        let now = Instant::now();
        let Some(entry) = self.links.get_mut(&key) else {
            return false;
        };
        let (resume, held) = {
            let mut core = entry.link.core();
            (
                core.recovery().resume(now),
                core.recovery().held_by_application(),
            )
        };
        let Some(Resume {
            path,
            request,
            left,
        }) = resume
        else {
            return false;
        };
        debug!(
            Connection,
            "{}: tries to resume the session over {path}", entry.link
        );
        let id = ConnectionId::new(path.transport, &self.manager, key);
        entry.peer = path.address;
        let (link, config) = (Arc::clone(&entry.link), entry.config.clone());
        let mut params = self.params_of_attempt(key, &config, path, left);
        params.held = held;
        let conn = Connection::connect(params, random(), &request.emit(), now);
        link.attempt(conn, path);
        match (id, self.links.get_mut(&key)) {
            (Ok(id), Some(entry)) => entry.id = id,
            (Err(error), _) => {
                link.in_engine(|core| core.conn.handle_cm_failure(CmCall::CreateId, error, now));
            }
            (Ok(_), None) => {}
        }
        self.drive(key);
        true
    }

    /// Returns whether an attempt to resume, whose turn has come, leaves its turn to others. It
    /// does if its session should try another path first.
    pub(super) fn skips_turn(&self, key: u64, now: Instant) -> bool {
        if self.failed_paths.is_empty() {
            return false;
        }
        let Some(entry) = self.links.get(&key) else {
            return false;
        };
        let Some(paths) = entry.link.core().recovery().paths_of_attempt() else {
            return false;
        };
        let skips = self.failed_paths.avoids(&paths, now);
        if skips {
            debug!(
                Connection,
                "{}: skips {} for now, because an attempt of a session has just failed there",
                entry.link,
                paths.attempted
            );
        }
        skips
    }

    fn params_of_attempt(
        &self,
        key: u64,
        config: &Config,
        path: PeerPath,
        left: Duration,
    ) -> Params {
        let mut params = self.params(key, config, path.transport);
        params.connect_timeout = left;
        params.setup_timeout = Some(ATTEMPT);
        params.retry_refused = false;
        params.session = SessionOffer::Resume;
        params
    }

    /// Makes a trial connection to test whether RDMA to the peer works. The trial connection sends
    /// an outdated request to resume the session, which the peer refuses. An engine makes at most
    /// one trial connection at a time, so that trials hardly delay the program's connections.
    fn try_rdma(&mut self, session_key: u64, path: PeerPath, request: &ResumeRequest) {
        let key = new_key();
        let Some(entry) = self.links.get(&session_key) else {
            return;
        };
        let now = Instant::now();
        let id = match ConnectionId::new(path.transport, &self.manager, key) {
            Ok(id) if self.trial.is_none() && !self.refusing => id,
            Ok(_) | Err(_) => {
                return entry
                    .link
                    .in_engine(|core| core.recovery().end_trial(false, now));
            }
        };
        let config = Config::clone(&entry.config).with(|config| config.resume = Duration::ZERO);
        let params = self.params_of_attempt(key, &config, path, ATTEMPT);
        let conn = Connection::connect(params, random(), &request.emit(), now);
        self.trial = Some(key);
        self.adopt(
            key,
            conn,
            path.address,
            config,
            id,
            Role::TryRdma(session_key),
        );
        self.drive(key);
    }

    /// Records the result of a trial connection, over `path`, which ended with `reason`.
    /// `session_key` is the key of the connection whose session uses the result.
    pub(super) fn record_trial(&mut self, session_key: u64, path: &PeerPath, reason: &CloseReason) {
        self.trial = None;
        // The peer refuses the request as busy only if it finds the session. This refusal therefore
        // shows that RDMA works.
        let works = matches!(reason, CloseReason::PeerBusy);
        if works {
            self.failed_paths.clear(path);
        }
        if let Some(entry) = self.links.get(&session_key) {
            let result = if works { "works" } else { "does not work" };
            debug!(
                Connection,
                "{}: RDMA to the peer {result}; the trial connection ended: {reason}", entry.link
            );
            entry
                .link
                .in_engine(|core| core.recovery().end_trial(works, Instant::now()));
            self.drive(session_key);
        }
    }

    /// Handles a request to resume a session.
    pub(super) fn handle_resume(&mut self, asked: ConnectRequest, request: &ResumeRequest) {
        let key = self.sessions.get(&request.id).copied();
        let entry = key.and_then(|key| Some((key, self.links.get_mut(&key)?)));
        let Some((key, entry)) = entry else {
            if let Some(over) = self.closed.find(&request.id, Instant::now()) {
                return asked.reject(&Reject::over(over).emit(&[]));
            }
            if let Some(peer) = asked.peer_addr() {
                report_refusal(
                    Refusal::Session,
                    peer,
                    &"the peer asked to resume an unknown session",
                );
            }
            return asked.reject(&Reject::SESSION.emit(&[]));
        };
        // The peer may have answered a ping over the current connection, so handle the completions
        // of this connection first. If an application thread holds the lock of the queue, the peer
        // has to retry.
        if !entry.link.catch_up() {
            return asked.reject(&Reject::BUSY.emit(&[]));
        }
        let superseded = entry
            .link
            .in_engine(|core| core.recovery().supersede(request, Instant::now()));
        match superseded {
            Ok(false) => {
                debug!(
                    Connection,
                    "{}: rejected a request to resume the session, because the current connection \
                     may still be in use",
                    entry.link
                );
                asked.reject(&Reject::BUSY.emit(&[]));
                self.drive(key);
            }
            Ok(true) => {
                debug!(Connection, "{}: the peer resumes the session", entry.link);
                entry.asked = Some(Box::new(asked));
                let removed = entry.link.core().recovery().accept_attempt().is_some();
                match entry.asked.take_if(|_| removed) {
                    Some(asked) => self.accept_resume(key, *asked),
                    None => self.drive(key),
                }
            }
            Err(ResumeRefused::Stale) => {
                debug!(
                    Connection,
                    "{}: rejected an outdated request to resume the session", entry.link
                );
                asked.reject(&Reject::BUSY.emit(&[]));
            }
            Err(ResumeRefused::Impossible(violation)) => {
                warn_sparsely!(
                    Connection,
                    "{}: rejected the peer's request to resume the session: {violation}",
                    entry.link
                );
                asked.reject(&Reject::BUSY.emit(&[]));
            }
        }
    }

    /// Removes the session of an ended connection. If the session was closed, stores its message
    /// counts. Then answers a waiting request to resume the session.
    pub(super) fn forget_session(&mut self, entry: &mut Entry) {
        let Some(id) = entry.session else { return };
        self.sessions.remove(&id);
        let over = entry.link.core().over;
        if let Some(over) = over {
            let timeout = entry.config.resume;
            self.closed.add(id, over, timeout, Instant::now());
        }
        if let Some(asked) = entry.asked.take()
            && let Some(request) = Connection::resume_request(asked.private_data())
        {
            self.handle_resume(*asked, &request);
        }
    }

    /// Accepts a request to resume, and reports the number of received messages to the peer. This
    /// number can no longer change, because the previous transport was taken out of the connection.
    fn accept_resume(&mut self, key: u64, asked: ConnectRequest) {
        let now = Instant::now();
        let Some(entry) = self.links.get(&key) else {
            return asked.reject(&Reject::SESSION.emit(&[]));
        };
        let Some(request) = Connection::resume_request(asked.private_data()) else {
            return;
        };
        let (received, held) = {
            let mut core = entry.link.core();
            core.recovery().set_peer_received(request.received);
            (
                core.recovery().accept_attempt(),
                core.recovery().held_by_application(),
            )
        };
        let transport = asked.transport();
        let peer = asked.peer_addr().unwrap_or(entry.peer);
        let mut params = self.params(key, &entry.config, transport);
        params.held = held;
        let conn = Connection::requested(params, asked.private_data(), asked.reads(), now);
        let (received, conn) = match (received, conn) {
            (Some(received), Ok(conn)) => (received, conn),
            (None, _) => return asked.reject(&Reject::BUSY.emit(&[])),
            (_, Err(refusal)) => return asked.reject(&refusal.private_data),
        };
        let Some(entry) = self.links.get_mut(&key) else {
            return;
        };
        entry.id = ConnectionId::of_request(asked, key);
        entry.id.set_ack_timeout(key, &entry.config);
        entry.peer = peer;
        entry.link.attempt(conn, PeerPath::new(peer, transport));
        entry
            .link
            .in_engine(|core| core.conn.accept(&received.to_be_bytes(), now));
        self.drive(key);
    }

    /// Creates a session with a peer whose request is being accepted, and returns the session's ID.
    /// Returns `None` if one of the sides does not use sessions or if no ID could be created.
    pub(super) fn begin_session(&mut self, key: u64) -> Option<SessionId> {
        let entry = self.links.get_mut(&key)?;
        let link = &entry.link;
        if !link.core().recovery().offers_session() {
            return None;
        }
        let id = match random_id() {
            Ok(id) => id,
            Err(error) => {
                warn_sparsely!(
                    Connection,
                    "{link}: cannot read /dev/urandom: {error}; no session is offered, so a lost \
                     link will end the connection"
                );
                return None;
            }
        };
        link.core().recovery().begin_session(id);
        entry.session = Some(id);
        self.sessions.insert(id, key);
        Some(id)
    }
}

/// The paths over which attempts to resume have failed recently.
///
/// The sessions share this knowledge, because an attempt to a silent peer occupies its turn for
/// [`ATTEMPT`]. If each session tried a silent path itself, many sessions would expire before they
/// try their other paths.
#[derive(Default)]
pub(super) struct FailedPaths(HashMap<PeerPath, Instant>);

impl FailedPaths {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Records the result of an attempt over `path`. Any failure counts, not only a silent peer: a
    /// path that fails at once must not keep sessions from a path that may work again.
    fn note(&mut self, path: PeerPath, reason: &CloseReason, now: Instant) {
        match reason {
            // The attempt has not begun.
            CloseReason::TimedOut(Phase::Waiting) => {}
            // The peer has found the session, so the path works.
            CloseReason::PeerBusy => self.clear(&path),
            _ => {
                self.0.retain(|_, until| *until > now);
                self.0.insert(path, now + AVOIDED);
            }
        }
    }

    /// Records that `path` works.
    pub(super) fn clear(&mut self, path: &PeerPath) {
        self.0.remove(path);
    }

    /// Returns whether a session should try another path first: its path has failed recently, and
    /// one of its other paths has not.
    fn avoids(&self, paths: &PathsOfAttempt, now: Instant) -> bool {
        let has_failed = |path: &PeerPath| self.0.get(path).is_some_and(|until| *until > now);
        has_failed(&paths.attempted) && !paths.others.iter().all(has_failed)
    }
}

/// Returns a random session ID that no peer can guess.
fn random_id() -> std::io::Result<SessionId> {
    let mut id = [0; SESSION_ID_LEN];
    File::open("/dev/urandom")?.read_exact(&mut id)?;
    Ok(SessionId(id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{status::OsError, transport_choice::Transport};

    const RDMA: Transport = Transport::Rdma;
    const TCP: Transport = Transport::Tcp;

    fn path(host: u8, transport: Transport) -> PeerPath {
        PeerPath::new(([10, 8, 0, host], 7471).into(), transport)
    }

    fn paths(attempted: PeerPath, others: &[PeerPath]) -> PathsOfAttempt {
        PathsOfAttempt {
            attempted,
            others: others.to_vec(),
        }
    }

    #[test]
    fn sessions_avoid_a_silent_path_for_10_s() {
        let now = Instant::now();
        let silent = CloseReason::TimedOut(Phase::Connecting);
        let mut failed = FailedPaths::default();
        let [a, b] = [path(1, RDMA), path(1, TCP)];
        assert!(!failed.avoids(&paths(a, &[b]), now));
        failed.note(a, &silent, now);
        let last = now + AVOIDED - Duration::from_millis(1);
        assert!(failed.avoids(&paths(a, &[b]), last));
        assert!(!failed.avoids(&paths(a, &[b]), now + AVOIDED));
        assert!(!failed.avoids(&paths(b, &[a]), now));
        assert!(!failed.avoids(&paths(a, &[]), now), "it is the only path");
        failed.note(b, &silent, now + AVOIDED);
        assert_eq!(failed.0.len(), 1, "outdated entries must be removed");
    }

    #[test]
    fn path_that_fails_at_once_is_not_tried_instead_of_a_silent_one() {
        let now = Instant::now();
        let [a, b] = [path(1, TCP), path(1, RDMA)];
        for reason in [
            CloseReason::Os(OsError::new("rdma_create_event_channel", libc::ENODEV)),
            CloseReason::Refused,
            CloseReason::SessionLost,
        ] {
            let mut failed = FailedPaths::default();
            failed.note(a, &CloseReason::TimedOut(Phase::Connecting), now);
            failed.note(b, &reason, now);
            assert!(!failed.avoids(&paths(a, &[b]), now), "{reason}");
        }
    }

    #[test]
    fn answer_ends_the_avoidance_of_a_path() {
        let now = Instant::now();
        let [a, b] = [path(1, RDMA), path(1, TCP)];
        let mut failed = FailedPaths::default();
        failed.note(a, &CloseReason::TimedOut(Phase::Connecting), now);
        failed.note(a, &CloseReason::TimedOut(Phase::Waiting), now);
        assert!(failed.avoids(&paths(a, &[b]), now));
        failed.note(a, &CloseReason::PeerBusy, now);
        assert!(!failed.avoids(&paths(a, &[b]), now));
        failed.note(a, &CloseReason::TimedOut(Phase::ResolvingAddr), now);
        failed.clear(&a);
        assert!(failed.is_empty());
    }
}
