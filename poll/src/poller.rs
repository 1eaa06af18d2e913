use std::{
    fmt,
    os::fd::BorrowedFd,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rdma_status::OsError;

use super::{
    group_events::GroupEvents,
    registration::{LoopFd, Registration},
    spin::{Polling, SpinRecord},
    sys::{Alarm, AlarmFd, Condvar, Mutex, NoticeSender, lock, park},
    tasks::Tasks,
    word::{HeldBack, Owner, OwnerCheck, Reliance, Resigned, Visit, Word},
};
use crate::sync::{NoticeKind, Readiness};

/// Decides which thread polls a connection's completion queue, and wakes the threads that wait.
///
/// The [crate documentation](crate) explains the owners of a connection. A poller has no reference
/// to its connection: each caller that polls passes the queue as
/// [`Completions`](super::Completions).
///
/// A poller has two locks: `watched` guards changes of the epolls, and `wakes` guards parking. A
/// thread holds at most one of these two locks. While a thread holds one of them, the only other
/// locks that it acquires are those of [`GroupEvents`].
pub struct Poller {
    word: Word,
    /// The tasks that wait for this connection.
    pub tasks: Tasks,
    pub(super) policy: Policy,
    /// Sends notices to the engine's thread.
    pub(super) notice_sender: NoticeSender,
    /// The number of times that the followers have been woken.
    wakes: Mutex<u64>,
    changed: Condvar,
    /// Ends the leader's sleep. The alarm is created before any thread waits, so that a wait never
    /// has to create a file descriptor.
    alarm: OnceLock<Alarm>,
    pub(super) watched: Mutex<Watched>,
    /// The fd that an event loop watches, created when the application first requests it.
    loop_fd: LoopFd,
    /// Whether a failed system call has already been logged.
    reported: AtomicBool,
}

/// The registration of a connection's completion events, and the group that watches them.
#[derive(Default)]
pub(super) struct Watched {
    /// The registration of the completion events with epolls, or `None` while the connection has no
    /// transport.
    registration: Option<Registration>,
    /// The [`GroupEvents`] of the connection's group, or `None` if the connection is in no group or
    /// if the group's threads do not poll the members.
    pub(super) group: Option<Arc<GroupEvents>>,
}

/// Decides how long a thread spins before it sleeps.
#[derive(Debug)]
pub(super) struct Policy {
    pub(super) polling: Polling,
    pub(super) record: SpinRecord,
    /// The results of the longer spins that are allowed while a large message is transferred.
    pub(super) large: SpinRecord,
}

impl Policy {
    #[inline]
    pub(super) fn succeeded(&self, spin: Spin) {
        self.record.succeeded();
        if spin == Spin::Large {
            self.large.succeeded();
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

/// The kind of a spin. Each kind has its own [`SpinRecord`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spin {
    /// A spin for a completion. Its limit is the configured time.
    Short,
    /// A spin for the rest of a large message. Its limit is a multiple of the configured time.
    Large,
}

/// Proves that the calling thread is the leader. Dropping this value ends the role.
pub(super) struct Leader<'a>(&'a Poller);

/// Counts the calling thread as a follower while this value exists. [`Follower::wait`] returns
/// immediately if a wake-up has happened since this value was created.
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
    /// Creates the poller of a new connection. Initially, the engine is the owner.
    pub fn new(polling: Polling, notice_sender: NoticeSender) -> Self {
        Self {
            word: Word::new(),
            tasks: Tasks::default(),
            policy: Policy {
                polling,
                record: SpinRecord::default(),
                large: SpinRecord::default(),
            },
            notice_sender,
            wakes: Mutex::new(0),
            changed: Condvar::new(),
            alarm: OnceLock::new(),
            watched: Mutex::default(),
            loop_fd: LoopFd::default(),
            reported: AtomicBool::new(false),
        }
    }

    /// Returns the alarm on which threads sleep. The first call creates the alarm. If `reserve`
    /// contains an eventfd, the new alarm uses that eventfd.
    pub fn prepare(&self, reserve: Option<AlarmFd>) -> Result<&Alarm, OsError> {
        if let Some(alarm) = self.alarm.get() {
            return Ok(alarm);
        }
        let alarm = Alarm::new(reserve)?;
        Ok(self.alarm.get_or_init(|| alarm))
    }

    // Methods for the registration of the completion events:

    /// Stores `registration`, which has registered a new transport's completion events with the
    /// engine's epoll. If the connection is in a group whose threads poll, the next thread that
    /// waits for the group takes over the connection.
    pub fn register(&self, registration: Registration) {
        let mut watched = lock(&self.watched);
        if let Some(group) = &watched.group {
            group.mark_absent(registration.key());
        }
        watched.registration = Some(registration);
    }

    /// Removes the completion events from all epolls.
    pub fn unregister(&self) -> Result<(), OsError> {
        match lock(&self.watched).registration.take() {
            Some(mut registration) => registration.set(Owner::Threads, &self.loop_fd, None),
            None => Ok(()),
        }
    }

    /// Consumes the raised completion event, so that the event source is no longer readable.
    pub fn clear_event(&self) {
        if let Some(registration) = &lock(&self.watched).registration {
            registration.clear();
        }
    }

    /// Moves the completion events to the epoll of the current owner. Each thread that changes the
    /// owner calls this method afterwards. The method reads the owner under the lock `watched`. If
    /// several threads call it concurrently, the final call therefore registers the events for the
    /// final owner. The caller holds no lock, because the method may log an error.
    pub(super) fn follow_owner(&self) {
        let failed = {
            let Watched {
                registration,
                group,
            } = &mut *lock(&self.watched);
            let Some(registration) = registration.as_mut() else {
                return;
            };
            let owner = self.word.owner();
            let Err(error) = registration.set(owner, &self.loop_fd, group.as_ref()) else {
                return;
            };
            self.word.expire();
            let again = registration.set(Owner::Engine, &self.loop_fd, None);
            [Some(error), again.err()]
        };
        // Moving the events failed, and the engine is now the owner. The engine's thread must arm
        // the queue and poll.
        self.call_engine();
        for error in failed.iter().flatten() {
            self.report(error);
        }
    }

    /// Logs that the runtime cannot watch the events, and that the engine's thread polls instead.
    #[cfg(feature = "tokio")]
    pub(super) fn note(&self, error: &OsError) {
        rdmsg_os::debug!(
            Connection,
            "{}: the runtime cannot watch completion events: {error}; the engine's thread polls",
            self.notice_sender
        );
    }

    /// Logs a failed system call, but only once per connection, because each later wait may fail in
    /// the same way. The caller holds no lock.
    pub(super) fn report(&self, error: &OsError) {
        if !self.reported.swap(true, Ordering::Relaxed) {
            error!(
                Connection,
                "{}: cannot watch completion events: {error}; polls without events",
                self.notice_sender
            );
        }
    }

    // Methods that read or change the owner:

    /// Counts a poll by a thread that waits. If the engine is the owner and no user relies on the
    /// engine's thread, the application's threads become the owner. The engine's thread then does
    /// not poll until a check finds that no thread has polled since the previous check.
    #[inline]
    pub fn count_poll_as_thread(&self) {
        let visit = self.word.count_poll_as_thread();
        self.visited(visit);
    }

    /// Counts a poll by a waiting thread that does not lead yet. Returns true if threads own the
    /// connection, the engine checks these threads, and no user relies on the engine's thread. If
    /// the result is false, the caller must also call
    /// [`count_poll_as_thread`](Self::count_poll_as_thread).
    #[inline]
    pub fn count_poll_as_owner(&self) -> bool {
        self.word.count_poll_as_owner()
    }

    /// Counts a poll by an event loop or a runtime. The loop or runtime becomes the owner if no
    /// user in `blockers` relies on the engine's thread. The engine's thread then does not poll
    /// until a check finds events that the loop has not taken.
    ///
    /// Returns true if this call has made the loop or runtime the owner. In this case, the caller
    /// must request an event, because the previous owner may have consumed the last event that was
    /// requested.
    #[inline]
    pub(super) fn count_poll_as_loop(&self, blockers: &[Reliance]) -> bool {
        let visit = self.word.count_poll_as_loop(blockers);
        self.visited(visit);
        matches!(visit, Visit::Acquired { .. })
    }

    #[inline]
    fn visited(&self, visit: Visit) {
        let Visit::Acquired { notify_engine } = visit else {
            return;
        };
        self.follow_owner();
        if notify_engine {
            // A deferrable notice does not wake the engine's thread if that thread will read its
            // mailbox within a few milliseconds anyway. If a thread polls many connections, urgent
            // notices would wake the engine's thread once for each of them.
            self.notice_sender.send_deferrable(NoticeKind::Acquired);
        }
    }

    /// Returns the current owner, which is responsible for polling the connection.
    #[inline]
    pub fn owner(&self) -> Owner {
        self.word.owner()
    }

    /// Returns true if each new completion must raise an event, because a user such as an event
    /// loop, a task or a group needs the event. Waiting threads need no event, because they poll.
    #[inline]
    pub fn is_shared(&self) -> bool {
        self.word.is_shared()
    }

    /// Checks whether the owner has polled since the engine's previous check. `seen` is the value
    /// of the visit counter at that check. If the result is [`OwnerCheck::Expired`], the engine has
    /// become the owner, and the caller must arm the queue and poll it.
    #[inline]
    pub fn check_owner(&self, seen: u32) -> OwnerCheck {
        let check = self.word.check_owner(seen);
        if check == OwnerCheck::Expired {
            self.follow_owner();
        }
        check
    }

    /// Returns true if a runtime watches the completion events and will probably poll soon. A poll
    /// by the engine's thread would then only take work away from the runtime.
    pub(super) fn is_entrusted(&self) -> bool {
        #[cfg(feature = "tokio")]
        let is_entrusted = self.tasks.are_entrusted();
        #[cfg(not(feature = "tokio"))]
        let is_entrusted = false;
        is_entrusted
    }

    /// Makes the engine's thread the owner. The caller must arm the queue and poll it next.
    pub fn expire(&self) {
        self.word.expire();
        self.follow_owner();
    }

    /// If the engine is the owner, makes the application's threads the owner, because one of them
    /// is polling. Completion events then do not wake the engine until it calls
    /// [`expire`](Self::expire).
    pub fn yield_to_threads(&self) {
        if self.word.yield_to_threads() {
            self.follow_owner();
        }
    }

    /// Returns the number of polls by the application, modulo 2³².
    #[inline]
    pub fn visits(&self) -> u32 {
        self.word.visits()
    }

    /// Records that the user `reliance` relies on the engine's thread. If the user did not rely on
    /// that thread before, asks the engine to become the owner.
    pub fn rely(&self, reliance: Reliance) {
        if self.word.rely(reliance) {
            self.call_engine();
        }
    }

    /// Records that the user `reliance` no longer relies on the engine's thread.
    #[inline]
    pub fn stop_relying(&self, reliance: Reliance) {
        self.word.stop_relying(reliance);
    }

    /// Returns whether the user `reliance` relies on the engine's thread.
    #[inline]
    pub fn relies(&self, reliance: Reliance) -> bool {
        self.word.relies(reliance)
    }

    /// Asks the engine's thread to become the owner.
    pub fn call_engine(&self) {
        self.notice_sender.send(NoticeKind::TakeOver);
    }

    /// Asks the engine's thread to become the owner if an event loop or a runtime is the owner.
    #[inline]
    pub fn leave_loop(&self) {
        if self.word.owner() == Owner::Loop {
            self.call_engine();
        }
    }

    // Methods for messages that are held back:

    /// Records that a message is held back until a poll finds room to send. If the engine does not
    /// own the connection, the engine then checks the connection every millisecond, because the
    /// owner may never poll again.
    #[inline]
    pub fn note_held_back(&self) {
        match self.word.note_held_back() {
            HeldBack::Known => {}
            HeldBack::NotifyEngine => self.notice_sender.send(NoticeKind::HeldBack),
        }
    }

    /// Returns whether the flag of [`note_held_back`](Self::note_held_back) is set.
    #[inline]
    pub fn is_held_back(&self) -> bool {
        self.word.is_held_back()
    }

    /// Clears the flag that [`note_held_back`](Self::note_held_back) sets. Afterwards the caller
    /// checks whether a message is still held back, and if so calls
    /// [`note_held_again`](Self::note_held_again).
    #[inline]
    pub fn clear_held_back(&self) {
        self.word.clear_held_back();
    }

    /// Sets the same flag as [`note_held_back`](Self::note_held_back), but sends no notice. No
    /// notice is necessary, because only the engine's thread calls this method, and it will check
    /// the connection again anyway.
    #[inline]
    pub fn note_held_again(&self) {
        let _ = self.word.note_held_back();
    }

    // Methods that wake waiting threads:

    /// Wakes the threads that wait, so that they check their conditions again. The call costs one
    /// atomic operation if no thread waits.
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

    // Methods for leaders and followers:

    /// Makes the calling thread the leader. Returns `None` if another thread leads.
    #[inline]
    pub(super) fn try_lead(&self) -> Option<Leader<'_>> {
        // Construct `Leader` only after success, because dropping a `Leader` ends the role of the
        // current leader.
        let free = self.word.lead();
        free.then(|| Leader(self))
    }

    /// Registers the calling thread as a follower. The caller checks its condition once more before
    /// it calls [`Follower::wait`].
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

    // Methods for event loops:

    /// Returns the fd that an event loop watches. The fd is readable while the fd of `readiness` is
    /// readable. While the loop owns the connection, completion events also make the fd readable.
    pub fn loop_fd(&self, readiness: &Readiness) -> Result<BorrowedFd<'_>, OsError> {
        self.loop_fd.get(readiness)
    }
}

impl Follower<'_> {
    /// Waits until a thread calls `wake`, until no thread leads, or until the time `left` has
    /// elapsed. Returns immediately if `wake` was called since this value was created.
    pub(super) fn wait(self, left: Option<Duration>) {
        let poller = self.poller;
        let wakes = lock(&poller.wakes);
        // No wake-up is lost when the leader resigns: either the leader sees this follower and
        // wakes this thread, or this thread sees that there is no leader.
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
    /// Records that the leader is about to sleep. A `wake` after this call ends the sleep.
    #[inline]
    pub(super) fn fall_asleep(&self) {
        self.0.word.fall_asleep();
    }

    /// Returns whether a thread has woken the leader since [`fall_asleep`](Self::fall_asleep).
    #[inline]
    pub(super) fn is_woken(&self) -> bool {
        self.0.word.is_notified()
    }

    /// Records that the leader is awake. `alarmed` is true if the alarm ended the sleep.
    #[inline]
    pub(super) fn wake_up(&self, alarmed: bool) {
        // The alarm is cleared before the flag `NOTIFIED`. If another thread rings the alarm
        // between the two steps, the alarm stays readable and ends the next sleep. In the opposite
        // order, this thread could clear the new alarm and leave `NOTIFIED` set. Then no thread
        // would ring the alarm again.
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
            // A panic ended the sleep. The engine does not check a connection whose leader is
            // marked as asleep, so this call asks the engine to become the owner.
            self.0.call_engine();
        }
    }
}
