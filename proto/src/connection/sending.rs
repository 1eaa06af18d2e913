//! Sends the application's messages, and handles the completions that make room for further
//! messages.

use std::{fmt, time::Instant};

use super::{
    Connection, State,
    open::{Open, Phase},
    side::Side,
    transfer::Transfer,
};
use crate::{Clock, CloseReason, Event, Output, SendRefused, Transmit};

/// The reason why a send must wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stall {
    /// The peer has not granted credit for another message.
    Window {
        /// The maximum number of messages that are in flight to the peer or that the peer's
        /// application holds.
        window: u16,
    },
    /// The send ring has too few free slots for the data.
    SendRing,
    /// Another large message would exceed the limit on the number or on the total length of the
    /// large messages in flight.
    Large {
        /// The number of large messages in flight.
        messages: u32,
        /// The total length in bytes of the large messages in flight.
        bytes: u64,
    },
}

impl Connection {
    /// Returns the reason why a refused send still waits: see [`is_blocked`](Self::is_blocked).
    pub fn stall(&self) -> Option<Stall> {
        let State::Open(open) = &self.state else {
            return None;
        };
        let transfer = &open.transfer;
        if !transfer.is_blocked() {
            return None;
        }
        Some(if transfer.send_credit.available() == 0 {
            let window = self.negotiated().map_or(0, |both| both.send_window);
            Stall::Window { window }
        } else if !transfer.ring.has_room_for_data() || transfer.outbound.untaken() == 0 {
            Stall::SendRing
        } else {
            Stall::Large {
                messages: transfer.outbound.untaken(),
                bytes: transfer.outbound.bytes(),
            }
        })
    }
}

impl Open {
    /// Returns the [`Transfer`] if the application may send messages.
    #[inline]
    pub(super) fn sending_messages(&mut self) -> Result<&mut Transfer, SendRefused> {
        match &self.phase {
            //= PROTOCOL.md#half-close
            //# After it the side must not send data frames, nor writes with immediate data; it goes
            //# on receiving, granting, reading large messages and answering.
            Phase::Established if self.transfer.finished => Err(SendRefused::Finished),
            Phase::Established => Ok(&mut self.transfer),
            Phase::Greeting(_) => Err(SendRefused::Blocked),
            Phase::Draining(draining) if draining.awaits_cause() => Err(SendRefused::Blocked),
            //= PROTOCOL.md#closing
            //# After its Close a side must not send data frames, nor writes with immediate data.
            Phase::Closing(_) | Phase::Draining(_) => Err(self.refuse_for_good()),
        }
    }

    /// Sends a message if it fits into a frame and can be sent now. Otherwise returns `None`.
    #[inline(always)]
    pub(super) fn send_at_once(&mut self, len: usize) -> Option<Transmit> {
        match self.phase {
            Phase::Established if !self.transfer.finished => self.transfer.send_at_once(len),
            Phase::Established | Phase::Greeting(_) | Phase::Closing(_) | Phase::Draining(_) => {
                None
            }
        }
    }

    /// Returns the [`Transfer`] if the connection is established, even if the application has
    /// half-closed the connection.
    #[inline]
    pub(super) fn sending(&mut self) -> Result<&mut Transfer, SendRefused> {
        match &self.phase {
            Phase::Established => Ok(&mut self.transfer),
            Phase::Greeting(_) => Err(SendRefused::Blocked),
            Phase::Closing(_) | Phase::Draining(_) => Err(self.refuse_for_good()),
        }
    }

    /// Returns the [`Transfer`] if messages that the driver holds back may be sent.
    pub(super) fn sending_held(&mut self) -> Result<&mut Transfer, SendRefused> {
        if self.is_connected() && self.transfer.control.is_held() {
            Ok(&mut self.transfer)
        } else {
            Err(self.refuse_for_good())
        }
    }

    #[cold]
    fn refuse_for_good(&self) -> SendRefused {
        let reason = self.close_reason().unwrap_or(&CloseReason::LocallyClosed);
        SendRefused::Closed(reason.clone())
    }

    /// Handles the completion of a signalled send.
    pub(super) fn on_sent(&mut self, side: &mut Side, slot: u32, now: impl Clock) {
        self.transfer.sent(slot, side.acknowledges_sends());
        self.send_control(side);
        self.report_writable(side);
        if !self.transfer.inbound.is_clear() {
            self.read_on(side, now);
        }
        self.disconnect_if_done(side, now);
    }

    /// Counts a reposted receive. Returns true if no output is pending. If the result is false, an
    /// output may be pending.
    #[inline(always)]
    pub(super) fn release(&mut self, side: &mut Side, now: impl Clock) -> bool {
        let transfer = &mut self.transfer;
        transfer.recv_credit.release(side.account.as_deref());
        let is_quiet = transfer.recv_credit.needs_no_grant()
            && !transfer.inbound.report_due()
            && self.is_established();
        if is_quiet {
            return true;
        }
        self.grant_or_delay(side, now);
        self.is_settled(side)
    }

    /// Returns whether no output is pending: see [`Connection::is_settled`].
    ///
    /// [`Connection::is_settled`]: super::Connection::is_settled
    #[inline]
    pub(super) fn is_settled(&self, side: &Side) -> bool {
        self.is_established() && side.outputs.is_empty() && !self.transfer.timers.is_changed()
    }

    /// Grants receives to the peer immediately, or delays the grant so that a single frame can
    /// grant more receives later.
    #[inline(never)]
    pub(super) fn grant_or_delay(&mut self, side: &mut Side, now: impl Clock) {
        let transfer = &mut self.transfer;
        match self.phase {
            Phase::Established | Phase::Greeting(_) => transfer.watch_grant(now),
            Phase::Closing(_) | Phase::Draining(_) => transfer.recv_credit.stop_delaying_grants(),
        }
        self.grant_if_due(side);
    }

    /// Sends a grant that has been delayed for the maximum time. The application might hold
    /// messages for much longer, and the peer must not wait until they are released.
    pub(super) fn on_grant_timeout(&mut self, side: &mut Side, now: Instant) {
        let transfer = &mut self.transfer;
        let Some(delayed) = transfer.timers.grant.filter(|it| it.deadline <= now) else {
            return;
        };
        transfer.timers.grant = None;
        if delayed.announced == transfer.recv_credit.announced() {
            transfer.recv_credit.stop_delaying_grants();
        }
        transfer.watch_grant(now);
        self.grant_if_due(side);
    }

    #[inline]
    pub(super) fn grant_if_due(&mut self, side: &mut Side) {
        if self.transfer.grant_due() {
            self.transfer.control.queue_grant();
            self.send_control(side);
        }
    }

    /// Posts queued control frames while slots are free and the queue pair works.
    pub(super) fn send_control(&mut self, side: &mut Side) {
        if !self.is_connected() {
            return;
        }
        while let Some(output) = self.transfer.next_control(&mut side.control_messages) {
            side.outputs.push(output);
        }
    }

    /// Reports [`Event::Writable`] to a sender that was refused and can never send again. The
    /// sender then retries, and the error of the retry contains the reason.
    pub(super) fn report_blocked(&mut self, side: &mut Side) {
        if self.transfer.take_blocked() {
            side.outputs.push(Output::Event(Event::Writable));
        }
    }

    /// Reports [`Event::Writable`] if a refused send can be retried now. If the send still waits
    /// for slots, ensures that a completion follows. This function is also called while this side
    /// closes, because the driver may still have to send messages that it holds back.
    #[inline]
    pub(super) fn report_writable(&mut self, side: &mut Side) {
        if !self.transfer.is_blocked() || !self.is_connected() {
            return;
        }
        if self.transfer.take_writable() {
            side.outputs.push(Output::Event(Event::Writable));
        } else {
            self.signal_last_frame(side);
        }
    }
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Window { window: 1 } => {
                f.write_str("the peer holds the only message of its window")
            }
            Self::Window { window } => {
                write!(f, "the peer holds all {window} messages of its window")
            }
            Self::SendRing => f.write_str(
                "all sends that send_depth permits are in flight, and none is acknowledged",
            ),
            Self::Large { messages: 1, bytes } => {
                write!(f, "the peer has not read a large message of {bytes} bytes")
            }
            Self::Large { messages, bytes } => write!(
                f,
                "the peer has not read {messages} large messages, {bytes} bytes in total"
            ),
        }
    }
}
