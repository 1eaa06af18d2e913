//! The completion queues that no thread of the application polls.

use std::time::{Duration, Instant};

use super::{LEASES, Reactor};
use crate::link::{Progress, Term};

/// How long after its last poll by a thread of the application a completion queue is watched by the
/// engine again. A program that mixes `recv` with `select!` may see a message this much late; one
/// that polls often enough costs the engine one look in this time instead of one interrupt a
/// message.
const LEASE: Duration = Duration::from_millis(10);

impl Reactor {
    /// A watched completion channel raised an event.
    pub(super) fn handle_completion_event(&mut self, key: u64) {
        let Some(entry) = self.links.get(&key) else {
            return;
        };
        if let Some(watch) = &entry.watch {
            watch.events().clear();
        }
        entry.link.arm();
        self.poll(key);
    }

    /// Takes some of what has come on a connection; the rest is taken in its next turn.
    pub(super) fn poll(&mut self, key: u64) {
        let Some(entry) = self.links.get(&key) else {
            return;
        };
        let (progress, drive) = entry.link.poll_in_engine();
        if progress == Progress::More {
            self.unfinished.insert(key);
        }
        if drive {
            self.drive(key);
        }
    }

    /// Threads of the application poll: stops watching.
    pub(super) fn grant_lease(&mut self, key: u64) {
        let Some(entry) = self.links.get_mut(&key) else {
            return;
        };
        if entry.link.is_watched() {
            // It did not know yet that the connection's fd was asked for.
            return self.expire_lease(key);
        }
        entry.set_watch(&self.epoll, false);
        let seen = entry.link.lease.grant();
        if self.leases.is_empty() {
            self.timers.set(LEASES, Some(Instant::now() + LEASE));
        }
        self.leases.insert(key, seen);
    }

    /// No thread of the application polls any more: watches again.
    pub(super) fn expire_lease(&mut self, key: u64) {
        self.leases.remove(&key);
        let Some(entry) = self.links.get_mut(&key) else {
            return;
        };
        entry.link.lease.expire();
        entry.set_watch(&self.epoll, true);
        entry.link.arm();
        self.poll(key);
    }

    /// Looks which of the leases were renewed.
    pub(super) fn look_after_leases(&mut self) {
        let mut expired = Vec::new();
        let links = &self.links;
        self.leases.retain(|key, seen| {
            let Some(entry) = links.get(key) else {
                return false;
            };
            match entry.link.lease.look(*seen) {
                Term::Renewed(renewals) => *seen = renewals,
                Term::Left => return false,
                Term::Expired => {
                    expired.push(*key);
                    return false;
                }
            }
            true
        });
        for key in expired {
            self.expire_lease(key);
        }
        if !self.leases.is_empty() {
            self.timers.set(LEASES, Some(Instant::now() + LEASE));
        }
    }
}
