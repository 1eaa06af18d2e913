//! Who waits for what on one connection.
//!
//! Whoever waits, polls: the first thread that waits takes the *turn* and polls the completion queue itself, first spinning,
//! then asleep on the completion channel's fd. Further threads park until they are woken or the turn is free.
//! A thread that acts on a completion which another may wait for calls [`Waiting::wake`].

use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Condvar, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU32, Ordering, fence},
    },
    time::{Duration, Instant},
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::eventfd::EventFd,
};

use crate::{
    status::OsError,
    sync::{eventfd, lock},
};

/// The longest single sleep: a bound on the harm of a bug, not something that anything relies on.
const LONGEST_SLEEP: Duration = Duration::from_secs(10);

pub(super) struct Waiting {
    /// Whether a thread has the turn.
    taken: AtomicBool,
    /// Counts the wakes that parked threads were there for.
    wakes: Mutex<u64>,
    changed: Condvar,
    /// How many threads are parked or about to.
    parked: AtomicU32,
    /// Whether the thread that has the turn sleeps, or is about to.
    asleep: AtomicBool,
    /// Ends that sleep. Made before anybody can wait, so that no thread finds out in the middle of it that there is no fd left.
    bell: OnceLock<EventFd>,
    /// Whether the bell may be readable. Set after it was rung, and so at the latest by the next sleep, which the bell ends.
    rung: AtomicBool,
}

/// The turn, given back when dropped.
pub(super) struct TurnGuard<'a>(&'a Waiting);

/// A place among the parked. From its making on no wake is lost.
pub(super) struct Parking<'a> {
    waiting: &'a Waiting,
    wakes: u64,
}

impl Waiting {
    pub(super) fn new() -> Self {
        Self {
            taken: AtomicBool::new(false),
            wakes: Mutex::new(0),
            changed: Condvar::new(),
            parked: AtomicU32::new(0),
            asleep: AtomicBool::new(false),
            bell: OnceLock::new(),
            rung: AtomicBool::new(false),
        }
    }

    /// Makes what a sleep takes, once.
    pub(super) fn prepare(&self) -> Result<(), OsError> {
        if self.bell.get().is_none() {
            let bell = eventfd()?;
            self.bell.get_or_init(|| bell);
        }
        Ok(())
    }

    /// What ends a sleep; there from [`prepare`](Self::prepare) on.
    pub(super) fn bell(&self) -> Option<&EventFd> {
        self.bell.get()
    }

    /// Takes the turn, unless another thread has it.
    pub(super) fn try_turn(&self) -> Option<TurnGuard<'_>> {
        // Made only if the turn was free: a guard that is dropped gives it back.
        let free = !self.taken.swap(true, Ordering::Acquire);
        free.then(|| TurnGuard(self))
    }

    /// Prepares to park. Look once more for what is waited for before [`Parking::wait`].
    pub(super) fn park(&self) -> Parking<'_> {
        self.parked.fetch_add(1, Ordering::SeqCst);
        let wakes = *lock(&self.wakes);
        Parking {
            waiting: self,
            wakes,
        }
    }

    /// Tells waiting threads to look again. Cheap when nobody waits.
    pub(super) fn wake(&self) {
        // Pairs with the fence in `sleep` and the increment in `park`: either they see what happened, or this sees them.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed)
            && let Some(bell) = self.bell.get()
        {
            // It fails only when the counter is full, and then it is readable anyway.
            let _ = bell.write(1);
            self.rung.store(true, Ordering::Release);
        }
        self.wake_parked();
    }

    /// Whether a thread sleeps on the completion channel, and so will see what comes.
    pub(super) fn is_asleep(&self) -> bool {
        self.asleep.load(Ordering::SeqCst)
    }

    fn wake_parked(&self) {
        if self.parked.load(Ordering::SeqCst) > 0 {
            *lock(&self.wakes) += 1;
            self.changed.notify_all();
        }
    }
}

impl Parking<'_> {
    /// Waits until there was a wake since this was made, the turn is free, or `deadline` is past.
    pub(super) fn wait(self, deadline: Option<Instant>) {
        let wakes = lock(&self.waiting.wakes);
        // Pairs with the turn's end: either this sees it free, or whoever gave it back sees this thread among the parked.
        let idle =
            |wakes: &mut u64| self.waiting.taken.load(Ordering::SeqCst) && *wakes == self.wakes;
        drop(
            self.waiting
                .changed
                .wait_timeout_while(wakes, nap(deadline), idle),
        );
    }
}

impl Drop for Parking<'_> {
    fn drop(&mut self) {
        self.waiting.parked.fetch_sub(1, Ordering::SeqCst);
    }
}

impl TurnGuard<'_> {
    /// Sleeps until `fd` is readable, until woken, or until `deadline`. `look` is called once in between, when no wake can be
    /// lost any more; it arms the completion queue, looks for what may have come before, and says whether to sleep at all.
    pub(super) fn sleep(
        &self,
        fd: BorrowedFd<'_>,
        bell: &EventFd,
        deadline: Option<Instant>,
        look: impl FnOnce() -> bool,
    ) -> Result<(), OsError> {
        let waiting = self.0;
        waiting.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let result = if look() {
            doze(fd, bell.as_fd(), deadline)
        } else {
            Ok(())
        };
        // Before the caller looks at who watches the queue: see `Link::keep_engine_away`.
        waiting.asleep.store(false, Ordering::SeqCst);
        if waiting.rung.load(Ordering::Relaxed) && waiting.rung.swap(false, Ordering::Acquire) {
            // Only the thread that has the turn reads the bell, so this takes no wake from another.
            let _ = bell.read();
        }
        result
    }
}

impl Drop for TurnGuard<'_> {
    fn drop(&mut self) {
        self.0.taken.store(false, Ordering::SeqCst);
        self.0.wake_parked();
    }
}

fn nap(deadline: Option<Instant>) -> Duration {
    deadline.map_or(LONGEST_SLEEP, |at| {
        at.saturating_duration_since(Instant::now())
            .min(LONGEST_SLEEP)
    })
}

fn doze(
    fd: BorrowedFd<'_>,
    bell: BorrowedFd<'_>,
    deadline: Option<Instant>,
) -> Result<(), OsError> {
    // Rounded up, so that a remainder below a millisecond does not become a busy loop.
    let millis = nap(deadline).as_nanos().div_ceil(1_000_000) as u32;
    let timeout = PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX);
    let mut fds = [
        PollFd::new(fd, PollFlags::POLLIN),
        PollFd::new(bell, PollFlags::POLLIN),
    ];
    match poll(&mut fds, timeout) {
        Ok(_) | Err(nix::Error::EINTR) => Ok(()),
        Err(errno) => Err(OsError::new("poll", errno as i32)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_has_the_turn_gives_it_back() {
        let waiting = Waiting::new();
        let turn = waiting.try_turn();
        assert!(turn.is_some());
        assert!(waiting.try_turn().is_none());
        assert!(
            waiting.try_turn().is_none(),
            "a try that failed freed nothing"
        );
        drop(turn);
        assert!(waiting.try_turn().is_some());
    }
}
