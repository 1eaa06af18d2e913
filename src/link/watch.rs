use std::sync::Arc;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

use crate::{status::OsError, transport::CompletionEvents};

/// Who hears of a connection's completion events.
///
/// Whoever does not is not told at all. With an interest in nothing the events would stay in the
/// engine's epoll, and the device's driver, which does not say what has come, would wake the
/// engine's thread for each: two switches a message, to find that there is nothing to do.
#[derive(Debug)]
pub(crate) struct Watch {
    epolls: Arc<Epolls>,
    events: Arc<CompletionEvents>,
    key: u64,
    watcher: Watcher,
}

/// Who polls for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watcher {
    /// The engine's thread.
    Engine,
    /// The thread of an event loop, and the engine's where that does not come by.
    Loop,
    /// Threads that wait for the connection.
    Threads,
}

/// Where the engine's thread finds events.
#[derive(Debug)]
pub(crate) struct Epolls {
    /// What it sleeps on.
    pub(crate) engine: Epoll,
    /// What it looks through now and then: what event loops are to take.
    pub(crate) loops: Epoll,
}

impl Watch {
    /// The engine watches from now on, under the connection's key.
    pub(crate) fn new(
        epolls: Arc<Epolls>,
        events: Arc<CompletionEvents>,
        key: u64,
    ) -> Result<Self, OsError> {
        let mut watch = Self {
            epolls,
            events,
            key,
            watcher: Watcher::Threads,
        };
        watch.set(Watcher::Engine)?;
        Ok(watch)
    }

    pub(super) fn events(&self) -> &Arc<CompletionEvents> {
        &self.events
    }

    /// Has somebody else watch.
    pub(super) fn set(&mut self, watcher: Watcher) -> Result<(), OsError> {
        if watcher == self.watcher {
            return Ok(());
        }
        if let Some(epoll) = self.epolls.of(self.watcher) {
            epoll.delete(&*self.events).map_err(failed)?;
            self.watcher = Watcher::Threads;
        }
        if let Some(epoll) = self.epolls.of(watcher) {
            let event = EpollEvent::new(EpollFlags::EPOLLIN, self.key);
            epoll.add(&*self.events, event).map_err(failed)?;
        }
        self.watcher = watcher;
        Ok(())
    }
}

impl Epolls {
    pub(crate) fn new() -> Result<Self, OsError> {
        let epoll = || {
            Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)
                .map_err(|errno| OsError::new("epoll_create1", errno as i32))
        };
        Ok(Self {
            engine: epoll()?,
            loops: epoll()?,
        })
    }

    fn of(&self, watcher: Watcher) -> Option<&Epoll> {
        match watcher {
            Watcher::Engine => Some(&self.engine),
            Watcher::Loop => Some(&self.loops),
            Watcher::Threads => None,
        }
    }
}

fn failed(errno: nix::Error) -> OsError {
    OsError::new("epoll_ctl", errno as i32)
}
