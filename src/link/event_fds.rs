//! A connection's file descriptors for event loops, and who polls for these.
//!
//! An event loop sleeps on the completion events themselves, and polls when it comes by, so that no
//! other thread stands between it and the device. It need not come by: it may be busy, or have no
//! interest in what arrives. So the engine's thread looks now and then whether there are events
//! that nobody takes, and takes them: what keeps the connection alive is among them. And it polls
//! at all times while a loop waits for room, which it may do by the writable fd alone.

use std::{os::fd::BorrowedFd, sync::Arc};

use super::{handoff::Handoff, link::Link, polling::Progress, watch::Watcher};
use crate::{
    interest::Interest,
    status::OsError,
    sync::{NoticeKind, lock},
    transport::Answers,
};

impl Link {
    /// Returns the fd for event loops.
    pub(crate) fn event_fd(&self, interest: Interest) -> Result<BorrowedFd<'_>, OsError> {
        let readiness = match interest {
            Interest::Readable => &self.readable,
            Interest::Writable => &self.writable,
        };
        if !readiness.is_wanted() {
            readiness.fd()?;
            self.notify(NoticeKind::Watch);
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
            Interest::Readable if !self.stays_readable() => self.loop_watch.fd(readiness),
            Interest::Readable | Interest::Writable => readiness.fd(),
        }
    }

    /// For a call that does not wait: returns what `ready` returns, polling for that where it is
    /// nothing yet.
    ///
    /// `ready` is called after everything that may have changed its answer, with none of the
    /// connection's locks held, and takes from the `handoff` first.
    pub(crate) fn look<T>(
        self: &Arc<Self>,
        handoff: &Handoff,
        mut ready: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        if self.readable.is_wanted() {
            self.loop_watch.visit();
        }
        if let Some(value) = ready() {
            return Some(value);
        }
        self.renew_lease();
        self.poll_budgeted(1, Some(handoff), Answers::AtOnce);
        if let Some(value) = ready() {
            return Some(value);
        }
        if !self.enters_loop() {
            return None;
        }
        // It sleeps next.
        self.listen();
        if self.poll_budgeted(1, Some(handoff), Answers::AtOnce) == Progress::More {
            self.notify(NoticeKind::Watch);
        }
        ready()
    }

    /// Whether completion events tell the event loop from now on, whose thread this is.
    fn enters_loop(&self) -> bool {
        if !self.readable.is_wanted() || self.stays_readable() {
            return false;
        }
        let entered = self.loop_watch.is_entered()
            || (!self.relies_on_engine() && self.set_watch(Watcher::Loop));
        // Also where that began meanwhile.
        if entered && self.relies_on_engine() {
            self.notify(NoticeKind::Watch);
        }
        entered
    }

    /// How often an event loop has come by.
    pub(crate) fn loop_visits(&self) -> u32 {
        self.loop_watch.visits()
    }

    /// Has the engine's thread poll again, where an event loop does.
    pub(crate) fn leave_loop(&self) {
        if self.readable.is_wanted() && self.loop_watch.is_entered() {
            self.notify(NoticeKind::Watch);
        }
    }

    /// Takes the completion event that there is, and has another one raised for what comes from now
    /// on.
    fn listen(&self) {
        let armed = match &*lock(&self.poll) {
            Some(side) => {
                side.events().clear();
                side.arm()
            }
            None => Ok(()),
        };
        if let Err(error) = armed {
            error!("{self}: {error}");
        }
    }

    /// Whether an event loop watches one of the fds, a group's receiver waits, or tasks that no
    /// runtime polls for, so that others than threads that wait have to hear of what comes.
    pub(crate) fn is_watched(&self) -> bool {
        self.readable.is_wanted()
            || self.writable.is_wanted()
            || self.may_be_grouped()
            || self.tasks.are_left_to_engine()
    }

    /// Whether somebody waits for the engine, whom no completion event wakes.
    fn relies_on_engine(&self) -> bool {
        self.may_be_grouped() || self.tasks.are_left_to_engine() || self.writable.is_lowered()
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
            self.leave_loop();
        }
        wanted
    }
}
