//! What the connection manager reports.

use std::time::{Duration, Instant};

use super::{BATCH, CM_RDMA, CM_TCP, Reactor, is_of_manager};
use crate::{
    status::OsError,
    transport::{Event, Report},
    transport_choice::Transport,
};

/// How long a connection manager that fails is left alone. Its descriptor stays readable, so that
/// the engine would look again at once.
const PAUSE: Duration = Duration::from_millis(100);

/// How often a connection manager may fail in a row, by a cause that may pass.
const MOST_FAILURES: u32 = 20;

/// The epoll token of a transport's connection manager, and the timer key of its next look.
fn token(transport: Transport) -> u64 {
    match transport {
        Transport::Rdma => CM_RDMA,
        Transport::Tcp => CM_TCP,
    }
}

impl Reactor {
    pub(super) fn watch_managers(&self) -> Result<(), OsError> {
        self.manager
            .fds()
            .try_for_each(|(transport, fd)| self.watch(fd, token(transport)))
    }

    pub(super) fn handle_cm_events(&mut self, transport: Transport) {
        // What is left makes the next round begin at once.
        for _ in 0..BATCH {
            match self.manager.poll(transport) {
                Ok(Some(Report::Request(request))) => self.handle_request(request),
                Ok(Some(Report::Event(event))) => self.handle_cm_event(event),
                Ok(None) => {
                    self.failures = 0;
                    return;
                }
                Err(error) if self.fails_for_good(transport, error) => return self.fail(error),
                Err(error) => return self.leave_alone(transport, error),
            }
            self.keep_time();
        }
    }

    /// Returns whether a connection manager that failed will fail again and again. The engine ends
    /// then, because it cannot serve its listeners.
    fn fails_for_good(&mut self, transport: Transport, error: OsError) -> bool {
        if transport != Transport::Rdma || error.is_shortage() {
            return false;
        }
        self.failures += 1;
        is_of_manager(error) || self.failures > MOST_FAILURES
    }

    /// Takes a transport's connection manager out of the epoll until [`PAUSE`] has passed.
    pub(super) fn leave_alone(&mut self, transport: Transport, error: OsError) {
        let now = Instant::now();
        error_sparsely!("engine: {error}");
        for (_, fd) in self.manager.fds().filter(|(other, _)| *other == transport) {
            // It fails if the descriptor is not in there.
            let _ = self.epolls.engine.delete(fd);
        }
        self.timers.set(token(transport), Some(now + PAUSE));
    }

    /// Ends the pause.
    pub(super) fn look_again(&mut self, transport: Transport) {
        let mut fds = self.manager.fds().filter(|(other, _)| *other == transport);
        let watched = fds.try_for_each(|(_, fd)| self.watch(fd, token(transport)));
        drop(fds);
        if let Err(error) = watched {
            self.leave_alone(transport, error);
        }
    }

    pub(super) fn handle_cm_event(&mut self, event: Event) {
        let key = event.key();
        if self.listeners.contains_key(&key) {
            return self.handle_listener_event(key, &event);
        }
        let Some(entry) = self.links.get(&key) else {
            debug!("engine: {event} for a connection {key} that has ended");
            return;
        };
        let now = Instant::now();
        // The peer's last messages are in the queue already, and are handled first.
        if event.is_disconnect() && !entry.link.take_last() {
            return self.come_back(key, Some(event));
        }
        debug!(target: "rdmsg::cm", "{}: {event}", entry.link);
        entry
            .link
            .in_engine(|core| core.conn.handle_cm_event(event.input(), now));
        self.drive(key);
    }
}
