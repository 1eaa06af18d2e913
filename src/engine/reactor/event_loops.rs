//! The completion events that event loops of the application are to take.

use std::{
    collections::HashMap,
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags, EpollTimeout};

use super::{LOOPS, Reactor};
use crate::{link::Epolls, status::OsError};

/// How often the engine looks whether event loops come by, while there is anything for them. Where
/// there is something twice, and the loop did not come by in between, the engine's thread polls in
/// its place.
const PATIENCE: Duration = Duration::from_millis(10);

impl Reactor {
    pub(super) fn watch_loops(&self) -> Result<(), OsError> {
        self.await_loops(|engine, loops, event| engine.add(loops, *event))
    }

    /// Something has come for an event loop, the first thing in a while.
    pub(super) fn expect_loops(&mut self) {
        self.timers.set(LOOPS, Some(Instant::now() + PATIENCE));
    }

    /// Polls for event loops that did not come by since the last look for what was there. Where
    /// nothing is left this thread need not look again before something comes.
    pub(super) fn look_after_loops(&mut self) {
        let mut ready = [EpollEvent::empty(); 64];
        let mut left = HashMap::new();
        let mut unattended = Vec::new();
        // Each time those that were told of last come last.
        while let Ok(count) = self.epolls.loops.wait(&mut ready, EpollTimeout::ZERO) {
            let known = left.len();
            for key in ready[..count].iter().map(EpollEvent::data) {
                let visits = self.links.get(&key).map_or(0, |it| it.link.loop_visits());
                if left.insert(key, visits).is_none() && self.unattended.get(&key) == Some(&visits)
                {
                    unattended.push(key);
                }
            }
            if left.len() < known + ready.len() {
                break;
            }
        }
        for key in unattended {
            left.remove(&key);
            // First, so that the fd of the loop stays readable while this thread takes over, until
            // the loop comes by.
            self.poll(key);
            self.expire_lease(key);
        }
        self.unattended = left;
        if !self.unattended.is_empty() {
            self.expect_loops();
            return;
        }
        let awaits = self.await_loops(|engine, loops, event| engine.modify(loops, event));
        if let Err(error) = awaits {
            error!("engine: {error}");
        }
    }

    /// Has this thread wake up once for what comes next for an event loop.
    fn await_loops(
        &self,
        how: impl FnOnce(&Epoll, &OwnedFd, &mut EpollEvent) -> nix::Result<()>,
    ) -> Result<(), OsError> {
        let once = EpollFlags::EPOLLIN | EpollFlags::EPOLLONESHOT;
        let event = &mut EpollEvent::new(once, LOOPS);
        let Epolls { engine, loops } = &*self.epolls;
        how(engine, &loops.0, event).map_err(|errno| OsError::new("epoll_ctl", errno as i32))
    }
}
