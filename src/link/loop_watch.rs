use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU32, Ordering},
    },
};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

use crate::{
    status::OsError,
    sync::{Readiness, lock},
    transport::CompletionEvents,
};

/// What the fd of an event loop says where the loop's own thread may poll the device: that there is
/// something to take or, while the loop is who polls, that the device has something.
///
/// It is an epoll, which event loops may watch as any other fd, of the two.
#[derive(Debug, Default)]
pub(super) struct LoopWatch {
    epoll: OnceLock<Epoll>,
    /// Those that are in there.
    events: Mutex<Option<Arc<CompletionEvents>>>,
    /// How often the loop has come by.
    visits: AtomicU32,
}

impl LoopWatch {
    /// The fd, which is readable while `readiness` is.
    pub(super) fn fd(&self, readiness: &Readiness) -> Result<BorrowedFd<'_>, OsError> {
        if let Some(epoll) = self.epoll.get() {
            return Ok(epoll.0.as_fd());
        }
        let ready = readiness.fd()?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)
            .map_err(|errno| OsError::new("epoll_create1", errno as i32))?;
        let added = epoll.add(ready, EpollEvent::new(EpollFlags::EPOLLIN, 0));
        added.map_err(failed)?;
        // Of two threads that ask at the same time one has made it in vain.
        Ok(self.epoll.get_or_init(|| epoll).0.as_fd())
    }

    /// The loop comes by.
    pub(super) fn visit(&self) {
        self.visits.fetch_add(1, Ordering::Relaxed);
    }

    /// How often it has come by, in all and then from the start again.
    pub(super) fn visits(&self) -> u32 {
        self.visits.load(Ordering::Relaxed)
    }

    /// Whether completion events make the fd readable.
    pub(super) fn is_entered(&self) -> bool {
        lock(&self.events).is_some()
    }

    /// From now on the fd is also readable while there are completion events. Returns whether it
    /// is.
    pub(super) fn enter(&self, events: &Arc<CompletionEvents>) -> Result<bool, OsError> {
        let Some(epoll) = self.epoll.get() else {
            return Ok(false);
        };
        let mut entered = lock(&self.events);
        if entered.is_none() {
            let added = epoll.add(&**events, EpollEvent::new(EpollFlags::EPOLLIN, 0));
            added.map_err(failed)?;
            *entered = Some(Arc::clone(events));
        }
        Ok(true)
    }

    /// Completion events make the fd readable no more.
    pub(super) fn leave(&self) {
        if let (Some(epoll), Some(events)) = (self.epoll.get(), lock(&self.events).take()) {
            // It was added, and is open.
            let _ = epoll.delete(&*events);
        }
    }
}

fn failed(errno: nix::Error) -> OsError {
    OsError::new("epoll_ctl", errno as i32)
}

#[cfg(test)]
mod tests {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::*;

    #[test]
    fn the_fd_says_what_the_other_one_says() {
        let (watch, readiness) = (LoopWatch::default(), Readiness::default());
        let fd = watch.fd(&readiness).unwrap();
        for ready in [false, true, true, false, true] {
            readiness.announce(|| ready);
            let count = poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], PollTimeout::ZERO);
            assert_eq!(count, Ok(i32::from(ready)));
        }
    }

    #[test]
    fn what_is_new_is_an_edge_through_two_epolls() {
        let (watch, readiness) = (LoopWatch::default(), Readiness::default());
        let outer = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
        let edges = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, 1);
        outer.add(watch.fd(&readiness).unwrap(), edges).unwrap();
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
