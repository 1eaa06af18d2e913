//! Polls the completion queues that no application thread polls.

use std::{os::fd::OwnedFd, sync::Arc, time::Instant};

use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags, EpollTimeout};

use super::{ATTENDED, LOOPS, Reactor};
use crate::{
    link::{Link, Progress},
    os::failed,
    poll::{Due, Epolls},
    status::OsError,
    transport::Event,
};

impl Reactor {
    /// Handles an event of a watched completion channel.
    pub(super) fn handle_completion_event(&mut self, key: u64) {
        let Some(entry) = self.links.get(&key) else {
            return;
        };
        entry.link.poller.clear_event();
        self.arm_and_poll(key);
    }

    /// Handles one batch of completions of a connection. A later iteration of the loop handles the
    /// rest.
    pub(super) fn poll(&mut self, key: u64) {
        self.poll_by(key, Link::poll_in_engine);
    }

    /// Arms the completion channel for the next completion, then handles the completions in the
    /// queue.
    fn arm_and_poll(&mut self, key: u64) {
        self.poll_by(key, Link::arm_and_poll_in_engine);
    }

    fn poll_by(&mut self, key: u64, poll: impl FnOnce(&Arc<Link>) -> (Progress, bool)) {
        let Some(entry) = self.links.get(&key) else {
            return;
        };
        let (progress, drive) = poll(&entry.link);
        match progress {
            Progress::Nothing | Progress::Some => {}
            Progress::More => {
                self.unfinished.insert(key);
            }
            Progress::Busy => {
                // An application thread is polling the queue. Make the application's threads the
                // owner, so that completion events do not needlessly wake this thread.
                entry.link.poller.yield_to_threads();
                self.poll_soon(key, None);
            }
        }
        if drive {
            self.drive(key);
        }
    }

    /// Adds a connection to the attended connections, which this thread checks periodically. Called
    /// when application threads or an event loop poll the connection, or when a message waits to be
    /// sent.
    pub(super) fn attend(&mut self, key: u64) {
        let Some(entry) = self.links.get(&key) else {
            return;
        };
        self.attended.attend(key, &*entry.link);
        if self.attended.next().is_some() {
            self.notices.expect();
        }
        self.timers.set(ATTENDED, self.attended.next());
    }

    /// Makes this thread poll the connection.
    pub(super) fn take_over(&mut self, key: u64) {
        self.attended.forget(key);
        if let Some(entry) = self.links.get(&key) {
            entry.link.poller.expire();
            self.arm_and_poll(key);
        }
    }

    /// Schedules another poll soon, because an application thread is polling the connection now. If
    /// `event` contains a disconnect event, the event is handled after the scheduled poll.
    pub(super) fn poll_soon(&mut self, key: u64, event: Option<Event>) {
        self.delayed_disconnects
            .extend(event.map(|event| (key, event)));
        self.attended.poll_soon(key);
        self.timers.set(ATTENDED, self.attended.next());
    }

    /// Checks the attended connections that are due.
    pub(super) fn check_attended(&mut self, now: Instant) {
        let Self {
            attended,
            links,
            epolls,
            ..
        } = self;
        let watched = attended.expects_loops();
        let due = attended.check_due(
            now,
            |key| links.get(&key).map(|entry| &*entry.link),
            || pending(&epolls.loops, links.len()),
        );
        if watched && !attended.expects_loops() {
            let awaits = self.await_loops(|engine, loops, event| engine.modify(loops, event));
            if let Err(error) = awaits {
                error_sparsely!(
                    Engine,
                    "engine: cannot watch the program's event loops: {error}; if a loop stops \
                     polling, its connections will stall"
                );
            }
        }
        for due in due {
            let key = match due {
                Due::Expired(key) => {
                    self.arm_and_poll(key);
                    key
                }
                Due::Overdue(key) => {
                    self.poll(key);
                    key
                }
            };
            if let Some(event) = self.delayed_disconnects.remove(&key) {
                self.handle_cm_event(event);
            }
            self.drive(key);
        }
        if self.attended.next().is_none() && self.notices.end_expectation() {
            self.attended.add_check();
        }
        self.timers.set(ATTENDED, self.attended.next());
    }

    /// Records that an event for the application's event loops has arrived, and schedules a check.
    pub(super) fn expect_loops(&mut self) {
        self.attended.expect_loops();
        self.notices.expect();
        self.timers.set(ATTENDED, self.attended.next());
    }

    pub(super) fn watch_loops(&self) -> Result<(), OsError> {
        self.await_loops(|engine, loops, event| engine.add(loops, *event))
    }

    /// Makes the engine's epoll instance report the next event for the application's event loops,
    /// and no later event. `register` adds or modifies the registration.
    fn await_loops(
        &self,
        register: impl FnOnce(&Epoll, &OwnedFd, &mut EpollEvent) -> nix::Result<()>,
    ) -> Result<(), OsError> {
        let once = EpollFlags::EPOLLIN | EpollFlags::EPOLLONESHOT;
        let event = &mut EpollEvent::new(once, LOOPS);
        let Epolls { engine, loops } = &*self.epolls;
        register(engine, &loops.0, event).map_err(failed("epoll_ctl"))
    }
}

/// Returns the keys of the connections with pending events for the application's event loops.
/// `connections` is the total number of connections.
fn pending(loops: &Epoll, connections: usize) -> Vec<u64> {
    // The list must be long enough for all connections, because the engine takes over a connection
    // only if two consecutive calls return it.
    let mut ready = vec![EpollEvent::empty(); connections.max(1)];
    let count = loops.wait(&mut ready, EpollTimeout::ZERO).unwrap_or(0);
    ready[..count].iter().map(EpollEvent::data).collect()
}
