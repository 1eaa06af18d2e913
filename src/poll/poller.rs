use std::{os::fd::BorrowedFd, sync::OnceLock, time::Duration};

use super::{
    registration::{LoopFd, Registration},
    spin_record::SpinRecord,
    sys::{Alarm, Condvar, Line, Mutex, lock, park},
    tasks::Tasks,
    word::{Look, Owner, Pressed, Reliance, Visit, Word},
};
use crate::{
    config::Polling,
    status::OsError,
    sync::{NoticeKind, Readiness},
};

/// Decides who polls a connection's completion queue, and wakes the threads that wait for it.
///
/// See [the folder](super) for the states. A poller knows no connection: who polls gives it the
/// queue, as [`Completions`](super::Completions).
///
/// Two locks, each taken with none of the other's held and none of the connection's needed:
/// `registration`, around changes of epolls; `wakes`, around parking.
pub(crate) struct Poller {
    word: Word,
    /// Tasks that wait.
    pub(crate) tasks: Tasks,
    pub(super) policy: Policy,
    /// To the engine's thread.
    line: Line,
    /// Counts the wakes that followers were there for.
    wakes: Mutex<u64>,
    changed: Condvar,
    /// Ends the leader's sleep. Made before any thread can wait, so that none finds out in the
    /// middle of it that there is no fd left.
    alarm: OnceLock<Alarm>,
    /// While there are completion events.
    registration: Mutex<Option<Registration>>,
    /// The fd of an event loop, from when it is asked for.
    loop_fd: LoopFd,
}

/// How long a thread spins before it sleeps.
#[derive(Debug)]
pub(super) struct Policy {
    pub(super) polling: Polling,
    pub(super) record: SpinRecord,
    /// For the longer spins of large messages.
    pub(super) large: SpinRecord,
}

impl Policy {
    pub(super) fn paid(&self, spin: Spin) {
        self.record.paid();
        if spin == Spin::Large {
            self.large.paid();
        }
    }

    pub(super) fn failed(&self, spin: Spin) {
        match spin {
            Spin::Short => self.record.failed(),
            Spin::Large => self.large.failed(),
        }
    }
}

/// What a spin waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spin {
    /// Something, for as long as configured.
    Short,
    /// The end of a large message, for several times as long.
    Large,
}

/// The lead, given up when dropped.
pub(super) struct Leader<'a>(&'a Poller);

/// A place among the followers. From its making on no wake is lost.
pub(super) struct Follower<'a> {
    poller: &'a Poller,
    wakes: u64,
}

impl Poller {
    pub(crate) fn new(polling: Polling, line: Line) -> Self {
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
        }
    }

    /// Makes what a sleep takes, once.
    pub(crate) fn prepare(&self) -> Result<(), OsError> {
        if self.alarm.get().is_none() {
            let alarm = Alarm::new()?;
            self.alarm.get_or_init(|| alarm);
        }
        Ok(())
    }

    // Registration.

    /// There are completion events from now on, which the engine watches.
    pub(crate) fn register(&self, registration: Registration) {
        *lock(&self.registration) = Some(registration);
    }

    /// There are none any more.
    pub(crate) fn unregister(&self) -> Result<(), OsError> {
        match lock(&self.registration).take() {
            Some(mut registration) => registration.set(Owner::Threads, &self.loop_fd),
            None => Ok(()),
        }
    }

    /// Takes the completion event that was raised.
    pub(crate) fn clear_event(&self) {
        if let Some(registration) = &*lock(&self.registration) {
            registration.clear();
        }
    }

    /// Changes the epolls as the owner says. Each change of the owner is followed by a call, under
    /// a lock, so the last call sees the last owner.
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
        for error in failed.iter().flatten() {
            self.report(error);
        }
    }

    /// The engine's thread polls from now on, because a runtime cannot.
    #[cfg(feature = "tokio")]
    pub(super) fn note(&self, error: &OsError) {
        debug!("{}: the engine polls from now on: {error}", self.line);
    }

    /// Writes a failure of the system to the log. No lock is held.
    pub(super) fn report(&self, error: &OsError) {
        error!("{}: {error}", self.line);
    }

    // Who polls.

    /// A thread that waits is about to poll. The engine's thread stays away from now on, unless
    /// somebody relies on it, until it finds that no thread has polled for a while.
    pub(crate) fn visit_as_thread(&self) {
        let visit = self.word.visit_as_thread();
        self.visited(visit);
    }

    /// An event loop or a runtime is about to poll. The engine's thread stays away from now on,
    /// unless one of these relies on it, until it finds that the loop leaves events where they are.
    pub(super) fn visit_as_loop(&self, but: &[Reliance]) {
        let visit = self.word.visit_as_loop(but);
        self.visited(visit);
    }

    fn visited(&self, visit: Visit) {
        let Visit::Acquired { tell } = visit else {
            return;
        };
        self.follow_owner();
        if tell {
            // With all others of the next milliseconds: where each of many connections is polled
            // now and then, the engine's thread would be woken for each.
            self.line.leave(NoticeKind::Polled);
        }
    }

    pub(crate) fn owner(&self) -> Owner {
        self.word.owner()
    }

    /// Whether others than threads that wait have to hear of what comes.
    pub(crate) fn is_shared(&self) -> bool {
        self.word.is_shared()
    }

    /// The engine's thread looks after a connection that it does not own, with the count of visits
    /// that it saw last. After [`Look::Expired`] it arms and polls.
    pub(crate) fn look(&self, seen: u32) -> Look {
        let look = self.word.look(seen);
        if look == Look::Expired {
            self.follow_owner();
        }
        look
    }

    /// The engine's thread owns the connection from now on. It arms and polls next.
    pub(crate) fn expire(&self) {
        self.word.expire();
        self.follow_owner();
    }

    /// A thread of the application is polling while the engine's thread owns the connection. The
    /// engine looks again soon, and is not woken by events until it [takes over](Self::expire).
    pub(crate) fn yield_to_threads(&self) {
        if self.word.yield_to_threads() {
            self.follow_owner();
        }
    }

    /// How often threads of the application have polled.
    pub(crate) fn visits(&self) -> u32 {
        self.word.visits()
    }

    /// Somebody relies on the engine's thread from now on. That takes over at once where this is
    /// new.
    pub(crate) fn rely(&self, who: Reliance) {
        if self.word.rely(who) {
            self.take_over();
        }
    }

    pub(crate) fn rely_no_more(&self, who: Reliance) {
        self.word.rely_no_more(who);
    }

    pub(crate) fn relies(&self, who: Reliance) -> bool {
        self.word.relies(who)
    }

    /// Has the engine's thread poll, whoever does now.
    pub(crate) fn take_over(&self) {
        self.line.send(NoticeKind::Watch);
    }

    /// As [`take_over`](Self::take_over), where an event loop or a runtime polls.
    pub(crate) fn leave_loop(&self) {
        if self.word.owner() == Owner::Loop {
            self.take_over();
        }
    }

    // What is held back.

    /// Something is held back that is sent when somebody polls. Whoever polls may not come back, so
    /// the engine looks sooner.
    pub(crate) fn press(&self) {
        match self.word.press() {
            Pressed::Known => {}
            Pressed::Tell => self.line.send(NoticeKind::Held),
        }
    }

    pub(crate) fn is_pressed(&self) -> bool {
        self.word.is_pressed()
    }

    /// Nothing is held back any more. Ask once more whether that is so, and
    /// [press](Self::press_again) if not.
    pub(crate) fn relax(&self) {
        self.word.relax();
    }

    /// By the engine's thread, which looks again anyway.
    pub(crate) fn press_again(&self) {
        let _ = self.word.press();
    }

    // Waking.

    /// Has threads that wait check again. Cheap when no thread waits.
    pub(crate) fn wake(&self) {
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

    // Leading and following.

    /// Leads, unless another thread does.
    pub(super) fn try_lead(&self) -> Option<Leader<'_>> {
        // Made only if nobody led: a leader that is dropped gives the lead up.
        let free = self.word.lead();
        free.then(|| Leader(self))
    }

    /// Prepares to park. Check once more for what is waited for before [`Follower::wait`].
    pub(super) fn follow(&self) -> Follower<'_> {
        self.word.follow();
        let wakes = *lock(&self.wakes);
        Follower {
            poller: self,
            wakes,
        }
    }

    pub(super) fn alarm(&self) -> Option<&Alarm> {
        self.alarm.get()
    }

    // Event loops.

    /// The fd of an event loop, which is readable while `readiness` is, and while there are
    /// completion events and the loop owns the connection.
    pub(crate) fn loop_fd(&self, readiness: &Readiness) -> Result<BorrowedFd<'_>, OsError> {
        self.loop_fd.get(readiness)
    }
}

impl Follower<'_> {
    /// Waits until there was a wake since this was made, nobody leads, or no time is `left`.
    pub(super) fn wait(self, left: Option<Duration>) {
        let poller = self.poller;
        let wakes = lock(&poller.wakes);
        // A leader that resigns sees this one among the followers, or this sees that nobody leads.
        let idle = |wakes: &mut u64| poller.word.is_led() && *wakes == self.wakes;
        park(&poller.changed, wakes, left, idle);
    }
}

impl Drop for Follower<'_> {
    fn drop(&mut self) {
        self.poller.word.unfollow();
    }
}

impl Leader<'_> {
    /// About to sleep: no wake is lost any more.
    pub(super) fn fall_asleep(&self) {
        self.0.word.fall_asleep();
    }

    /// Whether there was a wake since [`fall_asleep`](Self::fall_asleep).
    pub(super) fn is_woken(&self) -> bool {
        self.0.word.is_notified()
    }

    /// The end of the sleep. `rung` says that it was ended by the alarm.
    pub(super) fn wake_up(&self, rung: bool) {
        let notified = self.0.word.wake_up();
        if let (true, Some(alarm)) = (notified || rung, self.0.alarm()) {
            alarm.clear();
        }
    }
}

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        if self.0.word.resign() {
            self.0.wake_followers();
        }
    }
}
