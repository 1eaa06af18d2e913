//! The system calls and primitives of this crate. The model checker has its own in their place.

pub(super) use std::sync::{
    Condvar, Mutex,
    atomic::{AtomicU64, Ordering},
};
use std::{
    fmt,
    os::fd::AsFd,
    sync::{Arc, MutexGuard},
    thread,
    time::Duration,
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::eventfd::EventFd,
};
use rdma_status::OsError;
use rdmsg_os::{failed, millis};

use crate::sync::{Mailbox, Notice, NoticeKind, eventfd};
pub(super) use rdmsg_os::lock;

/// The longest single sleep. It limits the effect of a lost wake-up, which would be a bug; no code
/// relies on it.
const LONGEST_SLEEP: Duration = Duration::from_secs(10);

/// The pause after a sleep that failed.
const BACK_OFF: Duration = Duration::from_millis(10);

/// The cause of the end of a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// A completion event, or an interrupt by a signal.
    Event,
    /// Another thread wrote to the alarm.
    Alarm,
    /// The end of the time.
    Time,
}

/// The connection's sender of notices to the engine's thread.
#[derive(Debug)]
pub struct Line {
    key: u64,
    notices: Arc<Mailbox<Notice>>,
}

impl Line {
    /// `key` is the connection's number in its process.
    pub fn new(key: u64, notices: Arc<Mailbox<Notice>>) -> Self {
        Self { key, notices }
    }

    /// Sends a notice, and wakes the thread.
    pub fn send(&self, kind: NoticeKind) {
        let key = self.key;
        self.notices.send(Notice { key, kind });
    }

    /// Queues a notice for the thread's next check, or wakes the thread if no check is scheduled.
    pub fn leave(&self, kind: NoticeKind) {
        let key = self.key;
        self.notices.leave(Notice { key, kind });
    }

    /// Returns the mailbox of the engine's thread.
    pub fn notices(&self) -> &Arc<Mailbox<Notice>> {
        &self.notices
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "conn {}", self.key)
    }
}

/// Ends the sleep of the leader: an eventfd.
#[derive(Debug)]
pub struct Alarm(EventFd);

impl Alarm {
    pub(super) fn new() -> Result<Self, OsError> {
        eventfd().map(Self)
    }

    pub(super) fn ring(&self) {
        // The write fails only when the counter is full, and then the fd is readable anyway.
        let _ = self.0.write(1);
    }

    /// Sleeps until it rings, or no time is `left`.
    pub(super) fn sleep_until_event(&self, left: Option<Duration>) -> Result<Woken, OsError> {
        self.sleep_until_ready(&self.0, left)
    }

    /// Sleeps until `events` is readable, the alarm rings, or no time is `left`.
    pub fn sleep_until_ready(
        &self,
        events: impl AsFd,
        left: Option<Duration>,
    ) -> Result<Woken, OsError> {
        let timeout = PollTimeout::try_from(millis(bounded(left))).unwrap_or(PollTimeout::MAX);
        let mut fds = [
            PollFd::new(events.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.0.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut fds, timeout) {
            Ok(0) => Ok(Woken::Time),
            // The time limit holds even if events and alarms arrive continuously.
            Ok(_) if left.is_some_and(|left| left.is_zero()) => Ok(Woken::Time),
            Ok(_) if fds[1].any() == Some(true) => Ok(Woken::Alarm),
            Ok(_) | Err(nix::Error::EINTR) => Ok(Woken::Event),
            Err(errno) => {
                // The caller tries again at once, so without this pause it would spin if each call
                // fails.
                thread::sleep(BACK_OFF);
                Err(failed("poll")(errno))
            }
        }
    }

    /// Clears the alarm. Only the leader calls this, so it takes no alarm from another thread.
    pub(super) fn clear(&self) {
        let _ = self.0.read();
    }
}

/// Waits while `idle` returns true, and while there is time `left`.
pub(super) fn park<T>(
    changed: &Condvar,
    guard: MutexGuard<'_, T>,
    left: Option<Duration>,
    idle: impl FnMut(&mut T) -> bool,
) {
    drop(changed.wait_timeout_while(guard, bounded(left), idle));
}

/// Returns the time of the next sleep, if this time is `left`.
fn bounded(left: Option<Duration>) -> Duration {
    left.map_or(LONGEST_SLEEP, |left| left.min(LONGEST_SLEEP))
}
