//! A connection's file descriptors for event loops.

use std::os::fd::BorrowedFd;

use super::link::Link;
use crate::{interest::Interest, poll::Reliance, status::OsError, transport_kind::TransportKind};

impl Link {
    /// Returns the fd for event loops.
    pub(crate) fn event_fd(&self, interest: Interest) -> Result<BorrowedFd<'_>, OsError> {
        let readiness = match interest {
            Interest::Readable => &self.readable,
            Interest::Writable => &self.writable,
        };
        if !readiness.is_wanted() {
            readiness.fd()?;
            self.poller.rely(match interest {
                Interest::Readable => Reliance::Readable,
                Interest::Writable => Reliance::Writable,
            });
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
        match interest {
            // Over TCP a look costs a system call, which waits until something is readable.
            Interest::Readable if self.transport() == TransportKind::Rdma => {
                self.poller.loop_fd(readiness)
            }
            Interest::Readable | Interest::Writable => readiness.fd(),
        }
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

    /// The other try was refused as well: the engine makes the fd readable. Returns whether there
    /// is one.
    pub(super) fn leave_room_to_engine(&self) -> bool {
        let wanted = self.writable.is_wanted();
        if wanted {
            self.poller.leave_loop();
        }
        wanted
    }
}
