//! The system calls and synchronization primitives of this crate. The model checker replaces this
//! module with `model::system`.

pub(super) use std::sync::{
    Condvar, Mutex,
    atomic::{AtomicU64, Ordering},
};
use std::{
    fmt,
    os::fd::{AsFd, BorrowedFd},
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
pub(super) use rdmsg_os::lock_hot as lock;

/// The maximum duration of one sleep. Code must not rely on this limit: it exists only so that a
/// thread continues even if a bug loses the thread's wake-up.
const LONGEST_SLEEP: Duration = Duration::from_secs(10);

/// The pause after a failed system call.
const BACK_OFF: Duration = Duration::from_millis(10);

/// The reason why a sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// A completion event was raised, or a signal interrupted the sleep.
    Event,
    /// Another thread wrote to the alarm.
    Alarm,
    /// The time limit has expired.
    Time,
}

/// Sends notices about one connection to the engine's thread.
#[derive(Debug)]
pub struct NoticeSender {
    key: u64,
    notices: Arc<Mailbox<Notice>>,
}

impl NoticeSender {
    /// Creates a sender of notices about one connection. `key` is the connection's number, unique
    /// in the process.
    pub fn new(key: u64, notices: Arc<Mailbox<Notice>>) -> Self {
        Self { key, notices }
    }

    /// Sends a notice, and wakes the engine's thread.
    pub fn send(&self, kind: NoticeKind) {
        let key = self.key;
        self.notices.send(Notice { key, kind });
    }

    /// Sends a notice that is not urgent. Does not wake the engine's thread if that thread will
    /// read its mailbox soon anyway.
    pub fn send_deferrable(&self, kind: NoticeKind) {
        let key = self.key;
        self.notices.send_deferrable(Notice { key, kind });
    }

    /// Calls the mailbox's reader, if the engine has no thread. The caller holds no lock.
    pub fn serve(&self) {
        self.notices.serve();
    }

    /// See [`Mailbox::shorten`].
    pub(super) fn shorten(&self, left: Option<Duration>) -> Option<Duration> {
        self.notices.shorten(left)
    }

    /// See [`Mailbox::serve_due`].
    pub(super) fn serve_due(&self) {
        self.notices.serve_due();
    }

    /// Returns the mailbox that receives the notices.
    pub fn notices(&self) -> &Arc<Mailbox<Notice>> {
        &self.notices
    }
}

impl fmt::Display for NoticeSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "conn {}", self.key)
    }
}

/// The descriptor of an [`Alarm`].
pub type AlarmFd = EventFd;

/// The eventfd that ends the sleep of the leader. The leader is the waiting thread that polls the
/// connection for all threads that wait.
#[derive(Debug)]
pub struct Alarm(AlarmFd);

impl Alarm {
    pub(super) fn new(reserve: Option<AlarmFd>) -> Result<Self, OsError> {
        reserve.map_or_else(eventfd, Ok).map(Self)
    }

    pub(super) fn ring(&self) {
        // The result is ignored: the write fails only if the counter is at its maximum, and in that
        // case the fd is already readable.
        let _ = self.0.write(1);
    }

    /// Sleeps until another thread rings this alarm, or until the time `left` has elapsed.
    pub(super) fn sleep_until_event(&self, left: Option<Duration>) -> Result<Woken, OsError> {
        self.sleep_until_ready(&self.0, left)
    }

    /// Sleeps until `events` is readable, until another thread rings this alarm, or until the time
    /// `left` has elapsed.
    pub fn sleep_until_ready(
        &self,
        events: impl AsFd,
        left: Option<Duration>,
    ) -> Result<Woken, OsError> {
        let timeout = PollTimeout::try_from(sleep_limit(left)).unwrap_or(PollTimeout::MAX);
        let mut fds = [
            PollFd::new(events.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.0.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut fds, timeout) {
            Ok(0) => Ok(Woken::Time),
            // The time limit takes precedence over an event. Without this case, a continuous stream
            // of events and alarms could prolong the wait beyond the limit.
            Ok(_) if left.is_some_and(|left| left.is_zero()) => Ok(Woken::Time),
            Ok(_) if fds[1].any() == Some(true) => Ok(Woken::Alarm),
            Ok(_) | Err(nix::Error::EINTR) => Ok(Woken::Event),
            Err(errno) => {
                back_off();
                Err(failed("poll")(errno))
            }
        }
    }

    /// Makes the eventfd unreadable. Only the leader calls this method, so the call never consumes
    /// an alarm that was meant for another thread.
    pub(super) fn clear(&self) {
        let _ = self.0.read();
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Waits while `idle` returns true, for at most the time `left` and at most `LONGEST_SLEEP`.
pub(super) fn park<T>(
    changed: &Condvar,
    guard: MutexGuard<'_, T>,
    left: Option<Duration>,
    idle: impl FnMut(&mut T) -> bool,
) {
    drop(changed.wait_timeout_while(guard, bounded(left), idle));
}

/// Pauses after a failed wait. The caller waits again immediately after this pause. Without the
/// pause, the caller would use a whole processor if every wait failed.
pub(super) fn back_off() {
    thread::sleep(BACK_OFF);
}

/// Returns the time limit of one sleep in milliseconds, at most `LONGEST_SLEEP`.
pub(super) fn sleep_limit(left: Option<Duration>) -> u64 {
    millis(bounded(left))
}

/// Returns the time `left`, limited to `LONGEST_SLEEP`.
fn bounded(left: Option<Duration>) -> Duration {
    left.map_or(LONGEST_SLEEP, |left| left.min(LONGEST_SLEEP))
}
