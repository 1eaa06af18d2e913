//! Polls a connection's completion queue and handles the completions.

use std::{
    hint,
    ops::Deref,
    os::fd::BorrowedFd,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll},
    thread,
    time::Instant,
};

use log::Level;

use super::{core::Core, deferred::Deferred, link::Link, message::Handoff, receive::Recipient};
use crate::{
    interest::Interest,
    os::{Guard, lock, try_lock},
    poll::WaiterId,
    poll::{
        Answers, AttendedConnection, Awaited, Completions, Deadline, Poller, Progress, Reliance,
        TimedOut,
    },
    proto::{DrainSide, Note},
    status::OsError,
    transport::{BATCH, CompletionEvents, Done, PollSide, WAITS_FOR},
};

#[cfg(feature = "tokio")]
use std::{
    sync::{Weak, atomic::AtomicU64},
    task::{Wake, Waker},
};

#[cfg(feature = "tokio")]
use ::tokio::runtime::Handle;

#[cfg(feature = "tokio")]
use crate::poll::RuntimeWatch;

/// A poll ends after it has handled this number of full batches of completions. The limit keeps a
/// busy connection from delaying others.
const BATCHES: usize = 4;
/// A batch counts as at least this number of completions, because a poll costs about the same as
/// handling these completions. An empty batch counts as full.
const SMALLEST_BATCH: usize = BATCH / 4;

/// The engine's thread tries at most `LOCK_SPINS` + `LOCK_YIELDS` times to lock `poll`. It spins
/// after each of the first `LOCK_SPINS` failed attempts, and yields the processor after each of the
/// next `LOCK_YIELDS` failed attempts.
const LOCK_SPINS: u32 = 64;
const LOCK_YIELDS: u32 = 4;

/// A view of a connection's completion queue, for one call of the application.
struct Queue<'a> {
    link: &'a Arc<Link>,
    /// If there is a handoff, the first message is put into it instead of into the connection's
    /// queue of messages.
    handoff: Option<&'a Handoff>,
    /// Whether the calling thread polled the queue before it began to wait.
    was_polled: bool,
}

/// Whether to request an event for the next completion before a poll. If so, the thread holds the
/// lock of `poll` during both the request and the poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arming {
    No,
    First,
}

impl Link {
    // Functions that the engine's thread calls to poll.

    /// Polls the completion queue once. Returns the result of the poll, and whether the engine has
    /// to carry out outputs of the connection.
    pub(crate) fn poll_in_engine(self: &Arc<Self>) -> (Progress, bool) {
        self.engine_polls(Arming::No)
    }

    /// Requests an event for the next completion, and then does the same as
    /// [`poll_in_engine`](Self::poll_in_engine).
    pub(crate) fn arm_and_poll_in_engine(self: &Arc<Self>) -> (Progress, bool) {
        self.engine_polls(Arming::First)
    }

    fn engine_polls(self: &Arc<Self>, arming: Arming) -> (Progress, bool) {
        let Some(side) = self.try_lock_poll() else {
            return (Progress::Busy, false);
        };
        let mut deferred = None;
        let progress = self.poll_locked(side, arming, 1, None, Answers::AtOnce, &mut deferred);
        let drive = deferred.as_ref().is_some_and(|deferred| deferred.drive);
        if let Some(deferred) = deferred {
            self.run_deferred(deferred);
        }
        (progress, drive)
    }

    /// Tries up to [`LOCK_SPINS`] + [`LOCK_YIELDS`] times to take the lock of `poll`. If all
    /// attempts fail for a connection over RDMA or TCP, returns `None`: the engine must not block,
    /// because the scheduler may have preempted the thread that holds the lock. If all attempts
    /// fail for an in-memory connection, blocks until the lock is free.
    ///
    /// A thread that spins on the completion queue holds the lock most of the time. While
    /// `engine_waits` is set, such a thread yields the processor before it takes the lock again.
    pub(super) fn try_lock_poll(&self) -> Option<Guard<'_, Option<PollSide>>> {
        for attempt in 0..LOCK_SPINS + LOCK_YIELDS {
            let Some(side) = try_lock(&self.poll) else {
                self.engine_waits.store(true, Ordering::Relaxed);
                if attempt < LOCK_SPINS {
                    hint::spin_loop();
                } else {
                    thread::yield_now();
                }
                continue;
            };
            if self.engine_waits.load(Ordering::Relaxed) {
                self.engine_waits.store(false, Ordering::Relaxed);
            }
            return Some(side);
        }
        // Threads hold the lock of an in-memory connection only briefly. The engine waits for this
        // lock, because no timer would trigger another attempt.
        self.is_in_memory().then(|| lock(&self.poll))
    }

    /// Handles all completions that arrived before the connection's end. Returns false if another
    /// thread holds the lock of `poll` or is receiving from the socket. Some completions may then
    /// remain. The engine's thread calls this function, and drives the connection afterwards.
    pub(crate) fn take_last(self: &Arc<Self>) -> bool {
        loop {
            match self.poll_in_engine().0 {
                Progress::More => {}
                Progress::Busy => return false,
                Progress::Nothing | Progress::Some => return true,
            }
        }
    }

    /// Handles all completions that are in the completion queue now. Returns false without polling
    /// if another thread does not release the lock of `poll` in time. The engine's thread calls
    /// this function, and drives the connection afterwards.
    ///
    /// Returns true even if another thread is receiving from the socket. That thread may be
    /// suspended, and the deadlines of the connection must not wait for it. That thread counts the
    /// arrived bytes before it handles them, so the engine does not mistake an active peer for a
    /// dead one.
    pub(crate) fn catch_up(self: &Arc<Self>) -> bool {
        let capacity = match self.try_lock_poll() {
            Some(side) => side.as_ref().map_or(0, PollSide::capacity),
            None => return false,
        };
        // If each batch contains only one completion, a poll ends after this number of completions.
        let fewest = BATCHES * BATCH / SMALLEST_BATCH;
        for _ in 0..capacity.div_ceil(fewest) {
            match self.poll_in_engine().0 {
                Progress::More => {}
                Progress::Some | Progress::Nothing | Progress::Busy => return true,
            }
        }
        true
    }

    // Functions that threads of the application call to poll.

    /// Polls the completion queue once. Does not make the calling thread the owner of the
    /// connection.
    pub(crate) fn poll_once(self: &Arc<Self>) -> Progress {
        self.queue(None).poll(1, Answers::AtOnce)
    }

    /// Polls the completion queue once, in a thread that is likely to poll again soon. If nothing
    /// relies on the engine's thread, the application's threads together become the owner of the
    /// connection.
    pub(crate) fn poll_again(self: &Arc<Self>) {
        self.poller.count_poll_as_thread();
        self.poll_once();
    }

    /// Waits until `ready` returns a value: see [`Poller::wait_until`]. If there is a `handoff`,
    /// `ready` checks it first.
    pub(crate) fn wait_until<T>(
        self: &Arc<Self>,
        deadline: &Deadline,
        handoff: Option<&Handoff>,
        ready: impl FnMut() -> Option<T>,
    ) -> Result<T, TimedOut> {
        self.poller
            .wait_until(&self.queue(handoff), deadline, ready)
    }

    /// Polls once before the calling thread waits for a message, if threads of the application own
    /// the connection. Does not poll over TCP, because each poll costs a system call. Returns
    /// whether it polled. If the poll finds messages, the first is put into `handoff`, unless
    /// earlier completions are still in the connection's queue.
    #[inline]
    pub(crate) fn poll_first(self: &Arc<Self>, handoff: &Handoff) -> bool {
        if self.is_over_tcp() || !self.poller.count_poll_as_owner() {
            return false;
        }
        let queue = self.queue(Some(handoff));
        queue.poll_by_thread(Arming::No, 1, Answers::MayWait);
        true
    }

    /// Does the same as [`wait_until`](Self::wait_until) after a call of
    /// [`poll_first`](Self::poll_first) that returned `was_polled`.
    pub(crate) fn wait_after_poll<T>(
        self: &Arc<Self>,
        was_polled: bool,
        deadline: &Deadline,
        handoff: &Handoff,
        ready: impl FnMut() -> Option<T>,
    ) -> Result<T, TimedOut> {
        let queue = Queue {
            was_polled,
            ..self.queue(Some(handoff))
        };
        self.poller.wait_until(&queue, deadline, ready)
    }

    /// Does the same as [`wait_until`](Self::wait_until) for a task: see [`Poller::poll_task`].
    pub(crate) fn poll_task<T>(
        self: &Arc<Self>,
        cx: &mut Context<'_>,
        waiter: (WaiterId, Awaited),
        handoff: Option<&Handoff>,
        ready: impl FnMut() -> Option<T>,
    ) -> Poll<T> {
        self.poller
            .poll_task(&self.queue(handoff), cx, waiter, ready)
    }

    /// Polls once for a nonblocking call: see [`Poller::try_once`].
    pub(crate) fn look<T>(
        self: &Arc<Self>,
        handoff: &Handoff,
        ready: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let waits_for_room = || self.writable.is_lowered();
        self.poller
            .try_once(&self.queue(Some(handoff)), waits_for_room, ready)
    }

    /// Polls the connection for a thread that waits for the connection's group.
    pub(super) fn poll_as_member(self: &Arc<Self>) {
        self.poller.poll_member(&self.queue(None));
    }

    /// Returns whether the connection has a transport whose events a group can watch.
    pub(super) fn has_events(self: &Arc<Self>) -> bool {
        let queue = self.queue(None);
        queue.events().is_some_and(|(_, has_ended)| !has_ended)
    }

    fn queue<'a>(self: &'a Arc<Self>, handoff: Option<&'a Handoff>) -> Queue<'a> {
        Queue {
            link: self,
            handoff,
            was_polled: false,
        }
    }

    /// Takes completions from the completion queue and handles them. Polls up to `budget` times
    /// while the completion queue is empty. The first message may be put into the `handoff`.
    /// Releases the lock of `poll`, and adds work to `deferred` for the caller to run.
    ///
    /// A waiting thread finds the completion queue empty in about two thirds of its polls. Such a
    /// poll costs few instructions, because this function is inlined and [`act`](Self::act) is not.
    #[inline(always)]
    fn poll_locked(
        self: &Arc<Self>,
        mut side: Guard<'_, Option<PollSide>>,
        arming: Arming,
        budget: u32,
        handoff: Option<&Handoff>,
        answers: Answers,
        deferred: &mut Option<Deferred>,
    ) -> Progress {
        let Some(here) = side.as_mut() else {
            return Progress::Nothing;
        };
        let armed = match arming {
            Arming::No => Ok(()),
            Arming::First => here.arm(),
        };
        let progress = self.poll_side(here, budget, handoff, answers, deferred);
        if answers == Answers::AtOnce && progress != Progress::Nothing {
            here.answer();
        }
        drop(side);
        if let Err(error) = armed {
            // Ends the connection, because without completion events waiting threads would sleep
            // even while the queue contains completions.
            self.poll_failed(error, deferred);
        }
        progress
    }

    /// Does the same as [`poll_locked`](Self::poll_locked), but the caller keeps the lock.
    #[inline(always)]
    fn poll_side(
        self: &Arc<Self>,
        side: &mut PollSide,
        mut budget: u32,
        handoff: Option<&Handoff>,
        answers: Answers,
        deferred: &mut Option<Deferred>,
    ) -> Progress {
        let mut progress = Progress::Nothing;
        let mut handled = 0;
        while handled < BATCHES * BATCH {
            let count = loop {
                match side.poll(answers) {
                    Ok(0) if budget > 1 => {
                        budget -= 1;
                        hint::spin_loop();
                    }
                    Ok(count) => break count,
                    Err(error) => {
                        self.poll_failed(error, deferred);
                        break 0;
                    }
                }
            };
            budget = 1;
            if count == 0 {
                handled += BATCH;
            } else {
                handled += count.max(SMALLEST_BATCH);
                progress = Progress::Some;
                self.act(side, count, handoff, deferred);
            }
            if !side.has_more(count) {
                if side.is_drained() {
                    self.drained(deferred);
                }
                if progress == Progress::Nothing && side.is_held() {
                    progress = Progress::Busy;
                }
                return progress;
            }
        }
        Progress::More
    }

    /// Ends the connection because a poll or the request for an event failed.
    #[cold]
    fn poll_failed(self: &Arc<Self>, error: OsError, deferred: &mut Option<Deferred>) {
        let mut core = self.core();
        // The reason for the connection's end contains the first error. Later errors are
        // consequences of the first error. So each error is logged only at debug level.
        let note = Note::new(
            Level::Debug,
            format_args!(
                "the connection ends, because its completion queue cannot be polled: {error}"
            ),
        );
        core.deferred.log(note);
        core.conn.handle_post_failure(error, Instant::now());
        Deferred::join(deferred, self.carry_out(core));
    }

    /// Handles the end of draining: the queue is empty and all receives have completed.
    #[cold]
    fn drained(self: &Arc<Self>, deferred: &mut Option<Deferred>) {
        let mut core = self.core();
        core.conn.handle_drained(DrainSide::Recv);
        Deferred::join(deferred, self.carry_out(core));
    }

    /// Handles the first `count` completions that the preceding poll found.
    #[inline(never)]
    fn act(
        self: &Arc<Self>,
        side: &mut PollSide,
        count: usize,
        handoff: Option<&Handoff>,
        deferred: &mut Option<Deferred>,
    ) {
        let to = Recipient {
            owner: self,
            handoff,
        };
        let mut core = self.core();
        let mut has_messages = false;
        for number in 0..count {
            if let Some(frame) = side.frame(number)
                && core.take_message(frame, &to)
            {
                has_messages = true;
            } else {
                Self::act_on_other(side, number, &mut core, &to);
            }
        }
        if has_messages && let Some(liveness) = &core.liveness {
            liveness.add_sign();
        }
        Deferred::join(deferred, self.settle(core));
    }

    /// Handles a completion that [`take_message`](Core::take_message) does not handle.
    #[inline(never)]
    fn act_on_other(side: &mut PollSide, number: usize, core: &mut Core, to: &Recipient<'_, Self>) {
        let done = side.done(number);
        let is_last_send = matches!(done, Done::Drained(DrainSide::Send));
        core.handle_done(done, to);
        if is_last_send && !core.marks_receives() {
            side.drains_when_empty();
        }
    }
}

impl Queue<'_> {
    /// Polls the queue under the lock of `poll`, releases the lock, and does the deferred work.
    #[inline(always)]
    fn poll_by_thread(&self, arming: Arming, budget: u32, answers: Answers) -> Progress {
        let link = self.link;
        if link.engine_waits.load(Ordering::Relaxed) {
            thread::yield_now();
        }
        let side = lock(&link.poll);
        let mut deferred = None;
        let progress = link.poll_locked(side, arming, budget, self.handoff, answers, &mut deferred);
        if progress == Progress::More && self.is_level_triggered() {
            // The poll may have read all bytes from the socket without handling all completions.
            // The socket does not become readable for the remaining completions, so the engine must
            // poll.
            link.poller.call_engine();
        }
        if let Some(deferred) = deferred {
            link.notify_engine(deferred.drive);
            link.run_deferred(deferred);
        }
        progress
    }
}

impl Completions for Queue<'_> {
    type Events = CompletionEvents;

    fn poll(&self, budget: u32, answers: Answers) -> Progress {
        self.poll_by_thread(Arming::No, budget, answers)
    }

    fn arm_and_poll(&self, answers: Answers) -> Progress {
        self.poll_by_thread(Arming::First, 1, answers)
    }

    fn events(&self) -> Option<(impl Deref<Target = CompletionEvents>, bool)> {
        let side = lock(&self.link.poll);
        let side = side.as_ref()?;
        Some((Arc::clone(side.events()?), side.has_ended()))
    }

    fn was_polled(&self) -> bool {
        self.was_polled
    }

    fn is_level_triggered(&self) -> bool {
        self.link.is_over_tcp()
    }

    fn delivering_to_channel(&self) -> Self {
        self.link.queue(None)
    }

    fn awaits_large(&self) -> bool {
        self.link.core().conn.transfers_large()
    }

    fn receive(
        &self,
        events: &CompletionEvents,
        deadline: &Deadline,
        is_woken: impl Fn() -> bool,
    ) -> bool {
        // `reserved.wait` blocks in a receive call, whose timeout is coarse. Before this timeout,
        // the call returns only when bytes arrive or the stream ends. This thread therefore calls
        // `reserved.wait` only if the deadline is more than `WAITS_FOR` away.
        let may_continue = || deadline.is_beyond(WAITS_FOR) && !is_woken();
        if self.handoff.is_none() || !deadline.is_beyond(WAITS_FOR) {
            return false;
        }
        let reserved = {
            // If another thread polls, it delivers the completions and wakes this thread before it
            // releases the lock. Once this thread holds the lock, both the completions and the wake
            // are therefore visible.
            let _side = lock(&self.link.poll);
            events.reserve()
        };
        if let Some(reserved) = reserved
            && !is_woken()
        {
            reserved.wait(may_continue);
        }
        true
    }
}

impl AttendedConnection for Link {
    fn poller(&self) -> &Poller {
        &self.poller
    }

    fn holds_back(&self) -> bool {
        self.core().holds_back()
    }
}

/// File descriptors for event loops.
impl Link {
    /// Returns the fd for event loops.
    pub(crate) fn event_fd(&self, interest: Interest) -> Result<BorrowedFd<'_>, OsError> {
        let readiness = match interest {
            Interest::Readable => &self.readable,
            Interest::Writable => &self.writable,
        };
        if !readiness.is_fd_requested() {
            readiness.fd()?;
            self.poller.rely(match interest {
                Interest::Readable => Reliance::Readable,
                Interest::Writable => Reliance::Writable,
            });
            // A thread that added a completion before the fd existed did not make the fd readable.
            // So the state is checked now, under the lock.
            let mut core = self.core();
            match interest {
                Interest::Readable => self.announce_readable(&core),
                // A `try_send` that was refused before the fd existed could not make the fd
                // unreadable. The next refused `try_send` does so.
                Interest::Writable => {
                    // From now on the fd reports room, and `Completion::Room` does not.
                    core.reports.room_wanted = false;
                    readiness.announce(|| true);
                }
            }
        }
        match interest {
            // An event loop can poll an RDMA connection itself, so the loop gets an fd that also
            // reports completion events. Over TCP each poll costs a system call, so the loop gets a
            // plain fd. If this side has offered a session, the program keeps the fd for the whole
            // session, and the session may later use RDMA. The loop then gets the same kind of fd
            // over TCP as over RDMA.
            Interest::Readable
                if !self.is_in_memory() && (!self.is_over_tcp() || self.resumes()) =>
            {
                self.poller.loop_fd(readiness)
            }
            Interest::Readable | Interest::Writable => readiness.fd(),
        }
    }

    /// Makes the fd readable if a call would return a completion or the end of the connection, and
    /// unreadable if not. `unread` returns whether the queue contains completions.
    pub(crate) fn update_readiness(&self, unread: impl FnOnce() -> bool) {
        self.readable.update(|| unread() || self.is_ready());
    }

    /// Makes the fd that reports room unreadable, unless the connection has ended. The caller calls
    /// this function after a refused send, before a second attempt. If the second attempt is also
    /// refused, the fd becomes readable when the window has room. The fd might not report room that
    /// appears before the second attempt, but that attempt uses the room.
    pub(crate) fn prepare_room_fd(&self) {
        self.writable.update(|| self.is_over());
    }

    /// Makes the fd that reports room readable again, because the caller's second attempt found
    /// room.
    pub(crate) fn need_no_room(&self) {
        self.writable.update(|| true);
    }

    /// Handles the refusal of the caller's second attempt. If the program has requested the fd that
    /// reports room, the engine's thread takes over the polling from the event loop, so that the fd
    /// becomes readable when the window has room. Returns whether the program has requested the fd.
    pub(super) fn delegate_room(&self) -> bool {
        let wanted = self.writable.is_fd_requested();
        if wanted {
            self.poller.leave_loop();
        }
        wanted
    }
}

/// The waker that a tokio runtime calls.
#[cfg(feature = "tokio")]
#[derive(Debug)]
struct Alarm {
    link: Weak<Link>,
    calls: Arc<AtomicU64>,
}

#[cfg(feature = "tokio")]
impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        if let Some(link) = self.link.upgrade() {
            // The first woken task that runs polls the queue. If no task runs, because the futures
            // were dropped, the engine's thread polls instead.
            if link.poller.tasks.wake_for_runtime().is_err() {
                link.handle_waker_panic();
            }
        }
    }
}

/// Functions for tasks whose tokio runtime watches the completion events.
#[cfg(feature = "tokio")]
impl Link {
    /// Registers the connection with the current tokio runtime.
    ///
    /// # Panics
    ///
    /// Panics outside a runtime, or in a runtime that has I/O disabled.
    #[track_caller]
    pub(crate) fn enter_runtime(self: &Arc<Self>) -> Result<(), OsError> {
        self.enter(Handle::current())
    }

    /// Registers the next connection of a session with the runtime that watched the previous one.
    pub(super) fn enter_runtime_again(self: &Arc<Self>) {
        let Some(runtime) = self.poller.tasks.paused() else {
            return;
        };
        if let Err(error) = self.enter(runtime) {
            debug!(
                Connection,
                "{self}: cannot register with the runtime: {error}; the engine's thread polls the \
                 connection instead"
            );
        }
    }

    #[track_caller]
    fn enter(self: &Arc<Self>, runtime: Handle) -> Result<(), OsError> {
        // Removes an existing registration first. It may be in the same runtime, which cannot
        // register a descriptor twice.
        self.poller.leave_runtime();
        // The transport is not released while this lock is held.
        let side = lock(&self.poll);
        if self.is_over() {
            // A connection that has ended needs no registration.
            return Ok(());
        }
        let events = match &*side {
            Some(side) if !self.core().is_suspended() => match side.events() {
                Some(events) => Arc::clone(events),
                // An in-memory connection has no events, because its peer wakes the tasks directly.
                None => return Ok(()),
            },
            Some(_) | None => {
                self.poller.tasks.await_transport(runtime);
                return Ok(());
            }
        };
        let calls = Arc::new(AtomicU64::new(0));
        let alarm = Alarm {
            link: Arc::downgrade(self),
            calls: Arc::clone(&calls),
        };
        let waker = Waker::from(Arc::new(alarm));
        let watch = RuntimeWatch::new(runtime, events, waker, calls)?;
        self.poller.tasks.enter_runtime(watch);
        self.poller.stop_relying(Reliance::Tasks);
        Ok(())
    }
}
