//! Implements waiting in a thread, which leads or follows, spins, and sleeps.

use std::{
    thread,
    time::{Duration, Instant},
};

use rdma_status::OsError;

use super::{
    completions::{Answers, Completions, Events, Progress},
    deadline::Deadline,
    poller::{Leader, Poller, Spin},
    spin::Polling,
    sys::{Alarm, Woken},
    word::Owner,
};

/// Empty polls between two reads of the clock. A read costs several polls.
const POLLS_PER_CLOCK: u32 = 32;

/// The factor for the length of a spin while a large message is transferred. Its end is near, so a
/// sleep would cost more than the spin.
const LARGE_FACTOR: u32 = 8;

/// The deadline has passed.
#[derive(Debug)]
pub struct TimedOut;

impl Poller {
    /// Waits until `ready` returns something, and returns that.
    ///
    /// It calls `ready` after each event that may change the result, and holds no lock then.
    pub fn wait_until<T>(
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
            // A sleep ends up to milliseconds after its time limit, so a short wait spins instead.
            Polling::Adaptive { spin } if policy.record.spins() || !deadline.is_beyond(spin) => {
                spin
            }
            Polling::Busy => Duration::MAX,
            Polling::Adaptive { .. } | Polling::Event => Duration::ZERO,
        };
        self.visit_as_thread();
        let value = if !spin.is_zero() {
            self.spin(spin, queue, deadline, ready)
        } else if queue.stays_readable() {
            // The poll is skipped, because it costs a system call, and the sleep ends at once if a
            // completion has arrived.
            None
        } else {
            // If the poll finds nothing, the caller calls `ready` before the sleep.
            match queue.poll(1, Answers::MayWait) {
                Progress::Nothing | Progress::Busy => None,
                Progress::Some | Progress::More => ready(),
            }
        };
        if let Some(value) = value {
            return Ok(value);
        }
        let value = self.sleep_until(leader, queue, deadline, ready);
        self.rearm_for_owner(&queue.without_handoff());
        value
    }

    /// Sleeps until `ready` returns something.
    fn sleep_until<T>(
        &self,
        leader: &Leader<'_>,
        queue: &impl Completions,
        deadline: &Deadline,
        ready: &mut impl FnMut() -> Option<T>,
    ) -> Result<T, TimedOut> {
        let mut value = None;
        loop {
            if let Err(TimedOut) = self.sleep(leader, queue, deadline, &mut value, ready) {
                return ready().ok_or(TimedOut);
            }
            if let Some(value) = value {
                return Ok(value);
            }
        }
    }

    /// Polls until `ready` returns something, or the spin has reached its limit.
    fn spin<T>(
        &self,
        most: Duration,
        queue: &impl Completions,
        deadline: &Deadline,
        ready: &mut impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let policy = &self.policy;
        // A spin counts if its first poll finds nothing.
        let mut budget = 1;
        let mut record = None;
        let (mut started, mut limit) = (None, most);
        loop {
            let progress = queue.poll(budget, Answers::MayWait);
            // Another thread may have delivered a completion, or the connection's end.
            let value = ready();
            if value.is_some() {
                if let Some(record) = record {
                    policy.paid(record);
                }
                return value;
            }
            let now = Instant::now();
            if deadline.is_past(now) {
                return None;
            }
            self.visit_as_thread();
            if matches!(progress, Progress::Some | Progress::More) {
                continue;
            }
            budget = POLLS_PER_CLOCK;
            let record = record.get_or_insert(Spin::Short);
            if now.duration_since(*started.get_or_insert(now)) < limit {
                continue;
            }
            if *record == Spin::Short && queue.awaits_large() && policy.large.spins() {
                *record = Spin::Large;
                limit = most.saturating_mul(LARGE_FACTOR);
            } else {
                policy.failed(*record);
                return None;
            }
        }
    }

    /// Sleeps once, unless `ready` returns something before. It reads the clock again only if
    /// `ready` has returned nothing.
    fn sleep<T>(
        &self,
        leader: &Leader<'_>,
        queue: &impl Completions,
        deadline: &Deadline,
        value: &mut Option<T>,
        ready: &mut impl FnMut() -> Option<T>,
    ) -> Result<(), TimedOut> {
        let Some(alarm) = self.alarm() else {
            // The connection is being torn down, and the engine is about to deliver its end.
            thread::yield_now();
            *value = ready();
            return match value {
                None if deadline.is_over() => Err(TimedOut),
                Some(_) | None => Ok(()),
            };
        };
        // A thread that delivers a completion after this call rings the alarm. So does the engine's
        // thread after it has installed other completion events.
        leader.fall_asleep();
        let Some((events, has_ended)) = queue.events() else {
            return self.sleep_without_events(leader, alarm, deadline, value, ready);
        };
        let stays_readable = queue.stays_readable();
        let mut progress = Progress::Nothing;
        if stays_readable {
            events.answer();
        } else {
            progress = queue.arm_and_poll(Answers::MayWait);
        }
        *value = ready();
        let slept = if value.is_some() || progress == Progress::More {
            Ok(Woken::Event)
        } else if has_ended {
            // The fd stays readable. The engine's thread takes over and delivers the end. If the
            // threads of many connections spun meanwhile, the engine would be late for each of
            // them.
            self.call_engine();
            alarm.sleep_until_event(deadline.left())
        } else if stays_readable
            && !self.is_shared()
            && queue.receive(&events, deadline, || leader.is_woken())
        {
            Ok(Woken::Event)
        } else {
            events.sleep_until_event(alarm, deadline.left())
        };
        leader.wake_up(matches!(slept, Ok(Woken::Alarm)));
        self.visit_as_thread();
        if !stays_readable {
            events.clear();
        }
        if value.is_none() {
            queue.poll(1, Answers::MayWait);
            *value = ready();
        }
        self.judge(slept, value, deadline)
    }

    /// As [`sleep`](Self::sleep), after [`Leader::fall_asleep`], while there is no completion queue
    /// because the connection was lost. A wake follows when there is another queue, or when the
    /// connection ends.
    fn sleep_without_events<T>(
        &self,
        leader: &Leader<'_>,
        alarm: &Alarm,
        deadline: &Deadline,
        value: &mut Option<T>,
        ready: &mut impl FnMut() -> Option<T>,
    ) -> Result<(), TimedOut> {
        *value = ready();
        let slept = match value {
            Some(_) => Ok(Woken::Event),
            None => alarm.sleep_until_event(deadline.left()),
        };
        leader.wake_up(matches!(slept, Ok(Woken::Alarm)));
        if value.is_none() {
            *value = ready();
        }
        self.judge(slept, value, deadline)
    }

    /// Returns the result of a sleep, after which `ready` was called.
    fn judge<T>(
        &self,
        slept: Result<Woken, OsError>,
        value: &Option<T>,
        deadline: &Deadline,
    ) -> Result<(), TimedOut> {
        match slept {
            Ok(Woken::Time) if value.is_none() && deadline.is_over() => Err(TimedOut),
            Ok(_) => Ok(()),
            Err(error) => {
                self.report(&error);
                Ok(())
            }
        }
    }

    /// Requests an event for the next completion after a sleep, if threads do not own the
    /// connection. This thread may have taken the event that its owner waits for.
    fn rearm_for_owner(&self, queue: &impl Completions) {
        let takes_events = !queue.stays_readable() && self.owner() != Owner::Threads;
        if !takes_events && !self.is_shared() {
            return;
        }
        if queue.arm_and_poll(Answers::AtOnce) == Progress::More {
            self.call_engine();
        }
    }
}
