//! The completion queues that no thread of the application polls.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use nix::sys::epoll::EpollFlags;

use super::{super::link::Progress, ROUNDS, Reactor};

/// How long after its last poll by a thread of the application a completion queue is watched by the
/// engine again. A program that mixes `recv` with `select!` may see a message this much late; one
/// that polls often enough costs the engine one look in this time instead of one interrupt a
/// message.
const LEASE: Duration = Duration::from_millis(10);

impl Reactor {
    /// A watched completion channel raised an event.
    pub(super) fn take_completions(&mut self, key: u64) {
        let Some(entry) = self.links.get(&key) else {
            return;
        };
        if let Some(events) = &entry.watched {
            events.clear();
        }
        entry.link.arm();
        self.progress(key);
    }

    /// Takes some of what has come on a connection; the rest is its next turn's.
    pub(super) fn progress(&mut self, key: u64) {
        if let Some(entry) = self.links.get(&key)
            && entry.link.progress() == Progress::More
        {
            self.unfinished.insert(key);
        }
    }

    /// Threads of the application poll: stop watching, and look now and then whether they still do.
    pub(super) fn keep_away(&mut self, key: u64) {
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
    pub(super) fn take_over(&mut self, key: u64) {
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
    pub(super) fn make_rounds(&mut self) {
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
