//! Commands that the application and the driver give to a connection.

use std::{mem, time::Instant};

use super::{
    Connection, State,
    open::Open,
    setup::Setup,
    side::Side,
    transfer::{Transfer, Way},
};
use crate::{
    BatchRoom, Clock, CloseReason, ControlRefused, Descriptor, SendRefused, Transmit,
    control_messages::ControlMessages,
    frame::{Control, NOT_TAKEN, WAKER_PANICKED},
    reject::{Reject, RejectCode},
};

/// A point in the sequence of sent frames, up to which everything can be flushed.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(test, derive(Hash))]
pub struct Flush {
    /// The number of Pongs after which the peer has processed all frames before this point.
    answered: u64,
    /// The number of large messages that were sent before this point.
    taken: u32,
}

/// A point in the sequence of sent frames. The arrival of all frames before this point can be
/// proven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof {
    /// The number of Pongs after which the peer has processed all frames before this point.
    answered: u64,
}

impl Proof {
    /// Makes the proof that this number of Pongs gives, for tests of drivers.
    pub fn after(answered: u64) -> Self {
        Self { answered }
    }
}

impl Flush {
    fn is_done(&self, transfer: &Transfer) -> bool {
        transfer.probe.answered >= self.answered && transfer.outbound.has_taken(self.taken)
    }
}

/// Commands that begin or end the connection.
impl Connection {
    /// Accepts the request. The reply contains `data` of the application, which has at most
    /// [`REPLY_DATA_MAX`](crate::REPLY_DATA_MAX) bytes.
    ///
    /// If [`has_long_request`](Self::has_long_request) returns true, the driver accepts without an
    /// answer of the application, and `data` is the driver's. After
    /// [`Event::Requested`](crate::Event::Requested) a second call answers for the application.
    pub fn accept(&mut self, data: &[u8], now: Instant) {
        match &mut self.state {
            State::Setup(Setup::Accepting(accepting)) => {
                accepting.accept(&mut self.side, data, now);
            }
            State::Open(open) => open.accept(&mut self.side, data),
            State::Setup(Setup::Connecting(_)) | State::Closed(_) => {}
        }
    }

    /// Whether private data of the request follow in a frame.
    pub fn has_long_request(&self) -> bool {
        self.side.has_long_request
    }

    /// Rejects the request. The rejection contains `data` of the application, which has at most
    /// [`REJECT_DATA_MAX`](crate::REJECT_DATA_MAX) bytes. Returns whether it was rejected: after
    /// the reply it is not.
    pub fn reject(&mut self, data: &[u8], now: Instant) -> bool {
        let reject = Reject {
            code: RejectCode::Application,
            own: 0,
            theirs: 0,
        };
        match &mut self.state {
            State::Open(open) => open.reject(&mut self.side, data, now),
            State::Setup(_) | State::Closed(_) => self.reject_with(&reject, data, now),
        }
    }

    /// Rejects the request as busy if the reply was not sent. Returns whether it was rejected.
    /// After the reply the peer may consider the connection established.
    pub fn reject_unanswered(&mut self, now: Instant) -> bool {
        self.reject_with(&Reject::BUSY, &[], now)
    }

    fn reject_with(&mut self, reject: &Reject, data: &[u8], now: Instant) -> bool {
        let State::Setup(setup) = &mut self.state else {
            return false;
        };
        let rejected = setup.reject(&mut self.side, reject, data);
        if rejected {
            self.fail(CloseReason::LocallyClosed, now);
        }
        rejected
    }

    /// Rejects the request, or ends the established connection, because its listener has ended
    /// before the program took the connection. A connection between these two states is turned away
    /// when it is established.
    pub fn reject_untaken(&mut self, now: Instant) {
        match &mut self.state {
            State::Setup(_) => {
                self.reject_unanswered(now);
            }
            State::Open(open) => {
                let (reason, control) = (CloseReason::LocallyClosed, Control::Failure);
                open.notify_and_disconnect(&mut self.side, reason, control, NOT_TAKEN, now);
            }
            State::Closed(_) => {}
        }
    }

    /// Closes the connection. The peer receives the messages that were sent before.
    pub fn close(&mut self, now: Instant) {
        match &mut self.state {
            State::Setup(setup) => {
                setup.reject(&mut self.side, &Reject::BUSY, &[]);
                self.fail(CloseReason::LocallyClosed, now);
            }
            State::Open(open) => open.close(&mut self.side, now),
            State::Closed(_) => {}
        }
    }

    /// Ends the connection at once. Sends the application's `code` to the peer, if this takes at
    /// most 100 ms.
    pub fn abort(&mut self, code: u32, now: Instant) {
        self.end_at_once(CloseReason::LocallyAborted, Control::Abort, code, now);
    }

    /// Ends the connection at once because a waker of the application panicked.
    pub fn handle_waker_panic(&mut self, now: Instant) {
        let reason = CloseReason::WakerPanicked;
        self.end_at_once(reason, Control::Failure, WAKER_PANICKED, now);
    }

    fn end_at_once(&mut self, reason: CloseReason, control: Control, code: u32, now: Instant) {
        match &mut self.state {
            State::Setup(setup) => {
                let rejected = setup.reject(&mut self.side, &Reject::BUSY, &[]);
                let reason = if rejected {
                    CloseReason::LocallyClosed
                } else {
                    reason
                };
                self.fail(reason, now);
            }
            State::Open(open) => {
                open.disconnect_suspect(&mut self.side, now);
                open.notify_and_disconnect(&mut self.side, reason, control, code, now);
            }
            State::Closed(_) => {}
        }
    }
}

/// Commands that send and release messages.
impl Connection {
    /// Assigns a slot and a header to a message of `len` bytes, which follow the header in the same
    /// frame. The caller posts the frame at once.
    #[inline]
    pub fn send(&mut self, len: usize) -> Result<Transmit, SendRefused> {
        let (open, _) = self.open_for_sending()?;
        open.sending_messages()?.send(len)
    }

    /// As [`send`](Self::send), if the message fits into a frame and can be sent now. Otherwise
    /// returns `None`, without the [`Writable`](crate::Event::Writable) that follows a refused
    /// `send`, and counts no stall.
    #[inline(always)]
    pub fn send_at_once(&mut self, len: usize) -> Option<Transmit> {
        match &mut self.state {
            State::Open(open) => open.send_at_once(len),
            State::Setup(_) | State::Closed(_) => None,
        }
    }

    /// Returns the part of a batch of messages that may be sent in one frame now.
    #[inline]
    pub fn batch_room(&mut self) -> Result<BatchRoom, SendRefused> {
        let (open, _) = self.open_for_sending()?;
        open.sending_messages()?.batch_room()
    }

    /// Assigns a slot and a header to `count` messages. The messages, each preceded by its length,
    /// follow the header in the same frame. They have `len` bytes in all, within
    /// [`batch_room`](Self::batch_room). The caller posts the frame at once.
    #[inline]
    pub fn send_batch(&mut self, count: u32, len: usize) -> Result<Transmit, SendRefused> {
        let (open, _) = self.open_for_sending()?;
        Ok(open.sending_messages()?.send_batch(count, len))
    }

    /// Assigns a slot and a header to the descriptor of a large message. The caller posts the frame
    /// at once. The peer may read the memory that the descriptor names until
    /// [`Event::Taken`](crate::Event::Taken).
    pub fn send_large(&mut self, descriptor: &Descriptor) -> Result<Transmit, SendRefused> {
        let (open, _) = self.open_for_sending()?;
        open.sending_messages()?.send_large(descriptor.len)
    }

    /// Assigns a slot to a one-sided operation. The caller posts the operation at once, as
    /// signalled. An operation that consumes a receive of the peer also takes a credit.
    pub fn operate(&mut self, takes_receive: bool) -> Result<u32, SendRefused> {
        let (open, _) = self.open_for_sending()?;
        let transfer = if takes_receive {
            open.sending_messages()?
        } else {
            open.sending()?
        };
        transfer.operate(takes_receive)
    }

    /// Returns the way in which a message of `len` bytes is sent now.
    #[inline]
    pub fn way(&self, len: usize) -> Way {
        self.opened()
            .map_or(Way::Frame, |open| open.transfer.way(len))
    }

    /// Assigns a slot and a header to the part of a message of `len` bytes that begins at `offset`.
    /// Returns the frame, and the length of the part. Before the first part, the caller has checked
    /// that [`way`](Self::way) returns [`Way::Fragments`] and that [`may_send`](Self::may_send)
    /// returns no refusal. The caller posts all parts at once.
    pub fn send_fragment(&mut self, len: u32, offset: u32) -> Result<(Transmit, u32), SendRefused> {
        let (open, _) = self.open_for_sending()?;
        Ok(open.sending_messages()?.send_fragment(len, offset))
    }

    /// Whether a message of `len` bytes fits into a frame of its own.
    #[inline]
    pub fn is_eager(&self, len: usize) -> bool {
        let open = self.opened();
        open.is_some_and(|open| open.transfer.is_eager(len))
    }

    /// Whether a message of `len` bytes can be sent now. If the message is refused as blocked,
    /// [`Event::Writable`](crate::Event::Writable) follows when a retry can succeed.
    #[inline]
    pub fn may_send(&mut self, len: usize) -> Result<(), SendRefused> {
        let (open, side) = self.open_for_sending()?;
        let room = open.sending_messages()?.may_send(len);
        if room == Err(SendRefused::Blocked) {
            open.signal_last_frame(side);
        }
        room
    }

    /// Sends a Finish after all messages. Later sends fail.
    pub fn finish(&mut self) -> Result<(), SendRefused> {
        let (open, side) = self.open_for_sending()?;
        let transfer = open.sending()?;
        if !transfer.finished {
            transfer.finished = true;
            transfer.control.queue_finish();
        }
        open.report_blocked(side);
        open.send_control(side);
        Ok(())
    }

    /// Whether a send was refused as blocked, and [`Event::Writable`](crate::Event::Writable) has
    /// not followed yet.
    pub fn is_blocked(&self) -> bool {
        matches!(&self.state, State::Open(open) if open.transfer.is_blocked())
    }

    /// Sends a Ping, whose Pong proves that the peer's library has processed everything sent
    /// before.
    ///
    /// The result of [`is_flushed`](Self::is_flushed) can change after
    /// [`Event::Answered`](crate::Event::Answered) and after [`Event::Taken`](crate::Event::Taken).
    pub fn flush(&mut self) -> Result<Flush, SendRefused> {
        let (open, side) = self.open_for_sending()?;
        let transfer = open.sending()?;
        let flush = Flush {
            answered: transfer.probe.request_pong(),
            taken: transfer.outbound.exposed(),
        };
        open.send_control(side);
        Ok(flush)
    }

    /// Whether the peer's library has received everything that was sent before `flush` was made.
    pub fn is_flushed(&self, flush: &Flush) -> bool {
        self.opened()
            .is_some_and(|open| flush.is_done(&open.transfer))
    }

    /// Whether a completed send or write has reached the peer's device: see
    /// [`TransportTraits`](crate::TransportTraits).
    #[inline]
    pub fn acknowledges_sends(&self) -> bool {
        self.side.acknowledges_sends()
    }

    /// Sends a Ping, whose Pong proves that everything posted before has arrived. Returns `None` if
    /// the connection is ending: the reason for the end then shows whether everything has arrived.
    pub fn prove_arrival(&mut self) -> Option<Proof> {
        let (open, side) = self.open()?;
        let answered = open.sending().ok()?.probe.request_pong();
        open.send_control(side);
        Some(Proof { answered })
    }

    /// Whether the Pong that gives this proof has arrived. The result can change after
    /// [`Event::Answered`](crate::Event::Answered).
    pub fn has_proof(&self, proof: Proof) -> bool {
        self.opened()
            .is_some_and(|open| open.transfer.probe.answered >= proof.answered)
    }

    /// Records that the receive of a delivered message has been posted again, for this connection
    /// or for all connections that share receives. Returns whether there is certainly no output.
    #[inline(always)]
    pub fn release(&mut self, now: impl Clock) -> bool {
        match self.open() {
            Some((open, side)) => open.release(side, now),
            None => false,
        }
    }

    /// Records that the application has released a large message of `len` bytes.
    pub fn release_large(&mut self, len: u64, now: impl Clock) {
        match &mut self.state {
            State::Setup(_) => {}
            State::Open(open) => {
                open.transfer.inbound.release(len);
                open.read_on(&mut self.side, now);
            }
            State::Closed(ended) => ended.release_large(len),
        }
    }

    /// Returns the open connection, or the reason why nothing can be sent.
    #[inline]
    fn open_for_sending(&mut self) -> Result<(&mut Open, &mut Side), SendRefused> {
        match &mut self.state {
            State::Setup(_) => Err(SendRefused::Blocked),
            State::Open(open) => Ok((open, &mut self.side)),
            State::Closed(ended) => Err(SendRefused::Closed(ended.reason.clone())),
        }
    }
}

/// Commands for control messages.
impl Connection {
    /// Sends a control message, which passes the messages that wait for credit.
    pub fn send_control_message(&mut self, message: &[u8]) -> Result<(), ControlRefused> {
        let (open, side) = self.open_for_control()?;
        side.control_messages.send(message)?;
        open.send_control(side);
        Ok(())
    }

    /// Reports to the peer that this side wants to end the connection soon. Sends nothing if it was
    /// reported before.
    pub fn ask_to_leave(&mut self) -> Result<(), ControlRefused> {
        let (open, side) = self.open_for_control()?;
        if !open.transfer.leave() {
            return Err(ControlRefused::NotTaken);
        }
        open.send_control(side);
        Ok(())
    }

    /// Returns the established connection, or the reason why it sends nothing.
    fn open_for_control(&mut self) -> Result<(&mut Open, &mut Side), ControlRefused> {
        if !matches!(&self.state, State::Open(open) if open.is_established()) {
            let reason = self.close_reason().unwrap_or(&CloseReason::LocallyClosed);
            return Err(ControlRefused::Closed(reason.clone()));
        }
        self.open()
            .ok_or(ControlRefused::Closed(CloseReason::LocallyClosed))
    }

    /// Keeps a control message for the next connection of the session, because the present
    /// connection is lost or the next one is not established.
    pub fn keep_control_message(&mut self, message: &[u8]) -> Result<(), ControlRefused> {
        self.side.control_messages.send(message)
    }

    /// Records that the application has taken a control message. If an earlier connection of the
    /// session has delivered it, the present connection still counts it.
    pub fn take_control_message(&mut self) {
        self.side.control_messages.take();
        if let Some((open, side)) = self.open() {
            open.grant_control_messages(side);
        }
    }

    /// Returns the number of control messages that an application may leave.
    #[cfg(test)]
    pub(super) fn control_window(&self) -> u32 {
        self.side.control_messages.window()
    }

    /// Returns the number of control messages that can be sent before the next grant.
    #[cfg(test)]
    pub(super) fn control_credit(&self) -> u32 {
        self.side.control_messages.available()
    }

    /// Permits control messages of this length to the peer.
    #[cfg(test)]
    pub(super) fn permit_control_messages(&mut self, longest: u32) {
        self.side.control_messages.set_longest(Some(longest));
    }

    /// Sets the counters and the window of control messages, of which none was sent.
    #[cfg(test)]
    pub(super) fn start_control_messages_at(&mut self, start: u32, window: u32) {
        self.side.control_messages.start_at(start, window);
    }

    /// Continues with the control messages of the session after its last connection has ended.
    /// The caller calls this function before the connection is established.
    pub fn resume_control_messages(&mut self, last: &mut Self) {
        let fresh = ControlMessages::new();
        let mut messages = mem::replace(&mut last.side.control_messages, fresh);
        messages.resume();
        self.side.control_messages = messages;
    }
}

/// Commands for messages that the driver has taken from the application and holds back.
impl Connection {
    /// Holds a Finish and a Close back until [`release_ending`](Self::release_ending), because the
    /// driver holds messages of the application back. Returns whether the state of the connection
    /// permits this.
    pub fn hold(&mut self) -> bool {
        match self.open() {
            Some((open, _)) => open.sending_messages().map(|it| it.control.hold()).is_ok(),
            None => false,
        }
    }

    /// Does the same as [`batch_room`](Self::batch_room) for messages that were held back, even
    /// after the application has finished or closed. Refuses if the peer has closed, because the
    /// peer ignores further messages.
    pub fn held_room(&mut self) -> Result<BatchRoom, SendRefused> {
        let (open, _) = self.open_for_sending()?;
        open.sending_held()?.batch_room()
    }

    /// Does the same as [`send`](Self::send) or [`send_batch`](Self::send_batch) for messages that
    /// were held back.
    pub fn send_held(&mut self, count: u32, len: usize) -> Result<Transmit, SendRefused> {
        let (open, _) = self.open_for_sending()?;
        let transfer = open.sending_held()?;
        match count {
            1 => transfer.send(len),
            _ => Ok(transfer.send_batch(count, len)),
        }
    }

    /// Sends a Finish and a Close that were held back, because the driver no longer holds messages
    /// back.
    pub fn release_ending(&mut self) {
        if let Some((open, side)) = self.open() {
            open.transfer.control.release_ending();
            open.send_control(side);
        }
    }
}

/// Commands for byte streams: the limits on their unread bytes do not depend on the pieces in which
/// the bytes travel.
impl Connection {
    /// Makes the connection a byte stream.
    pub fn carry_bytes(&mut self) {
        self.side.params.stream = true;
        if let Some((open, side)) = self.open() {
            open.transfer.set_limits(&side.params);
        }
    }

    /// Returns the length in bytes of the pieces into which a long write is divided. The peer reads
    /// each piece as a large message.
    pub fn stream_piece(&self) -> u64 {
        self.side.params.stream_piece()
    }

    /// Returns the maximum number of bytes of a stream that the driver may hold back: half of the
    /// stream buffer less the bytes that the peer still has to read from this side's memory, but at
    /// least one frame.
    pub fn most_held_back(&self) -> u64 {
        let Some(open) = self.opened() else {
            return 0;
        };
        let half = self.side.params.half_stream_buffer();
        let frame = open.transfer.negotiated().send_eager.into();
        half.saturating_sub(open.transfer.outbound.bytes())
            .max(frame)
    }

    /// Whether the caller should copy a message of `len` bytes: unread messages hold too many
    /// receives, and the buffer has room for the copy in addition to the `buffered` unread bytes in
    /// receives.
    ///
    /// Too many means more than half of the receives, or more than three quarters of them if
    /// `comes` is set: a reader is coming and will take the messages without a copy. The limit
    /// leaves the peer credits for some messages.
    ///
    /// The caller then copies the message, releases its receive at once, and reports the copy with
    /// [`copied`](Self::copied).
    #[inline]
    pub fn may_copy(&self, len: u32, buffered: u64, comes: bool) -> bool {
        let open = self.opened();
        open.is_some_and(|open| open.transfer.may_copy(len, buffered, comes))
    }

    /// Records that a message of `len` bytes was copied. The copy counts until
    /// [`release_copied`](Self::release_copied).
    pub fn copied(&mut self, len: u32) {
        if let Some((open, _)) = self.open() {
            open.transfer.inbound.copied(len.into());
        }
    }

    /// Whether the caller should copy a large message: the application holds more than half of the
    /// large messages that it may hold.
    pub fn may_copy_large(&self) -> bool {
        let open = self.opened();
        open.is_some_and(|open| open.transfer.inbound.may_copy_large())
    }

    /// Does the same as [`copied`](Self::copied) for a large message, which counts as released.
    pub fn copied_large(&mut self, len: u64, now: impl Clock) {
        if let Some((open, side)) = self.open() {
            open.transfer.inbound.release(len);
            open.transfer.inbound.copied(len);
            open.read_on(side, now);
        }
    }

    /// Records that the application has read `len` bytes that were copied.
    pub fn release_copied(&mut self, len: u64, now: impl Clock) {
        if let Some((open, side)) = self.open() {
            open.transfer.inbound.release_copied(len);
            open.read_on(side, now);
        }
    }
}
