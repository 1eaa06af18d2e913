//! The engine's thread: an epoll loop over the connection manager's channel, the mailbox, and the completion channels of
//! connections that no thread of the application polls.

use std::{
    collections::{BTreeSet, HashMap},
    net::SocketAddr,
    os::fd::AsFd,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use crossbeam_channel::{Sender, bounded};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use super::{
    Engine, EngineStatistics,
    backlog::Backlog,
    budget::Budget,
    burst::Burst,
    core::Core,
    domain::Domains,
    entry::{Entry, Role, Waiter, set_ack_timeout},
    exit::{self, Registration},
    link::{Link, Progress},
    listening::{self, Listening},
    mailbox::{Command, Mailbox},
    peers::Peers,
    timers::Timers,
    turns::Turns,
};
use crate::{
    cm::{CmEvent, CmId, EventChannel},
    config::Config,
    error::Error,
    listener::{Bound, Request},
    proto::{
        CloseReason, CmCall, CmInput, CmOp, Connection, Params, ReadDepth, Reject, Statistics,
    },
    status::{CmEventType, OsError},
};

/// Epoll tokens; connections and listeners use their keys, which start behind these.
const BELL: u64 = 0;
const CM: u64 = 1;
/// The timer key of the rounds that look after hot connections.
const ROUNDS: u64 = 2;
/// The timer key of those who wait for their turn.
const TURNS: u64 = 3;
const FIRST_KEY: u64 = 16;

/// How long after its last poll by a thread of the application a completion queue is watched by the engine again. A program
/// that mixes `recv` with `select!` may see a message this much late; one that polls often enough costs the engine one
/// look in this time instead of one interrupt a message.
const LEASE: Duration = Duration::from_millis(10);

/// How many commands, and how many connection manager events, are taken before the completion queues are looked at again. Deadlines are
/// looked at after each.
const BATCH: usize = 32;

/// How many connections are established at a time, of those that this host asks for and of those
/// that it is asked for. As few as keep this host busy while some wait for their peers: the first
/// ones are through so much earlier, and where each takes long, some are through at all.
const SIDE_BY_SIDE: usize = 8;

/// After how long a turn that still lasts is one of a connection that waits for its peer.
const PATIENCE: Duration = Duration::from_secs(2);

pub(super) struct Reactor {
    epoll: Epoll,
    channel: EventChannel,
    mailbox: Arc<Mailbox>,
    links: HashMap<u64, Entry>,
    listeners: HashMap<u64, Listening>,
    domains: Domains,
    timers: Timers,
    /// Connections that threads of the application poll, each with its count of polls at the last round.
    hot: HashMap<u64, u64>,
    /// Connections whose queues were left with something in them, so that the others get their turn.
    unfinished: BTreeSet<u64>,
    /// Who may connect, and who may be accepted, when.
    connects: Turns,
    accepts: Turns,
    /// Whether something was left to do, so that the rest gets its turn.
    more: bool,
    /// For the log.
    refusals: Burst,
    next_key: u64,
    /// What the hellos of this engine's connections carry.
    identity: u64,
    peers: Peers,
    /// Set by `Retire` and `ShutDown`: end when nothing is left.
    ending: bool,
    /// Set by `ShutDown`: take on nothing new.
    refusing: bool,
    /// Set by `Exit`: nobody will ask what became of the connections.
    exiting: bool,
    /// The memory for large messages.
    budget: Arc<Budget>,
    /// What went through connections that have ended, and how many there were.
    past: EngineStatistics,
    /// Last, so that the process does not end before everything above is gone.
    registration: Registration,
}

impl Reactor {
    pub(super) fn new(
        channel: EventChannel,
        mailbox: Arc<Mailbox>,
        budget: Arc<Budget>,
    ) -> Result<Self, OsError> {
        let registration = exit::register(Arc::clone(&mailbox))?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)
            .map_err(|e| OsError::new("epoll_create1", e as i32))?;
        let reactor = Self {
            epoll,
            channel,
            mailbox,
            links: HashMap::new(),
            listeners: HashMap::new(),
            domains: Domains::default(),
            timers: Timers::default(),
            hot: HashMap::new(),
            unfinished: BTreeSet::new(),
            connects: Turns::new(SIDE_BY_SIDE, PATIENCE),
            accepts: Turns::new(SIDE_BY_SIDE, PATIENCE),
            more: false,
            refusals: Burst::default(),
            next_key: FIRST_KEY,
            identity: random(),
            peers: Peers::default(),
            ending: false,
            refusing: false,
            exiting: false,
            budget,
            past: EngineStatistics::default(),
            registration,
        };
        reactor.watch(reactor.mailbox.bell(), BELL)?;
        reactor.watch(&reactor.channel, CM)?;
        Ok(reactor)
    }

    /// The thread's body.
    pub(super) fn run(mut self) {
        self.registration.runs_here();
        let mut ready = [EpollEvent::empty(); 64];
        while !(self.ending && self.links.is_empty() && self.listeners.is_empty()) {
            let timeout = self.timeout();
            let count = match self.epoll.wait(&mut ready, timeout) {
                Ok(count) => count,
                Err(nix::Error::EINTR) => 0,
                Err(errno) => {
                    log::error!("engine: epoll_wait: {errno}");
                    return;
                }
            };
            for event in &ready[..count] {
                match event.data() {
                    BELL => {
                        let _ = self.mailbox.bell().read();
                    }
                    CM => self.take_cm_events(),
                    key => self.take_completions(key),
                }
                self.keep_time();
            }
            self.take_commands();
            self.keep_time();
            self.give_turns();
            for key in std::mem::take(&mut self.unfinished) {
                self.progress(key);
            }
        }
    }

    /// Does what is due. Called after whatever may have taken a while: many of such things must not keep a deadline waiting.
    fn keep_time(&mut self) {
        let now = Instant::now();
        while let Some(key) = self.timers.pop(now) {
            if key == ROUNDS {
                self.make_rounds();
            } else if key == TURNS {
                self.more = true;
            } else if let Some(entry) = self.links.get(&key) {
                // A deadline judges the peer by what has come from it, and what has come is not to be lost.
                entry.link.catch_up();
                entry.link.with_core(|core| core.handle_timeout(now));
                self.serve(key);
            } else {
                self.listen_again(key);
            }
        }
    }

    /// Lets those establish their connections whose turn it is.
    fn give_turns(&mut self) {
        for _ in 0..2 * SIDE_BY_SIDE {
            let now = Instant::now();
            // A peer has come further with what it asks for than this side with what it has not begun.
            let Some(key) = self.accepts.next(now).or_else(|| self.connects.next(now)) else {
                break;
            };
            if let Some(entry) = self.links.get(&key) {
                entry.link.with_core(|core| core.conn.take_turn(now));
                self.serve(key);
            }
            self.keep_time();
        }
        let now = Instant::now();
        let next = [self.accepts.next_at(now), self.connects.next_at(now)];
        self.timers.set(TURNS, next.into_iter().flatten().min());
    }

    fn timeout(&mut self) -> EpollTimeout {
        if std::mem::take(&mut self.more) || !self.unfinished.is_empty() {
            return EpollTimeout::ZERO;
        }
        let Some(at) = self.timers.next() else {
            return EpollTimeout::NONE;
        };
        // Rounded up, so that a remainder below a millisecond does not become a busy loop.
        let millis = at
            .saturating_duration_since(Instant::now())
            .as_nanos()
            .div_ceil(1_000_000);
        EpollTimeout::try_from(millis.min(60_000) as u32).unwrap_or(EpollTimeout::MAX)
    }

    fn watch(&self, fd: impl AsFd, token: u64) -> Result<(), OsError> {
        self.epoll
            .add(fd, EpollEvent::new(EpollFlags::EPOLLIN, token))
            .map_err(|errno| OsError::new("epoll_ctl", errno as i32))
    }

    // Commands.

    fn take_commands(&mut self) {
        for _ in 0..BATCH {
            let Some(command) = self.mailbox.take() else {
                return;
            };
            self.obey(command);
            self.keep_time();
        }
        self.more = true;
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Listen {
                address,
                config,
                requests,
                backlog,
                engine,
                reply,
            } => {
                let result = if self.refusing {
                    Err(Error::EngineShutDown)
                } else {
                    self.listen(address, config, requests, backlog, engine)
                };
                let _ = reply.send(result);
            }
            Command::Unlisten(key) => {
                self.timers.set(key, None);
                self.listeners.remove(&key);
            }
            Command::Connect {
                address,
                config,
                data,
                deadline,
                engine,
                reply,
            } => {
                if self.refusing {
                    reply.send(Err(Error::EngineShutDown));
                } else {
                    let waiter = Waiter { engine, reply };
                    self.connect(address, config, &data, deadline, waiter);
                }
            }
            Command::Accept {
                link,
                data,
                at,
                engine,
                reply,
            } => self.accept(&link, &data, at, Waiter { engine, reply }),
            Command::Reject { key, data } => {
                if let Some(entry) = self.links.get(&key) {
                    entry
                        .link
                        .with_core(|core| core.conn.reject(&data, Instant::now()));
                    self.serve(key);
                }
            }
            Command::Statistics { reply } => {
                let mut statistics = self.past;
                (statistics.pinned, statistics.held) = self.budget.in_use();
                for entry in self.links.values() {
                    statistics.connections += 1;
                    statistics.all += entry.link.statistics();
                }
                let _ = reply.send(statistics);
            }
            Command::Service(key) => self.serve(key),
            Command::Feed(key) => {
                if let Some(entry) = self.links.get(&key) {
                    entry.link.with_core(|core| core.conn.ask_again());
                }
            }
            Command::Hot(key) => self.keep_away(key),
            Command::Watch(key) => {
                self.take_over(key);
                self.serve(key);
            }
            Command::Retire => self.ending = true,
            Command::ShutDown => self.shut_down(),
            Command::Exit => {
                self.exiting = true;
                self.shut_down();
            }
        }
    }

    fn listen(
        &mut self,
        address: SocketAddr,
        config: Config,
        requests: Sender<Request>,
        backlog: Arc<Backlog>,
        engine: Engine,
    ) -> Result<Bound, Error> {
        let key = self.new_key();
        let id = listening::bind(&self.channel, key, address, config.backlog)
            .map_err(|error| Error::from_bind(address, error))?;
        if !id.has_device() {
            Error::from_bound_to_none(address)?;
        }
        let local = id.local_addr().unwrap_or(address);
        log::info!("listener {key} on {local}");
        let listening = Listening::new(id, local, config, requests, backlog, engine);
        self.listeners.insert(key, listening);
        Ok(Bound { key, local })
    }

    fn connect(
        &mut self,
        address: SocketAddr,
        config: Config,
        data: &[u8],
        deadline: Instant,
        waiter: Waiter,
    ) {
        let key = self.new_key();
        let now = Instant::now();
        let mut params = self.params(&config);
        // What is left of it.
        params.connect_timeout = deadline.saturating_duration_since(now);
        let conn = Connection::connect(params, random(), data, now);
        self.adopt(key, conn, address, config, None, Role::Active);
        if let Some(entry) = self.links.get_mut(&key) {
            entry.waiter = Some(waiter);
        }
        self.serve(key);
    }

    /// Takes a connection into the tables.
    fn adopt(
        &mut self,
        key: u64,
        conn: Connection,
        peer: SocketAddr,
        config: Config,
        id: Option<CmId>,
        role: Role,
    ) -> Arc<Link> {
        // A place for each message that the peer has credit for, for as many large ones, and for the end; and for the operations
        // that are accepted while there are no more completions than this.
        let messages = 2 * usize::from(config.receive_window) + 1;
        let most_ids = messages + usize::from(config.send_depth);
        let (sender, receiver) = bounded(messages + most_ids);
        let link = Link::new(
            key,
            peer,
            config.polling,
            Arc::clone(&self.mailbox),
            conn,
            sender,
            most_ids,
        );
        self.registration.connection_came(config.longest_close());
        let entry = Entry {
            link: Arc::clone(&link),
            watched: None,
            id,
            domain: None,
            config,
            role,
            waiter: None,
            receiver: Some(receiver),
            problem: None,
            peer,
        };
        self.links.insert(key, entry);
        // What the state machine wants from its making on.
        link.with_core(|_| ());
        link
    }

    fn accept(&mut self, link: &Arc<Link>, data: &[u8], at: Instant, waiter: Waiter) {
        let key = link.key;
        let Some(entry) = self.links.get_mut(&key) else {
            // Too late: it ended before anybody accepted it.
            let reason = link
                .ended()
                .map_or(CloseReason::PeerDisconnected, |(reason, _)| reason);
            return waiter
                .reply
                .send(Err(Error::from_connect(link.peer_addr(), reason)));
        };
        entry.waiter = Some(waiter);
        entry.link.with_core(|core| core.conn.accept(data, at));
        self.serve(key);
    }

    fn shut_down(&mut self) {
        self.ending = true;
        self.refusing = true;
        self.listeners.clear();
        let keys: Vec<u64> = self.links.keys().copied().collect();
        for key in keys {
            if let Some(entry) = self.links.get(&key) {
                entry.link.close();
            }
            self.serve(key);
        }
    }

    fn params(&self, config: &Config) -> Params {
        let config = config.params();
        Params {
            engine: self.identity,
            longest_piece: config
                .longest_piece
                .min(self.budget.limits().longest_piece()),
            ..config
        }
    }

    fn new_key(&mut self) -> u64 {
        self.next_key += 1;
        self.next_key
    }

    // Connection manager events.

    fn take_cm_events(&mut self) {
        // What is left makes the next round begin at once.
        for _ in 0..BATCH {
            match self.channel.poll_event() {
                Ok(Some(event)) => {
                    self.take_cm_event(event);
                    self.keep_time();
                }
                Ok(None) => return,
                Err(error) => {
                    log::error!("engine: {error}");
                    return;
                }
            }
        }
    }

    fn take_cm_event(&mut self, mut event: CmEvent) {
        if let Some(id) = event.take_request() {
            self.take_request(id, &event);
            return;
        }
        let key = event.context();
        if self.listeners.contains_key(&key) {
            self.take_listener_event(key, &event);
            return;
        }
        let Some(entry) = self.links.get(&key) else {
            log::debug!(
                "engine: {} for a connection {key} of which nothing is left to do",
                event.event()
            );
            return;
        };
        log::debug!(target: "rdmsg::cm", "{}: {}{}", entry.link, event.event(), Status(event.status()));
        let now = Instant::now();
        if event.event() == CmEventType::DISCONNECTED {
            // What the peer sent before it disconnected is in the queue already, and comes first.
            entry.link.catch_up();
        }
        entry
            .link
            .with_core(|core| core.conn.handle_cm_event(cm_input(&event), now));
        self.serve(key);
    }

    /// What befalls a listener's device befalls the listener.
    fn take_listener_event(&mut self, key: u64, event: &CmEvent) {
        let reason = match event.event() {
            CmEventType::DEVICE_REMOVAL => CloseReason::DeviceRemoved,
            CmEventType::ADDR_CHANGE => CloseReason::AddressChanged,
            other => return log::warn!("listener {key}: {other}: ignored"),
        };
        let Some(listener) = self.listeners.get_mut(&key) else {
            return;
        };
        let address = listener.local;
        if listener.config.rebind {
            log::warn!("listener {key} on {address}: {reason}; it is bound again when it can be");
            let at = Instant::now() + listener.lose();
            return self.timers.set(key, Some(at));
        }
        log::error!("listener {key} on {address} has ended: {reason}");
        listener
            .backlog
            .finish(Error::ListenerEnded { address, reason });
        // With its id, which the device waits for.
        self.listeners.remove(&key);
    }

    /// It may be time to bind a listener again.
    fn listen_again(&mut self, key: u64) {
        if let Some(listener) = self.listeners.get_mut(&key)
            && let Some(wait) = listener.try_again(&self.channel, key)
        {
            self.timers.set(key, Some(Instant::now() + wait));
        }
    }

    fn take_request(&mut self, mut id: CmId, event: &CmEvent) {
        let Some(listener) = event
            .listen_context()
            .and_then(|key| self.listeners.get(&key))
        else {
            log::debug!("engine: connect request for a listener that is gone");
            return;
        };
        let (config, requests, backlog, engine) = (
            listener.config.clone(),
            listener.requests.clone(),
            Arc::clone(&listener.backlog),
            listener.engine.clone(),
        );
        let Some(peer) = id.peer_addr() else {
            log::warn!("engine: connect request without an address");
            return;
        };
        let full = if requests.is_full() {
            Some(("backlog", config.backlog))
        } else if listener.half_open.count() >= config.half_open.into() {
            Some(("half_open", config.half_open))
        } else {
            None
        };
        if let Some((field, limit)) = full {
            self.tell_refusal(peer, &format_args!("{field} is {limit}, and as many wait"));
            return refuse(&mut id, &Reject::BUSY.emit(&[]));
        }
        let role = Role::Passive(Some(listener.half_open.clone()));
        let key = self.new_key();
        match Connection::requested(
            self.params(&config),
            event.private_data(),
            read_depth(event),
            Instant::now(),
        ) {
            Ok(conn) => {
                id.set_context(key);
                set_ack_timeout(&mut id, &config);
                let local = id.local_addr();
                let timeout = config.connect_timeout;
                let link = self.adopt(key, conn, peer, config, Some(id), role);
                self.serve(key);
                log::debug!(target: "rdmsg::cm", "{link}: {}", event.event());
                let request = Request::new(link, engine, local, timeout);
                backlog.bring_request(&requests, request);
            }
            Err(refusal) => {
                self.tell_refusal(peer, &refusal.reason);
                refuse(&mut id, &refusal.private_data);
            }
        }
    }

    fn tell_refusal(&mut self, peer: SocketAddr, reason: &dyn std::fmt::Display) {
        if let Some(others) = self.refusals.tell(Instant::now()) {
            log::warn!(
                "engine: rejected a connect request of {peer} ({others} others before it): {reason}"
            );
        }
    }

    // Serving a connection: what its state machine wants of this thread.

    fn serve(&mut self, key: u64) {
        let Some(entry) = self.links.get_mut(&key) else {
            return;
        };
        entry.link.service_begins();
        loop {
            let op = {
                let mut core = entry.link.core();
                // What was wanted before the end is not wanted any more, except that the peer is to hear of a rejection.
                if core.ended.is_some() {
                    core.cm_ops.retain(|op| op.call() == CmCall::Reject);
                }
                core.cm_ops.pop_front()
            };
            let Some(op) = op else { break };
            log::trace!("{}: {op:?}", entry.link);
            if op == CmOp::AwaitTurn {
                let turns = entry.role.choose(&mut self.connects, &mut self.accepts);
                turns.join(key, entry.peer.ip());
                continue;
            }
            let call = op.call();
            if let Err(error) = entry.perform(
                op,
                &self.channel,
                &mut self.domains,
                &self.epoll,
                &self.budget,
            ) {
                log::debug!("{}: {error}", entry.link);
                let withdrawn = entry.is_withdrawn(call, error);
                entry.link.with_core(|core| {
                    let now = Instant::now();
                    if withdrawn {
                        core.conn.handle_cm_event(CmInput::Disconnected, now);
                    } else {
                        core.conn.handle_cm_failure(call, error, now);
                    }
                });
            }
        }
        let (established, ended, deadline, has_turn) = {
            let mut core = entry.link.core();
            if core.established && core.life.is_none() {
                let engine = core.conn.peer_engine();
                core.life = engine.map(|engine| self.peers.life_of(entry.peer.ip(), engine));
            }
            (
                core.established,
                core.ended.clone(),
                core.conn.next_timeout(),
                core.conn.has_turn(),
            )
        };
        self.timers.set(key, deadline);
        if !has_turn {
            let turns = entry.role.choose(&mut self.connects, &mut self.accepts);
            turns.finish(key);
        }
        if established {
            entry.report_established();
        }
        if let Some((reason, _)) = ended {
            self.remove(key, reason);
        }
    }

    /// The connection has ended: everything goes back to the system, and whoever waits for it is told.
    fn remove(&mut self, key: u64, reason: CloseReason) {
        self.timers.set(key, None);
        self.hot.remove(&key);
        let Some(mut entry) = self.links.remove(&key) else {
            return;
        };
        let turns = entry.role.choose(&mut self.connects, &mut self.accepts);
        turns.leave(key);
        entry.unwatch(&self.epoll);
        entry.link.free();
        self.registration
            .connection_went(entry.config.longest_close());
        if self.exiting || entry.link.is_abandoned() {
            entry.tell_undelivered(&reason);
        }
        self.past.ended += 1;
        // What messages still hold after the end is the process's, not the engine's.
        self.past.all += Statistics {
            buffers_held: 0,
            large_bytes_held: 0,
            large_bytes_lent: 0,
            ..entry.link.statistics()
        };
        if let Some(waiter) = entry.waiter.take() {
            let error = entry
                .problem
                .take()
                .unwrap_or_else(|| Error::from_connect(entry.peer, reason));
            waiter.reply.send(Err(error));
        }
        // The id goes with the entry, after its queue pair.
    }

    // Completion queues.

    /// A watched completion channel raised an event.
    fn take_completions(&mut self, key: u64) {
        let Some(entry) = self.links.get(&key) else {
            return;
        };
        if let Some(channel) = &entry.watched {
            while let Ok(Some(_)) = channel.get_event() {}
        }
        entry.link.arm();
        self.progress(key);
    }

    /// Takes some of what has come on a connection; the rest is its next turn's.
    fn progress(&mut self, key: u64) {
        if let Some(entry) = self.links.get(&key)
            && entry.link.progress() == Progress::More
        {
            self.unfinished.insert(key);
        }
    }

    /// Threads of the application poll: stop watching, and look now and then whether they still do.
    fn keep_away(&mut self, key: u64) {
        let Some(entry) = self.links.get(&key) else {
            return;
        };
        if entry.link.is_watched() {
            // It did not know yet that the connection's fd was asked for.
            return self.take_over(key);
        }
        entry.set_interest(&self.epoll, EpollFlags::empty());
        let polls = entry.link.polls.load(Ordering::Relaxed);
        if self.hot.is_empty() {
            self.timers.set(ROUNDS, Some(Instant::now() + LEASE));
        }
        self.hot.insert(key, polls);
    }

    /// Nobody polls any more: watch again.
    fn take_over(&mut self, key: u64) {
        self.hot.remove(&key);
        let Some(entry) = self.links.get(&key) else {
            return;
        };
        entry.link.hot.store(false, Ordering::SeqCst);
        entry.set_interest(&self.epoll, EpollFlags::EPOLLIN);
        entry.link.arm();
        self.progress(key);
    }

    /// Looks which of the hot connections are still polled by others.
    fn make_rounds(&mut self) {
        let mut cold = Vec::new();
        let links = &self.links;
        self.hot.retain(|key, seen| {
            let Some(entry) = links.get(key) else {
                return false;
            };
            if entry.link.engine_may_leave() {
                return false;
            }
            let polls = entry.link.polls.load(Ordering::Relaxed);
            if polls == *seen {
                cold.push(*key);
                return false;
            }
            *seen = polls;
            true
        });
        for key in cold {
            self.take_over(key);
        }
        if !self.hot.is_empty() {
            self.timers.set(ROUNDS, Some(Instant::now() + LEASE));
        }
    }
}

/// An event's status for the log: nothing where there is none.
struct Status(i32);

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0 == 0 {
            Ok(())
        } else {
            write!(f, ", status {}", self.0)
        }
    }
}

impl Drop for Reactor {
    /// Connections are left only when the thread ends for a reason that is none: a panic, or an epoll that fails.
    fn drop(&mut self) {
        self.mailbox.abandon();
        for (_, mut entry) in self.links.drain() {
            log::error!("{}: cut off: the engine's thread has ended", entry.link);
            entry.unwatch(&self.epoll);
            entry.link.with_core(Core::cut_off);
            entry.link.free();
        }
    }
}

/// Rejects a request of which nothing was made.
fn refuse(id: &mut CmId, private_data: &[u8]) {
    if let Err(error) = id.reject(private_data) {
        log::debug!("engine: {error}");
    }
}

/// A number that nobody else has. It is no secret.
fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(Instant::now())
}

/// The READs that the peer's request or acceptance allows.
fn read_depth(event: &CmEvent) -> ReadDepth {
    event.conn().map_or(
        ReadDepth {
            outgoing: 0,
            incoming: 0,
        },
        |param| ReadDepth {
            outgoing: param.initiator_depth,
            incoming: param.responder_resources,
        },
    )
}

/// The state machine's view of an event.
fn cm_input(event: &CmEvent) -> CmInput<'_> {
    let status = event.cm_status();
    match event.event() {
        CmEventType::ADDR_RESOLVED => CmInput::AddrResolved,
        CmEventType::ADDR_ERROR => CmInput::AddrError(status),
        CmEventType::ROUTE_RESOLVED => CmInput::RouteResolved,
        CmEventType::ROUTE_ERROR => CmInput::RouteError(status),
        CmEventType::CONNECT_RESPONSE => CmInput::ConnectResponse,
        CmEventType::CONNECT_ERROR => CmInput::ConnectError(status),
        CmEventType::UNREACHABLE => CmInput::Unreachable(status),
        CmEventType::REJECTED => CmInput::Rejected {
            reason: event.reject_reason(),
            private_data: event.private_data(),
        },
        CmEventType::ESTABLISHED => CmInput::Established {
            private_data: event.private_data(),
            reads: read_depth(event),
        },
        CmEventType::DISCONNECTED => CmInput::Disconnected,
        CmEventType::DEVICE_REMOVAL => CmInput::DeviceRemoval,
        CmEventType::ADDR_CHANGE => CmInput::AddrChange,
        CmEventType::TIMEWAIT_EXIT => CmInput::TimewaitExit,
        other => CmInput::Other(other.raw()),
    }
}
