use std::{
    io,
    os::fd::AsFd,
    sync::{Condvar, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use rdma_verbs::{cm::EventChannel, verbs::CompletionChannel};
use rdmsg_os::{Process, lock, millis, unpoisoned};

use super::link::Link;

/// The time for which a thread polls before it sleeps, the same as librdmacm's.
const SPIN: Duration = Duration::from_micros(10);

/// The time after which a peer that has not answered is nudged. The wait before each further nudge
/// doubles, up to [`LAST_NUDGE`].
const FIRST_NUDGE: Duration = Duration::from_millis(20);
const LAST_NUDGE: Duration = Duration::from_secs(1);

/// A connection that several threads wait on.
///
/// They are leader and followers: one of them sleeps on the descriptors. The others sleep until
/// that one wakes up; then one of them takes its place. There is no engine, and one lock protects
/// all state, so `poll::Poller` is not needed.
#[derive(Debug)]
pub(super) struct Waiting {
    /// The process that created it.
    process: Process,
    state: Mutex<State>,
    awake: Condvar,
    done: CompletionChannel,
    events: EventChannel,
}

#[derive(Debug)]
struct State {
    link: Link,
    /// Whether a thread sleeps on the descriptors.
    sleeper: bool,
}

impl State {
    fn progress(&mut self) -> bool {
        // Events are not read while another thread sleeps on them, or is about to, because that
        // thread would then not wake up. Completions may be polled, because their notification
        // remains on the channel.
        self.link.progress(!self.sleeper)
    }
}

/// The time limit of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Until {
    /// Does not wait.
    Now,
    Deadline(Instant),
    Ever,
}

impl Until {
    pub(super) fn after(timeout: Option<Duration>) -> Self {
        timeout
            .and_then(|timeout| Instant::now().checked_add(timeout))
            .map_or(Self::Ever, Self::Deadline)
    }

    /// Returns the remaining time, `None` if it is unlimited, or an error if it has elapsed.
    fn left(self) -> io::Result<Option<Duration>> {
        match self {
            Self::Now => Err(io::ErrorKind::WouldBlock.into()),
            Self::Ever => Ok(None),
            Self::Deadline(at) => {
                let left = at.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                Ok(Some(left))
            }
        }
    }
}

impl Waiting {
    pub(super) fn new(link: Link) -> Self {
        Self {
            process: Process::this(),
            done: link.done.clone(),
            events: link.events().clone(),
            state: Mutex::new(State {
                link,
                sleeper: false,
            }),
            awake: Condvar::new(),
        }
    }

    /// Returns an error in a child of the process that made the connection, which must not lock it.
    pub(super) fn check(&self) -> io::Result<()> {
        if self.process.is_this() {
            return Ok(());
        }
        let text = "the stream belongs to the process that forked this one; connect after the fork";
        Err(io::Error::new(io::ErrorKind::NotConnected, text))
    }

    /// Makes progress, and calls `f` with the connection, without waiting.
    pub(super) fn with<T>(&self, f: impl FnOnce(&mut Link) -> T) -> T {
        let mut state = self.lock();
        state.progress();
        f(&mut state.link)
    }

    /// Waits until `ready` returns a value, and returns it.
    ///
    /// # Errors
    ///
    /// `WouldBlock` or `TimedOut` if `ready` has not returned a value in time.
    pub(super) fn wait<T>(
        &self,
        until: Until,
        mut ready: impl FnMut(&mut Link) -> Option<T>,
    ) -> io::Result<T> {
        self.check()?;
        let mut state = self.lock();
        let mut spinning = None;
        let mut time_limit = FIRST_NUDGE;
        loop {
            let progress = state.progress();
            if let Some(value) = ready(&mut state.link) {
                return Ok(value);
            }
            let left = until.left()?;
            if progress || spinning.get_or_insert_with(Instant::now).elapsed() < SPIN {
                continue;
            }
            spinning = None;
            if state.sleeper {
                state = match left {
                    None => unpoisoned(self.awake.wait(state)),
                    Some(left) => unpoisoned(self.awake.wait_timeout(state, left)).0,
                };
                continue;
            }
            // No completion is missed in this order: request a notification, poll, sleep.
            state.link.arm()?;
            if state.progress() {
                continue;
            }
            state.sleeper = true;
            let nudge = state.link.is_unanswered().then_some(time_limit);
            drop(state);
            let slept = self.sleep([left, nudge].into_iter().flatten().min());
            state = self.lock();
            state.sleeper = false;
            self.awake.notify_all();
            slept?;
            if nudge.is_some() && !state.progress() && state.link.is_unanswered() {
                state.link.keep_alive();
                time_limit = (time_limit * 2).min(LAST_NUDGE);
            }
        }
    }

    fn sleep(&self, left: Option<Duration>) -> io::Result<()> {
        let mut files = [self.done.as_fd(), self.events.as_fd()]
            .map(|file| PollFd::new(file, PollFlags::POLLIN));
        // The caller's loop checks the time.
        let timeout = left.map_or(PollTimeout::NONE, |left| {
            PollTimeout::try_from(millis(left)).unwrap_or(PollTimeout::MAX)
        });
        match poll(&mut files, timeout) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}
