//! What the application sends, and what makes room for more.

use std::time::Instant;

use super::{Connection, State, transfer::Transfer};
use crate::{BatchRoom, Clock, CloseReason, Descriptor, Event, Output, SendRefused, Transmit};

/// A point in the stream of what was sent.
#[derive(Clone, Copy, Debug)]
pub struct Flush {
    /// The number of pongs after which the peer has processed all frames before this point.
    answered: u64,
    /// The number of large messages that were sent before it.
    taken: u32,
}

/// What proves that something has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof {
    /// The number of pongs after which the peer has processed what was posted before.
    answered: u64,
}

impl Proof {
    /// Names the pongs, for tests of drivers.
    pub fn after(answered: u64) -> Self {
        Self { answered }
    }
}

impl Connection {
    /// Assigns a slot and a header to a message of `len` bytes, which follow in the same frame. The
    /// caller posts it at once.
    pub fn send(&mut self, len: usize) -> Result<Transmit, SendRefused> {
        self.sending_messages()?.send(len)
    }

    /// How much of a batch of messages may be sent in one frame now.
    pub fn batch_room(&mut self) -> Result<BatchRoom, SendRefused> {
        self.sending_messages()?.batch_room()
    }

    /// Assigns a slot and a header to `count` messages, which follow in the same frame, each behind
    /// its length: `len` bytes in all, no more than [`batch_room`](Self::batch_room) allows. The
    /// caller posts it at once.
    pub fn send_batch(&mut self, count: u32, len: usize) -> Result<Transmit, SendRefused> {
        Ok(self.sending_messages()?.send_batch(count, len))
    }

    /// Assigns a slot and a header to the descriptor of a large message. The caller posts it at
    /// once. The peer may read the memory that it names until [`Event::Taken`].
    pub fn send_large(&mut self, descriptor: &Descriptor) -> Result<Transmit, SendRefused> {
        self.sending_messages()?.send_large(descriptor.len)
    }

    /// Assigns a slot to a one-sided operation. The caller posts it at once, and signalled. One
    /// that consumes a receive of the peer takes a credit as well.
    pub fn operate(&mut self, takes_receive: bool) -> Result<u32, SendRefused> {
        let transfer = if takes_receive {
            self.sending_messages()?
        } else {
            self.sending()?
        };
        transfer.operate(takes_receive)
    }

    /// Whether a message of `len` bytes goes into a frame of its own.
    pub fn is_eager(&self, len: usize) -> bool {
        self.transfer
            .as_ref()
            .is_some_and(|transfer| transfer.is_eager(len))
    }

    /// Whether messages may be held back, of which the peer takes several in one frame.
    pub fn may_hold_messages(&self) -> bool {
        let takes_batches = |transfer: &Transfer| transfer.takes_batches;
        self.params.holds_messages && self.transfer.as_ref().is_some_and(takes_batches)
    }

    /// Whether a message of `len` bytes could be sent now. After a refusal as blocked
    /// [`Event::Writable`] follows when it may work.
    pub fn may_send(&mut self, len: usize) -> Result<(), SendRefused> {
        self.sending_messages()?.may_send(len)
    }

    /// Has the peer know that this side sends no more messages. What it sent before arrives first.
    pub fn finish(&mut self) -> Result<(), SendRefused> {
        let transfer = self.sending()?;
        if !transfer.finished {
            transfer.finished = true;
            transfer.control.queue_finish();
        }
        self.report_blocked();
        self.send_control();
        Ok(())
    }

    /// Keeps a Finish and a Close back until the driver has [let go](Self::let_go) of what it has
    /// taken from the application and holds back. Returns whether the connection is in a state for
    /// that.
    pub fn hold(&mut self) -> bool {
        let held = self.sending_messages().is_ok();
        if let (true, Some(transfer)) = (held, &mut self.transfer) {
            transfer.control.hold();
        }
        held
    }

    /// As [`batch_room`](Self::batch_room), for what was held back, also when the application has
    /// finished or closed meanwhile. It is refused when the peer has closed, and so takes nothing
    /// any more.
    pub fn held_room(&mut self) -> Result<BatchRoom, SendRefused> {
        self.sending_held()?.batch_room()
    }

    /// As [`send`](Self::send) or [`send_batch`](Self::send_batch), for messages that were held
    /// back.
    pub fn send_held(&mut self, count: u32, len: usize) -> Result<Transmit, SendRefused> {
        let transfer = self.sending_held()?;
        match count {
            1 => transfer.send(len),
            _ => Ok(transfer.send_batch(count, len)),
        }
    }

    /// Nothing is held back any more.
    pub fn let_go(&mut self) {
        if let Some(transfer) = &mut self.transfer {
            transfer.control.let_go();
        }
        self.send_control();
    }

    fn sending_held(&mut self) -> Result<&mut Transfer, SendRefused> {
        let holds = |transfer: &Transfer| transfer.control.is_held();
        let sends = matches!(self.state, State::Established | State::Closing(_))
            && self.transfer.as_ref().is_some_and(holds);
        if !sends {
            return Err(self.refuse_for_good());
        }
        self.transfer.as_mut().ok_or(SendRefused::Blocked)
    }

    fn sending_messages(&mut self) -> Result<&mut Transfer, SendRefused> {
        if self.is_ending_for_a_cause_to_come() {
            // Who waits hears of it with the end.
            return Err(SendRefused::Blocked);
        }
        let transfer = self.sending()?;
        if transfer.finished {
            return Err(SendRefused::Finished);
        }
        Ok(transfer)
    }

    fn sending(&mut self) -> Result<&mut Transfer, SendRefused> {
        match self.state {
            State::Established => self.transfer.as_mut().ok_or(SendRefused::Blocked),
            State::Closing(_) | State::Draining(_) | State::Closed => Err(self.refuse_for_good()),
            _ => Err(SendRefused::Blocked),
        }
    }

    fn refuse_for_good(&self) -> SendRefused {
        let reason = self.close_reason().unwrap_or(&CloseReason::LocallyClosed);
        SendRefused::Closed(reason.clone())
    }

    /// Sends a ping whose pong proves that the peer's library has processed everything sent before.
    ///
    /// [`is_flushed`](Self::is_flushed) says when; [`Event::Answered`] and [`Event::Taken`] say
    /// when to check it.
    pub fn flush(&mut self) -> Result<Flush, SendRefused> {
        let transfer = self.sending()?;
        let flush = Flush {
            answered: transfer.probe.wanted_from_now(),
            taken: transfer.outbound.exposed(),
        };
        self.send_control();
        Ok(flush)
    }

    /// Whether a send that is done has arrived, or a write, as far as the peer's device: see
    /// [`TransportTraits`](crate::TransportTraits).
    pub fn acknowledges_sends(&self) -> bool {
        self.traits.is_none_or(|traits| traits.acknowledges_sends)
    }

    /// Sends a ping whose pong proves that what was posted before has arrived. `None` when the
    /// connection is ending, which proves it or does not.
    pub fn prove_arrival(&mut self) -> Option<Proof> {
        let answered = self.sending().ok()?.probe.wanted_from_now();
        self.send_control();
        Some(Proof { answered })
    }

    /// Whether the pong has come; [`Event::Answered`] says when to check it.
    pub fn has_proof(&self, proof: Proof) -> bool {
        let transfer = self.transfer.as_ref();
        transfer.is_some_and(|transfer| transfer.probe.answered >= proof.answered)
    }

    /// Whether the peer's library has received everything that was sent before `flush` was made.
    pub fn is_flushed(&self, flush: &Flush) -> bool {
        self.transfer.as_ref().is_some_and(|transfer| {
            transfer.probe.answered >= flush.answered && transfer.outbound.has_taken(flush.taken)
        })
    }

    /// Takes the completion of a signalled send, which covers all that were posted before it.
    pub fn handle_sent(&mut self, slot: u32, now: impl Clock) {
        let acknowledges = self.acknowledges_sends();
        if let Some(transfer) = &mut self.transfer {
            transfer.sent(slot, acknowledges);
            self.send_control();
            self.report_writable();
            self.read_on(now);
            self.disconnect_if_done(now);
        }
    }

    /// Takes notice that the receive of a delivered message has been posted again, for this
    /// connection or for all that share it.
    pub fn release(&mut self, now: impl Clock) {
        if let Some(transfer) = &mut self.transfer {
            transfer.recv_credit.release(self.account.as_deref());
            if matches!(self.state, State::Established) {
                transfer.watch_grant(now);
            } else {
                transfer.recv_credit.lose_patience();
            }
        }
        self.grant_if_due();
    }

    /// The peer waits no longer for an application that keeps messages.
    pub(super) fn on_grant_timeout(&mut self, now: Instant) {
        let Some(transfer) = &mut self.transfer else {
            return;
        };
        let Some(put_off) = transfer.timers.grant.filter(|it| it.deadline <= now) else {
            return;
        };
        transfer.timers.grant = None;
        if put_off.announced == transfer.recv_credit.announced() {
            transfer.recv_credit.lose_patience();
        }
        transfer.watch_grant(now);
        self.grant_if_due();
    }

    /// Takes notice that the application has released a large message of `len` bytes.
    pub fn release_large(&mut self, len: u64, now: impl Clock) {
        if let Some(transfer) = &mut self.transfer {
            transfer.inbound.release(len);
        }
        self.read_on(now);
    }

    pub(super) fn grant_if_due(&mut self) {
        if let Some(transfer) = &mut self.transfer
            && transfer.grant_due()
        {
            transfer.control.queue_grant();
            self.send_control();
        }
    }

    /// Posts the queued control frames, as far as there are slots, in states that allow it.
    pub(super) fn send_control(&mut self) {
        match &self.state {
            State::Established | State::Closing(_) => {}
            State::Waiting(_)
            | State::ResolvingAddr(_)
            | State::ResolvingRoute(_)
            | State::Connecting(..)
            | State::Backoff { .. }
            | State::Requested { .. }
            | State::Accepted { .. }
            | State::Accepting { .. }
            | State::Draining(_)
            | State::Closed => return,
        }
        let Some(transfer) = &mut self.transfer else {
            return;
        };
        while let Some(transmit) = transfer.next_control() {
            self.outputs.push(Output::Post(transmit));
        }
    }

    /// Whether a send was refused as blocked, and [`Event::Writable`] is yet to follow.
    pub fn is_blocked(&self) -> bool {
        let transfer = self.transfer.as_ref();
        transfer.is_some_and(Transfer::is_blocked)
    }

    /// Has a sender that waits for room try again, and so learn that there will be none.
    pub(super) fn report_blocked(&mut self) {
        if let Some(transfer) = &mut self.transfer
            && transfer.take_blocked()
        {
            self.outputs.push(Output::Event(Event::Writable));
        }
    }

    /// Has a sender that waits for room try again, if there is some. While this side closes, that
    /// may be what was held back.
    pub(super) fn report_writable(&mut self) {
        if let (State::Established | State::Closing(_), Some(transfer)) =
            (&self.state, &mut self.transfer)
            && transfer.take_writable()
        {
            self.outputs.push(Output::Event(Event::Writable));
        }
    }
}
