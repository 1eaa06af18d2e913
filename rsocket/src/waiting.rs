use std::{
    io,
    os::fd::AsFd,
    sync::{Condvar, Mutex},
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use rdma_verbs::{cm::EventChannel, verbs::CompletionChannel};
use rdmsg_os::{Guard, Process, lock, millis};

use super::link::Link;

/// The time for which a thread polls before it sleeps. librdmacm polls for the same time.
const SPIN: Duration = Duration::from_micros(10);

/// The time after which this side sends a probe to a peer that has not responded to the first
/// message. The time doubles for each further probe, up to `MAX_PROBE_DELAY`.
const FIRST_PROBE_DELAY: Duration = Duration::from_millis(20);
const MAX_PROBE_DELAY: Duration = Duration::from_secs(1);

/// A connection on which several threads can wait.
///
/// One of the threads is the leader: it sleeps in poll(2) until a descriptor is readable. The
/// other threads are followers: they sleep until the leader wakes up. Then a thread that still has
/// to wait becomes the leader. A stream has no engine, and one lock guards its whole state.
/// Therefore streams do not use `Poller` of the crate `rdmsg-poll`.
#[derive(Debug)]
pub(super) struct Waiting {
    /// The process that created the connection.
    process: Process,
    state: Mutex<State>,
    awake: Condvar,
    done: CompletionChannel,
    events: EventChannel,
}

#[derive(Debug)]
struct State {
    link: Link,
    /// Whether a thread sleeps on the descriptors, or is about to sleep on them.
    sleeper: bool,
}

impl State {
    fn progress(&mut self) -> bool {
        // If another thread sleeps on the descriptors or is about to sleep, do not read
        // connection-manager events, because these events must wake that thread. Polling
        // completions is always safe: the event on the completion channel stays pending, so it
        // still wakes that thread.
        self.link.progress(!self.sleeper)
    }
}

/// The time limit of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Until {
    /// The call does not wait.
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

    /// Returns the remaining time, or `None` if there is no limit. Returns the error `WouldBlock`
    /// for `Now`, and `TimedOut` after the deadline.
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

    /// Returns an error in a forked child of the process that created the connection. A child must
    /// not acquire the connection's lock.
    pub(super) fn check(&self) -> io::Result<()> {
        if self.process.is_this() {
            return Ok(());
        }
        let text = "the stream belongs to the parent of this process; connect after the fork";
        Err(io::Error::new(io::ErrorKind::NotConnected, text))
    }

    /// Handles the pending events and completions without waiting, then calls `f` with the
    /// connection.
    pub(super) fn with<T>(&self, f: impl FnOnce(&mut Link) -> T) -> T {
        let mut state = self.lock();
        state.progress();
        f(&mut state.link)
    }

    /// Waits until `ready` returns a value, and returns that value.
    ///
    /// # Errors
    ///
    /// Returns `WouldBlock` or `TimedOut` if `ready` returns no value in time.
    pub(super) fn wait<T>(
        &self,
        until: Until,
        mut ready: impl FnMut(&mut Link) -> Option<T>,
    ) -> io::Result<T> {
        self.check()?;
        let mut state = self.lock();
        let mut spinning = None;
        let mut next_delay = FIRST_PROBE_DELAY;
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
                state = state.wait(&self.state, &self.awake, left);
                continue;
            }
            // Keep these steps in this order: request an event, poll the queue, sleep. In another
            // order this thread could miss a completion.
            state.link.arm()?;
            if state.progress() {
                continue;
            }
            if state.has_lines() {
                // Log before this thread becomes the sleeper, because the logger may wait for this
                // stream, and only the sleeper wakes waiting threads.
                drop(state);
                state = self.lock();
                continue;
            }
            state.sleeper = true;
            let probe_delay = state.link.is_unanswered().then_some(next_delay);
            drop(state);
            let slept = self.sleep([left, probe_delay].into_iter().flatten().min());
            state = self.lock();
            state.sleeper = false;
            self.awake.notify_all();
            slept?;
            if probe_delay.is_some() && !state.progress() && state.link.is_unanswered() {
                state.link.keep_alive();
                next_delay = (next_delay * 2).min(MAX_PROBE_DELAY);
            }
        }
    }

    fn sleep(&self, left: Option<Duration>) -> io::Result<()> {
        let mut files = [self.done.as_fd(), self.events.as_fd()]
            .map(|file| PollFd::new(file, PollFlags::POLLIN));
        // `poll` may return before the timeout. The caller's loop then checks the remaining time.
        let timeout = left.map_or(PollTimeout::NONE, |left| {
            PollTimeout::try_from(millis(left)).unwrap_or(PollTimeout::MAX)
        });
        match poll(&mut files, timeout) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn lock(&self) -> Guard<'_, State> {
        lock(&self.state)
    }
}
