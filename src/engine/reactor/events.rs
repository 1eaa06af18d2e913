//! Handles the events of the connection manager: connect requests, and events of connections and
//! listeners.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use nix::sys::epoll::EpollFlags;

use super::{
    super::{
        command::{ListenerItem, Reply, Request},
        connection_entry::{IncomingRequest, Role},
        listening::report_refusal,
    },
    BATCH, CM_MEMORY, CM_RDMA, CM_TCP, Reactor, is_of_manager, new_key,
};
use crate::{
    link::Link,
    proto::{Connection, Reject},
    status::OsError,
    tally::{Refusal, count_refusal},
    transport::{ConnectRequest, ConnectionId, Event, Report},
    transport_choice::Transport,
};

/// The pause before the engine polls a failed connection manager again. Without a pause the engine
/// would spin, because the manager's descriptor stays readable.
const PAUSE: Duration = Duration::from_millis(100);

/// The maximum number of consecutive failures of the RDMA connection manager. After one more
/// failure the manager is considered broken, even if the errors could be temporary.
const MAX_FAILURES: u32 = 20;

/// The maximum number of pending events that the engine handles before it destroys the id of a
/// closed listener. It is twice the maximum length of a request queue in the kernel.
const PENDING: usize = 2048;

/// Returns the epoll token of a transport's connection manager. The token is also the key of the
/// timer for the next poll of the manager.
fn token(transport: Transport) -> u64 {
    match transport {
        Transport::Rdma => CM_RDMA,
        Transport::Tcp => CM_TCP,
        Transport::Memory => CM_MEMORY,
    }
}

impl Reactor {
    pub(super) fn watch_managers(&self) -> Result<(), OsError> {
        self.manager
            .fds()
            .try_for_each(|(transport, fd)| self.watch(fd, EpollFlags::EPOLLIN, token(transport)))
    }

    /// Handles the ready sockets of the TCP connection manager, and the resulting events.
    pub(super) fn handle_ready_sockets(&mut self) {
        match self.manager.gather() {
            Ok(()) => self.handle_tcp_reports(),
            Err(error) => self.pause_manager(Transport::Tcp, error),
        }
    }

    /// Handles all reports of the TCP connection manager, before the engine polls connections. If
    /// an `Established` report remained, a poll could report the end of the same connection first.
    /// The number of reports is limited, because `ConnectionManager::gather` adds no reports from
    /// sockets while earlier reports remain.
    pub(super) fn handle_tcp_reports(&mut self) {
        while self.handle_cm_events(Transport::Tcp) {}
    }

    /// Handles up to [`BATCH`] events of a transport's connection manager. Returns whether more
    /// events may be pending.
    pub(super) fn handle_cm_events(&mut self, transport: Transport) -> bool {
        for _ in 0..BATCH {
            match self.manager.poll(transport) {
                Ok(Some(Report::Request(request))) => self.handle_request(request),
                Ok(Some(Report::Event(event))) => self.handle_cm_event(event),
                Ok(None) => {
                    if transport == Transport::Rdma {
                        self.failures = 0;
                    }
                    return false;
                }
                Err(error) => {
                    if self.is_broken(transport, error) {
                        self.fail(error);
                    } else {
                        self.pause_manager(transport, error);
                    }
                    return false;
                }
            }
            self.handle_deadlines();
        }
        true
    }

    /// Handles at most [`PENDING`] events of a transport's connection manager. Peers can cause
    /// events faster than this thread handles them, so there must be a limit.
    pub(super) fn handle_pending_cm_events(&mut self, transport: Transport) {
        for _ in 0..PENDING / BATCH {
            if !self.handle_cm_events(transport) {
                break;
            }
        }
    }

    /// Counts a failure of the RDMA connection manager, except a shortage of memory or descriptors.
    /// Returns true if the manager is considered broken. The engine must then end, because it
    /// cannot serve its listeners.
    fn is_broken(&mut self, transport: Transport, error: OsError) -> bool {
        if transport != Transport::Rdma || error.is_shortage() {
            return false;
        }
        self.failures += 1;
        is_of_manager(error) || self.failures > MAX_FAILURES
    }

    /// Stops watching a transport's connection manager until [`PAUSE`] has passed.
    pub(super) fn pause_manager(&mut self, transport: Transport, error: OsError) {
        let now = Instant::now();
        error_sparsely!(
            Engine,
            "engine: the {transport} connection manager failed: {error}; retrying in {PAUSE:?}"
        );
        for (_, fd) in self.manager.fds().filter(|(other, _)| *other == transport) {
            // The call fails if the descriptor is not registered, which is not an error here.
            let _ = self.epolls.engine.delete(fd);
        }
        self.timers.set(token(transport), Some(now + PAUSE));
    }

    /// Ends the pause of a transport's connection manager.
    pub(super) fn resume_manager(&mut self, transport: Transport) {
        let mut fds = self.manager.fds().filter(|(other, _)| *other == transport);
        let watched =
            fds.try_for_each(|(_, fd)| self.watch(fd, EpollFlags::EPOLLIN, token(transport)));
        drop(fds);
        if let Err(error) = watched {
            self.pause_manager(transport, error);
        }
    }

    pub(super) fn handle_cm_event(&mut self, event: Event) {
        let key = event.key();
        if self.listeners.contains_key(&key) {
            return self.handle_listener_event(key, &event);
        }
        let Some(entry) = self.links.get(&key) else {
            debug!(
                Cm,
                "conn {key}: ignored {event}, because the connection has ended"
            );
            return;
        };
        let now = Instant::now();
        // Messages that the peer sent before the disconnect are already in the completion queue.
        // They must be handled first.
        if event.is_disconnect() && !entry.link.take_last() {
            return self.poll_soon(key, Some(event));
        }
        debug!(Cm, "{}: received {event}", entry.link);
        entry
            .link
            .in_engine(|core| core.conn.handle_cm_event(event.input(), now));
        self.drive(key);
    }

    pub(super) fn handle_request(&mut self, asked: ConnectRequest) {
        if let Some(request) = Connection::resume_request(asked.private_data()) {
            return self.handle_resume(asked, &request);
        }
        let Some(listener) = asked.listener().and_then(|key| self.listeners.get(&key)) else {
            debug!(
                Listener,
                "engine: rejected a connect request for a listener that was closed"
            );
            count_refusal(Refusal::Closed);
            return asked.reject(&Reject::BUSY.emit(&[]));
        };
        let (config, listener_items, engine) = (
            listener.config.clone(),
            listener.listener_items.clone(),
            Arc::clone(&listener.engine),
        );
        let Some(peer) = asked.peer_addr() else {
            warn_sparsely!(
                Listener,
                "engine: dropped a connect request, because the peer's address is unknown"
            );
            return;
        };
        let full = if listener.is_full() {
            Some((Refusal::Backlog, "backlog", config.listening.backlog))
        } else if listener.half_open.count() >= config.listening.half_open.into() {
            Some((Refusal::HalfOpen, "half_open", config.listening.half_open))
        } else {
            None
        };
        if let Some((refusal, field, limit)) = full {
            report_refusal(
                refusal,
                peer,
                &format_args!("the listener has reached its {field} limit of {limit}"),
            );
            return asked.reject(&Reject::BUSY.emit(&[]));
        }
        let role = Role::Passive(Some(listener.half_open.clone()));
        let key = new_key();
        match Connection::requested(
            self.params(key, &config, asked.transport()),
            asked.private_data(),
            asked.reads(),
            Instant::now(),
        ) {
            Ok(conn) => {
                let mut id = ConnectionId::of_request(asked, key);
                id.set_ack_timeout(key, &config);
                let local = id.local_addr();
                let timeout = config.connect_timeout;
                let link = self.adopt(key, conn, peer, config, id, role);
                self.drive(key);
                debug!(Cm, "{link}: received CONNECT_REQUEST");
                let incoming = IncomingRequest {
                    listener_items,
                    engine,
                    local,
                    timeout,
                };
                self.pass_to_listener(key, &link, incoming);
            }
            Err(refusal) => {
                report_refusal(Refusal::Hello, peer, &refusal.reason);
                asked.reject(&refusal.private_data);
            }
        }
    }

    /// Passes a request to its listener. If private data follow in a separate frame, first accepts
    /// the request at the transport, because only then can the peer send the frame.
    fn pass_to_listener(&mut self, key: u64, link: &Arc<Link>, incoming: IncomingRequest) {
        if link.core().conn.has_long_request() {
            if let Some(entry) = self.links.get_mut(&key) {
                entry.incoming = Some(Box::new(incoming));
            }
            return self.reply_to_request(key, &[], Instant::now());
        }
        match incoming.listener_items {
            ListenerItem::Connections(queue) => {
                self.accept(link, &[], Instant::now(), Reply::Backlog(queue));
            }
            ListenerItem::Requests(queue) => {
                let IncomingRequest {
                    engine,
                    local,
                    timeout,
                    ..
                } = incoming;
                queue.bring(Request::new(Arc::clone(link), engine, local, timeout));
            }
        }
    }

    /// Handles the removal of a listener's device or address: ends the listener, or schedules an
    /// attempt to bind it again. Ignores all other events.
    pub(super) fn handle_listener_event(&mut self, key: u64, event: &Event) {
        let Some(listener) = self.listeners.get_mut(&key) else {
            return;
        };
        let Some(reason) = event.listener_lost() else {
            warn_sparsely!(
                Listener,
                "{}: ignored the unexpected event {event}",
                listener.name(key)
            );
            return;
        };
        if listener.outlives_device() {
            let wait = listener.lose();
            let name = listener.name(key);
            warn!(
                Listener,
                "{name}: no longer listens over RDMA: {reason}; retrying the bind in {wait:?}"
            );
            return self.timers.set(key, Some(Instant::now() + wait));
        }
        error!(Listener, "{} has ended: {reason}", listener.name(key));
        if let Some(listener) = self.listeners.remove(&key) {
            // This destroys the listener's id. The kernel completes the removal of the device only
            // afterwards.
            listener.end(reason);
        }
    }

    /// Tries to bind a listener again after its delay has passed.
    pub(super) fn listen_again(&mut self, key: u64) {
        if let Some(listener) = self.listeners.get_mut(&key)
            && let Some(wait) = listener.try_again(&self.manager, key)
        {
            self.timers.set(key, Some(Instant::now() + wait));
        }
    }

    /// Begins to set up a connection that waited for its turn. If the backlog has filled up since
    /// the peer's request arrived, rejects the request instead. If the session of the connection
    /// should try another path first, ends this attempt instead.
    pub(super) fn begin_setup(&mut self, key: u64, now: Instant) {
        let is_full = self.finds_backlog_full(key);
        let Some(entry) = self.links.get(&key) else {
            return;
        };
        if is_full {
            let (peer, limit) = (entry.peer, entry.config.listening.backlog);
            entry.link.in_engine(|core| core.conn.reject_untaken(now));
            report_refusal(
                Refusal::Backlog,
                peer,
                &format_args!("the listener has reached its backlog limit of {limit}"),
            );
        } else if self.skips_turn(key, now) {
            entry.link.in_engine(|core| core.conn.end_wait(now));
        } else {
            entry.link.in_engine(|core| core.conn.begin_setup(now));
        }
        self.drive(key);
    }

    /// Returns true if an incoming request would exceed its listener's backlog limit. The backlog
    /// consists of the connections in the listener's queue, and of the connections that the engine
    /// is establishing for the same listener.
    fn finds_backlog_full(&self, key: u64) -> bool {
        let Some(entry) = self.links.get(&key) else {
            return false;
        };
        let (Role::Passive(Some(half_open)), Some(Reply::Backlog(queue))) =
            (&entry.role, &entry.reply)
        else {
            return false;
        };
        let started = self.accepts.started().filter(|other| *other != key);
        let establishing = started
            .filter_map(|key| self.links.get(&key))
            .filter(|other| other.is_accepted_for(half_open));
        queue.waiting() + establishing.count() >= entry.config.listening.backlog.into()
    }
}
