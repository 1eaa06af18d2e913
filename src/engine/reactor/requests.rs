//! Listeners, and what they are asked for.

use std::{net::SocketAddr, sync::Arc, time::Instant};

use super::{
    super::{
        command::{Bound, Handle, Intake, Reply, Request},
        entry::Role,
        listening::Listening,
    },
    Reactor, is_of_manager,
};
use crate::{
    config::Config,
    error::Error,
    proto::{Connection, Reject},
    transport::{ConnectRequest, ConnectionId, Event, ListenId},
    transport_choice::{Transport, TransportChoice},
};

/// How many ports are tried that the kernel chooses for TCP until one of them is free over RDMA as
/// well.
const FREE_PORT_TRIES: u32 = 64;

/// Over RDMA, and over TCP.
type ListenIds = (Option<ListenId>, Option<ListenId>);

impl Reactor {
    pub(super) fn listen(
        &mut self,
        address: SocketAddr,
        config: Config,
        intake: Intake,
        engine: Arc<Handle>,
    ) -> Result<Bound, Error> {
        let key = self.new_key();
        let (ids, local) = match config.transport {
            TransportChoice::Rdma => {
                let (id, local) = self.listen_on_rdma(key, address, &config)?;
                ((Some(id), None), local)
            }
            TransportChoice::Tcp => {
                let (id, local) = self.listen_on_tcp(key, address, &config)?;
                ((None, Some(id)), local)
            }
            TransportChoice::Auto => self.listen_on_both(key, address, &config)?,
        };
        let transports: &[Transport] = match ids {
            (Some(_), Some(_)) => &[Transport::Rdma, Transport::Tcp],
            (Some(_), None) => &[Transport::Rdma],
            (None, _) => &[Transport::Tcp],
        };
        info!("listener {key} on {local}, over {transports:?}");
        let listening = Listening::new(ids, local, config, intake, engine);
        self.listeners.insert(key, listening);
        Ok(Bound {
            key,
            local,
            transports,
        })
    }

    /// Listens on both transports with one port, or on that of them that can be. A port that is in
    /// use on either is in use: peers with `TransportChoice::Auto` would connect to the other
    /// program.
    fn listen_on_both(
        &mut self,
        key: u64,
        address: SocketAddr,
        config: &Config,
    ) -> Result<(ListenIds, SocketAddr), Error> {
        let mut tries = if address.port() == 0 {
            FREE_PORT_TRIES
        } else {
            1
        };
        loop {
            let (tcp, local) = self.listen_on_tcp(key, address, config)?;
            match self.listen_on_rdma(key, local, config) {
                Ok((rdma, local)) => return Ok(((Some(rdma), Some(tcp)), local)),
                Err(error) if error.is_address_in_use() => {}
                Err(error) if self.failed.is_some() => return Err(error),
                Err(error) => {
                    warn!("listener {key} on {local}: over TCP only: {error}");
                    return Ok(((None, Some(tcp)), local));
                }
            }
            // A port of iWARP is one of TCP, so this listener itself may have it.
            drop(tcp);
            tries -= 1;
            match self.listen_on_rdma(key, local, config) {
                Ok((rdma, local)) => {
                    warn!(
                        "listener {key} on {local}: over RDMA only: a port of iWARP is one of \
                         TCP, and taken by it"
                    );
                    return Ok(((Some(rdma), None), local));
                }
                Err(error) if tries == 0 || !error.is_address_in_use() => return Err(error),
                Err(_) => debug!("listener {key}: port {} is in use over RDMA", local.port()),
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
        let bound = ListenId::bind(kind, &self.manager, key, address, config.listening.backlog);
        let id = bound.map_err(|error| {
            if is_of_manager(error) {
                self.failed.get_or_insert(error);
            }
            Error::from_bind(address, error)
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
        let id = ListenId::bind(kind, &self.manager, key, address, config.listening.backlog)
            .map_err(|error| Error::from_bind_tcp(address, error))?;
        let local = id.local_addr().unwrap_or(address);
        Ok((id, local))
    }

    /// What befalls a listener's device befalls the listener.
    pub(super) fn handle_listener_event(&mut self, key: u64, event: &Event) {
        let Some(reason) = event.listener_lost() else {
            warn_sparsely!("listener {key}: {event}: ignored");
            return;
        };
        let Some(listener) = self.listeners.get_mut(&key) else {
            return;
        };
        let address = listener.local;
        if listener.outlives_device() {
            warn!("listener {key} on {address}: {reason}; it is bound again when it can be");
            let at = Instant::now() + listener.lose();
            return self.timers.set(key, Some(at));
        }
        error!("listener {key} on {address} has ended: {reason}");
        listener
            .intake
            .finish(Error::ListenerEnded { address, reason });
        // With its id, which the device waits for.
        self.listeners.remove(&key);
    }

    /// It may be time to bind a listener again.
    pub(super) fn listen_again(&mut self, key: u64) {
        if let Some(listener) = self.listeners.get_mut(&key)
            && let Some(wait) = listener.try_again(&self.manager, key)
        {
            self.timers.set(key, Some(Instant::now() + wait));
        }
    }

    pub(super) fn handle_request(&mut self, asked: ConnectRequest) {
        let Some(listener) = asked.listener().and_then(|key| self.listeners.get(&key)) else {
            debug!("engine: connect request for a listener that has been dropped");
            return;
        };
        let (config, intake, engine) = (
            listener.config.clone(),
            listener.intake.clone(),
            Arc::clone(&listener.engine),
        );
        let Some(peer) = asked.peer_addr() else {
            warn_sparsely!("engine: connect request without an address");
            return;
        };
        let full = if listener.is_full() {
            Some(("backlog", config.listening.backlog))
        } else if listener.half_open.count() >= config.listening.half_open.into() {
            Some(("half_open", config.listening.half_open))
        } else {
            None
        };
        if let Some((field, limit)) = full {
            report_refusal(
                peer,
                &format_args!("{field} is {limit}, and that many wait"),
            );
            return asked.reject(&Reject::BUSY.emit(&[]));
        }
        let role = Role::Passive(Some(listener.half_open.clone()));
        let key = self.new_key();
        match Connection::requested(
            self.params(&config, asked.transport()),
            asked.private_data(),
            asked.reads(),
            Instant::now(),
        ) {
            Ok(conn) => {
                let mut id = ConnectionId::of_request(asked, key);
                id.set_ack_timeout(&config);
                let local = id.local_addr();
                let timeout = config.connect_timeout;
                let link = self.adopt(key, conn, peer, config, id, role);
                self.drive(key);
                debug!(target: "rdmsg::cm", "{link}: CONNECT_REQUEST");
                match intake {
                    Intake::Connections(queue) => {
                        self.accept(&link, &[], Instant::now(), Reply::Backlog(queue));
                    }
                    Intake::Requests(queue) => {
                        queue.bring(Request::new(link, engine, local, timeout));
                    }
                }
            }
            Err(refusal) => {
                report_refusal(peer, &refusal.reason);
                asked.reject(&refusal.private_data);
            }
        }
    }

    /// Lets a connection establish itself, or turns it away if the backlog has filled up since its
    /// request.
    pub(super) fn take_turn(&mut self, key: u64, now: Instant) {
        let is_full = self.finds_backlog_full(key);
        let Some(entry) = self.links.get(&key) else {
            return;
        };
        if is_full {
            let (peer, limit) = (entry.peer, entry.config.listening.backlog);
            entry.link.in_engine(|core| core.conn.turn_away(now));
            report_refusal(
                peer,
                &format_args!("backlog is {limit}, and that many wait"),
            );
        } else {
            entry.link.in_engine(|core| core.conn.take_turn(now));
        }
        self.drive(key);
    }

    /// Whether the backlog is full for this request: it counts the connections in the backlog, and
    /// those that the engine is establishing for the same listener.
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

fn report_refusal(peer: SocketAddr, reason: &dyn std::fmt::Display) {
    warn_sparsely!("engine: rejected a connect request of {peer}: {reason}");
}
