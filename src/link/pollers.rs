//! Threads that wait on one connection: leader and followers.
//!
//! The first thread that waits *leads*: it polls the completion queue itself, first spinning, then
//! asleep on the completion channel's fd, or in a call that receives. Further threads *follow*:
//! they are parked until they are woken or until nobody leads. A thread that acts on a completion
//! for which another may wait calls [`Pollers::wake`].

use std::{
    os::fd::BorrowedFd,
    sync::{
        Condvar, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU32, Ordering, fence},
    },
    time::Duration,
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

/// See the top of this file.
pub(crate) struct Pollers {
    /// Whether a thread leads.
    led: AtomicBool,
    /// Counts the wakes that following threads were there for.
    wakes: Mutex<u64>,
    changed: Condvar,
    /// How many threads follow, or are about to.
    following: AtomicU32,
    /// Whether the leader sleeps, or is about to.
    asleep: AtomicBool,
    /// Ends that sleep. Made before any thread can wait, so that none finds out in the middle of it
    /// that there is no fd left.
    waker: OnceLock<EventFd>,
    /// Whether the waker may be readable. Set after it was written, and so seen at the latest by
    /// the next sleep, which the waker ends.
    notified: AtomicBool,
}

/// The lead, given up when dropped.
pub(super) struct Leader<'a>(&'a Pollers);

/// A place among the followers. From its making on no wake is lost.
pub(super) struct Follower<'a> {
    pollers: &'a Pollers,
    wakes: u64,
}

impl Pollers {
    pub(super) fn new() -> Self {
        Self {
            led: AtomicBool::new(false),
            wakes: Mutex::new(0),
            changed: Condvar::new(),
            following: AtomicU32::new(0),
            asleep: AtomicBool::new(false),
            waker: OnceLock::new(),
            notified: AtomicBool::new(false),
        }
    }

    /// Makes what a sleep takes, once.
    pub(crate) fn prepare(&self) -> Result<(), OsError> {
        if self.waker.get().is_none() {
            let waker = eventfd()?;
            self.waker.get_or_init(|| waker);
        }
        Ok(())
    }

    /// What ends a sleep; there from [`prepare`](Self::prepare) on.
    pub(super) fn waker(&self) -> Option<&EventFd> {
        self.waker.get()
    }

    /// Leads, unless another thread does.
    pub(super) fn try_lead(&self) -> Option<Leader<'_>> {
        // Made only if nobody led: a leader that is dropped gives the lead up.
        let free = !self.led.swap(true, Ordering::Acquire);
        free.then(|| Leader(self))
    }

    /// Prepares to park. Check once more for what is waited for before [`Follower::wait`].
    pub(super) fn follow(&self) -> Follower<'_> {
        self.following.fetch_add(1, Ordering::SeqCst);
        let wakes = *lock(&self.wakes);
        Follower {
            pollers: self,
            wakes,
        }
    }

    /// Has waiting threads check again. Cheap when no thread waits.
    pub(super) fn wake(&self) {
        // Pairs with the fence in `sleep` and the increment in `follow`: either they see what
        // happened, or this sees them.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed)
            && let Some(waker) = self.waker.get()
        {
            // It fails only when the counter is full, and then it is readable anyway.
            let _ = waker.write(1);
            self.notified.store(true, Ordering::Release);
        }
        self.wake_followers();
    }

    fn wake_followers(&self) {
        if self.following.load(Ordering::SeqCst) > 0 {
            *lock(&self.wakes) += 1;
            self.changed.notify_all();
        }
    }
}

impl Follower<'_> {
    /// Waits until there was a wake since this was made, nobody leads, or no time is `left`.
    pub(super) fn wait(self, left: Option<Duration>) {
        let wakes = lock(&self.pollers.wakes);
        // Pairs with the lead's end: either this sees that nobody leads, or the thread that gave it
        // up sees this one among the followers.
        let idle =
            |wakes: &mut u64| self.pollers.led.load(Ordering::SeqCst) && *wakes == self.wakes;
        drop(
            self.pollers
                .changed
                .wait_timeout_while(wakes, nap(left), idle),
        );
    }
}

impl Drop for Follower<'_> {
    fn drop(&mut self) {
        self.pollers.following.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Leader<'_> {
    /// Sleeps by `doze`. `check` is called once before, when no wake can be lost any more; it arms
    /// the completion queue, polls for what may have come before, and returns whether to sleep at
    /// all.
    pub(super) fn sleep(
        &self,
        waker: &EventFd,
        check: impl FnOnce() -> bool,
        doze: impl FnOnce() -> Result<Woken, OsError>,
    ) -> Result<Woken, OsError> {
        let pollers = self.0;
        pollers.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let result = if check() { doze() } else { Ok(Woken::ByEvent) };
        pollers.asleep.store(false, Ordering::SeqCst);
        if pollers.notified.load(Ordering::Relaxed)
            && pollers.notified.swap(false, Ordering::Acquire)
        {
            // Only the leader reads the waker, so this takes no wake from another thread.
            let _ = waker.read();
        }
        result
    }
}

impl Leader<'_> {
    /// Whether there was a wake since [`sleep`](Self::sleep) began.
    pub(super) fn is_woken(&self) -> bool {
        self.0.notified.load(Ordering::Acquire)
    }
}

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        self.0.led.store(false, Ordering::SeqCst);
        self.0.wake_followers();
    }
}

fn nap(left: Option<Duration>) -> Duration {
    left.map_or(LONGEST_SLEEP, |left| left.min(LONGEST_SLEEP))
}

/// What ended a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Woken {
    /// Something that happened, as far as is known.
    ByEvent,
    /// Nothing.
    ByTime,
}

/// Sleeps until `fd` is readable, until woken by `waker`, or until no time is `left`.
pub(super) fn doze(
    fd: BorrowedFd<'_>,
    waker: BorrowedFd<'_>,
    left: Option<Duration>,
) -> Result<Woken, OsError> {
    // Rounded up, so that a remainder below a millisecond does not become a busy loop.
    let millis = nap(left).as_nanos().div_ceil(1_000_000) as u32;
    let timeout = PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX);
    let mut fds = [
        PollFd::new(fd, PollFlags::POLLIN),
        PollFd::new(waker, PollFlags::POLLIN),
    ];
    match poll(&mut fds, timeout) {
        Ok(0) => Ok(Woken::ByTime),
        // Something that comes all the time does not put the end off.
        Ok(_) if left.is_some_and(|left| left.is_zero()) => Ok(Woken::ByTime),
        Ok(_) | Err(nix::Error::EINTR) => Ok(Woken::ByEvent),
        Err(errno) => Err(OsError::new("poll", errno as i32)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_leader_gives_up_the_lead() {
        let pollers = Pollers::new();
        let leader = pollers.try_lead();
        assert!(leader.is_some());
        assert!(pollers.try_lead().is_none());
        assert!(
            pollers.try_lead().is_none(),
            "a try that failed freed nothing"
        );
        drop(leader);
        assert!(pollers.try_lead().is_some());
    }
}
