//! What the handles ask of the engine, and what connections do.

use std::{net::SocketAddr, sync::Arc, time::Instant};

use crossbeam_channel::Sender;

use super::{
    super::{
        command::{Command, Reply},
        entry::Role,
    },
    BATCH, Reactor, random,
};
use crate::{
    config::Config,
    error::Error,
    link::Link,
    poll::{Notice, NoticeKind},
    proto::{CloseReason, Connection},
    transport::ConnectionId,
    transport_choice::Transport,
};

impl Reactor {
    pub(super) fn take_commands(&mut self) {
        for _ in 0..BATCH {
            let Some(command) = self.commands.take() else {
                return;
            };
            self.handle_command(command);
            self.keep_time();
        }
        self.more = true;
    }

    pub(super) fn take_notices(&mut self) {
        for _ in 0..BATCH {
            let Some(notice) = self.notices.take() else {
                return;
            };
            self.handle_notice(notice);
            self.keep_time();
        }
        self.more = true;
    }

    fn handle_notice(&mut self, Notice { key, kind }: Notice) {
        match kind {
            NoticeKind::Drive => self.drive(key),
            NoticeKind::Feed => {
                if let Some(entry) = self.links.get(&key) {
                    entry.link.in_engine(|core| core.conn.retry_memory());
                    self.drive(key);
                }
            }
            NoticeKind::Acquired | NoticeKind::Pressed => self.attend(key),
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
                intake,
                engine,
                reply,
            } => {
                let result = if self.refusing {
                    Err(Error::EngineShutDown)
                } else {
                    self.listen(address, config, intake, engine)
                };
                let _ = reply.send(result);
            }
            Command::Unlisten { key, reply } => {
                self.unlisten(key);
                let _ = reply.send(());
            }
            Command::Connect {
                address,
                transport,
                config,
                data,
                deadline,
                reply,
            } => {
                if self.refusing {
                    reply.send(Err(Error::EngineShutDown));
                } else {
                    self.connect((transport, address), config, &data, deadline, reply);
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
            Command::GiveUp { key } => self.give_up(key),
            Command::Drain { reply } => self.drain(reply),
            Command::Retire => self.ending = true,
            Command::ShutDown => self.shut_down(),
            Command::Exit => {
                self.exiting = true;
                self.shut_down();
            }
        }
    }

    fn connect(
        &mut self,
        (transport, address): (Transport, SocketAddr),
        config: Config,
        data: &[u8],
        deadline: Instant,
        reply: Reply,
    ) {
        let key = self.new_key();
        if !reply.begin(key) {
            return;
        }
        let id = match ConnectionId::new(transport, &self.manager, key) {
            Ok(id) => id,
            Err(error) => return reply.send(Err(Error::from_os(error))),
        };
        let now = Instant::now();
        let mut params = self.params(&config, transport);
        // What is left of it.
        params.connect_timeout = deadline.saturating_duration_since(now);
        let conn = Connection::connect(params, random(), data, now);
        self.adopt(key, conn, address, config, id, Role::Active);
        if let Some(entry) = self.links.get_mut(&key) {
            entry.reply = Some(reply);
        }
        self.drive(key);
    }

    /// Nobody waits for the connection any more, unless it was handed out meanwhile.
    fn give_up(&mut self, key: u64) {
        let Some(entry) = self.links.get_mut(&key) else {
            return;
        };
        if entry.reply.take().is_some() {
            entry.link.in_engine(|core| core.conn.close(Instant::now()));
            self.drive(key);
        }
    }

    pub(super) fn accept(&mut self, link: &Arc<Link>, data: &[u8], at: Instant, reply: Reply) {
        let key = link.key;
        let Some(entry) = self.links.get_mut(&key) else {
            // Too late: it ended before anybody accepted it.
            let reason = link
                .ended()
                .map_or(CloseReason::PeerDisconnected, |ended| ended.reason);
            let (peer, transport) = (link.peer_addr(), link.transport());
            return reply.send(Err(Error::from_connect(peer, transport, reason)));
        };
        entry.reply = Some(reply);
        entry.link.in_engine(|core| core.conn.accept(data, at));
        self.drive(key);
    }

    pub(super) fn reject(&mut self, key: u64, data: &[u8]) {
        if let Some(entry) = self.links.get(&key) {
            entry
                .link
                .in_engine(|core| core.conn.reject(data, Instant::now()));
            self.drive(key);
        }
    }

    fn turn_away(&mut self, key: u64) {
        if let Some(entry) = self.links.get(&key) {
            entry
                .link
                .in_engine(|core| core.conn.turn_away(Instant::now()));
            self.drive(key);
        }
    }

    /// The listener's program wants no more: what is not established is turned away.
    fn unlisten(&mut self, key: u64) {
        self.timers.set(key, None);
        let Some(listener) = self.listeners.remove(&key) else {
            return;
        };
        listener.intake.finish(Error::ListenerClosed);
        let accepting: Vec<u64> = self
            .links
            .iter()
            .filter(|(_, entry)| entry.is_accepted_for(&listener.half_open))
            .map(|(key, _)| *key)
            .collect();
        drop(listener);
        for key in accepting {
            self.turn_away(key);
        }
    }

    fn drain(&mut self, reply: Sender<()>) {
        let listeners: Vec<u64> = self.listeners.keys().copied().collect();
        for key in listeners {
            self.unlisten(key);
        }
        self.drains.push(reply);
        self.report_drained();
    }

    /// Tells those who wait for it if there are no connections.
    pub(super) fn report_drained(&mut self) {
        if self.links.is_empty() {
            for reply in self.drains.drain(..) {
                // It fails when the caller waits no longer.
                let _ = reply.send(());
            }
        }
    }

    pub(super) fn shut_down(&mut self) {
        self.ending = true;
        self.refusing = true;
        self.listeners.clear();
        let keys: Vec<u64> = self.links.keys().copied().collect();
        for key in keys {
            if let Some(entry) = self.links.get(&key) {
                entry.link.in_engine(|core| core.conn.close(Instant::now()));
            }
            // Whoever polled may be waiting for this.
            self.take_over(key);
            self.drive(key);
        }
    }
}
