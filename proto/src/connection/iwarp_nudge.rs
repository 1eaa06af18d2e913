//! Sends writes of 0 bytes (*nudges*) to a peer that might not have noticed this side's first
//! frame.
//!
//! On iWARP, the active side sends as soon as the passive side has replied, so the first frame can
//! arrive while the peer's driver is still taking over the TCP stream. Linux's software iWARP then
//! does not read the frame until more bytes arrive. If the application sent nothing else, both
//! sides would wait for each other.

use std::time::{Duration, Instant};

use super::{open::Open, side::Side};
use crate::Output;

/// The wait before the first nudge. Each further wait is twice as long as the previous one, up to
/// [`LONGEST`].
const FIRST: Duration = Duration::from_millis(20);

/// The maximum wait between two nudges.
const LONGEST: Duration = Duration::from_secs(1);

/// The timer of the nudges, which are repeated until the peer has answered a Ping.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
pub(super) struct Nudge {
    deadline: Instant,
    wait: Duration,
}

impl Nudge {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            deadline: now + FIRST,
            wait: FIRST,
        }
    }

    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    fn next(&self, now: Instant) -> Self {
        let wait = (self.wait * 2).min(LONGEST);
        Self {
            deadline: now + wait,
            wait,
        }
    }
}

impl Open {
    /// Posts a signalled write of 0 bytes if a refused send waits for slots and no frame in flight
    /// is signalled. The completion of this write also frees the slots of all earlier frames.
    /// Without this write, the refused send could wait forever: a message in fragments needs a slot
    /// for each fragment, and the application might send nothing else that is signalled.
    #[cold]
    pub(super) fn signal_last_frame(&mut self, side: &mut Side) {
        let transfer = &mut self.transfer;
        if transfer.lacks_completion() && transfer.ring.has_room() {
            let (slot, _) = transfer.ring.take(true);
            side.outputs.push(Output::Nudge { slot });
        }
    }

    pub(super) fn on_nudge_timeout(&mut self, side: &mut Side, now: Instant) {
        let transfer = &mut self.transfer;
        let Some(nudge) = transfer.timers.nudge.as_ref() else {
            return;
        };
        if nudge.deadline > now {
            return;
        }
        if transfer.probe.answered > 0 {
            transfer.timers.nudge = None;
            return;
        }
        let next = nudge.next(now);
        transfer.timers.nudge = Some(next);
        if transfer.ring.has_room() {
            let (slot, _) = transfer.ring.take(true);
            side.outputs.push(Output::Nudge { slot });
        }
    }
}
