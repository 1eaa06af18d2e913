//! The keepalive, which detects a dead peer, and the Pings that the keepalive and flushes need.

use std::time::{Duration, Instant};

use super::{open::Open, side::Side, timers::earlier};
use crate::{
    CloseReason,
    frame::{Control, KEEPALIVE_TIMEOUT},
};

/// The minimum tolerance for late checks. A check that is late by at most this time is treated as
/// on time, even if the timeout is short.
const TOLERANCE: Duration = Duration::from_millis(50);

/// The number of checks per Ping, while the peer's engine gives signs of life only on other
/// connections. The peer must answer the Ping within the timeout. There are two checks per
/// interval, so the connection sends a Ping every 16 intervals.
const CHECKS_PER_PING: u64 = 32;

/// The maximum time between a retransmission by the transport and the peer's answer.
const ANSWER: Duration = Duration::from_millis(100);

/// Checks twice per interval whether the peer has given a sign of life. Because the checks are
/// periodic, the code that handles a frame need not read the clock.
///
/// A silence is detected at least half an interval, and at most one interval, after the last sign
/// of life. If the peer then gives no sign of life within one timeout, the peer is considered dead.
/// A dead peer is therefore detected at most `interval + timeout` after its last sign of life.
///
/// Over TCP, even a living peer might not be able to answer in this time, because the kernel
/// retransmits lost bytes after increasing pauses. The timeout is therefore extended in two cases:
///
/// - If the peer's system has not acknowledged all bytes, and the next retransmission is due within
///   one timeout, the peer is considered dead only after this retransmission.
/// - If the peer's system has received bytes of this side only after a retransmission, the peer's
///   own bytes may have been lost too. The peer is therefore given a second timeout.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
pub(super) struct Keepalive {
    interval: Duration,
    timeout: Duration,
    deadline: Instant,
    /// The counters of signs of life, as of the last check.
    activity: PeerActivity,
    /// The time of the check that detected the current silence and sent a Ping. `None` while the
    /// peer gives signs of life.
    silent_since: Option<Instant>,
    /// The number of retransmissions before the current silence was detected.
    retransmissions_before: u64,
    /// The progress of a silence that has lasted longer than the timeout.
    overtime: Overtime,
    /// The timeout that applies while the path is suspected. `None` if the path is not suspected.
    /// The path becomes suspected if a port of this side's device loses its link, or if
    /// `must_ping_here` requires a Ping. While the path is suspected, only signs of life on this
    /// connection count.
    suspected: Option<Duration>,
    /// A counter of the checks. It starts at the number of the connection, so that the connections
    /// of a process send their Pings at different checks.
    check_count: u64,
}

/// Counters of signs of life from a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub struct Activity {
    /// The number of received frames, plus the number of completions which prove that the peer's
    /// host has sent or received bytes.
    pub signs: u64,
    /// The number of chunks and fragments of large messages that have arrived from the peer. On a
    /// transport that counts bytes, the value also includes the number of bytes that were read from
    /// the peer's memory.
    pub chunks: u64,
}

/// Counters of the bytes of one connection, on a transport that counts bytes. These counters show
/// signs of life even before a frame is complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub struct MovedBytes {
    /// The number of bytes that have arrived, plus 1 for each 4 KiB that the peer has acknowledged.
    pub signs: u64,
    /// The number of bytes that this side has read from the peer's memory.
    pub read: u64,
    /// The number of bytes that the peer's system has acknowledged.
    pub acknowledged: u64,
    /// The time until the kernel next retransmits bytes that the peer's system has not
    /// acknowledged. `None` if all bytes are acknowledged.
    pub retransmits_in: Option<Duration>,
    /// The number of retransmissions by the kernel.
    pub retransmissions: u64,
}

/// The progress of a silence that has lasted longer than the timeout.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(test, derive(Hash))]
enum Overtime {
    None,
    /// The check waits for a retransmission. `acknowledged` is the number of bytes that the peer's
    /// system had acknowledged when this wait began.
    AwaitsRetransmission {
        acknowledged: u64,
    },
    /// The peer's system has acknowledged the retransmitted bytes, and the second timeout is
    /// running.
    SecondTimeout,
}

/// The counters of signs of life from a connection's peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub(super) struct PeerActivity {
    /// The number of signs of life on this connection.
    pub(super) on_connection: u64,
    /// The signs of life on all connections to the peer's engine, as of the last call of
    /// [`set_engine_activity`](super::Connection::set_engine_activity).
    pub(super) of_engine: Activity,
}

/// The result of a keepalive check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Check {
    Alive,
    Probe,
    Dead,
}

impl Keepalive {
    pub(super) fn new(
        interval: Duration,
        timeout: Duration,
        activity: PeerActivity,
        number: u64,
        now: Instant,
    ) -> Self {
        Self {
            interval,
            timeout,
            deadline: now + interval / 2,
            activity,
            silent_since: None,
            retransmissions_before: 0,
            overtime: Overtime::None,
            suspected: None,
            check_count: number,
        }
    }

    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Completes the check if the peer gives signs of life and no Ping is due. Returns whether the
    /// check is complete.
    fn passes(&mut self, activity: PeerActivity, now: Instant) -> bool {
        let here = activity.on_connection != self.activity.on_connection;
        let elsewhere = activity != self.activity && self.suspected.is_none();
        let passes = here || (elsewhere && !self.must_ping_here());
        if passes {
            self.check(activity, MovedBytes::default(), now);
        }
        passes
    }

    /// Returns whether this connection must send a Ping even if the peer gives signs of life on
    /// other connections.
    fn must_ping_here(&self) -> bool {
        self.check_count.is_multiple_of(CHECKS_PER_PING)
    }

    fn check(&mut self, activity: PeerActivity, moved: MovedBytes, now: Instant) -> Check {
        let before = std::mem::replace(&mut self.activity, activity);
        let next = now + self.interval / 2;
        //= PROTOCOL.md#keepalive
        //# A side that probes sends a Ping after a silence.
        let here = activity.on_connection != before.on_connection;
        if here || (activity != before && self.suspected.is_none()) {
            self.suspected = None;
            self.silent_since = None;
            self.overtime = Overtime::None;
            self.deadline = next;
            // Even if the peer is alive on other connections, it may have lost this connection.
            // Only an unanswered Ping reveals the loss, because some drivers retry a send forever.
            // Not every check sends this Ping, because such a loss is rare and the peer may have
            // many connections.
            let probes = !here && self.must_ping_here();
            self.check_count = self.check_count.wrapping_add(1);
            if !probes {
                return Check::Alive;
            }
            self.suspected = Some(self.timeout);
            self.silent_since = Some(now);
            self.retransmissions_before = moved.retransmissions;
            self.deadline = next.min(now + self.timeout);
            return Check::Probe;
        }
        let timeout = self.suspected.unwrap_or(self.timeout);
        let late = now.saturating_duration_since(self.deadline);
        let since = match self.silent_since {
            Some(since) if late <= (timeout / 4).max(TOLERANCE) => since,
            // Either a silence begins, or this check is late because this side was busy. In the
            // second case, the peer's answer might have arrived without being read, so the timeout
            // restarts.
            Some(_) | None => now,
        };
        let new = self.silent_since.replace(since) != Some(since);
        if new {
            self.retransmissions_before = moved.retransmissions;
        }
        let end = since + timeout;
        if end > now {
            self.deadline = next.min(end);
            return if new { Check::Probe } else { Check::Alive };
        }
        self.check_in_overtime(moved, now)
    }

    /// Starts to suspect the path, and treats the peer as silent. The peer must then give a sign of
    /// life on this connection by a deadline. The deadline is `timeout` after `now`, but not later
    /// than the keepalive timeout after the start of the current silence. Has no effect if the path
    /// is already suspected with a timeout that is shorter than the keepalive timeout. The caller
    /// sends a Ping.
    pub(super) fn suspect(&mut self, timeout: Duration, activity: PeerActivity, now: Instant) {
        if self.suspected.is_some_and(|present| present < self.timeout) {
            return;
        }
        let before = std::mem::replace(&mut self.activity, activity);
        let since = match self.silent_since {
            Some(since) if activity.on_connection == before.on_connection => since,
            Some(_) | None => now,
        };
        let timeout = self
            .timeout
            .min(now.saturating_duration_since(since) + timeout);
        self.suspected = Some(timeout);
        self.silent_since = Some(since);
        self.overtime = Overtime::None;
        self.deadline = since + timeout;
    }

    /// If the path is suspected, stops suspecting it and ends the current silence.
    pub(super) fn trust(&mut self, now: Instant) {
        if self.suspected.take().is_some() {
            self.silent_since = None;
            self.deadline = now + self.interval / 2;
        }
    }

    fn check_in_overtime(&mut self, moved: MovedBytes, now: Instant) -> Check {
        let acknowledged = moved.acknowledged;
        match (self.overtime, moved.retransmits_in) {
            (Overtime::None, Some(wait)) if wait <= self.timeout => {
                self.overtime = Overtime::AwaitsRetransmission { acknowledged };
                self.deadline = now + wait + ANSWER;
                Check::Alive
            }
            // The peer has received the retransmitted bytes, but the peer's answer might have been
            // lost, and might not have been retransmitted yet.
            (
                Overtime::AwaitsRetransmission {
                    acknowledged: before,
                },
                _,
            ) if acknowledged > before => self.start_second_timeout(now),
            (Overtime::None, None) if moved.retransmissions > self.retransmissions_before => {
                self.start_second_timeout(now)
            }
            (
                Overtime::None | Overtime::AwaitsRetransmission { .. } | Overtime::SecondTimeout,
                _,
            ) => Check::Dead,
        }
    }

    /// Starts the second and last timeout of this silence.
    fn start_second_timeout(&mut self, now: Instant) -> Check {
        self.overtime = Overtime::SecondTimeout;
        self.silent_since = Some(now);
        self.deadline = now + self.timeout.min(self.interval / 2);
        Check::Alive
    }
}

/// The state of the Pings. A Ping is sent only if no earlier Ping is unanswered, so that each Pong
/// answers the last Ping.
///
/// A Pong proves that the peer's library has processed everything that was sent before the Ping.
#[derive(Debug, Default)]
#[cfg_attr(test, derive(Clone, Hash))]
pub(super) struct Probe {
    state: ProbeState,
    /// The number of Pongs received.
    pub(super) answered: u64,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
enum ProbeState {
    #[default]
    Idle,
    /// A Ping must be sent as soon as a slot is free.
    Due,
    /// A Ping has been sent and is still unanswered.
    Sent,
    /// A Ping has been sent and is still unanswered. Another Ping must be sent after its Pong.
    SentAndDue,
}

impl Probe {
    /// Requests a sign of life from the peer. If an earlier Ping is unanswered, no further Ping is
    /// necessary.
    pub(super) fn request(&mut self) {
        //= PROTOCOL.md#credits
        //# | Ping or Leave | 1 | the next one is sent after the pong of the one before |
        if self.state == ProbeState::Idle {
            self.state = ProbeState::Due;
        }
    }

    /// Requests a Ping that is sent after this call. The Pong for this Ping has arrived as soon as
    /// `answered` reaches the returned value.
    pub(super) fn request_pong(&mut self) -> u64 {
        match self.state {
            ProbeState::Idle | ProbeState::Due => {
                self.state = ProbeState::Due;
                self.answered + 1
            }
            ProbeState::Sent | ProbeState::SentAndDue => {
                self.state = ProbeState::SentAndDue;
                self.answered + 2
            }
        }
    }

    /// If a Ping is due, records it as sent and returns true. The caller must then send the Ping.
    pub(super) fn take(&mut self) -> bool {
        let is_due = self.state == ProbeState::Due;
        if is_due {
            self.state = ProbeState::Sent;
        }
        is_due
    }

    /// Handles a Pong. Returns false if there was no unanswered Ping.
    pub(super) fn answer(&mut self) -> bool {
        self.state = match self.state {
            ProbeState::Idle | ProbeState::Due => return false,
            ProbeState::Sent => ProbeState::Idle,
            ProbeState::SentAndDue => ProbeState::Due,
        };
        self.answered += 1;
        true
    }
}

impl Open {
    /// Returns whether a call of [`on_timeout`](Self::on_timeout) at the time `now` needs the byte
    /// counters, to judge whether the peer is alive or whether reads make progress.
    pub(super) fn judges_peer_at(&self, now: Instant) -> bool {
        let timers = &self.transfer.timers;
        let keepalive = timers.keepalive.as_ref().map(Keepalive::deadline);
        let judged = earlier(keepalive, timers.read_watchdog.deadline());
        judged.is_some_and(|at| at <= now)
    }

    /// Records the byte counters of a transport that counts bytes. Counts a sign of life if `signs`
    /// has increased since the previous call, and [`passes_check`](Self::passes_check) has not
    /// returned true between the two calls.
    pub(super) fn set_moved(&mut self, moved: MovedBytes) {
        let transfer = &mut self.transfer;
        let before = std::mem::replace(&mut transfer.moved, moved);
        let known = std::mem::replace(&mut transfer.moved_since_check, true);
        if known && moved.signs > before.signs {
            transfer.activity.on_connection += 1;
        }
        // Another thread can change the counters while the caller reads them, so `signs` can be
        // lower than before.
        transfer.moved.signs = moved.signs.max(before.signs);
    }

    /// Attempts to complete the keepalive check that is due. The check is complete if the peer has
    /// given signs of life, no Ping is due, and no other deadline has passed. If the check is
    /// complete, sets the deadline of the next check and returns true.
    pub(super) fn passes_check(&mut self, of_engine: Activity, now: Instant) -> bool {
        if !self.is_established() {
            return false;
        }
        let transfer = &mut self.transfer;
        transfer.activity.of_engine = of_engine;
        let activity = transfer.activity;
        let other = transfer.timers.earliest_but_keepalive();
        if other.is_some_and(|at| at <= now) {
            return false;
        }
        let passes = match &mut transfer.timers.keepalive {
            Some(keepalive) if keepalive.deadline() <= now => keepalive.passes(activity, now),
            Some(_) | None => return false,
        };
        if passes {
            // The next check must not count bytes that moved before this check.
            transfer.moved_since_check = false;
            // The caller reads the new deadline, so `Output::Timer` need not report it.
            transfer.timers.take_changed();
        }
        passes
    }

    pub(super) fn on_keepalive_timeout(&mut self, side: &mut Side, now: Instant) {
        let transfer = &mut self.transfer;
        let (activity, moved) = (transfer.activity, transfer.moved);
        let check = match &mut transfer.timers.keepalive {
            Some(keepalive) if keepalive.deadline() <= now => keepalive.check(activity, moved, now),
            Some(_) | None => return,
        };
        match check {
            Check::Alive => {}
            Check::Probe => {
                transfer.probe.request();
                self.send_control(side);
            }
            Check::Dead => self.notify_and_disconnect(
                side,
                CloseReason::KeepaliveTimeout,
                Control::Failure,
                KEEPALIVE_TIMEOUT,
                now,
            ),
        }
    }
}
