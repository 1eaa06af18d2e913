//! Noticing a peer that vanished without a word, and asking one how far it has come.

use std::time::{Duration, Instant};

use super::Connection;
use crate::proto::CloseReason;

/// Looks once an interval whether anything was heard, so that the arrival of a frame costs no look at the clock. A silence is
/// therefore noticed between one and two intervals after its beginning.
#[derive(Debug)]
pub(super) struct Keepalive {
    interval: Duration,
    timeout: Duration,
    deadline: Instant,
    /// What had been heard at the last look.
    heard: u64,
    /// Whether the peer was silent at the last look.
    silent: bool,
}

/// What a look came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    Alive,
    Probe,
    Dead,
}

impl Keepalive {
    pub(super) fn new(interval: Duration, timeout: Duration, heard: u64, now: Instant) -> Self {
        Self {
            interval,
            timeout,
            deadline: now + interval,
            heard,
            silent: false,
        }
    }

    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    fn look(&mut self, heard: u64, now: Instant) -> Look {
        if heard != self.heard {
            self.heard = heard;
            self.silent = false;
            self.deadline = now + self.interval;
            return Look::Alive;
        }
        if self.silent {
            return Look::Dead;
        }
        self.silent = true;
        self.deadline = now + self.timeout;
        Look::Probe
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
    pub(super) fn on_keepalive_timeout(&mut self, now: Instant) {
        let Some(transfer) = &mut self.transfer else {
            return;
        };
        let heard = transfer.heard;
        match transfer
            .keepalive_mut()
            .map(|keepalive| keepalive.look(heard, now))
        {
            None | Some(Look::Alive) => {}
            Some(Look::Probe) => {
                transfer.probe.wanted();
                self.send_control();
            }
            Some(Look::Dead) => self.fail(CloseReason::KeepaliveTimeout, now),
        }
    }
}
