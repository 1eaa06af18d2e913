//! The state of a [`Poller`](super::Poller), in one atomic word.
//!
//! ```text
//!  63        32 31       16 15    12 11  8    7         6        5        4       3      2   1   0
//! +------------+-----------+--------+------+---------+--------+----------+--------+-----+-------+
//! |   visits   | followers | relied |      | held    |attended| notified | asleep | led | owner |
//! +------------+-----------+--------+------+---------+--------+----------+--------+-----+-------+
//! ```
//!
//! The state is one word because each transition depends on several parts. Read-modify-write
//! operations on one atomic have a single order, so a thread that goes to sleep and a thread that
//! wakes it, or the engine that leaves a connection and a thread that begins to poll it, cannot
//! miss each other, and no fence is needed. The model checker runs all interleavings.

use super::sys::{AtomicU64, Ordering};

/// The owner of a connection's completions: it polls for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The engine's thread. Its epoll has the completion events.
    Engine,
    /// Threads that wait for the connection. The events are in no epoll.
    Threads,
    /// An event loop or a runtime. An epoll of its own has the events. The engine's thread takes
    /// over if the loop leaves events there.
    Loop,
}

/// A user that needs the engine's thread to poll, also if other threads poll. One bit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reliance {
    /// An event loop watches the fd for reading.
    Readable = 1 << 12,
    /// An event loop watches the fd for room.
    Writable = 1 << 13,
    /// A group receives the completions.
    Group = 1 << 14,
    /// A task waits outside of a runtime.
    Tasks = 1 << 15,
}

/// The result of a visit: a poll by a thread or a loop of the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Visit {
    /// The visitor owned the connection before.
    Known,
    /// The visitor owns the connection now: the caller changes the epolls and, if `tell` is set,
    /// notifies the engine.
    Acquired { tell: bool },
    /// The visitor polls, and the owner stays the same.
    Guest,
}

/// The result of a check by the engine of a connection that it does not own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerCheck {
    /// The owner has polled since the last check. The caller passes this count to the next check.
    Visited(u32),
    /// A thread sleeps in the kernel and notifies the engine when it wakes up. The engine stops
    /// checking.
    Left,
    /// The owner has not polled: the engine owns the connection again.
    Expired,
    /// The engine owns the connection already.
    Owned,
}

/// The threads that a change may concern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sleepers {
    /// The leader sleeps, or is about to.
    pub(super) leader: bool,
    /// Threads follow, or are about to.
    pub(super) followers: bool,
}

/// The state that a leader left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Resigned {
    pub(super) followers: bool,
    /// The leader had not woken up.
    pub(super) asleep: bool,
}

/// Whether the engine knows that a message is held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeldBack {
    /// The engine knows, or need not know because it polls itself or a thread is certain to poll.
    Known,
    /// The caller notifies the engine.
    Tell,
}

#[derive(Debug)]
pub(super) struct Word(AtomicU64);

const OWNER: u64 = 0b11;
const ENGINE: u64 = 0;
const THREADS: u64 = 1;
const LOOP: u64 = 2;
const HAS_LEADER: u64 = 1 << 2;
const ASLEEP: u64 = 1 << 3;
const NOTIFIED: u64 = 1 << 4;
/// The engine has the connection in its table, or a notice is in its mailbox, or it checks again
/// soon.
const ATTENDED: u64 = 1 << 5;
const HELD_BACK: u64 = 1 << 6;
const RELIANCE: u64 = 0b1111 << 12;
const FOLLOWER: u64 = 1 << 16;
const FOLLOWERS: u64 = 0xffff << 16;
/// The count wraps at the top of the word.
const VISIT: u64 = 1 << 32;

impl Word {
    #[inline]
    pub(super) fn new() -> Self {
        Self(AtomicU64::new(ENGINE))
    }

    // Calls for leading and following.

    /// Takes the lead. Returns false if another thread has it.
    #[inline]
    pub(super) fn lead(&self) -> bool {
        self.0.fetch_or(HAS_LEADER, Ordering::AcqRel) & HAS_LEADER == 0
    }

    /// Gives up the lead.
    #[inline]
    pub(super) fn resign(&self) -> Resigned {
        let word = self.0.fetch_and(!(HAS_LEADER | ASLEEP), Ordering::AcqRel);
        Resigned {
            followers: word & FOLLOWERS != 0,
            asleep: word & ASLEEP != 0,
        }
    }

    #[inline]
    pub(super) fn has_leader(&self) -> bool {
        self.0.load(Ordering::Acquire) & HAS_LEADER != 0
    }

    /// Counts a thread that follows.
    #[inline]
    pub(super) fn follow(&self) {
        self.0.fetch_add(FOLLOWER, Ordering::AcqRel);
    }

    #[inline]
    pub(super) fn unfollow(&self) {
        self.0.fetch_sub(FOLLOWER, Ordering::AcqRel);
    }

    // Calls for sleeping and waking.

    /// Announces that the leader is about to sleep. A wake after this call notifies it.
    #[inline]
    pub(super) fn fall_asleep(&self) {
        self.0.fetch_or(ASLEEP, Ordering::AcqRel);
    }

    /// Announces that the leader is awake.
    #[inline]
    pub(super) fn wake_up(&self) {
        self.0.fetch_and(!(ASLEEP | NOTIFIED), Ordering::AcqRel);
    }

    /// Returns the threads to wake after a change. A thread that goes to sleep later sees the
    /// change.
    #[inline]
    pub(super) fn sleepers(&self) -> Sleepers {
        // A read-modify-write that changes nothing: it is ordered with those of `fall_asleep` and
        // `follow`, which a load is not.
        let word = self.0.fetch_or(0, Ordering::AcqRel);
        Sleepers {
            leader: word & ASLEEP != 0,
            followers: word & FOLLOWERS != 0,
        }
    }

    /// Notes that the calling thread wakes the leader. Returns false if another thread is already
    /// waking it.
    #[inline]
    pub(super) fn notify(&self) -> bool {
        self.0.fetch_or(NOTIFIED, Ordering::AcqRel) & NOTIFIED == 0
    }

    #[inline]
    pub(super) fn is_notified(&self) -> bool {
        self.0.load(Ordering::Acquire) & NOTIFIED != 0
    }

    // Ownership.

    #[inline]
    pub(super) fn owner(&self) -> Owner {
        owner(self.0.load(Ordering::Acquire))
    }

    /// Counts a poll by a thread that waits. The thread acquires the connection from the engine if
    /// no user relies on the engine.
    #[inline]
    pub(super) fn visit_as_thread(&self) -> Visit {
        let word = self.0.fetch_add(VISIT, Ordering::AcqRel);
        if word & (OWNER | ATTENDED) == THREADS | ATTENDED {
            return Visit::Known;
        }
        self.acquire(word.wrapping_add(VISIT), |word| match owner(word) {
            Owner::Engine if word & RELIANCE == 0 => Some(word | THREADS | ATTENDED),
            // The engine stopped checking while the leader slept.
            Owner::Threads => Some(word | ATTENDED),
            Owner::Engine | Owner::Loop => None,
        })
    }

    /// Counts a poll by an event loop or a runtime. The loop acquires the connection if none of
    /// `but` relies on the engine.
    #[inline]
    pub(super) fn visit_as_loop(&self, but: &[Reliance]) -> Visit {
        let word = self.0.fetch_add(VISIT, Ordering::AcqRel);
        if word & OWNER == LOOP {
            return Visit::Known;
        }
        let relied = but.iter().fold(0, |all, one| all | *one as u64);
        self.acquire(word.wrapping_add(VISIT), |word| {
            let free = word & relied == 0 && owner(word) != Owner::Loop;
            // A sleeping thread still wakes up by itself.
            free.then_some((word & !(OWNER | ATTENDED)) | LOOP)
        })
    }

    #[inline]
    fn acquire(&self, seen: u64, next: impl Fn(u64) -> Option<u64>) -> Visit {
        let mut word = seen;
        loop {
            let Some(new) = next(word) else {
                return Visit::Guest;
            };
            if new == word {
                return Visit::Known;
            }
            match self
                .0
                .compare_exchange_weak(word, new, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => {
                    return Visit::Acquired {
                        tell: new & (ATTENDED | HELD_BACK) != 0,
                    };
                }
                Err(now) => word = now,
            }
        }
    }

    /// Compares the number of visits with `seen`, the number at the engine's last check.
    #[inline]
    pub(super) fn check_owner(&self, seen: u32) -> OwnerCheck {
        let mut word = self.0.load(Ordering::Acquire);
        loop {
            let (new, look) = match owner(word) {
                Owner::Engine => return OwnerCheck::Owned,
                Owner::Threads if word & ASLEEP != 0 => (word & !ATTENDED, OwnerCheck::Left),
                Owner::Threads | Owner::Loop if visits(word) != seen => {
                    return OwnerCheck::Visited(visits(word));
                }
                Owner::Threads | Owner::Loop => (word & !(OWNER | ATTENDED), OwnerCheck::Expired),
            };
            match self
                .0
                .compare_exchange_weak(word, new, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return look,
                Err(now) => word = now,
            }
        }
    }

    /// Makes the engine the owner.
    #[inline]
    pub(super) fn expire(&self) {
        self.0.fetch_and(!(OWNER | ATTENDED), Ordering::AcqRel);
    }

    /// Makes threads the owner without a visit, because one of them is polling. Returns whether the
    /// engine was the owner.
    #[inline]
    pub(super) fn yield_to_threads(&self) -> bool {
        let yielded = |word| (owner(word) == Owner::Engine).then_some(word | THREADS | ATTENDED);
        self.0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, yielded)
            .is_ok()
    }

    #[inline]
    pub(super) fn visits(&self) -> u32 {
        visits(self.0.load(Ordering::Acquire))
    }

    // Reliance.

    /// Returns whether this is new.
    #[inline]
    pub(super) fn rely(&self, who: Reliance) -> bool {
        let bit = who as u64;
        // Except in the first poll of a task, a load suffices, because the bit is set already.
        self.0.load(Ordering::Relaxed) & bit == 0
            && self.0.fetch_or(bit, Ordering::AcqRel) & bit == 0
    }

    #[inline]
    pub(super) fn stop_relying(&self, who: Reliance) {
        self.0.fetch_and(!(who as u64), Ordering::AcqRel);
    }

    #[inline]
    pub(super) fn relies(&self, who: Reliance) -> bool {
        self.0.load(Ordering::Relaxed) & who as u64 != 0
    }

    /// Whether users other than waiting threads need events for new completions.
    #[inline]
    pub(super) fn is_shared(&self) -> bool {
        let word = self.0.load(Ordering::Acquire);
        word & RELIANCE != 0 || word & OWNER == LOOP
    }

    // Holding back.

    /// Notes that a message is held back, which only a poll sends. The engine clears the note.
    #[inline]
    pub(super) fn note_held_back(&self) -> HeldBack {
        if self.0.load(Ordering::Relaxed) & HELD_BACK != 0 {
            return HeldBack::Known;
        }
        let word = self.0.fetch_or(HELD_BACK, Ordering::AcqRel);
        match owner(word) {
            // The engine polls by itself. A sleeping thread wakes up and polls when there is room.
            Owner::Engine => HeldBack::Known,
            Owner::Threads if word & ATTENDED == 0 => HeldBack::Known,
            Owner::Threads | Owner::Loop if word & HELD_BACK == 0 => HeldBack::Tell,
            Owner::Threads | Owner::Loop => HeldBack::Known,
        }
    }

    #[inline]
    pub(super) fn is_held_back(&self) -> bool {
        self.0.load(Ordering::Acquire) & HELD_BACK != 0
    }

    #[inline]
    pub(super) fn relax(&self) {
        self.0.fetch_and(!HELD_BACK, Ordering::AcqRel);
    }
}

#[inline]
fn owner(word: u64) -> Owner {
    match word & OWNER {
        THREADS => Owner::Threads,
        LOOP => Owner::Loop,
        _ => Owner::Engine,
    }
}

#[inline]
fn visits(word: u64) -> u32 {
    (word >> 32) as u32
}
