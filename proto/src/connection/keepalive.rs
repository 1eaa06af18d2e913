//! Detects a dead peer, and sends pings.

use std::time::{Duration, Instant};

use super::{open::Open, side::Side, timers::earlier};
use crate::{
    CloseReason,
    frame::{Control, KEEPALIVE_TIMEOUT},
};

/// A check that is late by up to this time counts as in time, even if the timeout is shorter.
const TOLERANCE: Duration = Duration::from_millis(50);

/// While the peer's engine gives signs of life on other connections alone, one in this number of
/// checks sends a ping: one every sixteen intervals.
const CHECKS_PER_PING: u64 = 32;

/// The time for the answer to bytes that the transport has retransmitted.
const ANSWER: Duration = Duration::from_millis(100);

/// Checks twice per interval whether the peer was active, so that the arrival of a frame need not
/// read the clock.
///
/// A silence is noticed between half an interval and one interval after its beginning. A peer that
/// shows no activity for one timeout after that is dead: no later than `interval + timeout` after
/// its last sign of life.
///
/// Over TCP lost bytes may have kept the peer's system from answering, because the kernel
/// retransmits them after pauses that double. So a peer whose system has not acknowledged all bytes
/// counts as dead only after the next retransmission, which may be a timeout later. The same holds
/// in the other direction: if this side's bytes were lost and retransmitted in the silence, the
/// peer has a second timeout.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
pub(super) struct Keepalive {
    interval: Duration,
    timeout: Duration,
    deadline: Instant,
    /// The activity up to the last check.
    activity: PeerActivity,
    /// The time of the check that found a silence and sent a ping, until the next sign of life.
    silent: Option<Instant>,
    /// The number of retransmissions before this silence was noticed.
    repeated_before: u64,
    /// Whether the timeout of this silence has passed.
    overtime: Overtime,
    /// The timeout while the path is suspected. Only signs of life on this connection count then,
    /// because others may use another path.
    suspected: Option<Duration>,
    /// Counts checks, starting at the connection's number, so that connections take turns with
    /// these pings. A pong is a sign of life for all connections with the peer's engine.
    turn: u64,
}

/// Counters of signs of life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub struct Activity {
    /// Frames, and completions which prove that bytes have moved.
    pub signs: u64,
    /// Chunks of large messages that were read.
    pub chunks: u64,
}

/// Counters of bytes of one connection, from a transport that counts them: signs of life before a
/// frame is complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub struct MovedBytes {
    /// Counts each byte that has arrived, and each 4 KiB that the peer has acknowledged.
    pub signs: u64,
    /// The number of bytes of large messages that have been read.
    pub read: u64,
    /// The number of bytes that the peer's system has acknowledged.
    pub acknowledged: u64,
    /// The time until the kernel retransmits unacknowledged bytes, if there are any.
    pub repeats_in: Option<Duration>,
    /// The number of retransmissions by the kernel.
    pub repeated: u64,
}

/// The time beyond the timeout.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(test, derive(Hash))]
enum Overtime {
    None,
    /// The timeout is extended until bytes are retransmitted. Contains the number of bytes that the
    /// peer's system had acknowledged before.
    Repeating {
        acknowledged: u64,
    },
    /// The peer's system acknowledged them, and the timeout began a second time.
    Spent,
}

/// The signs of life of a connection's peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub(super) struct PeerActivity {
    /// The signs of life on this connection.
    pub(super) here: u64,
    /// The signs of life on all connections with the same engine of the peer, at the last
    /// [`set_engine_activity`](super::Connection::set_engine_activity).
    pub(super) of_engine: Activity,
}

/// The result of a check.
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
            silent: None,
            repeated_before: 0,
            overtime: Overtime::None,
            suspected: None,
            turn: number,
        }
    }

    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Whether the peer gives signs of life and no ping is due, so that there is nothing to do
    /// until the next check.
    fn passes(&mut self, activity: PeerActivity, now: Instant) -> bool {
        let here = activity.here != self.activity.here;
        let elsewhere = activity != self.activity && self.suspected.is_none();
        let passes = here || (elsewhere && !self.has_turn());
        if passes {
            self.check(activity, MovedBytes::default(), now);
        }
        passes
    }

    /// Whether it is this connection's turn to ping a peer that is alive elsewhere.
    fn has_turn(&self) -> bool {
        self.turn.is_multiple_of(CHECKS_PER_PING)
    }

    fn check(&mut self, activity: PeerActivity, moved: MovedBytes, now: Instant) -> Check {
        let before = std::mem::replace(&mut self.activity, activity);
        let next = now + self.interval / 2;
        //= PROTOCOL.md#keepalive
        //# A side that probes sends a Ping after a silence.
        let here = activity.here != before.here;
        if here || (activity != before && self.suspected.is_none()) {
            self.suspected = None;
            self.silent = None;
            self.overtime = Overtime::None;
            self.deadline = next;
            // A peer that is alive elsewhere may have lost this connection, which only a send
            // detects. That is rare, and there may be many connections, so each of them is probed
            // rarely.
            let probes = !here && self.has_turn();
            self.turn = self.turn.wrapping_add(1);
            return if probes { Check::Probe } else { Check::Alive };
        }
        let timeout = self.suspected.unwrap_or(self.timeout);
        let late = now.saturating_duration_since(self.deadline);
        let since = match self.silent {
            Some(since) if late <= (timeout / 4).max(TOLERANCE) => since,
            // This side was too busy to check in time, so the peer's answer may wait unread: the
            // timeout begins again.
            Some(_) | None => now,
        };
        let new = self.silent.replace(since) != Some(since);
        if new {
            self.repeated_before = moved.repeated;
        }
        let end = since + timeout;
        if end > now {
            self.deadline = next.min(end);
            return if new { Check::Probe } else { Check::Alive };
        }
        self.check_in_overtime(moved, now)
    }

    /// Begins a silence, or shortens the current one. It ends with the next sign of life on
    /// this connection. The caller pings.
    pub(super) fn suspect(&mut self, timeout: Duration, activity: PeerActivity, now: Instant) {
        if self.suspected.is_some() {
            return;
        }
        let before = std::mem::replace(&mut self.activity, activity);
        let since = match self.silent {
            Some(since) if activity.here == before.here => since,
            Some(_) | None => now,
        };
        let timeout = self
            .timeout
            .min(now.saturating_duration_since(since) + timeout);
        self.suspected = Some(timeout);
        self.silent = Some(since);
        self.overtime = Overtime::None;
        self.deadline = since + timeout;
    }

    /// Ends a suspicion, and the silence with it.
    pub(super) fn trust(&mut self, now: Instant) {
        if self.suspected.take().is_some() {
            self.silent = None;
            self.deadline = now + self.interval / 2;
        }
    }

    fn check_in_overtime(&mut self, moved: MovedBytes, now: Instant) -> Check {
        let acknowledged = moved.acknowledged;
        match (self.overtime, moved.repeats_in) {
            (Overtime::None, Some(wait)) if wait <= self.timeout => {
                self.overtime = Overtime::Repeating { acknowledged };
                self.deadline = now + wait + ANSWER;
                Check::Alive
            }
            // The outage has ended. The peer's own bytes may still wait for their retransmission.
            (
                Overtime::Repeating {
                    acknowledged: before,
                },
                _,
            ) if acknowledged > before => self.begin_again(now),
            (Overtime::None, None) if moved.repeated > self.repeated_before => {
                self.begin_again(now)
            }
            (Overtime::None | Overtime::Repeating { .. } | Overtime::Spent, _) => Check::Dead,
        }
    }

    /// Begins the timeout a second and last time.
    fn begin_again(&mut self, now: Instant) -> Check {
        self.overtime = Overtime::Spent;
        self.silent = Some(now);
        self.deadline = now + self.timeout.min(self.interval / 2);
        Check::Alive
    }
}

/// The pings of a connection. One is in flight at a time, so each pong belongs to the last ping.
///
/// A pong proves that the peer's library has processed everything that was sent before its ping.
#[derive(Debug, Default)]
#[cfg_attr(test, derive(Clone, Hash))]
pub(super) struct Probe {
    state: ProbeState,
    /// The number of pongs received.
    pub(super) answered: u64,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
enum ProbeState {
    #[default]
    Idle,
    /// Will be sent as soon as there is a slot.
    Wanted,
    /// Sent and not answered.
    Sent,
    /// Sent and not answered; another ping follows.
    SentAndWanted,
}

impl Probe {
    /// Requests a sign of life. A ping that is in flight suffices.
    pub(super) fn wanted(&mut self) {
        //= PROTOCOL.md#credits
        //# | Ping | 1 | the next one is sent after the pong of the one before |
        if self.state == ProbeState::Idle {
            self.state = ProbeState::Wanted;
        }
    }

    /// Requests a later ping. Returns the value of `answered` with its pong.
    pub(super) fn request_pong(&mut self) -> u64 {
        match self.state {
            ProbeState::Idle | ProbeState::Wanted => {
                self.state = ProbeState::Wanted;
                self.answered + 1
            }
            ProbeState::Sent | ProbeState::SentAndWanted => {
                self.state = ProbeState::SentAndWanted;
                self.answered + 2
            }
        }
    }

    /// Returns whether a ping is due. The caller sends it.
    pub(super) fn take(&mut self) -> bool {
        let wanted = self.state == ProbeState::Wanted;
        if wanted {
            self.state = ProbeState::Sent;
        }
        wanted
    }

    /// Handles a pong. Returns whether it answers a ping.
    pub(super) fn answer(&mut self) -> bool {
        self.state = match self.state {
            ProbeState::Idle | ProbeState::Wanted => return false,
            ProbeState::Sent => ProbeState::Idle,
            ProbeState::SentAndWanted => ProbeState::Wanted,
        };
        self.answered += 1;
        true
    }
}

impl Open {
    /// Whether [`on_timeout`](Self::on_timeout) judges the peer now by the bytes that have moved.
    pub(super) fn judges_peer_at(&self, now: Instant) -> bool {
        let timers = &self.transfer.timers;
        let keepalive = timers.keepalive.as_ref().map(Keepalive::deadline);
        let judged = earlier(keepalive, timers.read_watchdog.deadline());
        judged.is_some_and(|at| at <= now)
    }

    /// Takes the counters of a transport that counts bytes.
    pub(super) fn set_moved(&mut self, moved: MovedBytes) {
        let transfer = &mut self.transfer;
        let before = std::mem::replace(&mut transfer.moved, moved);
        let known = std::mem::replace(&mut transfer.moved_is_fresh, true);
        if known && moved.signs > before.signs {
            transfer.activity.here += 1;
        }
        // The counters may go back a little, because they miss bytes that another thread is moving.
        transfer.moved.signs = moved.signs.max(before.signs);
    }

    /// Passes the check of the peer, if nothing else is due, and sets the next deadline. Returns
    /// whether it did.
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
            // The next check does not count the bytes that moved before this one.
            transfer.moved_is_fresh = false;
            // The caller reads the new deadline.
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
                transfer.probe.wanted();
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
