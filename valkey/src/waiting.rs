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
use rdmsg_os::{Process, lock, millis};

use crate::link::Link;

/// A connection on which several threads can wait.
///
/// At most one thread sleeps in poll(2) on the descriptors of the channels. The other waiting
/// threads sleep on a condition variable. When the thread in poll(2) wakes up, it notifies the
/// other threads. One of the threads that have not finished waiting then calls poll(2).
#[derive(Debug)]
pub(crate) struct Waiting {
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

/// Returns the time at which a timeout expires, or `None` if there is no limit.
pub(crate) fn deadline(timeout: Option<Duration>) -> Option<Instant> {
    timeout.and_then(|timeout| Instant::now().checked_add(timeout))
}

/// Returns the remaining time, or `None` if there is no limit. Returns `TimedOut` if the deadline
/// has passed.
pub(crate) fn left(deadline: Option<Instant>) -> io::Result<Option<Duration>> {
    let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
    if left.is_some_and(|left| left.is_zero()) {
        return Err(io::ErrorKind::TimedOut.into());
    }
    Ok(left)
}

impl Waiting {
    pub(crate) fn new(link: Link) -> Self {
        Self {
            process: Process::this(),
            done: link.done().clone(),
            events: link.events().clone(),
            state: Mutex::new(State {
                link,
                sleeper: false,
            }),
            awake: Condvar::new(),
        }
    }

    /// Returns an error in a forked child of the process that created the connection. A child must
    /// not acquire the connection's lock, because a thread of the parent may have held it during
    /// the fork.
    pub(crate) fn check(&self) -> io::Result<()> {
        if self.process.is_this() {
            return Ok(());
        }
        let text = "the stream belongs to the process that forked this one; connect after the fork";
        Err(io::Error::new(io::ErrorKind::NotConnected, text))
    }

    /// Locks the connection, and calls `f` with it. Does not wait for completions or events.
    pub(crate) fn with<T>(&self, f: impl FnOnce(&mut Link) -> T) -> T {
        f(&mut lock(&self.state).link)
    }

    /// Waits until `ready` returns a value, and returns that value.
    ///
    /// # Errors
    ///
    /// Returns `TimedOut` if `ready` returns no value before the deadline.
    pub(crate) fn wait<T>(
        &self,
        deadline: Option<Instant>,
        mut ready: impl FnMut(&mut Link) -> Option<T>,
    ) -> io::Result<T> {
        self.check()?;
        let mut state = lock(&self.state);
        loop {
            let mut progress = state.link.progress(false);
            if let Some(value) = ready(&mut state.link) {
                return Ok(value);
            }
            // If another thread sleeps on the descriptors or is about to sleep, leave
            // connection-manager events unread, because they must wake that thread. If there is no
            // such thread, read the events, which costs a system call. This thread may poll
            // completions in both cases, because the event on the completion channel stays pending
            // and wakes the sleeping thread.
            if !state.sleeper {
                progress |= state.link.progress(true);
                if let Some(value) = ready(&mut state.link) {
                    return Ok(value);
                }
            }
            let left = left(deadline)?;
            if progress {
                continue;
            }
            if state.sleeper {
                state = state.wait(&self.state, &self.awake, left);
                continue;
            }
            // Request an event, then poll the queue, then sleep. In another order, this thread
            // could miss a completion.
            state.link.arm()?;
            if state.link.progress(true) {
                continue;
            }
            if state.has_lines() {
                // Log before this thread becomes the sleeper, because the logger may wait for this
                // stream, and only the sleeper wakes waiting threads.
                drop(state);
                state = lock(&self.state);
                continue;
            }
            state.sleeper = true;
            drop(state);
            let slept = self.sleep(left);
            state = lock(&self.state);
            state.sleeper = false;
            self.awake.notify_all();
            slept?;
        }
    }

    fn sleep(&self, left: Option<Duration>) -> io::Result<()> {
        let mut files = [self.done.as_fd(), self.events.as_fd()]
            .map(|file| PollFd::new(file, PollFlags::POLLIN));
        // poll(2) may return before the deadline. The caller's loop checks the deadline.
        let timeout = left.map_or(PollTimeout::NONE, |left| {
            PollTimeout::try_from(millis(left)).unwrap_or(PollTimeout::MAX)
        });
        match poll(&mut files, timeout) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
