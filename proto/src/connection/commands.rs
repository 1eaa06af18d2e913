//! Commands to a connection from the application and from the driver.

use std::{mem, time::Instant};

use super::{
    Connection, State,
    open::Open,
    setup::Setup,
    side::Side,
    transfer::{SendMethod, Transfer},
};
use crate::{
    BatchRoom, Clock, CloseReason, ControlRefused, Descriptor, SendRefused, Transmit,
    control_messages::ControlMessages,
    frame::{Control, NOT_TAKEN, WAKER_PANICKED},
    reject::{Reject, RejectCode},
};

/// A point in the sequence of sent frames. A flush completes when the peer has received everything
/// that was sent before this point.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(test, derive(Hash))]
pub struct Flush {
    /// The total number of Pongs that must have arrived. The Pong with this number proves that the
    /// peer has processed all frames before this point.
    answered: u64,
    /// The number of large messages that the peer must have taken, modulo 2³². These are all large
    /// messages that were sent before this point.
    taken: u32,
}

/// A point in the sequence of sent frames. A Ping is sent after this point. The Pong for this Ping
/// proves that all frames before this point have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof {
    /// The total number of Pongs that must have arrived. The Pong with this number proves that the
    /// peer has processed all frames before this point.
    answered: u64,
}

impl Proof {
    /// Creates a proof that is complete when a total of `answered` Pongs has arrived. Only tests of
    /// drivers use this function.
    pub fn after(answered: u64) -> Self {
        Self { answered }
    }
}

impl Flush {
    fn is_done(&self, transfer: &Transfer) -> bool {
        transfer.probe.answered >= self.answered && transfer.outbound.has_taken(self.taken)
    }
}

/// An open connection to which the driver can post receives. The driver holds this value while it
/// reposts the receive of a delivered message.
#[derive(Debug)]
pub struct Releasing<'a> {
    open: &'a mut Open,
    side: &'a mut Side,
}

impl Releasing<'_> {
    /// Does the same as [`Connection::release`].
    #[inline(always)]
    pub fn release(self, now: impl Clock) -> bool {
        self.open.release(self.side, now)
    }
}

/// Commands that begin or end the connection.
impl Connection {
    /// Accepts the request. The reply contains the application's `data`, at most
    /// [`REPLY_DATA_MAX`](crate::REPLY_DATA_MAX) bytes.
    ///
    /// If [`has_long_request`](Self::has_long_request) returns true, the driver must call this
    /// function twice. The first call passes the driver's own `data`, and makes the peer send the
    /// private data of the request. The second call, after
    /// [`Event::Requested`](crate::Event::Requested), passes the application's `data`.
    pub fn accept(&mut self, data: &[u8], now: Instant) {
        match &mut self.state {
            State::Setup(Setup::Accepting(accepting)) => {
                accepting.accept(&mut self.side, data, now);
            }
            State::Open(open) => open.accept(&mut self.side, data),
            State::Setup(Setup::Connecting(_)) | State::Closed(_) => {}
        }
    }

    /// Returns whether the private data of the request follow in a separate frame.
    pub fn has_long_request(&self) -> bool {
        self.side.has_long_request
    }

    /// Rejects the request. The rejection contains the application's `data`, at most
    /// [`REJECT_DATA_MAX`](crate::REJECT_DATA_MAX) bytes. Returns false if the request can no
    /// longer be rejected.
    ///
    /// If the private data of the request follow in a separate frame, the application can reject
    /// the request until it accepts the request. Any other request can be rejected until the reply
    /// is about to be sent.
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

    /// Rejects the request as busy. Returns false if the request can no longer be rejected, because
    /// the reply is about to be sent or has been sent. Once the reply has been sent, the peer may
    /// consider the connection established.
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

    /// Rejects the request or ends the established connection. Called if the program will never
    /// take the connection, for example because the listener has ended. While the reply is being
    /// prepared or is on its way to the peer, this function has no effect. In that case, the caller
    /// must call this function again when the connection is established.
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

    /// Closes the connection. The peer receives all messages that were sent before the close.
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

    /// Ends the connection without the close handshake. Tries for at most 100 ms to send the
    /// application's `code` to the peer, and then disconnects.
    pub fn abort(&mut self, code: u32, now: Instant) {
        self.end_at_once(CloseReason::LocallyAborted, Control::Abort, code, now);
    }

    /// Ends the connection without the close handshake, because a waker of the application
    /// panicked. Tries for at most 100 ms to send a Failure to the peer, and then disconnects.
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
    /// frame. The caller must post the frame immediately.
    #[inline]
    pub fn send(&mut self, len: usize) -> Result<Transmit, SendRefused> {
        let (open, _) = self.open_for_sending()?;
        open.sending_messages()?.send(len)
    }

    /// Does the same as [`send`](Self::send), if the message fits into a frame and can be sent now.
    /// Otherwise returns `None`. In that case the send is not counted as a stall, and no
    /// [`Writable`](crate::Event::Writable) event follows.
    #[inline(always)]
    pub fn send_at_once(&mut self, len: usize) -> Option<Transmit> {
        match &mut self.state {
            State::Open(open) => open.send_at_once(len),
            State::Setup(_) | State::Closed(_) => None,
        }
    }

    /// Returns the limits on the batch that can be sent in one frame now.
    #[inline]
    pub fn batch_room(&mut self) -> Result<BatchRoom, SendRefused> {
        let (open, _) = self.open_for_sending()?;
        open.sending_messages()?.batch_room()
    }

    /// Assigns a slot and a header to `count` messages. The messages, each preceded by its length,
    /// follow the header in the same frame. Their total length, `len` bytes, must be within
    /// [`batch_room`](Self::batch_room). The caller must post the frame immediately.
    #[inline]
    pub fn send_batch(&mut self, count: u32, len: usize) -> Result<Transmit, SendRefused> {
        let (open, _) = self.open_for_sending()?;
        Ok(open.sending_messages()?.send_batch(count, len))
    }

    /// Assigns a slot and a header to the descriptor of a large message. The caller must post the
    /// frame immediately. Until [`Event::Taken`](crate::Event::Taken), the peer can read the memory
    /// that the descriptor names.
    pub fn send_large(&mut self, descriptor: &Descriptor) -> Result<Transmit, SendRefused> {
        let (open, _) = self.open_for_sending()?;
        open.sending_messages()?.send_large(descriptor.len)
    }

    /// Assigns a slot to a one-sided operation. The caller must post the operation immediately, as
    /// a signalled work request. If `takes_receive` is true, the operation consumes a receive of
    /// the peer, and therefore a credit.
    pub fn operate(&mut self, takes_receive: bool) -> Result<u32, SendRefused> {
        let (open, _) = self.open_for_sending()?;
        let transfer = if takes_receive {
            open.sending_messages()?
        } else {
            open.sending()?
        };
        transfer.operate(takes_receive)
    }

    /// Returns how a message of `len` bytes would be sent now.
    #[inline]
    pub fn send_method(&self, len: usize) -> SendMethod {
        self.opened()
            .map_or(SendMethod::Frame, |open| open.transfer.send_method(len))
    }

    /// Assigns a slot and a header to a part of a message of `len` bytes. The part begins at
    /// `offset`. Returns the frame and the length of the part.
    ///
    /// Before the first part, the caller must check that [`send_method`](Self::send_method) returns
    /// [`SendMethod::Fragments`] and that [`may_send`](Self::may_send) succeeds. The caller must
    /// post all parts immediately.
    pub fn send_fragment(&mut self, len: u32, offset: u32) -> Result<(Transmit, u32), SendRefused> {
        let (open, _) = self.open_for_sending()?;
        Ok(open.sending_messages()?.send_fragment(len, offset))
    }

    /// Returns true if the connection is open and a message of `len` bytes fits into a single
    /// frame.
    #[inline]
    pub fn is_eager(&self, len: usize) -> bool {
        let open = self.opened();
        open.is_some_and(|open| open.transfer.is_eager(len))
    }

    /// Checks whether a message of `len` bytes can be sent now. If the result is
    /// [`SendRefused::Blocked`], [`Event::Writable`](crate::Event::Writable) follows when a retry
    /// can succeed.
    #[inline]
    pub fn may_send(&mut self, len: usize) -> Result<(), SendRefused> {
        let (open, side) = self.open_for_sending()?;
        let room = open.sending_messages()?.may_send(len);
        if room == Err(SendRefused::Blocked) {
            open.signal_last_frame(side);
        }
        room
    }

    /// Sends a Finish after all messages. The Finish tells the peer that no further messages
    /// follow. Later attempts to send a message fail.
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

    /// Returns true if a send has been refused as [`SendRefused::Blocked`] since the last
    /// [`Event::Writable`](crate::Event::Writable).
    pub fn is_blocked(&self) -> bool {
        matches!(&self.state, State::Open(open) if open.transfer.is_blocked())
    }

    /// Sends a Ping. The Pong proves that the peer's library has processed everything sent before
    /// the Ping.
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

    /// Returns whether the peer's library has received everything that was sent before `flush` was
    /// created.
    pub fn is_flushed(&self, flush: &Flush) -> bool {
        self.opened()
            .is_some_and(|open| flush.is_done(&open.transfer))
    }

    /// Returns whether a send or a write completes only after the peer's device has received the
    /// data: see [`TransportTraits`](crate::TransportTraits).
    #[inline]
    pub fn acknowledges_sends(&self) -> bool {
        self.side.acknowledges_sends()
    }

    /// Sends a Ping. The Pong proves that everything posted before the Ping has arrived. Sends
    /// nothing and returns `None` if the connection is not established. If the connection is
    /// ending, the reason for the end states whether everything has arrived.
    pub fn prove_arrival(&mut self) -> Option<Proof> {
        let (open, side) = self.open()?;
        let answered = open.sending().ok()?.probe.request_pong();
        open.send_control(side);
        Some(Proof { answered })
    }

    /// Returns whether the Pong for this proof has arrived. The result can change after
    /// [`Event::Answered`](crate::Event::Answered).
    pub fn has_proof(&self, proof: Proof) -> bool {
        self.opened()
            .is_some_and(|open| open.transfer.probe.answered >= proof.answered)
    }

    /// Records that the driver has reposted the receive of a delivered message, either for this
    /// connection or for all connections that share receives. Returns true if no output is pending.
    /// If the result is false, an output may be pending.
    #[inline(always)]
    pub fn release(&mut self, now: impl Clock) -> bool {
        match self.open() {
            Some((open, side)) => open.release(side, now),
            None => false,
        }
    }

    /// Returns the connection if it is open and [accepts receives](Self::accepts_receives). The
    /// caller then reposts the receive of a delivered message, and calls [`Releasing::release`].
    #[inline(always)]
    pub fn releasing(&mut self) -> Option<Releasing<'_>> {
        let (open, side) = self.open()?;
        open.is_connected().then_some(Releasing { open, side })
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

    /// Returns the open connection, or the reason why the application cannot send.
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
    /// Sends a control message, which overtakes the messages that wait for credit.
    pub fn send_control_message(&mut self, message: &[u8]) -> Result<(), ControlRefused> {
        let (open, side) = self.open_for_control()?;
        side.control_messages.send(message)?;
        open.send_control(side);
        Ok(())
    }

    /// Reports to the peer that this side wants to end the connection soon. Later calls send no
    /// further report. Returns [`ControlRefused::NotTaken`] if the peer does not support this
    /// report.
    pub fn ask_to_leave(&mut self) -> Result<(), ControlRefused> {
        let (open, side) = self.open_for_control()?;
        if !open.transfer.leave() {
            return Err(ControlRefused::NotTaken);
        }
        open.send_control(side);
        Ok(())
    }

    /// Returns the established connection, or the reason why it cannot send control messages.
    fn open_for_control(&mut self) -> Result<(&mut Open, &mut Side), ControlRefused> {
        if !matches!(&self.state, State::Open(open) if open.is_established()) {
            let reason = self.close_reason().unwrap_or(&CloseReason::LocallyClosed);
            return Err(ControlRefused::Closed(reason.clone()));
        }
        self.open()
            .ok_or(ControlRefused::Closed(CloseReason::LocallyClosed))
    }

    /// Stores a control message for the session's next connection, because the current connection
    /// is lost or the next connection is not established yet.
    pub fn keep_control_message(&mut self, message: &[u8]) -> Result<(), ControlRefused> {
        self.side.control_messages.send(message)
    }

    /// Records that the application has taken a control message. If a grant is now due, sends the
    /// grant over the current connection, even if the message arrived over an earlier connection of
    /// the session.
    pub fn take_control_message(&mut self) {
        self.side.control_messages.take();
        if let Some((open, side)) = self.open() {
            open.grant_control_messages(side);
        }
    }

    /// Returns the maximum number of control messages that can wait for the application.
    #[cfg(test)]
    pub(super) fn control_window(&self) -> u32 {
        self.side.control_messages.window()
    }

    /// Returns the number of control messages that this side can send before the next grant.
    #[cfg(test)]
    pub(super) fn control_credit(&self) -> u32 {
        self.side.control_messages.available()
    }

    /// Sets the maximum length in bytes of control messages to the peer.
    #[cfg(test)]
    pub(super) fn permit_control_messages(&mut self, longest: u32) {
        self.side.control_messages.set_longest(Some(longest));
    }

    /// Sets the counters and the window of control messages. Must be called before the first
    /// control message is sent.
    #[cfg(test)]
    pub(super) fn start_control_messages_at(&mut self, start: u32, window: u32) {
        self.side.control_messages.start_at(start, window);
    }

    /// Moves the session's control messages to this connection from `last`, the session's previous
    /// connection, which has ended. Must be called before this connection is established.
    pub fn resume_control_messages(&mut self, last: &mut Self) {
        let fresh = ControlMessages::new();
        let mut messages = mem::replace(&mut last.side.control_messages, fresh);
        messages.resume();
        self.side.control_messages = messages;
    }
}

/// Commands for messages that the driver has accepted from the application and holds back.
impl Connection {
    /// Delays any Finish, Close and CloseAck until [`release_ending`](Self::release_ending) is
    /// called, because the driver holds back messages of the application. Does nothing and returns
    /// false if the application cannot send messages in the connection's current state.
    pub fn hold(&mut self) -> bool {
        match self.open() {
            Some((open, _)) => open.sending_messages().map(|it| it.control.hold()).is_ok(),
            None => false,
        }
    }

    /// Does the same as [`batch_room`](Self::batch_room), but for messages that the driver holds
    /// back. The call is permitted even after a call of [`finish`](Self::finish) or
    /// [`close`](Self::close). After the peer has closed the connection, the call fails, because
    /// the peer then ignores messages.
    pub fn held_room(&mut self) -> Result<BatchRoom, SendRefused> {
        let (open, _) = self.open_for_sending()?;
        open.sending_held()?.batch_room()
    }

    /// Does the same as [`send`](Self::send) or [`send_batch`](Self::send_batch), but for messages
    /// that the driver holds back.
    pub fn send_held(&mut self, count: u32, len: usize) -> Result<Transmit, SendRefused> {
        let (open, _) = self.open_for_sending()?;
        let transfer = open.sending_held()?;
        match count {
            1 => transfer.send(len),
            _ => Ok(transfer.send_batch(count, len)),
        }
    }

    /// Records that the driver no longer holds back messages, and sends the delayed Finish, Close
    /// and CloseAck.
    pub fn release_ending(&mut self) {
        if let Some((open, side)) = self.open() {
            open.transfer.control.release_ending();
            open.send_control(side);
        }
    }
}

/// Commands for byte streams. The limits on unread bytes do not depend on the lengths of the
/// messages that carry the bytes.
impl Connection {
    /// Marks the connection as a byte stream.
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

    /// Returns the maximum number of bytes of a byte stream that the driver may hold back. Half of
    /// the stream buffer is available for these bytes and for the large messages that the peer has
    /// not taken. If the connection is open, the result is at least the length of one frame.
    /// Otherwise, the result is 0.
    pub fn most_held_back(&self) -> u64 {
        let Some(open) = self.opened() else {
            return 0;
        };
        let half = self.side.params.half_stream_buffer();
        let frame = open.transfer.negotiated().send_eager.into();
        half.saturating_sub(open.transfer.outbound.bytes())
            .max(frame)
    }

    /// Returns true if the caller should copy a message of `len` bytes, so that the message no
    /// longer occupies a receive. This is the case if unread messages occupy too many receives, and
    /// the stream buffer has room for the copy in addition to `buffered`, the number of unread
    /// bytes in receives. An empty message is never copied.
    ///
    /// Unread messages occupy too many receives if they occupy more than half of the receives. If
    /// `reader_is_waiting` is true, the limit is three quarters, because a reader will soon take
    /// the messages without a copy. The remaining receives let the peer send further messages.
    ///
    /// If the result is true, the caller must copy the message, release its receive immediately,
    /// and report the copy with [`copied`](Self::copied).
    #[inline]
    pub fn may_copy(&self, len: u32, buffered: u64, reader_is_waiting: bool) -> bool {
        let open = self.opened();
        open.is_some_and(|open| open.transfer.may_copy(len, buffered, reader_is_waiting))
    }

    /// Records that a message of `len` bytes was copied. The copy occupies the stream buffer until
    /// [`release_copied`](Self::release_copied) is called.
    pub fn copied(&mut self, len: u32) {
        if let Some((open, _)) = self.open() {
            open.transfer.inbound.copied(len.into());
        }
    }

    /// Returns true if the caller should copy a large message, and free the memory that the message
    /// was received into. This is the case if more than half of the maximum number of large
    /// messages are in progress or held by the application.
    pub fn may_copy_large(&self) -> bool {
        let open = self.opened();
        open.is_some_and(|open| open.transfer.inbound.may_copy_large())
    }

    /// Does the same as [`copied`](Self::copied) for a large message, and also counts the message
    /// as released.
    pub fn copied_large(&mut self, len: u64, now: impl Clock) {
        if let Some((open, side)) = self.open() {
            open.transfer.inbound.release(len);
            open.transfer.inbound.copied(len);
            open.read_on(side, now);
        }
    }

    /// Records that the application has read `len` of the copied bytes.
    pub fn release_copied(&mut self, len: u64, now: impl Clock) {
        if let Some((open, side)) = self.open() {
            open.transfer.inbound.release_copied(len);
            open.read_on(side, now);
        }
    }
}
