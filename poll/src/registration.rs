use std::{
    fmt,
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, OnceLock},
};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use rdma_status::OsError;
use rdmsg_os::failed;

use super::{completions::Events, word::Owner};
use crate::sync::Readiness;

/// Completion events with a file descriptor that is readable while an event is pending.
pub trait FdEvents: Events + AsFd + fmt::Debug {}

impl<T: Events + AsFd + fmt::Debug> FdEvents for T {}

/// The epolls that have a connection's completion events.
///
/// While threads own the connection, no epoll has the events. With an empty interest set they would
/// stay in the engine's epoll, and each event would wake the engine's thread, because the device's
/// driver does not distinguish kinds of events: two context switches per message without any work.
#[derive(Debug)]
pub struct Registration {
    epolls: Arc<Epolls>,
    events: Arc<dyn FdEvents>,
    key: u64,
    owner: Owner,
    /// Whether the epoll of the application's event loop has the events.
    in_loop: bool,
}

/// The epolls of the engine's thread.
#[derive(Debug)]
pub struct Epolls {
    /// The epoll on which the thread sleeps.
    pub engine: Epoll,
    /// The epoll with the events of loops. The thread checks it every 10 ms while it has pending
    /// events.
    pub loops: Epoll,
}

impl Registration {
    /// Adds the events to the engine's epoll, under the connection's key.
    pub fn new(epolls: Arc<Epolls>, events: Arc<dyn FdEvents>, key: u64) -> Result<Self, OsError> {
        let mut new = Self {
            epolls,
            events,
            key,
            owner: Owner::Threads,
            in_loop: false,
        };
        new.set(Owner::Engine, &LoopFd::default())?;
        Ok(new)
    }

    /// Takes a raised completion event.
    pub(super) fn clear(&self) {
        self.events.clear();
    }

    /// Moves the events to the epolls of `owner`. `fd` is that of an event loop.
    pub(super) fn set(&mut self, owner: Owner, fd: &LoopFd) -> Result<(), OsError> {
        let in_loop = owner == Owner::Loop;
        let fd = fd.0.get();
        if let (true, false, Some(fd)) = (self.in_loop, in_loop, fd) {
            // The call cannot fail, because the descriptor was added and is open.
            let _ = fd.delete(&*self.events);
            self.in_loop = false;
        } else if let (false, true, Some(fd)) = (self.in_loop, in_loop, fd) {
            add(fd, &*self.events, self.key)?;
            self.in_loop = true;
        }
        if owner == self.owner {
            return Ok(());
        }
        if let Some(epoll) = self.epolls.of(self.owner) {
            epoll.delete(&*self.events).map_err(failed("epoll_ctl"))?;
            self.owner = Owner::Threads;
        }
        if let Some(epoll) = self.epolls.of(owner) {
            add(epoll, &*self.events, self.key)?;
        }
        self.owner = owner;
        Ok(())
    }
}

impl Epolls {
    /// Makes both.
    ///
    /// # Errors
    ///
    /// If the process has no file descriptor left.
    pub fn new() -> Result<Self, OsError> {
        Ok(Self {
            engine: epoll()?,
            loops: epoll()?,
        })
    }

    fn of(&self, owner: Owner) -> Option<&Epoll> {
        match owner {
            Owner::Engine => Some(&self.engine),
            Owner::Loop => Some(&self.loops),
            Owner::Threads => None,
        }
    }
}

/// The fd of an event loop, created at the first request: an epoll with an eventfd, which is
/// readable while there is a completion to take, and with the completion events while a loop owns
/// the connection. Event loops may watch it as any other fd.
#[derive(Debug, Default)]
pub(super) struct LoopFd(OnceLock<Epoll>);

impl LoopFd {
    /// Returns the fd, which is readable while `readiness` is.
    pub(super) fn get(&self, readiness: &Readiness) -> Result<BorrowedFd<'_>, OsError> {
        if let Some(fd) = self.0.get() {
            return Ok(fd.0.as_fd());
        }
        let fd = epoll()?;
        let event = EpollEvent::new(EpollFlags::EPOLLIN, 0);
        fd.add(readiness.fd()?, event)
            .map_err(failed("epoll_ctl"))?;
        // If two threads create it at the same time, one of them closes its epoll here.
        Ok(self.0.get_or_init(|| fd).0.as_fd())
    }
}

fn epoll() -> Result<Epoll, OsError> {
    Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(failed("epoll_create1"))
}

fn add(epoll: &Epoll, events: &dyn FdEvents, key: u64) -> Result<(), OsError> {
    epoll
        .add(events, EpollEvent::new(EpollFlags::EPOLLIN, key))
        .map_err(failed("epoll_ctl"))
}

#[cfg(test)]
mod tests {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::*;

    #[test]
    fn loop_fd_is_readable_while_something_is_ready() {
        let readiness = Readiness::default();
        let fd = LoopFd::default();
        let fd = fd.get(&readiness).unwrap();
        for ready in [false, true, true, false, true] {
            readiness.announce(|| ready);
            let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
            assert_eq!(poll(&mut fds, PollTimeout::ZERO), Ok(i32::from(ready)));
        }
    }

    #[test]
    fn loop_fd_passes_edges_through_two_epolls() {
        let readiness = Readiness::default();
        let fd = LoopFd::default();
        let outer = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
        let edges = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, 1);
        outer.add(fd.get(&readiness).unwrap(), edges).unwrap();
        let edge = || outer.wait(&mut [EpollEvent::empty(); 4], 0_u8).unwrap() == 1;
        for _ in 0..3 {
            readiness.announce(|| true);
            assert!(edge(), "something new");
            assert!(!edge(), "nothing is new");
        }
        readiness.update(|| false);
        assert!(!edge());
    }
}
