//! How a thread waits: it leads or follows, spins, and sleeps.

use std::{
    hint,
    time::{Duration, Instant},
};

use super::{
    completions::{Answers, Completions, Events, Progress},
    deadline::Deadline,
    poller::{Leader, Poller, Spin},
    sys::Woken,
};
use crate::config::Polling;

/// Empty polls between two reads of the clock. A read costs several polls.
const POLLS_PER_CLOCK: u32 = 32;

/// Factor for the length of a spin while a large message is transferred: its end is near, and a
/// sleep until then costs more.
const LARGE_FACTOR: u32 = 8;

/// The deadline has passed.
#[derive(Debug)]
pub(crate) struct TimedOut;

impl Poller {
    /// Waits until `ready` returns something, and returns that.
    ///
    /// It calls `ready` after each event that may change the result, and holds no lock then.
    pub(crate) fn wait_until<T>(
        &self,
        queue: &impl Completions,
        deadline: &Deadline,
        mut ready: impl FnMut() -> Option<T>,
    ) -> Result<T, TimedOut> {
        if let Some(value) = ready() {
            return Ok(value);
        }
        loop {
            if let Some(leader) = self.try_lead() {
                return self.lead(&leader, queue, deadline, &mut ready);
            }
            let follower = self.follow();
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

    /// Spins according to the policy, then sleeps, until `ready` returns something.
    fn lead<T>(
        &self,
        leader: &Leader<'_>,
        queue: &impl Completions,
        deadline: &Deadline,
        ready: &mut impl FnMut() -> Option<T>,
    ) -> Result<T, TimedOut> {
        let policy = &self.policy;
        let spin = match policy.polling {
            // A sleep ends milliseconds late when its time is up.
            Polling::Adaptive { spin } if policy.record.spins() || !deadline.is_beyond(spin) => {
                spin
            }
            Polling::Busy => Duration::MAX,
            Polling::Adaptive { .. } | Polling::Event => Duration::ZERO,
        };
        self.visit_as_thread();
        let mut value = if !spin.is_zero() {
            self.spin(spin, queue, deadline, ready)
        } else if queue.stays_readable() {
            // A poll costs a system call, and the sleep ends at once if there is something.
            None
        } else {
            // If there is nothing, `ready` is called before the sleep.
            match queue.poll(1, Answers::MayWait) {
                Progress::Nothing | Progress::Held => None,
                Progress::Some | Progress::More => ready(),
            }
        };
        while value.is_none() {
            if let Err(TimedOut) = self.sleep(leader, queue, deadline, &mut value, ready) {
                return ready().ok_or(TimedOut);
            }
        }
        value.ok_or(TimedOut)
    }

    /// Polls until `ready` returns something, or the spin has reached its limit.
    fn spin<T>(
        &self,
        most: Duration,
        queue: &impl Completions,
        deadline: &Deadline,
        ready: &mut impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let mut started = None;
        let policy = &self.policy;
        // The record that learns from this spin. A spin whose first poll finds something counts in
        // none.
        let mut record = None;
        let mut limit = most;
        loop {
            let progress = queue.poll(POLLS_PER_CLOCK, Answers::MayWait);
            // Another thread may have delivered a completion, or the connection's end.
            let value = ready();
            if value.is_some() {
                if let Some(record) = record {
                    policy.paid(record);
                }
                return value;
            }
            if matches!(progress, Progress::Some | Progress::More) {
                continue;
            }
            let now = Instant::now();
            let spun = now.duration_since(*started.get_or_insert(now));
            if deadline.is_past(now) {
                return None;
            }
            let record = record.get_or_insert(Spin::Short);
            if spun >= limit {
                if *record == Spin::Short && queue.awaits_large() && policy.large.spins() {
                    *record = Spin::Large;
                    limit = most.saturating_mul(LARGE_FACTOR);
                } else {
                    policy.failed(*record);
                    return None;
                }
            }
            self.visit_as_thread();
        }
    }

    /// Sleeps once, unless `ready` returns something before. It reads the clock again only if
    /// nothing has come.
    fn sleep<T>(
        &self,
        leader: &Leader<'_>,
        queue: &impl Completions,
        deadline: &Deadline,
        value: &mut Option<T>,
        ready: &mut impl FnMut() -> Option<T>,
    ) -> Result<(), TimedOut> {
        let (Some((events, has_ended)), Some(alarm)) = (queue.events(), self.alarm()) else {
            // The connection is being torn down, and the engine is about to deliver its end.
            hint::spin_loop();
            *value = ready();
            return match value {
                None if deadline.is_over() => Err(TimedOut),
                Some(_) | None => Ok(()),
            };
        };
        let stays_readable = queue.stays_readable();
        // A thread that delivers something after this call rings the alarm.
        leader.fall_asleep();
        let mut progress = Progress::Nothing;
        if stays_readable {
            events.answer();
        } else {
            // The poll finds completions from before the request, which raise no event.
            queue.arm();
            progress = queue.poll(1, Answers::MayWait);
        }
        *value = ready();
        let slept = if value.is_some() || progress == Progress::More {
            Ok(Woken::ByEvent)
        } else if has_ended {
            // The fd stays readable. The engine's thread takes over and delivers the end. It would
            // come late to each of many connections if their threads spun meanwhile.
            self.take_over();
            alarm.doze(deadline.left())
        } else if stays_readable
            && !self.is_shared()
            && queue.receive(&events, deadline, || leader.is_woken())
        {
            Ok(Woken::ByEvent)
        } else {
            events.doze(alarm, deadline.left())
        };
        leader.wake_up(matches!(slept, Ok(Woken::ByAlarm)));
        self.visit_as_thread();
        if !stays_readable {
            events.clear();
        }
        if value.is_none() {
            queue.poll(1, Answers::MayWait);
            *value = ready();
        }
        match slept {
            Ok(Woken::ByTime) if value.is_none() && deadline.is_over() => Err(TimedOut),
            Ok(_) => Ok(()),
            Err(error) => {
                self.report(&error);
                Ok(())
            }
        }
    }

    /// Requests an event for the next completion after a [wait](Self::wait_until), if the connection
    /// is shared with a loop or a user of the engine. The thread that waited may have taken their
    /// event. `queue` has no handoff, because that thread takes no further message.
    pub(crate) fn hand_on(&self, queue: &impl Completions) {
        if !self.is_shared() {
            return;
        }
        queue.arm();
        if queue.poll(1, Answers::AtOnce) == Progress::More {
            self.take_over();
        }
    }
}
