//! Polling a connection: by the engine's thread, and by threads of the application that wait.

use std::{
    hint,
    os::fd::AsFd,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    deadline::Deadline,
    handoff::Handoff,
    link::Link,
    pollers::{Leader, Woken, doze},
    watch::Watcher,
};
use crate::{
    config::Polling,
    proto::DrainSide,
    sync::{NoticeKind, lock},
    transport::{Answers, BATCH, CompletionEvents, Done, PollSide, WAITS_FOR},
    transport_kind::TransportKind,
};

/// How many batches are taken in a row, so that a busy connection holds up no other.
const BATCHES: usize = 4;

/// How many empty polls pass between two reads of the clock, which costs as much as several polls.
const POLLS_PER_CLOCK: u32 = 32;

/// How many times longer a thread polls while a large message is being transferred: its end is
/// near, and sleeping until then costs more.
const LARGE_FACTOR: u32 = 8;

/// The time given is over.
#[derive(Debug)]
pub(crate) struct TimedOut;

/// What polling the completion queue came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// It was empty.
    Nothing,
    /// It is empty now.
    Some,
    /// There may be more, for which no event will be raised: poll again.
    More,
    /// Another thread is receiving, and acts on everything that has come when it runs next.
    Held,
}

impl Link {
    // By the engine's thread.

    /// Polls the completion queue once. Returns also whether the connection is to be driven.
    pub(crate) fn poll_in_engine(self: &Arc<Self>) -> (Progress, bool) {
        self.poll_quietly(1, None, Answers::AtOnce)
    }

    /// Takes all that came before the connection's end, behind which nothing comes. Returns whether
    /// that is done: not while another thread receives. The engine's thread drives the connection
    /// next.
    pub(crate) fn take_last(self: &Arc<Self>) -> bool {
        loop {
            match self.poll_in_engine().0 {
                Progress::More => {}
                Progress::Held => return false,
                Progress::Nothing | Progress::Some => return true,
            }
        }
    }

    /// Takes all that is in the completion queue now, and not what keeps coming meanwhile. The
    /// engine's thread drives the connection next.
    pub(crate) fn catch_up(self: &Arc<Self>) {
        let capacity = lock(&self.poll).as_ref().map_or(0, PollSide::capacity);
        for _ in 0..capacity.div_ceil(BATCH * BATCHES) {
            if self.poll_in_engine().0 != Progress::More {
                break;
            }
        }
    }

    /// Has the device raise an event for the next completion.
    pub(crate) fn arm(&self) {
        if let Some(side) = lock(&self.poll).as_ref()
            && let Err(error) = side.arm()
        {
            log::error!("{self}: {error}");
        }
    }

    // By threads of the application.

    /// Polls the completion queue once, without asking for the lease: the engine's thread, or the
    /// leader, goes on watching it.
    pub(crate) fn poll_once(self: &Arc<Self>) -> Progress {
        self.poll_budgeted(1, None, Answers::AtOnce)
    }

    /// Polls the completion queue once, for callers that are likely to poll again soon.
    pub(crate) fn poll_again(self: &Arc<Self>) {
        self.renew_lease();
        self.poll_once();
    }

    /// Waits until `ready` returns something, and returns that.
    ///
    /// `ready` is called after everything that may have changed its answer, with none of the
    /// connection's locks held. Where there is a `handoff`, it takes from there first.
    pub(crate) fn wait_until<T>(
        self: &Arc<Self>,
        deadline: &Deadline,
        handoff: Option<&Handoff>,
        mut ready: impl FnMut() -> Option<T>,
    ) -> Result<T, TimedOut> {
        if let Some(value) = ready() {
            return Ok(value);
        }
        loop {
            if let Some(leader) = self.pollers.try_lead() {
                let led = self.lead(&leader, deadline, handoff, &mut ready);
                if self.is_watched() || self.tasks.are_in_runtime() {
                    self.hand_on();
                }
                return led;
            }
            let follower = self.pollers.follow();
            if let Some(value) = ready() {
                return Ok(value);
            }
            follower.wait(deadline.left());
            if let Some(value) = ready() {
                return Ok(value);
            }
            if deadline.is_over() {
                return Err(TimedOut);
            }
        }
    }

    /// Polls for as long as the policy says, then sleeps, until `ready` returns something.
    fn lead<T>(
        self: &Arc<Self>,
        leader: &Leader<'_>,
        deadline: &Deadline,
        handoff: Option<&Handoff>,
        ready: &mut impl FnMut() -> Option<T>,
    ) -> Result<T, TimedOut> {
        let (mut spin, mut short, mut was_long) = (Duration::ZERO, None, false);
        match self.polling {
            // A sleep ends milliseconds late, where its time is up.
            Polling::Adaptive { spin: most }
                if self.spin_record.tells_to_spin() || !deadline.is_beyond(most) =>
            {
                spin = most;
            }
            Polling::Adaptive { spin: most } => short = Some((Instant::now(), most)),
            Polling::Busy => spin = Duration::MAX,
            Polling::Event => {}
        }
        self.renew_lease();
        loop {
            let value = if !spin.is_zero() {
                let value = self.spin(spin, deadline, handoff, ready);
                if value.is_some() {
                    self.spin_record.was_short();
                } else if !was_long && !deadline.is_over() {
                    was_long = true;
                    self.spin_record.was_long();
                }
                value
            } else if self.stays_readable() {
                // A look costs a system call, and sleeping finds out as well.
                None
            } else {
                // Where there is nothing, `ready` is asked before the sleep.
                match self.poll_budgeted(1, handoff, Answers::MayWait) {
                    Progress::Nothing | Progress::Held => None,
                    Progress::Some | Progress::More => ready(),
                }
            };
            if let Some(value) = value {
                return Ok(value);
            }
            match self.sleep(leader, deadline, handoff, ready) {
                Ok(Some(value)) => {
                    if short.is_some_and(|(started, most)| started.elapsed() < most) {
                        self.spin_record.was_short();
                    }
                    return Ok(value);
                }
                Ok(None) => {}
                Err(TimedOut) => return ready().ok_or(TimedOut),
            }
        }
    }

    /// Polls until `ready` returns something, or it has been long enough.
    fn spin<T>(
        self: &Arc<Self>,
        most: Duration,
        deadline: &Deadline,
        handoff: Option<&Handoff>,
        ready: &mut impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let mut started = None;
        loop {
            let progress = self.poll_budgeted(POLLS_PER_CLOCK, handoff, Answers::MayWait);
            // Another thread may have brought what is waited for, or the connection's end.
            let value = ready();
            if value.is_some() {
                return value;
            }
            if matches!(progress, Progress::Nothing | Progress::Held) {
                let now = Instant::now();
                let spun = now.duration_since(*started.get_or_insert(now));
                let is_long = spun >= most.saturating_mul(LARGE_FACTOR)
                    || (spun >= most && !self.transfers_large());
                if is_long || deadline.is_past(now) {
                    return None;
                }
                self.renew_lease();
            }
        }
    }

    /// Sleeps once, unless `ready` returns something before. What it is woken for is to be polled
    /// for. The clock is not read again where something has come.
    fn sleep<T>(
        self: &Arc<Self>,
        leader: &Leader<'_>,
        deadline: &Deadline,
        handoff: Option<&Handoff>,
        ready: &mut impl FnMut() -> Option<T>,
    ) -> Result<Option<T>, TimedOut> {
        let events = lock(&self.poll)
            .as_ref()
            .map(|side| (Arc::clone(side.events()), side.has_ended()));
        let (Some((events, has_ended)), Some(waker)) = (events, self.pollers.waker()) else {
            // The connection is being torn down; the engine brings its end, which is what there is
            // to wait for.
            hint::spin_loop();
            return match ready() {
                None if deadline.is_over() => Err(TimedOut),
                value => Ok(value),
            };
        };
        let mut value = None;
        self.lease.fall_asleep();
        let stays_readable = self.stays_readable();
        let check = || {
            let mut progress = Progress::Nothing;
            if stays_readable {
                events.answer();
            } else {
                self.arm();
                progress = self.poll_budgeted(1, handoff, Answers::MayWait);
            }
            value = ready();
            value.is_none() && progress != Progress::More
        };
        let slept = if has_ended {
            // The engine's thread is about to hear of it, and takes what then comes back. It would
            // come late to each of many connections if their threads looked for that all the time.
            self.notify(NoticeKind::Watch);
            leader.sleep(waker, check, || {
                doze(waker.as_fd(), waker.as_fd(), deadline.left())
            })
        } else if stays_readable && handoff.is_some() && self.may_wait(deadline) {
            leader.sleep(waker, check, || {
                self.wait_in_call(leader, deadline, &events);
                Ok(Woken::ByEvent)
            })
        } else {
            let fd = events.as_fd();
            leader.sleep(waker, check, || doze(fd, waker.as_fd(), deadline.left()))
        };
        self.lease.wake_up();
        self.renew_lease();
        if !stays_readable {
            events.clear();
        } else if value.is_none() {
            self.poll_budgeted(1, handoff, Answers::MayWait);
            value = ready();
        }
        match slept {
            Ok(Woken::ByTime) if value.is_none() && deadline.is_over() => return Err(TimedOut),
            Ok(_) => {}
            Err(error) => log::error!("{self}: cannot sleep: {error}"),
        }
        Ok(value)
    }

    /// Whether a thread that waits for a message may do so in the call that receives it, which
    /// saves one: nothing wakes it there but what comes and the connection's end, and it cannot
    /// tell the time exactly. Where an event loop watches the connection the engine polls as well.
    fn may_wait(&self, deadline: &Deadline) -> bool {
        !self.is_watched() && deadline.is_beyond(WAITS_FOR)
    }

    /// Waits in the call that receives, unless something came before.
    fn wait_in_call(&self, leader: &Leader<'_>, deadline: &Deadline, events: &CompletionEvents) {
        let reserved = {
            // Whoever polls has brought what it took, and said so, before this lock is free.
            let _side = lock(&self.poll);
            events.reserve()
        };
        if let Some(reserved) = reserved
            && !leader.is_woken()
        {
            reserved.wait(|| !leader.is_woken() && self.may_wait(deadline));
        }
    }

    /// Whether what is slept on is readable as long as polling may bring something, instead of once
    /// for the next completion.
    pub(super) fn stays_readable(&self) -> bool {
        self.transport() == TransportKind::Tcp
    }

    /// Ends the engine's watch over this connection's queue once, and tells it that others poll;
    /// then shows it that they still do.
    ///
    /// The engine hears of it with all others of the next milliseconds: where each of many
    /// connections is polled now and then, it would be woken for each.
    ///
    /// Where an event loop watches the connection's fd, this changes nothing: who polls for that is
    /// there at all times ([`event_fds`](super::event_fds)).
    pub(super) fn renew_lease(&self) {
        if !self.is_watched() && self.lease.renew() {
            self.set_watch(Watcher::Threads);
            self.leave_notice(NoticeKind::Polled);
        }
    }

    /// Has the device tell the engine's thread, or the runtime that watches for tasks, of what
    /// comes from now on. This thread may have taken the event that was to.
    fn hand_on(self: &Arc<Self>) {
        self.arm();
        if self.poll_once() == Progress::More {
            self.notify(NoticeKind::Watch);
        }
    }

    /// Takes some of what is in the completion queue and acts on it, polling up to `budget` times
    /// while there is nothing. The first message may go to the `handoff`.
    pub(super) fn poll_budgeted(
        self: &Arc<Self>,
        budget: u32,
        handoff: Option<&Handoff>,
        answers: Answers,
    ) -> Progress {
        let (progress, drive) = self.poll_quietly(budget, handoff, answers);
        self.leave_to_engine(drive);
        if progress == Progress::More && self.stays_readable() {
            // What is left may be in this process already, so that nothing is readable.
            self.notify(NoticeKind::Watch);
        }
        progress
    }

    /// As [`poll_budgeted`](Self::poll_budgeted), without a notice to the engine's thread. Returns
    /// also whether that has something to do.
    fn poll_quietly(
        self: &Arc<Self>,
        mut budget: u32,
        handoff: Option<&Handoff>,
        answers: Answers,
    ) -> (Progress, bool) {
        let (mut progress, mut drive) = (Progress::Nothing, false);
        let mut side = lock(&self.poll);
        let Some(side) = side.as_mut() else {
            return (progress, drive);
        };
        for _ in 0..BATCHES {
            let count = loop {
                match side.poll(answers) {
                    Ok(0) if budget > 1 => {
                        budget -= 1;
                        hint::spin_loop();
                    }
                    Ok(count) => break count,
                    Err(error) => {
                        log::error!("{self}: {error}");
                        let failed = self.run(None, |core, _| {
                            core.conn.handle_post_failure(error, Instant::now());
                        });
                        drive |= failed.1;
                        break 0;
                    }
                }
            };
            budget = 1;
            if count > 0 {
                progress = Progress::Some;
                drive |= self.act(side, count, handoff);
            }
            if !side.has_more(count) {
                if side.is_drained() {
                    let drained =
                        self.run(None, |core, _| core.conn.handle_drained(DrainSide::Recv));
                    drive |= drained.1;
                }
                if side.is_held() {
                    progress = Progress::Held;
                }
                return (progress, drive);
            }
        }
        (Progress::More, drive)
    }

    /// Acts on the first `count` of what was polled last. Returns whether the engine's thread has
    /// something to do.
    fn act(self: &Arc<Self>, side: &mut PollSide, count: usize, handoff: Option<&Handoff>) -> bool {
        let (drains_when_empty, drive) = self.run(handoff, |core, to| {
            let before = core.conn.peer_activity();
            let mut drains = false;
            for done in side.done(count) {
                drains |= matches!(done, Done::Drained(DrainSide::Send));
                core.handle_done(done, to);
            }
            if let Some(life) = &core.life {
                life.add(before, core.conn.peer_activity());
            }
            drains && !core.marks_receives()
        });
        if drains_when_empty {
            side.drains_when_empty();
        }
        drive
    }
}
