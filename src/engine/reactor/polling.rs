//! The completion queues that no thread of the application polls.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use super::{HELD, LEASES, PRESSED_LEASES, Reactor};
use crate::{
    engine::entry::Entry,
    link::{Link, Progress, Term, Watcher},
    transport::Event,
};

/// How long after its last poll by a thread of the application a completion queue is watched by the
/// engine again. A program that mixes `recv` with `select!` may see a message twice this much late,
/// where the notice of the lease lay as long; one that polls often enough costs the engine one look
/// in this time instead of one interrupt a message.
const LEASE: Duration = Duration::from_millis(10);

/// The same where messages are held back that nobody else may send when there is room.
const PRESSED_LEASE: Duration = Duration::from_millis(1);

/// How long the engine leaves a connection to a thread of the application that is receiving. That
/// thread polls before it stops to. This bounds how late the engine watches again afterwards.
const HELD_FOR: Duration = Duration::from_millis(1);

impl Reactor {
    /// A watched completion channel raised an event.
    pub(super) fn handle_completion_event(&mut self, key: u64) {
        let Some(entry) = self.links.get(&key) else {
            return;
        };
        entry.link.clear_events();
        entry.link.arm();
        self.poll(key);
    }

    /// Takes some of what has come on a connection; the rest is taken in its next turn.
    pub(super) fn poll(&mut self, key: u64) {
        let Some(entry) = self.links.get(&key) else {
            return;
        };
        let (progress, drive) = entry.link.poll_in_engine();
        match progress {
            Progress::Nothing | Progress::Some => {}
            Progress::More => {
                self.unfinished.insert(key);
            }
            Progress::Held => {
                // Otherwise this thread would wake up for it all the time.
                entry.link.set_watch(Watcher::Threads);
                self.come_back(key, None);
            }
        }
        if drive {
            self.drive(key);
        }
    }

    /// Has the engine look again soon at a connection in which a thread of the application is
    /// receiving. An `event` is handled when that thread has stopped.
    pub(super) fn come_back(&mut self, key: u64, event: Option<Event>) {
        if self.held.is_empty() {
            self.timers.set(HELD, Some(Instant::now() + HELD_FOR));
        }
        let known = self.held.entry(key).or_default();
        if event.is_some() {
            *known = event;
        }
    }

    /// Looks again at the connections that were held.
    pub(super) fn look_after_held(&mut self) {
        for (key, event) in std::mem::take(&mut self.held) {
            if !self.leases.contains_key(&key) {
                self.expire_lease(key);
            }
            if let Some(event) = event {
                self.handle_cm_event(event);
            }
            self.drive(key);
        }
    }

    /// Threads of the application poll, and have ended the watch.
    pub(super) fn grant_lease(&mut self, key: u64) {
        let Some(entry) = self.links.get(&key) else {
            return;
        };
        if entry.link.is_watched() {
            // It did not know yet that the connection's fd was asked for.
            return self.expire_lease(key);
        }
        // One that expired while they asked for it is watched again.
        entry.link.set_watch(Watcher::Threads);
        let seen = entry.link.lease.grant();
        if self.leases.is_empty() {
            self.timers.set(LEASES, Some(Instant::now() + LEASE));
            self.notices.expect();
        }
        self.leases.insert(key, seen);
        if entry.link.lease.is_pressed() {
            self.look_sooner_after(key);
        }
    }

    /// Something is held back on a connection that threads of the application poll.
    pub(super) fn look_sooner_after(&mut self, key: u64) {
        let Some(entry) = self.links.get(&key) else {
            return;
        };
        // Without a lease the connection is watched, or is about to ask for one.
        if self.leases.contains_key(&key) {
            if self.pressed_leases.is_empty() {
                let soon = Instant::now() + PRESSED_LEASE;
                self.timers.set(PRESSED_LEASES, Some(soon));
            }
            let seen = entry.link.lease.grant();
            self.pressed_leases.insert(key, seen);
        }
    }

    /// No thread of the application polls any more: watches again.
    pub(super) fn expire_lease(&mut self, key: u64) {
        self.leases.remove(&key);
        self.pressed_leases.remove(&key);
        let Some(entry) = self.links.get(&key) else {
            return;
        };
        entry.link.lease.relax();
        entry.link.lease.expire();
        entry.link.set_watch(Watcher::Engine);
        entry.link.arm();
        self.poll(key);
    }

    /// Looks which of the leases were renewed.
    pub(super) fn look_after_leases(&mut self) {
        let mut expired = Vec::new();
        let links = &self.links;
        self.leases
            .retain(|key, seen| renewed(links, *key, seen, &mut expired).is_some());
        for key in expired {
            self.expire_lease(key);
        }
        if !self.leases.is_empty() || self.notices.stays_expected() {
            self.timers.set(LEASES, Some(Instant::now() + LEASE));
        }
    }

    /// The same for those of connections that hold something back.
    pub(super) fn look_after_pressed_leases(&mut self) {
        let mut expired = Vec::new();
        let (links, leases) = (&self.links, &mut self.leases);
        self.pressed_leases.retain(|key, seen| {
            let Some(link) = renewed(links, *key, seen, &mut expired) else {
                leases.remove(key);
                return false;
            };
            // In this order: what is held back after the look finds the lease relaxed.
            link.lease.relax();
            let holds = link.holds_back();
            if holds {
                let _ = link.lease.press();
            }
            holds
        });
        for key in expired {
            self.expire_lease(key);
        }
        if !self.pressed_leases.is_empty() {
            let soon = Instant::now() + PRESSED_LEASE;
            self.timers.set(PRESSED_LEASES, Some(soon));
        }
    }
}

/// The connection, where its lease was renewed since it was `seen` last; otherwise it may have
/// `expired`.
fn renewed<'a>(
    links: &'a HashMap<u64, Box<Entry>>,
    key: u64,
    seen: &mut u64,
    expired: &mut Vec<u64>,
) -> Option<&'a Link> {
    let link = &links.get(&key)?.link;
    match link.lease.look(*seen) {
        Term::Renewed(renewals) => {
            *seen = renewals;
            Some(link)
        }
        Term::Left => None,
        Term::Expired => {
            expired.push(key);
            None
        }
    }
}
