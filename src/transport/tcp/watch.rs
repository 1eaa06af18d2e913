use std::{os::fd::AsFd, sync::Arc};

use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};

/// What the engine's thread watches of one socket that is set up: its end, and room in it where
/// that is waited for. Each is told once.
#[derive(Debug)]
pub(super) struct Watch {
    epoll: Arc<Epoll>,
    token: u64,
}

impl Watch {
    /// The end of a connection, told once.
    pub(super) const ENDS: EpollFlags = EpollFlags::EPOLLRDHUP.union(EpollFlags::EPOLLONESHOT);

    /// Takes a socket that `epoll` has with this token.
    pub(super) fn new(epoll: &Arc<Epoll>, token: u64) -> Self {
        Self {
            epoll: Arc::clone(epoll),
            token,
        }
    }

    /// Watches from now on.
    pub(super) fn set(&self, socket: impl AsFd, room_wanted: bool) {
        let flags = if room_wanted {
            Self::ENDS | EpollFlags::EPOLLOUT
        } else {
            Self::ENDS
        };
        let mut event = EpollEvent::new(flags, self.token);
        if let Err(errno) = self.epoll.modify(socket, &mut event) {
            error_sparsely!("epoll_ctl: {errno}");
        }
    }

    /// Whether an event tells of an end, and not of room alone.
    pub(super) fn is_end(flags: EpollFlags) -> bool {
        flags.intersects(EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR)
    }
}
