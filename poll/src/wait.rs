//! Implements how threads wait for a connection. One waiting thread is the leader, which spins and
//! then sleeps. The other waiting threads are followers, which sleep until a thread wakes them.

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

/// The number of empty polls between two reads of the clock. A clock read takes several times
/// longer than a poll.
const POLLS_PER_CLOCK: u32 = 32;

/// The factor by which a spin is lengthened while a large message is transferred. The transfer will
/// soon be complete, so a sleep until then would cost more than spinning.
const LARGE_FACTOR: u32 = 8;

/// The error of a wait whose deadline has passed.
#[derive(Debug)]
pub struct TimedOut;

impl Poller {
    /// Waits until `ready` returns a value, and returns that value.
    ///
    /// The method calls `ready` after each event that may change the result, and holds no lock
    /// during these calls.
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

    /// Spins for the time that the policy allows, and then sleeps. Returns as soon as `ready`
    /// returns a value, or with an error after the deadline. The calling thread is the leader.
    fn lead<T>(
        &self,
        leader: &Leader<'_>,
        queue: &impl Completions,
        deadline: &Deadline,
        ready: &mut impl FnMut() -> Option<T>,
    ) -> Result<T, TimedOut> {
        let policy = &self.policy;
        let spin = match policy.polling {
            // A sleep can last milliseconds longer than its time limit, so a wait with a short time
            // limit spins instead.
            Polling::Adaptive { spin } if policy.record.spins() || !deadline.is_beyond(spin) => {
                spin
            }
            Polling::Busy => Duration::MAX,
            Polling::Adaptive { .. } | Polling::Event => Duration::ZERO,
        };
        self.count_poll_as_thread();
        let value = if !spin.is_zero() {
            self.spin(spin, queue, deadline, ready)
        } else if queue.is_level_triggered() || queue.was_polled() {
            // Skip the poll, because the poll would cost a system call, or because the calling
            // thread has just polled. If a completion has arrived, the sleep below returns
            // immediately.
            None
        } else {
            // If the poll finds nothing, `sleep` calls `ready` before it blocks the thread.
            match queue.poll(1, Answers::MayWait) {
                Progress::Nothing | Progress::Busy => None,
                Progress::Some | Progress::More => ready(),
            }
        };
        if let Some(value) = value {
            return Ok(value);
        }
        let value = self.sleep_until(leader, queue, deadline, ready);
        self.rearm_for_owner(&queue.delivering_to_channel());
        value
    }

    /// Sleeps until `ready` returns a value or the deadline has passed.
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

    /// Polls until `ready` returns a value. Returns `None` when the time limit of the spin or the
    /// deadline of the wait has passed.
    fn spin<T>(
        &self,
        most: Duration,
        queue: &impl Completions,
        deadline: &Deadline,
        ready: &mut impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let policy = &self.policy;
        // The spin record counts a spin only if one of its polls finds nothing. The budget is 1
        // until the first empty poll, because a call with a larger budget would not report an empty
        // poll that is followed by a successful poll.
        let mut budget = 1;
        let mut record = None;
        let (mut started, mut limit) = (None, most);
        loop {
            let progress = queue.poll(budget, Answers::MayWait);
            // Another thread may have delivered a completion or the end of the connection, so
            // `ready` is called even after an empty poll.
            let value = ready();
            if value.is_some() {
                if let Some(record) = record {
                    policy.succeeded(record);
                }
                return value;
            }
            let now = Instant::now();
            if deadline.is_past(now) {
                return None;
            }
            self.count_poll_as_thread();
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

    /// Calls `ready`. If the result is `None`, sleeps at most once, and calls `ready` again. Stores
    /// the result in `value`. After the sleep, reads the clock only if the result is still `None`.
    /// Returns an error if the sleep has lasted until the deadline without a result.
    fn sleep<T>(
        &self,
        leader: &Leader<'_>,
        queue: &impl Completions,
        deadline: &Deadline,
        value: &mut Option<T>,
        ready: &mut impl FnMut() -> Option<T>,
    ) -> Result<(), TimedOut> {
        let Some(alarm) = self.alarm() else {
            // The connection is being torn down, and has no alarm to sleep on. The engine's thread
            // is about to deliver the end of the connection.
            thread::yield_now();
            *value = ready();
            return match value {
                None if deadline.is_over() => Err(TimedOut),
                Some(_) | None => Ok(()),
            };
        };
        // After this call, a thread that delivers a completion rings the alarm. The engine's thread
        // also rings the alarm after it has switched to the completion events of another transport.
        leader.fall_asleep();
        let Some((events, has_ended)) = queue.events() else {
            return self.sleep_without_events(leader, alarm, deadline, value, ready);
        };
        let is_level_triggered = queue.is_level_triggered();
        let mut progress = Progress::Nothing;
        if is_level_triggered {
            events.answer();
        } else {
            progress = queue.arm_and_poll(Answers::MayWait);
        }
        *value = ready();
        let slept = if value.is_some() || progress == Progress::More {
            Ok(Woken::Event)
        } else if has_ended {
            // The fd stays readable, so this thread cannot sleep on it. Instead, the thread sleeps
            // on the alarm until the engine's thread delivers the end of the connection. If the
            // threads of many connections spun here, they would take processor time from the
            // engine's thread, and each connection would end later.
            self.call_engine();
            alarm.sleep_until_event(deadline.left())
        } else if is_level_triggered
            && !self.is_shared()
            && queue.receive(&events, deadline, || leader.is_woken())
        {
            Ok(Woken::Event)
        } else {
            events.sleep_until_event(alarm, deadline.left())
        };
        leader.wake_up(matches!(slept, Ok(Woken::Alarm)));
        self.count_poll_as_thread();
        if !is_level_triggered {
            events.clear();
        }
        if value.is_none() {
            queue.poll(1, Answers::MayWait);
            *value = ready();
        }
        self.sleep_result(slept, value, deadline)
    }

    /// Sleeps on the alarm, because the connection has no completion events. The caller,
    /// [`sleep`](Self::sleep), has already called [`Leader::fall_asleep`]. If the connection was
    /// lost, the engine's thread wakes the leader when the session has a new connection or has
    /// ended. If the peer is in this process, a thread of the peer wakes the leader.
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
            // If the engine has no thread, this thread must handle the deadlines of the connection,
            // so the sleep is limited to the interval of deadline checks.
            None => alarm.sleep_until_event(self.notice_sender.shorten(deadline.left())),
        };
        leader.wake_up(matches!(slept, Ok(Woken::Alarm)));
        if value.is_none() {
            self.notice_sender.serve_due();
            *value = ready();
        }
        self.sleep_result(slept, value, deadline)
    }

    /// Returns the result of a sleep. `value` is the result of `ready` after the sleep.
    fn sleep_result<T>(
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

    /// Requests an event for the next completion if the owner or another user needs this event. The
    /// calling thread has just slept, and may have consumed the event for which the owner waits.
    /// Without the request, the owner could wait forever.
    fn rearm_for_owner(&self, queue: &impl Completions) {
        let takes_events = !queue.is_level_triggered() && self.owner() != Owner::Threads;
        if !takes_events && !self.is_shared() {
            return;
        }
        if queue.arm_and_poll(Answers::AtOnce) == Progress::More {
            self.call_engine();
        }
    }
}
