use std::{
    fmt,
    os::fd::BorrowedFd,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rdma_status::OsError;

use super::{
    registration::{LoopFd, Registration},
    spin::{Polling, SpinRecord},
    sys::{Alarm, Condvar, Line, Mutex, lock, park},
    tasks::Tasks,
    word::{HeldBack, Owner, OwnerCheck, Reliance, Resigned, Visit, Word},
};
use crate::sync::{NoticeKind, Readiness};

/// Decides which thread polls a connection's completion queue, and wakes the threads that wait.
///
/// See [the folder](super) for the states. A poller does not know its connection: each caller that
/// polls passes the queue as [`Completions`](super::Completions).
///
/// It has two locks, `registration` around changes of the epolls and `wakes` around parking. A
/// thread takes one of them at a time, and no other lock while it holds one.
pub struct Poller {
    word: Word,
    /// Tasks that wait.
    pub tasks: Tasks,
    pub(super) policy: Policy,
    /// Sends notices to the engine's thread.
    line: Line,
    /// The number of wakes while there were followers.
    wakes: Mutex<u64>,
    changed: Condvar,
    /// Ends the leader's sleep. It exists before any thread can wait, so that a wait cannot fail
    /// for lack of a file descriptor.
    alarm: OnceLock<Alarm>,
    /// The epolls with the completion events, while these exist.
    registration: Mutex<Option<Registration>>,
    /// The fd of an event loop, from the first request for it.
    loop_fd: LoopFd,
    /// Whether a failed system call was logged.
    reported: AtomicBool,
}

/// Determines how long a thread spins before it sleeps.
#[derive(Debug)]
pub(super) struct Policy {
    pub(super) polling: Polling,
    pub(super) record: SpinRecord,
    /// The record of the longer spins of large messages.
    pub(super) large: SpinRecord,
}

impl Policy {
    #[inline]
    pub(super) fn paid(&self, spin: Spin) {
        self.record.paid();
        if spin == Spin::Large {
            self.large.paid();
        }
    }

    #[inline]
    pub(super) fn failed(&self, spin: Spin) {
        match spin {
            Spin::Short => self.record.failed(),
            Spin::Large => self.large.failed(),
        }
    }
}

/// The kinds of spins. Each has a record of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spin {
    /// Spins for a completion, up to the configured time.
    Short,
    /// Spins for the end of a large message, up to a multiple of the usual time.
    Large,
}

/// The role of the leader. Dropping it gives up the lead.
pub(super) struct Leader<'a>(&'a Poller);

/// A place among the followers. It sees every wake after its creation.
pub(super) struct Follower<'a> {
    poller: &'a Poller,
    wakes: u64,
}

impl fmt::Debug for Poller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Poller").finish_non_exhaustive()
    }
}

impl Poller {
    /// Creates the poller of a connection that the engine owns.
    pub fn new(polling: Polling, line: Line) -> Self {
        Self {
            word: Word::new(),
            tasks: Tasks::default(),
            policy: Policy {
                polling,
                record: SpinRecord::default(),
                large: SpinRecord::default(),
            },
            line,
            wakes: Mutex::new(0),
            changed: Condvar::new(),
            alarm: OnceLock::new(),
            registration: Mutex::new(None),
            loop_fd: LoopFd::default(),
            reported: AtomicBool::new(false),
        }
    }

    /// Creates the alarm that a sleep needs, once.
    pub fn prepare(&self) -> Result<(), OsError> {
        if self.alarm.get().is_none() {
            let alarm = Alarm::new()?;
            self.alarm.get_or_init(|| alarm);
        }
        Ok(())
    }

    // Registration.

    /// Stores the registration of new completion events, which are in the engine's epoll.
    pub fn register(&self, registration: Registration) {
        *lock(&self.registration) = Some(registration);
    }

    /// Removes the completion events from all epolls.
    pub fn unregister(&self) -> Result<(), OsError> {
        match lock(&self.registration).take() {
            Some(mut registration) => registration.set(Owner::Threads, &self.loop_fd),
            None => Ok(()),
        }
    }

    /// Takes the completion event that was raised.
    pub fn clear_event(&self) {
        if let Some(registration) = &*lock(&self.registration) {
            registration.clear();
        }
    }

    /// Registers the events for the current owner. It is called after each change of the owner, and
    /// reads the owner under a lock, so that the last call registers for the last owner.
    fn follow_owner(&self) {
        let failed = {
            let mut registration = lock(&self.registration);
            let Some(registration) = registration.as_mut() else {
                return;
            };
            let Err(error) = registration.set(self.word.owner(), &self.loop_fd) else {
                return;
            };
            self.word.expire();
            let again = registration.set(Owner::Engine, &self.loop_fd);
            [Some(error), again.err()]
        };
        // The engine takes over, and arms and polls.
        self.call_engine();
        for error in failed.iter().flatten() {
            self.report(error);
        }
    }

    /// Logs that the engine's thread polls, because a runtime cannot.
    #[cfg(feature = "tokio")]
    pub(super) fn note(&self, error: &OsError) {
        rdmsg_os::debug!(
            Connection,
            "{}: falls back to polling by the engine: {error}",
            self.line
        );
    }

    /// Logs a failed system call. Only the first failure of each connection is logged, because each
    /// wait may fail again. The caller holds no lock.
    pub(super) fn report(&self, error: &OsError) {
        if !self.reported.swap(true, Ordering::Relaxed) {
            error!(
                Connection,
                "{}: completion events failed, polls without them: {error}", self.line
            );
        }
    }

    // Ownership.

    /// Counts a poll by a thread that waits. If no user relies on the engine's thread, the engine's
    /// thread stops polling until it finds that no thread has polled for a while.
    #[inline]
    pub fn visit_as_thread(&self) {
        let visit = self.word.visit_as_thread();
        self.visited(visit);
    }

    /// Counts a poll by an event loop or a runtime. If no user in `but` relies on the engine's
    /// thread, the engine's thread stops polling until it finds that the loop leaves events in its
    /// epoll.
    ///
    /// Returns whether the loop has acquired the connection with this visit. Then it requests an
    /// event, because a thread that owned the connection before may have taken the last one.
    #[inline]
    pub(super) fn visit_as_loop(&self, but: &[Reliance]) -> bool {
        let visit = self.word.visit_as_loop(but);
        self.visited(visit);
        matches!(visit, Visit::Acquired { .. })
    }

    #[inline]
    fn visited(&self, visit: Visit) {
        let Visit::Acquired { tell } = visit else {
            return;
        };
        self.follow_owner();
        if tell {
            // The engine handles this notice together with others, within some milliseconds. If it
            // woke at once, a thread that polls many connections in turn would wake it for each.
            self.line.leave(NoticeKind::Acquired);
        }
    }

    /// Returns the current owner, which polls the connection.
    #[inline]
    pub fn owner(&self) -> Owner {
        self.word.owner()
    }

    /// Whether users other than waiting threads need events for new completions.
    #[inline]
    pub fn is_shared(&self) -> bool {
        self.word.is_shared()
    }

    /// Compares the number of visits with `seen`, the number at the engine's last check. After
    /// [`OwnerCheck::Expired`] the engine arms and polls.
    #[inline]
    pub fn check_owner(&self, seen: u32) -> OwnerCheck {
        let look = self.word.check_owner(seen);
        if look == OwnerCheck::Expired {
            self.follow_owner();
        }
        look
    }

    /// Makes the engine's thread the owner. It arms and polls next.
    pub fn expire(&self) {
        self.word.expire();
        self.follow_owner();
    }

    /// Gives a connection that the engine owns to a thread of the application, because that thread
    /// is polling. Events do not wake the engine until it [takes over](Self::expire) again.
    pub fn yield_to_threads(&self) {
        if self.word.yield_to_threads() {
            self.follow_owner();
        }
    }

    /// Returns the number of polls by the application.
    #[inline]
    pub fn visits(&self) -> u32 {
        self.word.visits()
    }

    /// Notes that `who` relies on the engine's thread. If no user relied on this thread before, the
    /// engine takes over at once.
    pub fn rely(&self, who: Reliance) {
        if self.word.rely(who) {
            self.call_engine();
        }
    }

    /// Removes the note that `who` relies on the engine's thread.
    #[inline]
    pub fn stop_relying(&self, who: Reliance) {
        self.word.stop_relying(who);
    }

    /// Returns whether `who` relies on the engine's thread.
    #[inline]
    pub fn relies(&self, who: Reliance) -> bool {
        self.word.relies(who)
    }

    /// Asks the engine's thread to become the owner.
    pub fn call_engine(&self) {
        self.line.send(NoticeKind::TakeOver);
    }

    /// As [`take_over`](Self::call_engine), if an event loop or a runtime is the owner.
    #[inline]
    pub fn leave_loop(&self) {
        if self.word.owner() == Owner::Loop {
            self.call_engine();
        }
    }

    // Holding back.

    /// Notes that a message is held back until a poll finds room. The owner may not poll again, so
    /// the engine checks every millisecond.
    #[inline]
    pub fn note_held_back(&self) {
        match self.word.note_held_back() {
            HeldBack::Known => {}
            HeldBack::Tell => self.line.send(NoticeKind::HeldBack),
        }
    }

    /// Returns whether the note of [`note_held_back`](Self::note_held_back) is set.
    #[inline]
    pub fn is_held_back(&self) -> bool {
        self.word.is_held_back()
    }

    /// Clears the note. The caller checks afterwards whether a message is held back, and if so
    /// calls [`note_held_again`](Self::note_held_again).
    #[inline]
    pub fn relax(&self) {
        self.word.relax();
    }

    /// As [`note_held_back`](Self::note_held_back), by the engine's thread, which checks again in
    /// any case.
    #[inline]
    pub fn note_held_again(&self) {
        let _ = self.word.note_held_back();
    }

    // Waking.

    /// Wakes the waiting threads, which check their conditions again. If none waits, the call costs
    /// one atomic operation.
    #[inline]
    pub fn wake(&self) {
        let sleepers = self.word.sleepers();
        if sleepers.leader
            && let Some(alarm) = self.alarm.get()
            && self.word.notify()
        {
            alarm.ring();
        }
        if sleepers.followers {
            self.wake_followers();
        }
    }

    fn wake_followers(&self) {
        *lock(&self.wakes) += 1;
        self.changed.notify_all();
    }

    // Calls for leading and following.

    /// Takes the lead. Returns `None` if another thread has it.
    #[inline]
    pub(super) fn try_lead(&self) -> Option<Leader<'_>> {
        // Created only after success: the drop of a leader gives the lead up.
        let free = self.word.lead();
        free.then(|| Leader(self))
    }

    /// Prepares to park. The caller checks its condition again before [`Follower::wait`].
    pub(super) fn follow(&self) -> Follower<'_> {
        self.word.follow();
        let wakes = *lock(&self.wakes);
        Follower {
            poller: self,
            wakes,
        }
    }

    #[inline]
    pub(super) fn alarm(&self) -> Option<&Alarm> {
        self.alarm.get()
    }

    // Event loops.

    /// Returns the fd of an event loop. It is readable while `readiness` is. While the loop owns
    /// the connection, completion events make it readable as well.
    pub fn loop_fd(&self, readiness: &Readiness) -> Result<BorrowedFd<'_>, OsError> {
        self.loop_fd.get(readiness)
    }
}

impl Follower<'_> {
    /// Waits for a wake since the creation of this value, or until no thread leads, or no time is
    /// `left`.
    pub(super) fn wait(self, left: Option<Duration>) {
        let poller = self.poller;
        let wakes = lock(&poller.wakes);
        // Either a leader that resigns counts this follower, or this thread sees that the lead is
        // free.
        let idle = |wakes: &mut u64| poller.word.has_leader() && *wakes == self.wakes;
        park(&poller.changed, wakes, left, idle);
    }
}

impl Drop for Follower<'_> {
    #[inline]
    fn drop(&mut self) {
        self.poller.word.unfollow();
    }
}

impl Leader<'_> {
    /// Announces that the leader is about to sleep. A wake after this call ends the sleep.
    #[inline]
    pub(super) fn fall_asleep(&self) {
        self.0.word.fall_asleep();
    }

    /// Whether a wake occurred since [`fall_asleep`](Self::fall_asleep).
    #[inline]
    pub(super) fn is_woken(&self) -> bool {
        self.0.word.is_notified()
    }

    /// Announces that the leader is awake. `alarmed` is set if the alarm ended the sleep.
    #[inline]
    pub(super) fn wake_up(&self, alarmed: bool) {
        // The alarm is cleared first. A ring between the two calls then remains, and ends the next
        // sleep. In the other order such a ring would be cleared here while its note in `word`
        // remained, so that no thread would ring again.
        if let (true, Some(alarm)) = (alarmed || self.0.word.is_notified(), self.0.alarm()) {
            alarm.clear();
        }
        self.0.word.wake_up();
    }
}

impl Drop for Leader<'_> {
    #[inline]
    fn drop(&mut self) {
        let Resigned { followers, asleep } = self.0.word.resign();
        if followers {
            self.0.wake_followers();
        }
        if asleep {
            // A panic ended the sleep. The engine has stopped checking, because the thread slept.
            self.0.call_engine();
        }
    }
}
