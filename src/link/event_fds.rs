//! A connection's file descriptors for event loops.

use std::os::fd::BorrowedFd;

use super::link::Link;
use crate::{interest::Interest, status::OsError, sync::NoticeKind};

impl Link {
    /// Returns the fd for event loops. While there is one, the engine's thread watches the queue at
    /// all times.
    pub(crate) fn event_fd(&self, interest: Interest) -> Result<BorrowedFd<'_>, OsError> {
        let readiness = match interest {
            Interest::Readable => &self.readable,
            Interest::Writable => &self.writable,
        };
        let watched_before = self.is_watched();
        let first = !readiness.is_wanted();
        let fd = readiness.fd()?;
        if !watched_before {
            self.notify(NoticeKind::Watch);
        }
        if first {
            // Under the lock: a thread that put something there before this did not know of the fd.
            let mut core = self.core();
            match interest {
                Interest::Readable => self.announce_readable(&core),
                // A `try_send` that was refused before could not take the fd down. The next one
                // does.
                Interest::Writable => {
                    // From now on the fd tells of room.
                    core.room_wanted = false;
                    readiness.announce(|| true);
                }
            }
        }
        Ok(fd)
    }

    /// Whether an event loop watches one of the fds, a group's receiver waits, or tasks that no
    /// runtime polls for, so that the engine's thread must watch the queue.
    pub(crate) fn is_watched(&self) -> bool {
        self.readable.is_wanted()
            || self.writable.is_wanted()
            || self.may_be_grouped()
            || self.tasks.are_left_to_engine()
    }

    /// Makes the fd readable if there is anything to take: something `unread`, or the end.
    pub(crate) fn update_readiness(&self, unread: impl FnOnce() -> bool) {
        self.readable.update(|| unread() || self.is_ready());
    }

    /// A send that does not wait was refused, and another try follows. If that is refused as well,
    /// the fd becomes readable when there is room: what comes between the two may be overlooked,
    /// and what comes later is not.
    pub(crate) fn want_room(&self) {
        self.writable.update(|| self.is_over());
    }

    /// The other try was not refused.
    pub(crate) fn need_no_room(&self) {
        self.writable.update(|| true);
    }
}
