//! The engine's thread: an epoll loop over the connection manager's channel, the mailbox, the
//! events of devices, and the completion channels of connections that no application thread polls.

mod commands;
mod connects;
mod device_events;
mod events;
mod polling;
mod sessions;
mod threadless;

pub use self::device_events::DeviceEvents;
pub(crate) use self::device_events::device_events;
pub(super) use self::threadless::Threadless;

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    mem,
    net::SocketAddr,
    num::NonZero,
    os::fd::AsFd,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    thread::available_parallelism,
    time::{Duration, Instant},
};

use crossbeam_channel::Sender;
use nix::sys::epoll::{EpollEvent, EpollFlags, EpollTimeout};

use self::sessions::FailedPaths;
use super::{
    admission::{Admission, SLOTS},
    command::Command,
    connection_entry::{Entry, Role},
    destroyers::Destroyers,
    engine::EngineStatistics,
    exit::Registration,
    listening::{ClosedBinding, Listening},
    relief_thread::Work,
    timers::Timers,
    tombstones::Tombstones,
};
use crate::{
    config::Config,
    link::{Ended, Link, PeerPath, PeerPaths, Peers, Side, attachment, inbox},
    os::{failed, millis},
    poll::{Attended, Epolls, Mailbox, Notice, Reliance},
    proto::{CloseReason, CmCall, CmInput, CmOp, Connection, Host, SessionId},
    status::OsError,
    transport::{Budget, ConnectionId, ConnectionManager, DEVICE, Event},
    transport_choice::Transport,
};

/// Epoll tokens and timer keys. Connections and listeners use their own keys, which start at
/// [`FIRST_KEY`].
const COMMANDS: u64 = 0;
/// The epoll tokens of the connection managers, also used as the timer keys for their next poll.
const CM_RDMA: u64 = 1;
const CM_TCP: u64 = 7;
const CM_MEMORY: u64 = 8;
/// The timer key for the next check of connections that the application polls.
const ATTENDED: u64 = 2;
/// The timer key for the time at which the next [`Admission`] turn may start.
const TURNS: u64 = 3;
const NOTICES: u64 = 4;
/// The token of the epoll instance that collects events for the application's event loops.
const LOOPS: u64 = 5;
const FIRST_KEY: u64 = 16;

/// The key of the next connection or listener. All engines of the process share this counter, so
/// that a key is unique in logs, metrics and groups. A forked child continues the count.
static NEXT_KEY: AtomicU64 = AtomicU64::new(FIRST_KEY);

/// The delay after which the engine checks a deadline again, if an application thread held the lock
/// of the completion queue during the previous check.
const RECHECK_DELAY: Duration = Duration::from_millis(1);

/// The maximum number of commands, notices or events that are handled before the completion queues
/// are polled again. Deadlines are checked after each command, notice or event.
const BATCH: usize = 32;

/// A stage of one iteration of the loop.
#[derive(Clone, Copy, Debug)]
enum Stage {
    /// Wait for events, at most until the next deadline.
    Wait,
    /// Handle the ready descriptors.
    Events,
    /// Handle commands, notices, deadlines, and completion queues in which completions remained.
    Rest,
}

pub(super) struct Reactor {
    /// The stage of the next step.
    stage: Stage,
    /// The tokens of ready descriptors that have not been handled yet.
    ready: VecDeque<u64>,
    /// The error that ends the engine, if a wait or a connection manager has failed.
    failed: Option<OsError>,
    /// The number of consecutive failures of the RDMA connection manager.
    failures: u32,
    epolls: Arc<Epolls>,
    manager: ConnectionManager,
    commands: Arc<Mailbox<Command>>,
    notices: Arc<Mailbox<Notice>>,
    /// The connections by key. The entries are boxed, because a hash table may allocate two slots
    /// for each entry.
    links: HashMap<u64, Box<Entry>>,
    listeners: HashMap<u64, Listening>,
    /// The keys of the connections that this host accepted and that have a session, by session ID.
    sessions: HashMap<SessionId, u64>,
    /// The suspended connections that this host accepted, oldest first. The list can also contain
    /// connections that have resumed.
    suspended: VecDeque<u64>,
    /// The paths over which sessions have failed to resume recently.
    failed_paths: FailedPaths,
    /// The key of the trial connection that currently tests RDMA for a session.
    trial: Option<u64>,
    /// The message counts of sessions that were closed while they were suspended.
    closed: Tombstones,
    timers: Timers,
    /// The connections that threads and event loops of the application poll.
    attended: Attended,
    /// The disconnect events that have not been handled yet, because an application thread is
    /// polling the connection.
    delayed_disconnects: HashMap<u64, Event>,
    /// The connections whose queues still contain completions. The engine polls other connections
    /// before it handles the remaining completions.
    unfinished: BTreeSet<u64>,
    /// The admission of outgoing connections.
    connects: Admission,
    /// The admission of incoming connections.
    accepts: Admission,
    /// Whether a stage has left work for the next iteration, which then does not wait for events.
    more: bool,
    /// The number of processors that were available when the engine started.
    processors: usize,
    /// The engine's ID in the hellos of its connections.
    identity: u64,
    peers: Peers,
    /// Set by `Retire`, `ShutDown` and `Exit`: end when no connection and no listener is left.
    ending: bool,
    /// Set by `ShutDown` and `Exit`: refuse new connections and listeners.
    refusing: bool,
    /// Set by `Exit`: log which connections may lose messages, because no handle will report how a
    /// connection ended.
    exiting: bool,
    /// Set by `AskToLeave`: ask the peers of accepted connections to leave.
    leaving: bool,
    /// The replies to send when no connection is left. Each weak reference can be upgraded only
    /// while the caller of the drain waits.
    drains: Vec<(Sender<()>, Weak<()>)>,
    /// The in-memory bindings of ended listeners whose connections can still resume.
    closed_bindings: Vec<ClosedBinding>,
    /// The memory limits for large messages.
    budget: Arc<Budget>,
    destroyers: Destroyers,
    /// The number of ended connections, and the sum of their counters.
    past: EngineStatistics,
    /// This is the last field, so that the exit handler waits until all fields above have been
    /// dropped.
    registration: Registration,
}

impl Reactor {
    pub(super) fn new(
        manager: ConnectionManager,
        commands: Arc<Mailbox<Command>>,
        notices: Arc<Mailbox<Notice>>,
        budget: Arc<Budget>,
        destroyers: Destroyers,
        registration: Registration,
    ) -> Result<Self, OsError> {
        let mut reactor = Self {
            stage: Stage::Wait,
            ready: VecDeque::with_capacity(64),
            failed: None,
            failures: 0,
            epolls: Arc::new(Epolls::new()?),
            manager,
            commands,
            notices,
            links: HashMap::new(),
            listeners: HashMap::new(),
            sessions: HashMap::new(),
            suspended: VecDeque::new(),
            failed_paths: FailedPaths::default(),
            trial: None,
            closed: Tombstones::default(),
            timers: Timers::default(),
            attended: Attended::default(),
            delayed_disconnects: HashMap::new(),
            unfinished: BTreeSet::new(),
            connects: Admission::of_connects(),
            accepts: Admission::of_accepts(),
            more: false,
            // If the number is unknown, application threads are allowed to spin, because each spin
            // measures whether spinning is useful.
            processors: available_parallelism().map_or(usize::MAX, NonZero::get),
            identity: random(),
            peers: Peers::default(),
            ending: false,
            refusing: false,
            exiting: false,
            leaving: false,
            drains: Vec::new(),
            closed_bindings: Vec::new(),
            budget,
            destroyers,
            past: EngineStatistics::default(),
            registration,
        };
        let commands = reactor.commands.waker().map(|fd| (fd, COMMANDS));
        let notices = reactor.notices.waker().map(|fd| (fd, NOTICES));
        // A mailbox signals a wake-up as an edge: see `Mailbox::waker`.
        let edges = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
        for (fd, token) in commands.into_iter().chain(notices) {
            reactor.watch(fd, edges, token)?;
        }
        reactor.watch_managers()?;
        reactor.manager.watch_devices(&reactor.epolls);
        reactor.watch_loops()?;
        Ok(reactor)
    }

    fn wait(&mut self) -> Stage {
        let mut events = [EpollEvent::empty(); 64];
        let timeout = self.timeout();
        match self.epolls.engine.wait(&mut events, timeout) {
            Ok(count) => self
                .ready
                .extend(events[..count].iter().map(EpollEvent::data)),
            Err(nix::Error::EINTR) => {}
            Err(errno) => {
                self.fail(failed("epoll_wait")(errno));
            }
        }
        Stage::Events
    }

    fn handle_ready(&mut self, token: u64) {
        match token {
            // The stage `Rest` reads the mailboxes.
            COMMANDS | NOTICES => {}
            CM_RDMA => _ = self.handle_cm_events(Transport::Rdma),
            CM_TCP => self.handle_ready_sockets(),
            LOOPS => self.expect_loops(),
            device if device & DEVICE != 0 => self.handle_device_events(device & !DEVICE),
            key => self.handle_completion_event(key),
        }
        self.handle_deadlines();
    }

    /// Handles the expired deadlines. Called after each step that may take long, so that a series
    /// of such steps does not delay a deadline.
    fn handle_deadlines(&mut self) {
        let now = Instant::now();
        while let Some(key) = self.timers.pop(now) {
            if key == ATTENDED {
                self.check_attended(now);
            } else if key == TURNS {
                self.more = true;
            } else if key == CM_RDMA {
                self.resume_manager(Transport::Rdma);
            } else if key == CM_TCP {
                self.resume_manager(Transport::Tcp);
            } else if let Some(entry) = self.links.get(&key) {
                let (passed, stall) = {
                    let mut core = entry.link.core();
                    (core.passes_check(now), core.sample_stall(now))
                };
                if let Some(stall) = stall {
                    entry.link.report_stall(stall);
                }
                if let Some(next) = passed {
                    // The peer is alive, so the deadline is postponed. With many idle connections,
                    // this is the usual case.
                    self.timers.set_rounded(key, next, now);
                    continue;
                }
                // All completions that have arrived must be handled before the peer is considered
                // silent.
                if !entry.link.catch_up() {
                    self.timers.set(key, Some(now + RECHECK_DELAY));
                    continue;
                }
                entry.link.in_engine(|core| core.handle_timeout(now));
                self.drive(key);
            } else {
                self.listen_again(key);
            }
        }
    }

    /// Ends the engine after the current step.
    fn fail(&mut self, error: OsError) {
        self.failed.get_or_insert(error);
    }

    /// Starts the turns of waiting connections while slots are free.
    fn start_attempts(&mut self) {
        for _ in 0..2 * SLOTS {
            let now = Instant::now();
            // Incoming connections come first, because their peers have already done part of the
            // work.
            let Some(key) = self.accepts.next(now).or_else(|| self.connects.next(now)) else {
                break;
            };
            self.begin_setup(key, now);
            self.handle_deadlines();
        }
        let now = Instant::now();
        let next = [self.accepts.next_at(now), self.connects.next_at(now)];
        self.timers.set(TURNS, next.into_iter().flatten().min());
    }

    fn timeout(&mut self) -> EpollTimeout {
        if mem::take(&mut self.more) || !self.unfinished.is_empty() {
            return EpollTimeout::ZERO;
        }
        let Some(at) = self.timers.next() else {
            return EpollTimeout::NONE;
        };
        let left = millis(at.saturating_duration_since(Instant::now()));
        EpollTimeout::try_from(left.min(60_000) as u32).unwrap_or(EpollTimeout::MAX)
    }

    fn watch(&self, fd: impl AsFd, flags: EpollFlags, token: u64) -> Result<(), OsError> {
        self.epolls
            .engine
            .add(fd, EpollEvent::new(flags, token))
            .map_err(failed("epoll_ctl"))
    }

    /// Adds a connection to the tables.
    fn adopt(
        &mut self,
        key: u64,
        conn: Connection,
        peer: SocketAddr,
        config: impl Into<Arc<Config>>,
        id: ConnectionId,
        role: Role,
    ) -> Arc<Link> {
        // `max_ids` limits the number of operations with an id that are in flight, plus the number
        // of their completions that the program has not taken.
        let config = config.into();
        let sizes = config.sizes(id.transport());
        let max_ids = usize::from(sizes.receive_window) + usize::from(sizes.send_depth);
        let (inlet, receiver) = inbox();
        let path = PeerPath::new(peer, id.transport());
        let link = Link::new(
            (key, &config),
            path,
            config.polling.on(self.processors),
            Arc::clone(&self.notices),
            conn,
            inlet,
            max_ids,
        );
        if path.transport == Transport::Memory {
            link.poller.rely(Reliance::Peer);
        }
        self.registration.connection_opened(config.longest_close());
        if !config.resume.is_zero() {
            let side = role.choose(Side::Active(Box::new(PeerPaths::new(path))), Side::Passive);
            link.offer_session(side, &config);
        }
        let inflow = config.stream.then(|| link.carry_bytes());
        let entry = Entry {
            link: Arc::clone(&link),
            id,
            config,
            role,
            reply: None,
            incoming: None,
            repeated: None,
            receiver: Some(receiver),
            destroyers: self.destroyers.clone(),
            inflow,
            peer,
            asked: None,
            session: None,
        };
        self.links.insert(key, Box::new(entry));
        // Executes the first outputs of the state machine.
        link.in_engine(|_| ());
        link
    }

    /// Drives a connection: executes those outputs of its state machine that need this thread.
    fn drive(&mut self, key: u64) {
        let Some(entry) = self.links.get_mut(&key) else {
            return;
        };
        entry.link.drive_begins();
        loop {
            let op = {
                let mut core = entry.link.core();
                // Once the connection has ended, pending operations are dropped, except a reject.
                if core.ended.is_some() {
                    core.cm_ops.retain(|op| op.call() == CmCall::Reject);
                }
                core.cm_ops.pop_front()
            };
            let Some(op) = op else { break };
            trace!(Connection, "{}: executes {op:?}", entry.link);
            let skips_turn = entry.id.transport() == Transport::Memory && entry.role.is_active();
            if op == CmOp::AwaitSetupSlot && skips_turn {
                // An outgoing in-memory connection starts without a turn. A turn would occupy its
                // slot until the peer answers, because an engine without a thread has no timer that
                // releases slots.
                entry
                    .link
                    .in_engine(|core| core.conn.begin_setup(Instant::now()));
                continue;
            }
            if op == CmOp::AwaitSetupSlot {
                let turns = entry.role.choose(&mut self.connects, &mut self.accepts);
                turns.join(key, Host::of(entry.peer.ip()));
                continue;
            }
            let call = op.call();
            if let Err(error) = entry.execute(op, &mut self.manager, &self.epolls, &self.budget) {
                debug!(Connection, "{}: {call:?} failed: {error}", entry.link);
                if is_of_manager(error) {
                    self.failed.get_or_insert(error);
                }
                let withdrawn = entry.is_withdrawn(call, error);
                entry.link.in_engine(|core| {
                    let now = Instant::now();
                    if withdrawn {
                        core.conn.handle_cm_event(CmInput::Disconnected, now);
                    } else {
                        core.conn.handle_cm_failure(call, error, now);
                    }
                });
            }
        }
        if self.recover(key) {
            return;
        }
        let Some(entry) = self.links.get_mut(&key) else {
            return;
        };
        entry.report_requested();
        let (established, ended, deadline, counts_as_setup, sends_again) = {
            let mut core = entry.link.core();
            if core.established && core.liveness.is_none() {
                let engine = core.conn.peer_engine();
                core.liveness =
                    engine.map(|engine| self.peers.liveness_of(entry.peer.ip(), engine));
                entry.link.set_local_addr(entry.id.local_addr());
                let path = PeerPath::new(entry.peer, entry.id.transport());
                self.failed_paths.clear(&path);
            }
            (
                core.established,
                core.ended.clone(),
                core.recovery().next_timeout(),
                core.conn.counts_as_setup(),
                core.sends_again(),
            )
        };
        self.timers.set(key, deadline);
        if !counts_as_setup {
            let turns = entry.role.choose(&mut self.connects, &mut self.accepts);
            turns.finish(key);
        }
        if established {
            entry.report_established(self.leaving);
        }
        if sends_again {
            entry.link.send_again();
        }
        if let Some(Ended { reason, .. }) = ended {
            self.remove(key, reason);
        }
    }

    /// Releases an ended connection once no application thread uses its transport. While a thread
    /// uses the transport, only schedules another poll, which calls this function again. After the
    /// release, if a caller still waits for the connection, repeats the request or sends the error
    /// to the caller.
    fn remove(&mut self, key: u64, reason: CloseReason) {
        self.timers.set(key, None);
        self.attended.forget(key);
        let link = self.links.get(&key).map(|entry| &entry.link);
        if link.is_some_and(|link| !attachment::try_release(link)) {
            return self.poll_soon(key, None);
        }
        self.delayed_disconnects.remove(&key);
        let Some(mut entry) = self.links.remove(&key) else {
            return;
        };
        let turns = entry.role.choose(&mut self.connects, &mut self.accepts);
        turns.leave(key);
        entry.link.end_watch();
        self.forget_session(&mut entry);
        self.registration
            .connection_closed(entry.config.longest_close());
        if self.exiting || entry.link.is_abandoned() {
            entry.report_undelivered(&reason);
        }
        if let Role::TryRdma(key) = entry.role {
            let path = PeerPath::new(entry.peer, entry.id.transport());
            self.record_trial(key, &path, &reason);
        } else {
            // The sum includes only counters, and not the memory of messages that the application
            // holds.
            self.past.all += entry.link.statistics().counters();
            match self.request_to_repeat(&mut entry, &reason) {
                Some(request) => self.connect_again(&mut entry, request, reason),
                None => {
                    self.past.ended += 1;
                    entry.report_failure(reason);
                }
            }
        }
        entry.discard_transport();
        self.report_drained();
    }
}

impl Work for Reactor {
    fn is_running(&self) -> bool {
        let is_empty = self.links.is_empty() && self.listeners.is_empty();
        let is_over = self.failed.is_some() || (self.ending && is_empty);
        !is_over
    }

    fn step(&mut self) {
        self.stage = match self.stage {
            Stage::Wait => self.wait(),
            Stage::Events => match self.ready.pop_front() {
                Some(token) => {
                    self.handle_ready(token);
                    Stage::Events
                }
                None => Stage::Rest,
            },
            Stage::Rest => {
                self.take_commands();
                self.take_notices();
                self.handle_deadlines();
                self.start_attempts();
                for key in mem::take(&mut self.unfinished) {
                    self.poll(key);
                }
                // The steps above may have added reports. No descriptor becomes ready for these
                // reports.
                self.handle_tcp_reports();
                Stage::Wait
            }
        };
    }
}

impl Drop for Reactor {
    /// Ends the listeners and connections that remain. Open connections remain only if the thread
    /// ends abnormally: because of a panic, or because a system call fails permanently.
    fn drop(&mut self) {
        self.commands.abandon();
        self.notices.abandon();
        self.destroyers.end();
        let reason = self
            .failed
            .map_or(CloseReason::LocallyAborted, CloseReason::Os);
        if self.failed.is_some() || !self.links.is_empty() {
            let (links, listeners) = (self.links.len(), self.listeners.len());
            error!(
                Engine,
                "engine: stops with {links} open connections and {listeners} open listeners: \
                 {reason}"
            );
        }
        for (_, listener) in self.listeners.drain() {
            if self.failed.is_some() {
                listener.end(reason.clone());
            } else {
                listener.shut_down();
            }
        }
        for entry in self.links.values_mut() {
            entry.link.end_watch();
            entry.link.with_core(|core| core.cut_off(reason.clone()));
            entry.report_failure(reason.clone());
        }
        // Both ends of a connection may belong to this engine. If the first end lost its transport
        // before the second end had this reason, the second end would report another reason.
        for (_, entry) in self.links.drain() {
            if attachment::try_release(&entry.link) {
                attachment::uninstall(&entry.link);
            }
        }
    }
}

/// Returns true if the error affects all connections and listeners, because the connection
/// manager's descriptor can no longer be used.
fn is_of_manager(error: OsError) -> bool {
    error.is_of_credentials() && matches!(error.call, "rdma_create_id" | "rdma_get_cm_event")
}

/// Returns a key for a new connection or listener. The key is unique in this process.
fn new_key() -> u64 {
    NEXT_KEY.fetch_add(1, Ordering::Relaxed)
}

/// Returns a random number that almost certainly differs from all earlier ones. The number is not
/// secret.
fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(Instant::now())
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc::channel, thread};

    use log::{LevelFilter, Log, Metadata, Record};

    use super::*;

    fn reactor() -> Reactor {
        let notices = Mailbox::new().unwrap();
        let manager = ConnectionManager::new(&notices).unwrap();
        let commands = Mailbox::new().unwrap();
        let registration = Registration::nowhere();
        let destroyers = Destroyers::default();
        let budget = Budget::shared();
        Reactor::new(manager, commands, notices, budget, destroyers, registration).unwrap()
    }

    /// Returns the transports whose connection managers the engine watches.
    fn watched(reactor: &Reactor) -> Vec<Transport> {
        let again = reactor.manager.fds().filter(|(_, fd)| {
            let mut event = EpollEvent::new(EpollFlags::EPOLLIN, CM_TCP);
            reactor.epolls.engine.modify(fd, &mut event).is_ok()
        });
        again.map(|(transport, _)| transport).collect()
    }

    #[test]
    fn failing_manager_is_paused() {
        let mut reactor = reactor();
        let all = watched(&reactor);
        let error = OsError::new("epoll_wait", libc::EINVAL);
        reactor.pause_manager(Transport::Tcp, error);
        reactor.pause_manager(Transport::Tcp, error);
        let left = watched(&reactor);
        assert!(!left.contains(&Transport::Tcp));
        assert_eq!(
            left.len() + 1,
            all.len(),
            "the engine must still watch the other connection managers"
        );
        assert_ne!(reactor.timeout(), EpollTimeout::NONE);
        reactor.resume_manager(Transport::Tcp);
        assert_eq!(watched(&reactor), all);
    }

    /// A logger that panics in the thread with the name `DOOMED`.
    struct Fails;

    const DOOMED: &str = "doomed";

    impl Log for Fails {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn log(&self, record: &Record<'_>) {
            if thread::current().name() == Some(DOOMED) {
                panic!("a logger that fails, at: {}", record.args());
            }
        }

        fn flush(&self) {}
    }

    /// The engine panics, and then the logger panics in the engine's destructor. If the second
    /// panic escaped from the destructor, it would abort the process.
    #[test]
    fn engine_that_panics_cuts_off_its_connections() {
        log::set_logger(&Fails).unwrap();
        log::set_max_level(LevelFilter::Error);
        let (sender, links) = channel();
        let doomed = move || {
            let mut reactor = reactor();
            for _ in 0..2 {
                let (key, config) = (new_key(), Config::default());
                let kind = Transport::Tcp;
                let id = ConnectionId::new(kind, &reactor.manager, key).unwrap();
                let params = reactor.params(key, &config, kind);
                let conn = Connection::connect(params, 1, b"", Instant::now());
                let peer = SocketAddr::from(([127, 0, 0, 1], 1));
                let link = reactor.adopt(key, conn, peer, config, id, Role::Active);
                sender.send(link).unwrap();
            }
            panic!("an engine that fails");
        };
        let thread = thread::Builder::new().name(DOOMED.into());
        let panicked = thread.spawn(doomed).unwrap().join();
        assert!(panicked.is_err());
        for link in links {
            let reason = link.ended().map(|ended| ended.reason);
            assert_eq!(reason, Some(CloseReason::LocallyAborted));
        }
    }
}
