//! Who polls a connection's completion queue: the engine's thread, or threads of the application.
//!
//! A thread that polls by itself *renews* the lease, and the first one that does tells the engine,
//! which stops watching the queue and looks now and then whether the lease was renewed since. Where
//! it was not, the lease *expires* and the engine watches again. A thread that sleeps on the
//! completion channel renews nothing, and need not: it wakes up when something comes. So the engine
//! *leaves* it alone, and is told anew when it has woken up.
//!
//! The danger is a queue that nobody watches: the engine leaves because it saw a thread asleep, and
//! the thread wakes up and does not tell because it saw the lease granted. Each side writes its own
//! flag, passes a fence, and reads the other's, so at least one of them sees the other's write.
//! `integration/models` checks all interleavings of that.

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

/// See the top of this file.
#[derive(Debug)]
pub(crate) struct PollLease {
    /// Whether the engine has been told that threads of the application poll, and acts on it.
    granted: AtomicBool,
    /// Counts polls by threads of the application.
    renewals: AtomicU64,
    /// Whether a thread of the application sleeps on the completion channel.
    asleep: AtomicBool,
    /// See [`press`](Self::press).
    pressed: AtomicBool,
}

/// What the engine finds when it looks after a lease that it granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Term {
    /// It was renewed since; the count is for the next look.
    Renewed(u64),
    /// A thread sleeps on the completion channel, and tells when it has woken up: there is nothing
    /// to look after.
    Left,
    /// Nobody polls any more: the engine is to watch.
    Expired,
}

impl PollLease {
    pub(crate) fn new() -> Self {
        Self {
            granted: AtomicBool::new(false),
            renewals: AtomicU64::new(0),
            asleep: AtomicBool::new(false),
            pressed: AtomicBool::new(false),
        }
    }

    /// A thread of the application is about to poll. Returns whether the engine must be told.
    #[must_use]
    pub(crate) fn renew(&self) -> bool {
        self.renewals.fetch_add(1, Ordering::Relaxed);
        !self.granted.load(Ordering::Relaxed) && !self.granted.swap(true, Ordering::Relaxed)
    }

    /// The thread that polls is about to sleep on the completion channel, until it calls
    /// [`wake_up`](Self::wake_up).
    pub(crate) fn fall_asleep(&self) {
        self.asleep.store(true, Ordering::Relaxed);
    }

    /// The thread sleeps no more, and [renews](Self::renew) the lease next.
    pub(crate) fn wake_up(&self) {
        self.asleep.store(false, Ordering::Relaxed);
        // Pairs with the one in `look`: the engine sees this thread awake, or the next `renew` sees
        // that the engine has left.
        fence(Ordering::SeqCst);
    }

    /// The engine, which was told, stops watching. Returns the count for the first
    /// [`look`](Self::look).
    pub(crate) fn grant(&self) -> u64 {
        self.renewals.load(Ordering::Relaxed)
    }

    /// The engine looks after a lease, with the count that it saw last.
    pub(crate) fn look(&self, seen: u64) -> Term {
        if self.asleep.load(Ordering::Relaxed) {
            self.granted.store(false, Ordering::Relaxed);
            // Pairs with the one in `wake_up`.
            fence(Ordering::SeqCst);
            if self.asleep.load(Ordering::Relaxed) {
                return Term::Left;
            }
            // It woke up meanwhile, and may not have told.
            self.granted.store(true, Ordering::Relaxed);
        }
        match self.renewals.load(Ordering::Relaxed) {
            renewals if renewals == seen => Term::Expired,
            renewals => Term::Renewed(renewals),
        }
    }

    /// Something waits here for what comes next, and the threads that poll may stop to: the engine
    /// is to look sooner. Returns whether it must be told.
    #[must_use]
    pub(crate) fn press(&self) -> bool {
        if self.pressed.load(Ordering::Relaxed) || self.pressed.swap(true, Ordering::Relaxed) {
            return false;
        }
        // Pairs with the one in `is_pressed`: this sees the lease granted, or the engine, when it
        // hears of that, sees it pressed.
        fence(Ordering::SeqCst);
        self.granted.load(Ordering::Relaxed)
    }

    /// Whether the engine, which was told of a lease, is to look sooner.
    pub(crate) fn is_pressed(&self) -> bool {
        fence(Ordering::SeqCst);
        self.pressed.load(Ordering::Relaxed)
    }

    /// Nothing waits here any more.
    pub(crate) fn relax(&self) {
        self.pressed.store(false, Ordering::Relaxed);
    }

    /// The engine watches again: the next thread that polls tells it.
    pub(crate) fn expire(&self) {
        self.granted.store(false, Ordering::Relaxed);
    }
}
