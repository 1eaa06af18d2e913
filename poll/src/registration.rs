use std::{
    fmt, mem,
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, OnceLock},
};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use rdma_status::OsError;
use rdmsg_os::failed;

use super::{completions::Events, group_events::GroupEvents, word::Owner};
use crate::sync::Readiness;

/// A source of completion events whose file descriptor is readable while an event is pending.
pub trait FdEvents: Events + AsFd + fmt::Debug {}

impl<T: Events + AsFd + fmt::Debug> FdEvents for T {}

/// Registers the source of a connection's completion events with the epolls of the current owner.
///
/// While threads own the connection, the source is registered with no epoll. It would not suffice
/// to keep the source in the engine's epoll with an empty interest set: the device's driver wakes
/// waiters without reporting the kind of event. Each event would therefore wake the engine's
/// thread, at the cost of two context switches per message.
#[derive(Debug)]
pub struct Registration {
    epolls: Arc<Epolls>,
    events: Arc<dyn FdEvents>,
    key: u64,
    owner: Owner,
    place: Place,
}

/// The application's epoll with which the event source is registered, if there is one.
#[derive(Debug)]
enum Place {
    None,
    /// The epoll that the application's event loop watches.
    LoopFd,
    /// The epoll of a group.
    Group(Arc<GroupEvents>),
}

/// The two epolls that the engine's thread uses.
#[derive(Debug)]
pub struct Epolls {
    /// The epoll on which the engine's thread sleeps. The event sources of the connections that the
    /// engine owns are registered with this epoll.
    pub engine: Epoll,
    /// An epoll with the event sources of the connections that event loops own. While an event is
    /// pending in this epoll, the engine's thread checks the epoll every 10 ms.
    pub loops: Epoll,
}

impl Registration {
    /// Registers the event source with the engine's epoll, under the connection's key.
    pub fn new(epolls: Arc<Epolls>, events: Arc<dyn FdEvents>, key: u64) -> Result<Self, OsError> {
        let mut new = Self {
            epolls,
            events,
            key,
            owner: Owner::Threads,
            place: Place::None,
        };
        new.set(Owner::Engine, &LoopFd::default(), None)?;
        Ok(new)
    }

    /// Consumes a raised completion event, so that the event source is no longer readable.
    pub(super) fn clear(&self) {
        self.events.clear();
    }

    /// Moves the event source to the epolls of `owner`. If `owner` is [`Owner::Loop`], the source
    /// is registered both with an epoll of the engine and with an epoll of the application. With a
    /// group, the application's epoll is that of `group`. Without a group, the application's epoll
    /// is `fd`, which the application's event loop watches. If `fd` has no epoll yet, the source is
    /// registered only with the engine's epoll.
    pub(super) fn set(
        &mut self,
        owner: Owner,
        fd: &LoopFd,
        group: Option<&Arc<GroupEvents>>,
    ) -> Result<(), OsError> {
        self.set_place(group.filter(|_| owner == Owner::Loop), owner, fd)?;
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

    fn set_place(
        &mut self,
        group: Option<&Arc<GroupEvents>>,
        owner: Owner,
        fd: &LoopFd,
    ) -> Result<(), OsError> {
        let fd = fd.0.get();
        let is_there = match (&self.place, group) {
            (Place::Group(place), Some(group)) => Arc::ptr_eq(place, group),
            (Place::Group(_), None) | (Place::None | Place::LoopFd, Some(_)) => false,
            (Place::LoopFd, None) => owner == Owner::Loop,
            (Place::None, None) => owner != Owner::Loop,
        };
        if is_there {
            return Ok(());
        }
        match (mem::replace(&mut self.place, Place::None), fd) {
            // The call cannot fail: the event source is open and registered with this epoll.
            (Place::LoopFd, Some(fd)) => _ = fd.delete(&*self.events),
            (Place::Group(group), _) => group.remove(&*self.events, self.key),
            (Place::LoopFd, None) | (Place::None, _) => {}
        }
        if let Some(group) = group {
            group.add(&*self.events, self.key)?;
            self.place = Place::Group(Arc::clone(group));
        } else if let (Owner::Loop, Some(fd)) = (owner, fd) {
            add(fd, &*self.events, self.key)?;
            self.place = Place::LoopFd;
        }
        Ok(())
    }

    /// Returns the key of the connection.
    pub(super) fn key(&self) -> u64 {
        self.key
    }
}

impl Epolls {
    /// Creates both epolls.
    ///
    /// # Errors
    ///
    /// Fails if the process has no file descriptor left.
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

/// The fd that an event loop watches, created when the application first requests it. The fd is an
/// epoll, which a loop can watch like any other fd. The epoll contains an eventfd, which is
/// readable while the application can take a completion. While a loop owns the connection, the
/// epoll also contains the source of completion events.
#[derive(Debug, Default)]
pub(super) struct LoopFd(OnceLock<Epoll>);

impl LoopFd {
    /// Returns the fd. The first call creates it. The fd is readable while the fd of `readiness` is
    /// readable.
    pub(super) fn get(&self, readiness: &Readiness) -> Result<BorrowedFd<'_>, OsError> {
        if let Some(fd) = self.0.get() {
            return Ok(fd.0.as_fd());
        }
        let fd = epoll()?;
        let event = EpollEvent::new(EpollFlags::EPOLLIN, 0);
        fd.add(readiness.fd()?, event)
            .map_err(failed("epoll_ctl"))?;
        // If two threads call this function at the same time, each creates an epoll. The cell keeps
        // one of the two epolls, and the other epoll is dropped.
        Ok(self.0.get_or_init(|| fd).0.as_fd())
    }
}

pub(super) fn epoll() -> Result<Epoll, OsError> {
    Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(failed("epoll_create1"))
}

pub(super) fn add(epoll: &Epoll, events: &dyn FdEvents, key: u64) -> Result<(), OsError> {
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
            assert!(edge(), "a new item must raise an edge");
            assert!(!edge(), "no edge may follow without a new item");
        }
        readiness.update(|| false);
        assert!(!edge());
    }
}
