use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::{Mutex, OnceLock},
};

use nix::sys::eventfd::{EfdFlags, EventFd};
use rdma_status::OsError;
use rdmsg_os::{failed, lock_hot as lock};

/// A file descriptor that is readable exactly while the application can take an item, for example a
/// completion. The descriptor is created at the first request. Until then, a change of readiness
/// costs one atomic load.
///
/// A thread calls [`announce`](Self::announce) after it has added an item, and
/// [`update`](Self::update) after it has taken an item. A lock serializes these calls, so the final
/// call sees all changes and sets the final state of the fd.
#[derive(Debug, Default)]
pub struct Readiness {
    fd: OnceLock<EventFd>,
    /// Whether the fd is readable.
    raised: Mutex<bool>,
}

impl Readiness {
    /// Returns the fd. The first call creates the fd, which is not readable at first. The caller
    /// must therefore call [`announce`](Self::announce) next.
    pub fn fd(&self) -> Result<BorrowedFd<'_>, OsError> {
        let fd = match self.fd.get() {
            Some(fd) => fd,
            None => {
                let fd = eventfd()?;
                self.fd.get_or_init(|| fd)
            }
        };
        Ok(fd.as_fd())
    }

    /// Returns whether the fd exists.
    #[inline]
    pub fn is_fd_requested(&self) -> bool {
        self.fd.get().is_some()
    }

    /// Returns whether the fd exists and is not readable.
    #[inline]
    pub fn is_lowered(&self) -> bool {
        self.is_fd_requested() && !*lock(&self.raised)
    }

    /// Makes the fd readable if `ready` returns true, and not readable otherwise. If the fd does
    /// not exist, `ready` is not called.
    #[inline]
    pub fn update(&self, ready: impl FnOnce() -> bool) {
        self.set(ready, false);
    }

    /// Does the same as [`update`](Self::update), for a thread that has added an item. If `ready`
    /// returns true, the fd raises a new event even if the fd is already readable. An
    /// edge-triggered event loop needs the new event, because the loop may already have handled the
    /// earlier event.
    #[inline]
    pub fn announce(&self, ready: impl FnOnce() -> bool) {
        self.set(ready, true);
    }

    #[inline]
    fn set(&self, ready: impl FnOnce() -> bool, news: bool) {
        if let Some(fd) = self.fd.get() {
            self.set_fd(fd, ready, news);
        }
    }

    #[inline(never)]
    fn set_fd(&self, fd: &EventFd, ready: impl FnOnce() -> bool, news: bool) {
        let mut raised = lock(&self.raised);
        let ready = ready();
        // Neither the write nor the read can fail: the counter never reaches its maximum of
        // 2⁶⁴ - 2, and the read happens only while the counter is not 0.
        if ready && (news || !*raised) {
            let _ = fd.write(1);
        } else if !ready && *raised {
            let _ = fd.read();
        }
        *raised = ready;
    }
}

/// Creates an eventfd that is closed on exec and does not block.
///
/// # Errors
///
/// Returns `EMFILE` or `ENFILE` if the process or the system has no file descriptor left.
pub fn eventfd() -> Result<EventFd, OsError> {
    EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
        .map_err(failed("eventfd"))
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicU32, Ordering},
        thread,
    };

    use nix::{
        poll::{PollFd, PollFlags, PollTimeout, poll},
        sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags},
    };

    use super::*;

    fn readable(fd: BorrowedFd<'_>, timeout: PollTimeout) -> bool {
        poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], timeout).unwrap() == 1
    }

    #[test]
    fn fd_is_created_on_request_only() {
        let readiness = Readiness::default();
        readiness.update(|| panic!("no fd exists, so `ready` must not be called"));
        assert!(!readiness.is_fd_requested());
    }

    #[test]
    fn fd_is_readable_while_items_are_pending() {
        let readiness = Readiness::default();
        let fd = readiness.fd().unwrap();
        for ready in [false, true, true, false, false, true] {
            readiness.update(|| ready);
            assert_eq!(readable(fd, PollTimeout::ZERO), ready);
        }
    }

    #[test]
    fn new_item_is_an_edge_even_if_fd_is_readable() {
        let readiness = Readiness::default();
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
        let edges = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
        epoll
            .add(readiness.fd().unwrap(), EpollEvent::new(edges, 1))
            .unwrap();
        let edge = || epoll.wait(&mut [EpollEvent::empty(); 4], 0_u8).unwrap() == 1;
        for _ in 0..3 {
            readiness.announce(|| true);
            assert!(edge(), "a new item must raise an edge");
            readiness.update(|| true);
            assert!(!edge(), "a remaining item must not raise an edge");
        }
        readiness.announce(|| false);
        assert!(
            !edge(),
            "an item that was taken before `announce` must not raise an edge"
        );
        readiness.announce(|| true);
        assert!(edge());
    }

    #[test]
    fn no_wake_is_lost_between_producer_and_consumer() {
        const ITEMS: u32 = 20_000;
        let readiness = Readiness::default();
        let fd = readiness.fd().unwrap();
        let there = AtomicU32::new(0);
        let ready = || there.load(Ordering::SeqCst) > 0;
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..ITEMS {
                    there.fetch_add(1, Ordering::SeqCst);
                    readiness.announce(ready);
                }
            });
            let mut taken = 0;
            while taken < ITEMS {
                assert!(
                    readable(fd, PollTimeout::from(10_000_u16)),
                    "no wake-up within 10 s: {taken} items taken, {there:?} left"
                );
                taken += there.swap(0, Ordering::SeqCst);
                readiness.update(ready);
            }
        });
        assert!(!readable(fd, PollTimeout::ZERO));
    }
}
