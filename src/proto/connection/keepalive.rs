//! Noticing a peer that vanished without a word, and asking one how far it has come.

use std::time::{Duration, Instant};

use super::Connection;
use crate::proto::CloseReason;

/// A check that comes no later than this was in time, however short the timeout is.
const TOLERANCE: Duration = Duration::from_millis(50);

/// Checks twice an interval whether anything was heard, so that the arrival of a frame costs no
/// look at the clock. A silence is noticed between half an interval and one after its beginning,
/// and a peer that gives no sign of life is given up one timeout later: no later than `interval +
/// timeout` after its last one.
#[derive(Debug)]
pub(super) struct Keepalive {
    interval: Duration,
    timeout: Duration,
    deadline: Instant,
    /// What had been heard at the last check.
    heard: Hearing,
    /// Since when the peer is on trial: the check that found a silence, and probed.
    silent: Option<Instant>,
}

/// Signs of life, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Activity {
    /// Frames, and completions that show that bytes have moved.
    pub(crate) signs: u64,
    /// Pieces of large messages that were read.
    pub(crate) chunks: u64,
}

/// What this side has heard of the peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Hearing {
    /// On this connection.
    pub(super) here: u64,
    /// On any connection with the same engine of the peer's, as often as it was asked for.
    pub(super) of_engine: Activity,
}

/// What a check came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Check {
    Alive,
    Probe,
    Dead,
}

impl Keepalive {
    pub(super) fn new(interval: Duration, timeout: Duration, heard: Hearing, now: Instant) -> Self {
        Self {
            interval,
            timeout,
            deadline: now + interval / 2,
            heard,
            silent: None,
        }
    }

    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    fn check(&mut self, heard: Hearing, now: Instant) -> Check {
        let before = std::mem::replace(&mut self.heard, heard);
        let next = now + self.interval / 2;
        if heard != before {
            self.silent = None;
            self.deadline = next;
            // A peer that is alive elsewhere may have lost this connection, which only a send
            // tells.
            return if heard.here == before.here {
                Check::Probe
            } else {
                Check::Alive
            };
        }
        let late = now.saturating_duration_since(self.deadline);
        let since = match self.silent {
            Some(since) if late <= (self.timeout / 4).max(TOLERANCE) => since,
            // This side was too busy to look in time, so the peer's answer may be as late: the
            // trial begins anew.
            Some(_) | None => now,
        };
        let new = self.silent.replace(since) != Some(since);
        let end = since + self.timeout;
        if end > now {
            self.deadline = next.min(end);
            return if new { Check::Probe } else { Check::Alive };
        }
        Check::Dead
    }
}

/// Pings, of which there is never a second one before the first one's pong. A pong says that the peer's library has seen all that was
/// sent before its ping.
#[derive(Debug, Default)]
pub(super) struct Probe {
    state: ProbeState,
    /// Pongs that came, in all.
    pub(super) answered: u64,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum ProbeState {
    #[default]
    Idle,
    /// To be sent as soon as there is a slot.
    Wanted,
    /// On its way.
    Sent,
    /// On its way, and another one is to follow.
    SentAndWanted,
}

impl Probe {
    /// A sign of life will do: one that is on its way is enough.
    fn wanted(&mut self) {
        if self.state == ProbeState::Idle {
            self.state = ProbeState::Wanted;
        }
    }

    /// An answer is wanted to a ping that is sent after this. Says which one, by its number in all.
    pub(super) fn wanted_from_now(&mut self) -> u64 {
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

    /// Whether a ping is to be sent now. Calling this says that it is.
    pub(super) fn take(&mut self) -> bool {
        let wanted = self.state == ProbeState::Wanted;
        if wanted {
            self.state = ProbeState::Sent;
        }
        wanted
    }

    /// A pong came; says whether there was a ping.
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

impl Connection {
    /// What the peer has let this side hear on this connection.
    pub(crate) fn peer_activity(&self) -> Activity {
        self.transfer
            .as_ref()
            .map_or_else(Activity::default, |transfer| Activity {
                signs: transfer.heard.here,
                chunks: transfer.inbound.pieces(),
            })
    }

    /// What the peer's engine has let this side hear on all of its connections. To be told before
    /// `handle_timeout`, which judges by it.
    pub(crate) fn set_engine_activity(&mut self, heard: Activity) {
        if let Some(transfer) = &mut self.transfer {
            transfer.heard.of_engine = heard;
        }
    }

    /// The identity that the peer's engine gave in its hello.
    pub(crate) fn peer_engine(&self) -> Option<u64> {
        self.transfer.as_ref().map(|transfer| transfer.peer_engine)
    }

    pub(super) fn on_keepalive_timeout(&mut self, now: Instant) {
        let Some(transfer) = &mut self.transfer else {
            return;
        };
        if transfer.keepalive_deadline().is_none_or(|at| at > now) {
            return;
        }
        let heard = transfer.heard;
        match transfer
            .keepalive_mut()
            .map(|keepalive| keepalive.check(heard, now))
        {
            None | Some(Check::Alive) => {}
            Some(Check::Probe) => {
                transfer.probe.wanted();
                self.send_control();
            }
            Some(Check::Dead) => self.fail(CloseReason::KeepaliveTimeout, now),
        }
    }
}
