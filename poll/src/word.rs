//! The state of a [`Poller`](super::Poller), in one atomic word.
//!
//! ```text
//!  63      32 31      16 15    11 10     7     6          5          4        3       2   1     0
//! +----------+----------+--------+--------+----------+----------+---------+--------+-----+-------+
//! |  visits  |followers | relied | unused |held back | attended | notified| asleep | led | owner |
//! +----------+----------+--------+--------+----------+----------+---------+--------+-----+-------+
//! ```
//!
//! One word holds the whole state because each transition depends on several fields. All
//! read-modify-write operations on one atomic have a single order. Therefore a thread that goes to
//! sleep cannot miss a wake-up by another thread. Likewise, when the engine stops polling a
//! connection, it cannot miss that a thread has started to poll the connection. No fence is needed.
//! The model checker loom tests all interleavings.

use super::sys::{AtomicU64, Ordering};

/// Identifies the owner of a connection. The owner is responsible for polling the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The engine's thread. The completion channel is registered with the engine's epoll.
    Engine,
    /// Threads that wait for the connection. The completion channel is registered with no epoll.
    Threads,
    /// An event loop, a runtime, or the threads of a group. The completion channel is registered
    /// with the epoll of this owner, and with a second epoll that the engine's thread checks. If
    /// this owner does not handle the events, the engine's thread becomes the owner.
    Loop,
}

/// A user of the connection that needs the engine's thread to poll even while other threads poll.
/// Each user is one bit of the field `relied`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reliance {
    /// The peer in this process, whose thread delivers completions without raising an event.
    Peer = 1 << 11,
    /// An event loop that watches the fd for reading.
    Readable = 1 << 12,
    /// An event loop that watches the fd for writing, because it waits for room to send.
    Writable = 1 << 13,
    /// A group that receives the completions. If the group's threads are the owner, the owner is
    /// [`Owner::Loop`].
    Group = 1 << 14,
    /// A task that waits outside of a runtime.
    Tasks = 1 << 15,
}

/// The result of a visit. A visit is a poll by a thread or an event loop of the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Visit {
    /// The visitor was already the owner.
    AlreadyOwner,
    /// The visitor became the owner, or threads are the owner and the engine must resume its
    /// checks. The caller must move the events to the owner's epoll and, if `notify_engine` is set,
    /// notify the engine.
    Acquired { notify_engine: bool },
    /// The visitor polls, and the owner does not change.
    NotOwner,
}

/// The result of checking whether the owner is still polling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerCheck {
    /// The owner has polled since the last check. The value is the visit counter, which the engine
    /// passes to the next check.
    Visited(u32),
    /// A thread of the application sleeps in the kernel. The engine stops its checks. When the
    /// thread wakes up and polls, the thread notifies the engine.
    Asleep,
    /// The owner has not polled since the last check, so the engine is now the owner.
    Expired,
    /// The engine was already the owner.
    Owned,
}

/// The threads that must be woken after a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sleepers {
    /// Whether the leader sleeps or is about to sleep.
    pub(super) leader: bool,
    /// Whether at least one thread follows or is about to follow.
    pub(super) followers: bool,
}

/// The fields of the word just before a leader resigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Resigned {
    /// Whether at least one thread followed or was about to follow.
    pub(super) followers: bool,
    /// Whether the leader was still marked as asleep because a panic ended its sleep.
    pub(super) asleep: bool,
}

/// Whether the caller must notify the engine that a message is held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeldBack {
    /// No notice is needed. Either the engine was already notified, or a poll is certain: the
    /// engine is the owner, or a sleeping thread will wake up and poll.
    Known,
    /// The caller must notify the engine.
    NotifyEngine,
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
/// Set while the engine's table `Attended` contains the connection, while the engine's mailbox
/// contains a notice about the connection, or while the engine is about to check the connection
/// again.
const ATTENDED: u64 = 1 << 5;
const HELD_BACK: u64 = 1 << 6;
const RELIANCE: u64 = 0b1_1111 << 11;
const FOLLOWER: u64 = 1 << 16;
const FOLLOWERS: u64 = 0xffff << 16;
/// One visit. The visit counter is the topmost field, so its overflow changes no other field.
const VISIT: u64 = 1 << 32;

impl Word {
    #[inline]
    pub(super) fn new() -> Self {
        Self(AtomicU64::new(ENGINE))
    }

    // Methods for leaders and followers:

    /// Makes the calling thread the leader. Returns false if another thread leads.
    #[inline]
    pub(super) fn lead(&self) -> bool {
        self.0.fetch_or(HAS_LEADER, Ordering::AcqRel) & HAS_LEADER == 0
    }

    /// Ends the calling thread's role as leader.
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

    /// Increments the number of followers.
    #[inline]
    pub(super) fn follow(&self) {
        self.0.fetch_add(FOLLOWER, Ordering::AcqRel);
    }

    #[inline]
    pub(super) fn unfollow(&self) {
        self.0.fetch_sub(FOLLOWER, Ordering::AcqRel);
    }

    // Methods for the leader's sleep:

    /// Records that the leader is about to sleep. From now on [`sleepers`](Self::sleepers) reports
    /// that the leader must be woken.
    #[inline]
    pub(super) fn fall_asleep(&self) {
        self.0.fetch_or(ASLEEP, Ordering::AcqRel);
    }

    /// Records that the leader is awake.
    #[inline]
    pub(super) fn wake_up(&self) {
        self.0.fetch_and(!(ASLEEP | NOTIFIED), Ordering::AcqRel);
    }

    /// Returns which threads the caller must wake after a change. A thread that is not in the
    /// result sees the change before it sleeps.
    #[inline]
    pub(super) fn sleepers(&self) -> Sleepers {
        // This read-modify-write operation does not change the word. A plain load would not be
        // ordered with the operations of `fall_asleep` and `follow`.
        let word = self.0.fetch_or(0, Ordering::AcqRel);
        Sleepers {
            leader: word & ASLEEP != 0,
            followers: word & FOLLOWERS != 0,
        }
    }

    /// Records that the calling thread wakes the leader. Returns false if another thread is already
    /// waking the leader.
    #[inline]
    pub(super) fn notify(&self) -> bool {
        self.0.fetch_or(NOTIFIED, Ordering::AcqRel) & NOTIFIED == 0
    }

    #[inline]
    pub(super) fn is_notified(&self) -> bool {
        self.0.load(Ordering::Acquire) & NOTIFIED != 0
    }

    // Methods that read or change the owner:

    #[inline]
    pub(super) fn owner(&self) -> Owner {
        owner(self.0.load(Ordering::Acquire))
    }

    /// Counts a poll by a thread that waits. If the engine is the owner and no [`Reliance`] is set,
    /// makes threads the owner. If threads are the owner and the engine has stopped its checks,
    /// makes the engine resume the checks.
    #[inline]
    pub(super) fn count_poll_as_thread(&self) -> Visit {
        let word = self.0.fetch_add(VISIT, Ordering::AcqRel);
        if word & (OWNER | ATTENDED) == THREADS | ATTENDED {
            return Visit::AlreadyOwner;
        }
        self.acquire(word.wrapping_add(VISIT), |word| match owner(word) {
            Owner::Engine if word & RELIANCE == 0 => Some(word | THREADS | ATTENDED),
            // The engine stopped its checks because the leader slept. This change of the flag makes
            // the caller notify the engine, which then resumes its checks.
            Owner::Threads => Some(word | ATTENDED),
            Owner::Engine | Owner::Loop => None,
        })
    }

    /// Counts a poll by a thread that waits. Returns true if threads are the owner, the engine
    /// checks them, and no [`Reliance`] is set.
    #[inline]
    pub(super) fn count_poll_as_owner(&self) -> bool {
        let word = self.0.fetch_add(VISIT, Ordering::AcqRel);
        word & (OWNER | ATTENDED | RELIANCE) == THREADS | ATTENDED
    }

    /// Counts a poll by an event loop or a runtime. The loop or runtime becomes the owner if no
    /// user in `blockers` relies on the engine.
    #[inline]
    pub(super) fn count_poll_as_loop(&self, blockers: &[Reliance]) -> Visit {
        let word = self.0.fetch_add(VISIT, Ordering::AcqRel);
        if word & OWNER == LOOP {
            return Visit::AlreadyOwner;
        }
        let relied = blockers.iter().fold(0, |all, one| all | *one as u64);
        self.acquire(word.wrapping_add(VISIT), |word| {
            let free = word & relied == 0 && owner(word) != Owner::Loop;
            // The owner can change even while a thread sleeps in the kernel, because completion
            // events wake that thread in any case.
            free.then_some((word & !(OWNER | ATTENDED)) | LOOP)
        })
    }

    #[inline]
    fn acquire(&self, seen: u64, next: impl Fn(u64) -> Option<u64>) -> Visit {
        let mut word = seen;
        loop {
            let Some(new) = next(word) else {
                return Visit::NotOwner;
            };
            if new == word {
                return Visit::AlreadyOwner;
            }
            match self
                .0
                .compare_exchange_weak(word, new, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => {
                    return Visit::Acquired {
                        notify_engine: new & (ATTENDED | HELD_BACK) != 0,
                    };
                }
                Err(now) => word = now,
            }
        }
    }

    /// Checks whether the owner still polls. `seen` is the value of the visit counter at the
    /// engine's previous check.
    ///
    /// If threads are the owner and their leader sleeps, the threads stay the owner, and the engine
    /// stops its checks. Any other owner stays the owner only if it has polled since the previous
    /// check. If it has not polled, this method makes the engine the owner.
    #[inline]
    pub(super) fn check_owner(&self, seen: u32) -> OwnerCheck {
        let mut word = self.0.load(Ordering::Acquire);
        loop {
            let (new, check) = match owner(word) {
                Owner::Engine => return OwnerCheck::Owned,
                Owner::Threads if word & ASLEEP != 0 => (word & !ATTENDED, OwnerCheck::Asleep),
                Owner::Threads | Owner::Loop if visits(word) != seen => {
                    return OwnerCheck::Visited(visits(word));
                }
                Owner::Threads | Owner::Loop => (word & !(OWNER | ATTENDED), OwnerCheck::Expired),
            };
            match self
                .0
                .compare_exchange_weak(word, new, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return check,
                Err(now) => word = now,
            }
        }
    }

    /// Makes the engine the owner.
    #[inline]
    pub(super) fn expire(&self) {
        self.0.fetch_and(!(OWNER | ATTENDED), Ordering::AcqRel);
    }

    /// If the engine is the owner, makes threads the owner, because a thread is polling. Counts no
    /// visit. Returns true if the engine was the owner.
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

    // Methods for the users that rely on the engine:

    /// Records that the user `reliance` relies on the engine. Returns true if the user did not rely
    /// on the engine before.
    #[inline]
    pub(super) fn rely(&self, reliance: Reliance) -> bool {
        let bit = reliance as u64;
        // A task calls this method in each poll. If the bit is already set, the load avoids the
        // more expensive `fetch_or`.
        self.0.load(Ordering::Relaxed) & bit == 0
            && self.0.fetch_or(bit, Ordering::AcqRel) & bit == 0
    }

    #[inline]
    pub(super) fn stop_relying(&self, reliance: Reliance) {
        self.0.fetch_and(!(reliance as u64), Ordering::AcqRel);
    }

    #[inline]
    pub(super) fn relies(&self, reliance: Reliance) -> bool {
        self.0.load(Ordering::Relaxed) & reliance as u64 != 0
    }

    /// Returns whether a user other than waiting threads needs an event for each new completion.
    #[inline]
    pub(super) fn is_shared(&self) -> bool {
        let word = self.0.load(Ordering::Acquire);
        word & RELIANCE != 0 || word & OWNER == LOOP
    }

    // Methods for messages that are held back:

    /// Sets the flag `HELD_BACK`, because a message is held back until a poll sends the message.
    /// The engine clears the flag.
    #[inline]
    pub(super) fn note_held_back(&self) -> HeldBack {
        if self.0.load(Ordering::Relaxed) & HELD_BACK != 0 {
            return HeldBack::Known;
        }
        let word = self.0.fetch_or(HELD_BACK, Ordering::AcqRel);
        match owner(word) {
            // The first two cases need no notice. Either the engine polls, or a sleeping thread
            // wakes up and polls when room for the message becomes available.
            Owner::Engine => HeldBack::Known,
            Owner::Threads if word & ATTENDED == 0 => HeldBack::Known,
            Owner::Threads | Owner::Loop if word & HELD_BACK == 0 => HeldBack::NotifyEngine,
            Owner::Threads | Owner::Loop => HeldBack::Known,
        }
    }

    #[inline]
    pub(super) fn is_held_back(&self) -> bool {
        self.0.load(Ordering::Acquire) & HELD_BACK != 0
    }

    #[inline]
    pub(super) fn clear_held_back(&self) {
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn thread_visits_as_owner_only_if_nobody_relies() {
        let word = Word::new();
        assert!(
            !word.count_poll_as_owner(),
            "the engine must own a new connection"
        );
        assert_eq!(
            word.count_poll_as_thread(),
            Visit::Acquired {
                notify_engine: true
            }
        );
        assert!(word.count_poll_as_owner());
        word.rely(Reliance::Group);
        assert!(
            !word.count_poll_as_owner(),
            "the result must be false while a group relies on the engine"
        );
        word.stop_relying(Reliance::Group);
        let seen = word.visits();
        assert!(word.count_poll_as_owner());
        assert_eq!(word.check_owner(seen), OwnerCheck::Visited(seen + 1));
        word.fall_asleep();
        assert_eq!(word.check_owner(seen + 1), OwnerCheck::Asleep);
        assert!(
            !word.count_poll_as_owner(),
            "the result must be false after the engine has stopped its checks"
        );
    }
}
