//! Noticing a peer that vanished without a word.

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
    /// Whether a ping waits for its pong. There is never a second one.
    pinged: bool,
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
            pinged: false,
            silent: false,
        }
    }

    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// A pong came; says whether there was a ping.
    pub(super) fn answered(&mut self) -> bool {
        std::mem::take(&mut self.pinged)
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
        if std::mem::replace(&mut self.pinged, true) {
            Look::Alive
        } else {
            Look::Probe
        }
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
                transfer.want_ping();
                self.send_control();
            }
            Some(Look::Dead) => self.fail(CloseReason::KeepaliveTimeout, now),
        }
    }
}
