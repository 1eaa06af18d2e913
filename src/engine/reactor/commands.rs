//! Executes commands, which the engine's handles send, and handles notices, which connections send.
//! The commands concern listeners, connections and the end of the engine.

use std::{
    net::SocketAddr,
    sync::{Arc, Weak},
    time::Instant,
};

use crossbeam_channel::Sender;
use log::Level;

use super::{
    super::{
        command::{Bound, Command, Handle, ListenerItem, Reply},
        connection_entry::OwnRequest,
        listening::{ListenerName, Listening},
        local_listeners::claim,
    },
    BATCH, Reactor, is_of_manager, new_key,
};
use crate::{
    config::Config,
    error::Error,
    link::Link,
    machine::has_rdma_device,
    poll::{Notice, NoticeKind},
    proto::{CloseReason, Params, REPLY_DATA_MAX, SESSION_ID_LEN},
    tally::{Refusal, count_refusal},
    transport::ListenId,
    transport_choice::{Transport, TransportChoice},
};

/// The number of attempts to find a port that is free over both TCP and RDMA. In each attempt the
/// kernel chooses a free TCP port.
const FREE_PORT_TRIES: u32 = 64;

/// The ids of a listener over RDMA and over TCP.
type ListenIds = (Option<ListenId>, Option<ListenId>);

/// The level and the text of the log line about a listener with `TransportChoice::Auto` that lacks
/// one transport. The text names the only transport and the reason why the other one is missing.
/// `None` for any other listener.
type OnlyTransport = Option<(Level, String)>;

impl Reactor {
    pub(super) fn take_commands(&mut self) {
        for _ in 0..BATCH {
            let Some(command) = self.commands.take() else {
                return;
            };
            self.handle_command(command);
            self.handle_deadlines();
        }
        self.more = true;
    }

    pub(super) fn take_notices(&mut self) {
        for _ in 0..BATCH {
            let Some(notice) = self.notices.take() else {
                return;
            };
            self.handle_notice(notice);
            self.handle_deadlines();
        }
        self.more = true;
    }

    fn handle_notice(&mut self, Notice { key, kind }: Notice) {
        match kind {
            NoticeKind::Drive => self.drive(key),
            NoticeKind::RetryMemory => {
                if let Some(entry) = self.links.get(&key) {
                    entry.link.in_engine(|core| core.conn.retry_memory());
                    self.drive(key);
                }
            }
            NoticeKind::Acquired | NoticeKind::HeldBack => self.attend(key),
            NoticeKind::Poll => {
                self.poll(key);
                self.handle_cm_events(Transport::Memory);
            }
            NoticeKind::TakeOver => {
                self.take_over(key);
                self.drive(key);
            }
        }
    }

    fn handle_command(&mut self, command: Command) {
        match command {
            Command::Listen {
                address,
                config,
                listener_items,
                engine,
                reply,
            } => {
                let result = if self.refusing {
                    Err(Error::EngineShutDown)
                } else {
                    self.listen(address, config, listener_items, engine)
                };
                let _ = reply.send(result);
            }
            Command::Unlisten { key, reply } => {
                self.unlisten(key);
                let _ = reply.send(());
            }
            Command::Connect {
                path,
                others,
                config,
                data,
                deadline,
                reply,
            } => {
                if self.refusing {
                    reply.send(Err(Error::EngineShutDown));
                } else {
                    let request = OwnRequest {
                        others,
                        data,
                        deadline,
                        refused: 0,
                    };
                    self.connect(path, config.into(), request.into(), None, reply);
                }
            }
            Command::Accept {
                link,
                data,
                at,
                reply,
            } => self.accept(&link, &data, at, reply),
            Command::Reject { key, data } => self.reject(key, &data),
            Command::Statistics { reply } => {
                let mut statistics = self.past;
                (statistics.pinned, statistics.held) = self.budget.in_use();
                for entry in self.links.values() {
                    statistics.connections += 1;
                    statistics.all += entry.link.statistics();
                }
                let _ = reply.send(statistics);
            }
            Command::Device(event) => {
                self.handle_device_event(&event);
            }
            Command::GiveUp { key } => self.give_up(key),
            Command::AskToLeave { reply } => {
                let asked = self.ask_to_leave();
                // The send fails if the caller no longer waits.
                let _ = reply.send(asked);
            }
            Command::Drain { reply, caller } => self.drain(reply, caller),
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
        listener_items: ListenerItem,
        engine: Arc<Handle>,
    ) -> Result<Bound, Error> {
        let key = new_key();
        if config.transport.resolved() == TransportChoice::Memory {
            return self.listen_in_memory(key, address, config, listener_items, engine);
        }
        let (ids, local, only) = match config.transport.resolved() {
            TransportChoice::Rdma => {
                let (id, local) = self.listen_on_rdma(key, address, &config)?;
                ((Some(id), None), local, None)
            }
            TransportChoice::Tcp => {
                let (id, local) = self.listen_on_tcp(key, address, &config)?;
                ((None, Some(id)), local, None)
            }
            TransportChoice::Auto | TransportChoice::Environment | TransportChoice::Memory => {
                self.listen_on_both(key, address, &config)?
            }
        };
        let transports: &'static [Transport] = match ids {
            (Some(_), Some(_)) => &[Transport::Rdma, Transport::Tcp],
            (Some(_), None) => &[Transport::Rdma],
            (None, _) => &[Transport::Tcp],
        };
        let listening = Listening::new(ids, local, config, listener_items, engine);
        Ok(self.begin_listening(key, listening, transports, only))
    }

    fn begin_listening(
        &mut self,
        key: u64,
        listening: Listening,
        transports: &'static [Transport],
        only: OnlyTransport,
    ) -> Bound {
        let name = listening.name(key);
        match only {
            Some((Level::Warn, only)) => warn!(Listener, "{name}: listens over {only}"),
            Some((_, only)) => info!(Listener, "{name}: listens over {only}"),
            None => info!(Listener, "{name}: listens over {}", names_of(transports)),
        }
        let local = listening.local;
        self.listeners.insert(key, listening);
        Bound {
            key,
            local,
            transports,
        }
    }

    fn listen_in_memory(
        &mut self,
        key: u64,
        address: SocketAddr,
        config: Config,
        listener_items: ListenerItem,
        engine: Arc<Handle>,
    ) -> Result<Bound, Error> {
        let fail = |error| Error::from_bind_locally(address, error);
        let claim = claim(address, &engine).map_err(fail)?;
        let local = claim.0;
        let kind = Transport::Memory;
        let id = ListenId::bind(kind, &self.manager, key, local, &config)
            .map_err(|no| no.into_error(fail))?;
        let mut listening = Listening::new((None, Some(id)), local, config, listener_items, engine);
        listening.claim = Some(claim);
        Ok(self.begin_listening(key, listening, &[Transport::Memory], None))
    }

    /// Listens on both transports with the same port, or on the only available transport. If
    /// another program uses the port on one transport, the port counts as in use on both
    /// transports, because peers with `TransportChoice::Auto` might connect to that program.
    fn listen_on_both(
        &mut self,
        key: u64,
        address: SocketAddr,
        config: &Config,
    ) -> Result<(ListenIds, SocketAddr, OnlyTransport), Error> {
        let mut tries = if address.port() == 0 {
            FREE_PORT_TRIES
        } else {
            1
        };
        loop {
            let (tcp, local) = self.listen_on_tcp(key, address, config)?;
            match self.listen_on_rdma(key, local, config) {
                Ok((rdma, local)) => return Ok(((Some(rdma), Some(tcp)), local, None)),
                Err(error) if error.is_address_in_use() => {}
                Err(error) if self.failed.is_some() => return Err(error),
                Err(error) => {
                    return Ok(((None, Some(tcp)), local, Some(without_rdma(&error))));
                }
            }
            // iWARP uses TCP ports, so the TCP listener of this iteration may itself occupy the
            // port.
            drop(tcp);
            tries -= 1;
            match self.listen_on_rdma(key, local, config) {
                Ok((rdma, local)) => {
                    let only = "RDMA only, because iWARP itself uses the TCP port".to_owned();
                    return Ok(((Some(rdma), None), local, Some((Level::Warn, only))));
                }
                Err(error) if tries == 0 || !error.is_address_in_use() => return Err(error),
                Err(_) => {
                    let name = ListenerName(key, &config.label, local);
                    debug!(
                        Listener,
                        "{name}: its port is in use over RDMA; trying another port"
                    );
                }
            }
        }
    }

    fn listen_on_rdma(
        &mut self,
        key: u64,
        address: SocketAddr,
        config: &Config,
    ) -> Result<(ListenId, SocketAddr), Error> {
        let kind = Transport::Rdma;
        let bound = ListenId::bind(kind, &self.manager, key, address, config);
        let id = bound.map_err(|no| {
            if is_of_manager(no.error) {
                self.failed.get_or_insert(no.error);
            }
            no.into_error(|error| Error::from_bind(address, error))
        })?;
        if !id.has_device() {
            Error::from_bound_to_none(address)?;
        }
        let local = id.local_addr().unwrap_or(address);
        Ok((id, local))
    }

    fn listen_on_tcp(
        &self,
        key: u64,
        address: SocketAddr,
        config: &Config,
    ) -> Result<(ListenId, SocketAddr), Error> {
        let kind = Transport::Tcp;
        let id = ListenId::bind(kind, &self.manager, key, address, config)
            .map_err(|no| no.into_error(|error| Error::from_bind_locally(address, error)))?;
        let local = id.local_addr().unwrap_or(address);
        Ok((id, local))
    }

    pub(super) fn accept(&mut self, link: &Arc<Link>, data: &[u8], at: Instant, reply: Reply) {
        let key = link.key;
        if !reply.begin(key) {
            return self.reject(key, &[]);
        }
        let Some(entry) = self.links.get_mut(&key) else {
            // The request ended before the program accepted it.
            let reason = link
                .ended()
                .map_or(CloseReason::PeerDisconnected, |ended| ended.reason);
            let (peer, transport) = (link.peer_addr(), link.transport());
            return reply.send(Err(Error::from_connect(peer, transport, reason)));
        };
        entry.reply = Some(reply);
        if entry.link.core().conn.has_long_request() {
            entry.link.in_engine(|core| core.conn.accept(data, at));
            return self.drive(key);
        }
        self.reply_to_request(key, data, at);
    }

    /// Replies to a peer's request. Offers a session if both sides use sessions and the session ID
    /// fits into the reply.
    pub(super) fn reply_to_request(&mut self, key: u64, data: &[u8], at: Instant) {
        let fits = SESSION_ID_LEN + data.len() <= REPLY_DATA_MAX;
        let session = if fits { self.begin_session(key) } else { None };
        let Some(entry) = self.links.get(&key) else {
            return;
        };
        entry.link.in_engine(|core| match session {
            Some(id) => core.conn.accept(&[&id.0, data].concat(), at),
            None => {
                core.recovery().decline_session();
                core.conn.accept(data, at);
            }
        });
        self.drive(key);
    }

    pub(super) fn reject(&mut self, key: u64, data: &[u8]) {
        let Some(entry) = self.links.get(&key) else {
            return;
        };
        let now = Instant::now();
        if entry.link.in_engine(|core| core.conn.reject(data, now)) {
            count_refusal(Refusal::Program);
            self.drive(key);
        }
    }

    pub(super) fn params(&self, key: u64, config: &Config, transport: Transport) -> Params {
        let config = config.params(transport);
        Params {
            engine: self.identity,
            number: key,
            longest_chunk: config
                .longest_chunk
                .min(self.budget.limits().longest_chunk()),
            ..config
        }
    }

    /// Closes a listener. Rejects the listener's requests to which no reply was sent yet, except
    /// requests that the program has removed from the queue. After a reply, the peer may already
    /// consider the connection established. The listener's queue therefore still receives the
    /// connections for which a reply was sent, and ends when all of them are established or have
    /// failed.
    fn unlisten(&mut self, key: u64) {
        self.timers.set(key, None);
        let Some(mut listener) = self.listeners.remove(&key) else {
            return;
        };
        if listener.config.listening.is_of_pair {
            self.closed_bindings.push(listener.take_binding());
        }
        // When the listener's id is destroyed, the kernel rejects the requests in the id's queue
        // without giving a reason. The engine therefore reads these requests first, and rejects
        // them as busy because this listener is no longer in the table.
        self.handle_pending_cm_events(Transport::Rdma);
        let accepting: Vec<u64> = self
            .links
            .iter()
            .filter(|(_, entry)| entry.is_accepted_for(&listener.half_open))
            .map(|(key, _)| *key)
            .collect();
        let incoming: Vec<u64> = self
            .links
            .iter()
            .filter(|(_, entry)| entry.is_incoming_for(&listener.half_open))
            .map(|(key, _)| *key)
            .collect();
        drop(listener);
        for key in incoming {
            self.reject_incoming(key);
        }
        for key in accepting {
            self.reject_unanswered(key);
        }
    }

    /// Rejects a request whose private data have not arrived completely.
    fn reject_incoming(&mut self, key: u64) {
        let Some(entry) = self.links.get_mut(&key) else {
            return;
        };
        entry.incoming = None;
        entry.link.reject_untaken();
        count_refusal(Refusal::Closed);
        self.drive(key);
    }

    fn reject_unanswered(&mut self, key: u64) {
        let Some(entry) = self.links.get(&key) else {
            return;
        };
        let now = Instant::now();
        if entry
            .link
            .in_engine(|core| core.conn.reject_unanswered(now))
        {
            count_refusal(Refusal::Closed);
            self.drive(key);
        }
    }

    /// Asks the peers of all accepted connections to leave. Returns the number of connections on
    /// which the notice was queued.
    fn ask_to_leave(&mut self) -> u64 {
        self.leaving = true;
        let keys: Vec<u64> = self.links.keys().copied().collect();
        let mut asked = 0;
        for key in keys {
            if self.links.get(&key).is_some_and(|it| it.ask_to_leave()) {
                asked += 1;
                self.drive(key);
            }
        }
        asked
    }

    fn drain(&mut self, reply: Sender<()>, caller: Weak<()>) {
        let listeners: Vec<u64> = self.listeners.keys().copied().collect();
        for key in listeners {
            self.unlisten(key);
        }
        self.drains.push((reply, caller));
        self.end_unresumable();
        self.report_drained();
    }

    /// Replies to pending `Drain` commands if no connection is left.
    pub(super) fn report_drained(&mut self) {
        if self.links.is_empty() {
            for (reply, _) in self.drains.drain(..) {
                // The send fails if the caller no longer waits.
                let _ = reply.send(());
            }
        }
    }

    pub(super) fn shut_down(&mut self) {
        self.ending = true;
        self.refusing = true;
        for (_, listener) in self.listeners.drain() {
            listener.shut_down();
        }
        self.end_unresumable();
        let keys: Vec<u64> = self.links.keys().copied().collect();
        for key in keys {
            if let Some(entry) = self.links.get(&key) {
                entry.link.close();
            }
            // The engine must poll, because the application thread that polled the connection may
            // have returned from its call.
            self.take_over(key);
            self.drive(key);
        }
    }
}

/// Returns the names of transports, joined by "and", for the log.
fn names_of(transports: &[Transport]) -> String {
    let names: Vec<String> = transports.iter().map(Transport::to_string).collect();
    names.join(" and ")
}

/// Returns the log level and the text for a listener that lacks RDMA because of this error. The
/// level is a warning only if the host has an RDMA device.
fn without_rdma(error: &Error) -> (Level, String) {
    if has_rdma_device() {
        let text = format!("TCP only, because RDMA failed: {error}");
        (Level::Warn, text)
    } else {
        let text = format!("TCP only, because this host has no RDMA device: {error}");
        (Level::Info, text)
    }
}
