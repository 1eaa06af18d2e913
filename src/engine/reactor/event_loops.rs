//! The completion events that event loops of the application are to take.

use std::{
    collections::BTreeSet,
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags, EpollTimeout};

use super::{LOOPS, Reactor};
use crate::{link::Epolls, status::OsError};

/// How often the engine looks whether event loops come by, while there is anything for them. Where
/// one has left something for that long twice, the engine's thread polls in its place.
const PATIENCE: Duration = Duration::from_millis(10);

impl Reactor {
    pub(super) fn watch_loops(&self) -> Result<(), OsError> {
        self.await_loops(|engine, loops, event| engine.add(loops, *event))
    }

    /// Something has come for an event loop, the first thing in a while.
    pub(super) fn expect_loops(&mut self) {
        self.timers.set(LOOPS, Some(Instant::now() + PATIENCE));
    }

    /// Polls for event loops that have left what they had left at the last look. Where nothing is
    /// left this thread need not look again before something comes.
    pub(super) fn look_after_loops(&mut self) {
        let mut ready = [EpollEvent::empty(); 64];
        let mut left = BTreeSet::new();
        // Each time those that were told of last come last.
        while let Ok(count) = self.epolls.loops.wait(&mut ready, EpollTimeout::ZERO) {
            let known = left.len();
            left.extend(ready[..count].iter().map(EpollEvent::data));
            if left.len() < known + ready.len() {
                break;
            }
        }
        let known = |key: &u64| self.unattended.contains(key);
        let (unattended, left): (BTreeSet<_>, _) = left.into_iter().partition(known);
        self.unattended = left;
        for key in unattended {
            // First, so that the fd of the loop stays readable while this thread takes over, until
            // the loop comes by.
            self.poll(key);
            self.expire_lease(key);
        }
        if !self.unattended.is_empty() {
            self.expect_loops();
            return;
        }
        let awaits = self.await_loops(|engine, loops, event| engine.modify(loops, event));
        if let Err(error) = awaits {
            log::error!("engine: {error}");
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
