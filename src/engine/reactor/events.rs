//! What the connection manager reports.

use std::time::Instant;

use super::{BATCH, Reactor};
use crate::transport::{Event, Report};

impl Reactor {
    pub(super) fn handle_cm_events(&mut self) {
        // What is left makes the next round begin at once.
        for _ in 0..BATCH {
            match self.manager.poll() {
                Ok(Some(Report::Request(request))) => self.handle_request(request),
                Ok(Some(Report::Event(event))) => self.handle_cm_event(event),
                Ok(None) => return,
                Err(error) => {
                    error!("engine: {error}");
                    return;
                }
            }
            self.keep_time();
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
        debug!(target: "rdmsg::cm", "{}: {event}", entry.link);
        let now = Instant::now();
        // The peer's last messages are in the queue already, and are handled first.
        if event.is_disconnect() && !entry.link.take_last() {
            return self.come_back(key, Some(event));
        }
        entry
            .link
            .in_engine(|core| core.conn.handle_cm_event(event.input(), now));
        self.drive(key);
    }
}
