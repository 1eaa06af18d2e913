use std::sync::Arc;

use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};

use crate::{status::OsError, transport::CompletionEvents};

/// The engine's interest in a connection's completion events.
///
/// While there is none they are not in the epoll at all. With an interest in nothing they would
/// stay there, and the device's driver, which does not say what has come, would wake the engine's
/// thread for each: two switches a message, to find that there is nothing to do.
#[derive(Debug)]
pub(crate) struct Watch {
    epoll: Arc<Epoll>,
    events: Arc<CompletionEvents>,
    key: u64,
    watches: bool,
}

impl Watch {
    /// Watches from now on, under the connection's key.
    pub(crate) fn new(
        epoll: Arc<Epoll>,
        events: Arc<CompletionEvents>,
        key: u64,
    ) -> Result<Self, OsError> {
        let mut watch = Self {
            epoll,
            events,
            key,
            watches: false,
        };
        watch.set(true)?;
        Ok(watch)
    }

    pub(super) fn events(&self) -> &CompletionEvents {
        &self.events
    }

    /// Watches, or not.
    pub(super) fn set(&mut self, watches: bool) -> Result<(), OsError> {
        let changed = match (self.watches, watches) {
            (false, true) => self.epoll.add(
                &*self.events,
                EpollEvent::new(EpollFlags::EPOLLIN, self.key),
            ),
            (true, false) => self.epoll.delete(&*self.events),
            (_, _) => Ok(()),
        };
        changed.map_err(|errno| OsError::new("epoll_ctl", errno as i32))?;
        self.watches = watches;
        Ok(())
    }
}
