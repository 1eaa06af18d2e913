//! The state of a connection from the completion of its setup to the completion of its last work
//! request.

use std::time::Instant;

use super::{
    closing::{Closing, Draining},
    greeting::Greeting,
    iwarp_nudge::Nudge,
    side::Side,
    timers::earlier,
    transfer::Transfer,
};
use crate::{Activity, CmInput, CmOp, Event, Output, hello::Hello};

/// A connection whose setup is complete.
///
/// The handlers of an open connection are divided among files: `receiving` handles frames,
/// `sending` handles messages and completions, `reading` reads large messages, `greeting` exchanges
/// private data, `closing` ends the connection, and `keepalive` and `nudge` handle peers that are
/// silent.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
pub(super) struct Open {
    pub(super) phase: Phase,
    /// Whether the connection has ever been in the phase [`Phase::Established`].
    was_established: bool,
    pub(super) transfer: Transfer,
    /// Whether this side or the peer might not know the result of the close handshake, because the
    /// connection was lost during the handshake.
    pub(super) lost_in_close: LostInClose,
}

#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
pub(super) enum Phase {
    /// Private data are being exchanged. The connection is not considered established yet.
    Greeting(Greeting),
    /// Messages flow.
    Established,
    /// The close handshake is in progress. The application can no longer send.
    Closing(Closing),
    /// The queue pair is in its error state, and its work requests are being flushed.
    Draining(Draining),
}

/// Whether this side or the peer might not know the result of the close handshake, because the
/// connection was lost during the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub(super) enum LostInClose {
    /// The connection was not lost during a close handshake, or both sides know the result.
    No,
    /// This side does not know the result, and the peer might not know it either.
    Here,
    /// This side knows the result. The peer might not know the result, because the peer's device
    /// has not acknowledged this side's final frame.
    AtPeer,
}

impl Open {
    /// Creates the state of a connection to the peer that sent this hello. The connection first
    /// exchanges private data if `greeting` is not `None`.
    pub(super) fn new(
        side: &mut Side,
        hello: &Hello,
        greeting: Option<Greeting>,
        now: Instant,
    ) -> Self {
        let mut transfer = Transfer::new(&side.params, hello);
        transfer.start_keepalive(now);
        side.cm(CmOp::SetMinRnrTimer);
        Self {
            was_established: false,
            phase: greeting.map_or(Phase::Established, Phase::Greeting),
            transfer,
            lost_in_close: LostInClose::No,
        }
    }

    /// Sends the first frame. The caller has checked that the transport requires this side to send
    /// first.
    pub(super) fn send_first_frame(&mut self, side: &mut Side, now: Instant) {
        self.transfer.probe.request();
        self.transfer.timers.nudge = Some(Nudge::new(now));
        self.send_control(side);
    }

    /// Begins the exchange of messages. Sets the maximum length of control messages according to
    /// the peer's hello, and sends the control messages that the session has stored.
    pub(super) fn establish(&mut self, side: &mut Side) {
        self.phase = Phase::Established;
        self.was_established = true;
        side.outputs.push(Output::Event(Event::Established));
        let longest = self.transfer.longest_control_message();
        side.control_messages.set_longest(longest);
        if side.control_messages.is_due() {
            self.send_control(side);
        }
    }

    /// Returns the name of the current phase, for log lines.
    pub(super) const fn name(&self) -> &'static str {
        match &self.phase {
            Phase::Greeting(greeting) => greeting.name(),
            Phase::Established => "Established",
            Phase::Closing(_) => "Closing",
            Phase::Draining(_) => "Draining",
        }
    }

    /// Returns whether the connection has ever been in the phase [`Phase::Established`].
    #[inline]
    pub(super) fn was_established(&self) -> bool {
        self.was_established
    }

    #[inline]
    pub(super) fn is_established(&self) -> bool {
        matches!(self.phase, Phase::Established)
    }

    /// Returns whether the connection is closing or draining.
    #[inline]
    pub(super) fn is_ending(&self) -> bool {
        matches!(self.phase, Phase::Closing(_) | Phase::Draining(_))
    }

    /// Returns true until this side learns that the queue pair no longer works.
    #[inline]
    pub(super) fn is_connected(&self) -> bool {
        !matches!(self.phase, Phase::Draining(_))
    }

    /// Returns true if the connection is ending, and an event that reveals the cause of the end is
    /// still expected.
    pub(super) fn awaits_cause(&self) -> bool {
        matches!(&self.phase, Phase::Draining(draining) if draining.awaits_cause())
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        let timers = &self.transfer.timers;
        match &self.phase {
            Phase::Greeting(greeting) => earlier(Some(greeting.deadline()), timers.deadline()),
            Phase::Established => timers.deadline(),
            Phase::Closing(closing) => earlier(Some(closing.deadline()), timers.while_closing()),
            Phase::Draining(draining) => Some(draining.deadline()),
        }
    }

    /// Handles all deadlines that have passed.
    pub(super) fn on_timeout(&mut self, side: &mut Side, now: Instant) {
        match &mut self.phase {
            Phase::Greeting(greeting) if greeting.deadline() <= now => {
                self.on_greeting_timeout(side, now);
            }
            Phase::Greeting(_) | Phase::Established => {
                self.on_grant_timeout(side, now);
                self.on_nudge_timeout(side, now);
                self.on_reading_timeout(side, now);
                self.on_keepalive_timeout(side, now);
            }
            Phase::Closing(closing) if closing.deadline() <= now => {
                let reason = closing.reason().clone();
                self.disconnect(side, reason, now);
            }
            Phase::Closing(_) => {
                self.on_nudge_timeout(side, now);
                self.on_reading_timeout(side, now);
                self.on_keepalive_timeout(side, now);
            }
            Phase::Draining(draining) if draining.is_suspecting() => {
                self.disconnect_suspect(side, now)
            }
            Phase::Draining(draining) => draining.give_up(),
        }
    }

    /// Handles a connection manager event.
    pub(super) fn on_cm_event(&mut self, side: &mut Side, event: CmInput<'_>, now: Instant) {
        match event {
            CmInput::Disconnected => self.on_disconnected(side, now),
            // A frame that arrived before this event has already established the connection.
            CmInput::Established { .. } => {}
            event => side.unexpected(event.name(), self.name()),
        }
    }

    /// Returns counters that increase when the peer gives a sign of life on this connection.
    #[inline]
    pub(super) fn activity(&self) -> Activity {
        let transfer = &self.transfer;
        Activity {
            signs: transfer.activity.on_connection,
            chunks: transfer.inbound.chunks() + transfer.moved.read,
        }
    }
}
