//! How a thread of the application waits on a connection: it polls the completion queue itself.

use std::{
    hint,
    os::fd::AsFd,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use super::{
    deadline::Deadline,
    hand::Hand,
    link::{Link, Progress},
    waiting::TurnGuard,
};
use crate::{
    config::Polling,
    sync::{NoticeKind, lock},
};

/// How many empty polls pass between two looks at the clock, which costs as much as several polls.
const POLLS_PER_LOOK: u32 = 32;

/// How many times longer a thread polls while a large message is on its way: its end is near, and sleeping until then costs more.
const PATIENCE: u32 = 8;

/// The time given is over.
#[derive(Debug)]
pub(crate) struct TimedOut;

impl Link {
    /// Waits until `ready` returns something, and returns that.
    ///
    /// `ready` is called after everything that may have changed its answer, with none of the connection's locks held. Where there is a
    /// `hand`, it looks there first.
    pub(crate) fn wait_until<T>(
        self: &Arc<Self>,
        deadline: &Deadline,
        hand: Option<&Hand>,
        mut ready: impl FnMut() -> Option<T>,
    ) -> Result<T, TimedOut> {
        if let Some(value) = ready() {
            return Ok(value);
        }
        loop {
            if let Some(turn) = self.waiting.try_turn() {
                let polled = self.poll_until(&turn, deadline, hand, &mut ready);
                if self.is_watched() {
                    self.leave_to_engine();
                }
                match polled {
                    Polled::Ready(value) => return Ok(value),
                    Polled::Slept => {}
                }
            } else {
                let parking = self.waiting.park();
                if let Some(value) = ready() {
                    return Ok(value);
                }
                parking.wait(deadline.at());
            }
            if let Some(value) = ready() {
                return Ok(value);
            }
            if deadline.is_past(Instant::now()) {
                return Err(TimedOut);
            }
        }
    }

    /// Polls for as long as the policy says, then sleeps once.
    fn poll_until<T>(
        self: &Arc<Self>,
        turn: &TurnGuard<'_>,
        deadline: &Deadline,
        hand: Option<&Hand>,
        ready: &mut impl FnMut() -> Option<T>,
    ) -> Polled<T> {
        let spin = match self.polling {
            Polling::Adaptive { spin } => spin,
            Polling::Busy => Duration::MAX,
            Polling::Event => Duration::ZERO,
        };
        self.keep_engine_away();
        let looks = if spin.is_zero() { 1 } else { POLLS_PER_LOOK };
        let mut started = None;
        loop {
            let progress = self.progress_within(looks, hand);
            // Another thread may have brought what is waited for, or the connection's end.
            if let Some(value) = ready() {
                return Polled::Ready(value);
            }
            if progress != Progress::Nothing && !spin.is_zero() {
                continue;
            }
            let now = Instant::now();
            if deadline.is_past(now) {
                return Polled::Slept;
            }
            let spun = now.duration_since(*started.get_or_insert(now));
            if spun >= spin.saturating_mul(PATIENCE) || (spun >= spin && !self.expects_soon()) {
                break;
            }
            self.keep_engine_away();
        }
        self.sleep(turn, deadline, hand, ready)
    }

    fn sleep<T>(
        self: &Arc<Self>,
        turn: &TurnGuard<'_>,
        deadline: &Deadline,
        hand: Option<&Hand>,
        ready: &mut impl FnMut() -> Option<T>,
    ) -> Polled<T> {
        let events = lock(&self.poll)
            .as_ref()
            .map(|side| Arc::clone(side.events()));
        let (Some(events), Some(bell)) = (events, self.waiting.bell()) else {
            // The connection is being torn down; its end is what there is to wait for, and the engine brings that.
            hint::spin_loop();
            return Polled::Slept;
        };
        let mut value = None;
        let slept = turn.sleep(events.as_fd(), bell, deadline.at(), || {
            self.arm();
            let progress = self.progress_within(1, hand);
            value = ready();
            value.is_none() && progress != Progress::More
        });
        if let Err(error) = slept {
            log::error!("{self}: cannot sleep: {error}");
        }
        self.keep_engine_away();
        events.clear();
        value.map_or(Polled::Slept, Polled::Ready)
    }

    /// Has the device raise an event for the next completion.
    pub(super) fn arm(self: &Arc<Self>) {
        if let Some(side) = lock(&self.poll).as_ref()
            && let Err(error) = side.arm()
        {
            log::error!("{self}: {error}");
        }
    }

    /// Tells the engine's thread once that this connection's queue is polled by others, and shows it that they still do.
    ///
    /// Where an event loop watches the connection's fd, the engine stays: it is the one that is there at all times.
    pub(super) fn keep_engine_away(&self) {
        if self.is_watched() {
            return;
        }
        self.polls.fetch_add(1, Ordering::Relaxed);
        // Pairs with `engine_may_leave`: a thread that wakes up sees `hot` unset, or the engine sees it awake.
        if !self.hot.load(Ordering::SeqCst) && !self.hot.swap(true, Ordering::SeqCst) {
            self.notify(NoticeKind::Polled);
        }
    }

    /// Has the device tell the engine's thread, which is watching, of what comes from now on. This thread may have taken the event
    /// that was to.
    fn leave_to_engine(self: &Arc<Self>) {
        self.arm();
        if self.progress() == Progress::More {
            self.notify(NoticeKind::Watch);
        }
    }

    /// Whether a thread sleeps on the completion channel, so that the engine need not even look whether threads still poll:
    /// when that thread wakes up it tells the engine again.
    pub(super) fn engine_may_leave(&self) -> bool {
        if !self.waiting.is_asleep() {
            return false;
        }
        self.hot.store(false, Ordering::SeqCst);
        if self.waiting.is_asleep() {
            return true;
        }
        self.hot.store(true, Ordering::SeqCst);
        false
    }
}

enum Polled<T> {
    Ready(T),
    /// The thread slept, or its time is over: look again.
    Slept,
}
