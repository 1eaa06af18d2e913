//! Ends a connection. The end begins with a close or a failure, and lasts until all work requests
//! have completed.
//!
//! If the queue pairs of both sides still work, the close handshake comes first. Each side sends a
//! Close. After a side has read all large messages of the peer, it acknowledges the peer's Close
//! with a CloseAck. The messages of a side are *delivered* when the CloseAck for its Close has
//! arrived and the peer has taken all large messages of that side. An acknowledgement by a device
//! does not prove delivery, because a device also acknowledges frames that no process ever reads. A
//! missing acknowledgement does not disprove delivery, because a queue pair can fail between
//! receiving a frame and acknowledging the frame.
//!
//! The side that closed first disconnects when its messages are delivered, it has read all large
//! messages of the peer, and the peer's device has acknowledged this side's CloseAck. The peer
//! waits for the event DISCONNECTED.
//!
//! Finally, the connection drains. One marker is posted behind all work requests of the send queue,
//! and another behind those of the receive queue. Draining ends when both markers have completed,
//! and the event DISCONNECTED has arrived or is not expected. Counting completions would not
//! suffice, because an unsignalled send that succeeded before the error produces no completion.

use std::time::{Duration, Instant};

use log::Level;
use rdma_status::WcStatus;

use super::{
    open::{LostInClose, Open, Phase},
    side::Side,
    transfer::{PeerClose, Transfer},
};
use crate::{
    Clock, CloseReason, CmOp, DeviceFault, DrainSide, Output, Work,
    frame::{Control, Kind},
    reason::Violation,
};

/// The state of a connection during the close handshake or an abort.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
pub(super) struct Closing {
    deadline: Instant,
    role: Role,
    /// The reason for the end of the connection.
    reason: CloseReason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
enum Role {
    /// This side began to close before it received the peer's Close. This side disconnects after
    /// each side has acknowledged the other's Close.
    Initiator,
    /// The peer closed first. This side waits until the peer disconnects.
    Responder,
    /// This side aborts. It disconnects after the peer's device has acknowledged the Abort or
    /// Failure.
    Aborter,
    /// This side aborts because the peer no longer responds. After the disconnect, this side does
    /// not wait for the event DISCONNECTED.
    Abandoner,
}

/// The maximum time between queueing an Abort or a Failure and disconnecting.
const ABORT_TIMEOUT: Duration = Duration::from_millis(100);

impl Closing {
    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    pub(super) fn reason(&self) -> &CloseReason {
        &self.reason
    }

    /// Returns whether this side can disconnect now.
    fn is_done(&self, transfer: &Transfer) -> bool {
        let acknowledged = transfer.control.is_final_frame_acknowledged();
        match self.role {
            //= PROTOCOL.md#closing
            //# The side that closed first disconnects when the peer's device has acknowledged its
            //# CloseAck (the send has completed), the peer's CloseAck has arrived, all large
            //# messages of both sides are taken, and everything posted has completed.
            Role::Initiator => acknowledged && transfer.delivered() && transfer.is_quiescent(),
            Role::Aborter | Role::Abandoner => acknowledged,
            // A responder does not disconnect: it waits until the peer disconnects.
            //= PROTOCOL.md#closing
            //# The other waits for the DISCONNECTED event.
            Role::Responder => false,
        }
    }
}

/// The state of a connection whose work requests are being flushed.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
pub(super) struct Draining {
    deadline: Instant,
    sends_done: bool,
    recvs_done: bool,
    /// Whether this side no longer waits for the event DISCONNECTED, because the event has arrived
    /// or is not expected.
    cm_done: bool,
    /// The reason for the end of the connection. While the peer is suspected of a violation, the
    /// reason is `PeerDisconnected` until a more significant reason is found.
    reason: CloseReason,
    /// The suspected violation, or `None` if the peer is not suspected. If the peer disconnects
    /// before this side does, the suspicion was wrong. If this side disconnects first, the
    /// violation becomes the reason for the end.
    suspected_violation: Option<CloseReason>,
}

/// The maximum time to wait for completions on a transport that does not report when all work
/// requests are flushed. Work requests that complete later are ignored.
const UNMARKED: Duration = Duration::from_millis(20);

impl Draining {
    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Returns true if the peer is suspected of a violation. If the peer disconnects before this
    /// side does, the peer's process has ended, and there was no violation.
    pub(super) fn is_suspecting(&self) -> bool {
        self.suspected_violation.is_some()
    }

    /// Returns true if the cause of the end is not known yet, and an event may still reveal the
    /// cause.
    #[inline]
    pub(super) fn awaits_cause(&self) -> bool {
        self.is_suspecting() || is_symptom(&self.reason)
    }

    /// Stops waiting for completions and events.
    pub(super) fn give_up(&mut self) {
        self.sends_done = true;
        self.recvs_done = true;
        self.cm_done = true;
    }

    /// Returns the maximum time to wait until all work requests are flushed and the cause of the
    /// end is known.
    fn timeout(&self, side: &Side) -> Duration {
        let unmarked = side.traits.is_some_and(|traits| !traits.flushes);
        if unmarked && !is_symptom(&self.reason) {
            side.params.drain_timeout.min(UNMARKED)
        } else {
            side.params.drain_timeout
        }
    }
}

impl Open {
    /// Returns the reason for the end, if the connection is ending. While the cause is not known,
    /// returns the most likely reason, `PeerDisconnected`.
    pub(super) fn close_reason(&self) -> Option<&CloseReason> {
        match &self.phase {
            Phase::Greeting(_) | Phase::Established => None,
            Phase::Closing(closing) => Some(&closing.reason),
            Phase::Draining(draining) if draining.awaits_cause() => {
                Some(&CloseReason::PeerDisconnected)
            }
            Phase::Draining(draining) => Some(&draining.reason),
        }
    }

    /// Closes the connection. If the connection already drains because the peer is suspected of a
    /// violation, disconnects. Does nothing if the connection is already ending for another reason.
    pub(super) fn close(&mut self, side: &mut Side, now: Instant) {
        match &self.phase {
            Phase::Greeting(_) => self.give_up_greeting(side, CloseReason::LocallyClosed, now),
            Phase::Established => {
                self.start_handshake(side, Role::Initiator, CloseReason::LocallyClosed, now);
            }
            Phase::Closing(_) => {}
            Phase::Draining(_) => self.disconnect_suspect(side, now),
        }
    }

    /// Sends the frame `control`, which is an Abort or a Failure, and then disconnects. Does
    /// nothing if this side is already aborting, or if the connection is already draining.
    pub(super) fn notify_and_disconnect(
        &mut self,
        side: &mut Side,
        reason: CloseReason,
        control: Control,
        code: u32,
        now: Instant,
    ) {
        match &self.phase {
            Phase::Greeting(_) | Phase::Established => {}
            Phase::Closing(closing) => match closing.role {
                Role::Initiator | Role::Responder => {}
                Role::Aborter | Role::Abandoner => return,
            },
            Phase::Draining(_) => return,
        }
        self.abort(side, reason, now);
        self.transfer.queue_notice(control, code);
        self.send_control(side);
    }

    /// Begins the end of the connection. The caller must then send the final frame of this side: an
    /// Abort, a Failure or a rejection.
    pub(super) fn abort(&mut self, side: &mut Side, reason: CloseReason, now: Instant) {
        let role = if expects_disconnected(&reason) {
            Role::Aborter
        } else {
            Role::Abandoner
        };
        self.start_closing(side, role, reason, ABORT_TIMEOUT, now);
    }

    /// Begins the close handshake: sends this side's Close.
    fn start_handshake(&mut self, side: &mut Side, role: Role, reason: CloseReason, now: Instant) {
        self.start_closing(side, role, reason, side.params.close_timeout, now);
        self.transfer.control.queue_close();
        self.send_control(side);
    }

    fn start_closing(
        &mut self,
        side: &mut Side,
        role: Role,
        reason: CloseReason,
        timeout: Duration,
        now: Instant,
    ) {
        side.outputs.note(
            Level::Debug,
            format_args!("closing the connection within {timeout:?}: {reason}"),
        );
        self.phase = Phase::Closing(Closing {
            deadline: now + timeout,
            role,
            reason: self.cause(side, reason),
        });
        self.transfer.recv_credit.stop_delaying_grants();
        self.transfer.timers.grant = None;
        self.grant_if_due(side);
        self.report_blocked(side);
    }

    /// Handles the peer's Close.
    pub(super) fn on_close_frame(
        &mut self,
        side: &mut Side,
        now: impl Clock,
    ) -> Result<(), Violation> {
        let transfer = &mut self.transfer;
        if transfer.has_peer_closed() {
            return Err(Kind::Control(Control::Close).unexpected("one close"));
        }
        transfer.peer_close = PeerClose::Received;
        // After the peer has sent its Close, it ignores messages. This side therefore sends its own
        // Close without waiting for messages that the driver holds back.
        transfer.control.release_ending();
        match &self.phase {
            Phase::Greeting(_) | Phase::Established => {
                //= PROTOCOL.md#closing
                //# A side that receives a Close answers with its own Close, if it has not sent one.
                let (role, reason) = (Role::Responder, CloseReason::PeerClosed);
                self.start_handshake(side, role, reason, now.now());
                self.acknowledge_close(side);
            }
            Phase::Closing(_) => self.acknowledge_close(side),
            Phase::Draining(_) => self.record_cause(side, CloseReason::PeerClosed),
        }
        Ok(())
    }

    /// Acknowledges the peer's Close if this side is closing and has read all large messages of the
    /// peer. The peer keeps these messages readable only until this acknowledgement.
    pub(super) fn acknowledge_close(&mut self, side: &mut Side) {
        let transfer = &mut self.transfer;
        //= PROTOCOL.md#closing
        //# A CloseAck must follow both Closes: it is sent after the sender's own Close, and after
        //# the peer's has been received and every large message of the peer has been read.
        if matches!(self.phase, Phase::Closing(_))
            && transfer.has_peer_closed()
            && transfer.has_read_all()
            && !transfer.control.has_final_frame()
        {
            transfer.control.queue_close_ack();
            self.send_control(side);
        }
    }

    /// Handles the peer's CloseAck.
    pub(super) fn on_close_ack(
        &mut self,
        side: &mut Side,
        now: impl Clock,
    ) -> Result<(), Violation> {
        let transfer = &mut self.transfer;
        // A peer sends its CloseAck only after it has received this side's Close and sent its own
        // Close.
        if !transfer.control.is_close_sent() || transfer.peer_close != PeerClose::Received {
            return Err(Kind::Control(Control::CloseAck)
                .unexpected("one acknowledgement of a close, after the sender's own close"));
        }
        transfer.peer_close = PeerClose::Acknowledged;
        self.disconnect_if_done(side, now);
        Ok(())
    }

    /// Disconnects if the close handshake is complete and all large messages have been read, or if
    /// this side aborts and the peer's device has acknowledged the Abort or Failure.
    #[inline]
    pub(super) fn disconnect_if_done(&mut self, side: &mut Side, now: impl Clock) {
        if let Phase::Closing(closing) = &self.phase
            && closing.is_done(&self.transfer)
        {
            let reason = closing.reason.clone();
            self.disconnect(side, reason, now.now());
        }
    }

    /// Ends the connection. `reason` becomes the reason for the end, unless an earlier reason is at
    /// least as significant.
    pub(super) fn fail(&mut self, side: &mut Side, reason: CloseReason, now: Instant) {
        let gone = !expects_disconnected(&reason);
        if let Phase::Closing(closing) = &self.phase
            && matches!(closing.role, Role::Initiator | Role::Responder)
        {
            if !self.transfer.delivered() {
                // The failure is logged, because the close usually remains the reason for the end.
                let text = format_args!("the connection failed during the close: {reason}");
                side.outputs.note(Level::Info, text);
            }
            // A symptom counts as a loss of the connection, because most symptoms have this cause.
            // The cause may also be the peer's Abort or Failure. When this side processes that
            // frame, the frame becomes the reason for the end.
            self.lost_in_close = if !reason.is_loss() && !is_symptom(&reason) {
                LostInClose::No
            } else if !self.transfer.delivered() {
                LostInClose::Here
            } else if !self.transfer.control.is_final_frame_acknowledged() {
                LostInClose::AtPeer
            } else {
                LostInClose::No
            };
        }
        match &self.phase {
            Phase::Greeting(_) | Phase::Established | Phase::Closing(_) => {
                let reason = self.cause(side, reason);
                self.disconnect(side, reason, now);
            }
            Phase::Draining(_) => self.record_cause(side, reason),
        }
        if gone {
            self.expect_no_disconnected();
        }
    }

    /// Handles the failed completion of a work request.
    pub(super) fn on_work_error(
        &mut self,
        side: &mut Side,
        work: Work,
        status: WcStatus,
        vendor_err: u32,
        now: impl Clock,
    ) {
        let reason = self.failure_of(work, status, vendor_err);
        let is_key_violation = matches!(reason, CloseReason::ProtocolViolation(_));
        match &self.phase {
            Phase::Established if is_key_violation => self.suspect(side, reason, now.now()),
            // The peer has disconnected, or its process has probably ended. In both cases the
            // peer's memory has been released, so a refused READ is not a violation.
            Phase::Draining(draining)
                if is_key_violation && draining.reason == CloseReason::PeerDisconnected => {}
            Phase::Greeting(_) | Phase::Established | Phase::Closing(_) | Phase::Draining(_) => {
                self.fail(side, reason, now.now());
            }
        }
    }

    pub(super) fn on_disconnected(&mut self, side: &mut Side, now: Instant) {
        self.fail(side, CloseReason::PeerDisconnected, now);
        if let Phase::Draining(draining) = &mut self.phase {
            draining.suspected_violation = None;
            draining.cm_done = true;
            let limit = now + draining.timeout(side);
            draining.deadline = draining.deadline.min(limit);
        }
    }

    /// Handles the failure of the disconnect call, which means that the connection no longer
    /// exists.
    pub(super) fn on_disconnect_failure(&mut self, side: &mut Side) {
        if let Phase::Draining(_) = self.phase {
            self.record_cause(side, CloseReason::PeerDisconnected);
            self.expect_no_disconnected();
        }
    }

    /// Stops waiting for the event DISCONNECTED.
    fn expect_no_disconnected(&mut self) {
        if let Phase::Draining(draining) = &mut self.phase {
            draining.cm_done = true;
        }
    }

    /// Handles the completion of a drain marker.
    pub(super) fn on_drained(&mut self, side: DrainSide) {
        if let Phase::Draining(draining) = &mut self.phase {
            match side {
                DrainSide::Send => draining.sends_done = true,
                DrainSide::Recv => draining.recvs_done = true,
            }
        }
    }

    /// Disconnects, and then waits until all work requests are flushed.
    pub(super) fn disconnect(&mut self, side: &mut Side, reason: CloseReason, now: Instant) {
        let abandons =
            matches!(&self.phase, Phase::Closing(closing) if closing.role == Role::Abandoner);
        side.cm(CmOp::Disconnect);
        self.start_draining(side, reason, None, now);
        if abandons || !side.reports_own_disconnect() {
            self.expect_no_disconnected();
        }
    }

    /// Ends the connection because the peer's device refused a READ of a large message. Either the
    /// peer has violated the protocol, or the peer's process has ended: the kernel first releases
    /// the memory of an ended process, and then disconnects. This side waits for the drain timeout
    /// before it disconnects, to find out whether the peer disconnects.
    fn suspect(&mut self, side: &mut Side, suspected_violation: CloseReason, now: Instant) {
        //= PROTOCOL.md#violations
        //# The kernel of a process that is killed may refuse a READ, too, because it revokes keys
        //# before it destroys queue pairs. Such a refusal is a violation only if the peer has not
        //# disconnected two seconds later.
        self.start_draining(
            side,
            CloseReason::PeerDisconnected,
            Some(suspected_violation),
            now,
        );
    }

    fn start_draining(
        &mut self,
        side: &mut Side,
        reason: CloseReason,
        suspected_violation: Option<CloseReason>,
        now: Instant,
    ) {
        self.transfer.cancel_pending();
        let mut draining = Draining {
            deadline: now + side.params.drain_timeout,
            sends_done: false,
            recvs_done: false,
            cm_done: false,
            reason,
            suspected_violation,
        };
        if !draining.is_suspecting() {
            draining.deadline = now + draining.timeout(side);
        }
        self.phase = Phase::Draining(draining);
        side.outputs.push(Output::PostDrainMarkers);
        self.report_blocked(side);
    }

    /// Disconnects if the peer is suspected of a violation. Records the violation as the reason for
    /// the end unless a reason more significant than `PeerDisconnected` is known.
    pub(super) fn disconnect_suspect(&mut self, side: &mut Side, now: Instant) {
        if let Phase::Draining(draining) = &mut self.phase
            && let Some(suspected_violation) = draining.suspected_violation.take()
        {
            if draining.reason == CloseReason::PeerDisconnected {
                draining.reason = suspected_violation;
            }
            draining.deadline = now + draining.timeout(side);
            draining.cm_done |= !side.reports_own_disconnect();
            side.cm(CmOp::Disconnect);
        }
    }

    /// Records a reason for the end that was found while draining, if it is more significant than
    /// the current reason.
    fn record_cause(&mut self, side: &mut Side, new: CloseReason) {
        let reason = self.cause(side, new);
        if let Phase::Draining(draining) = &mut self.phase {
            draining.reason = reason;
        }
    }

    /// Returns the more significant of two reasons for the end: the current reason and `new`. A
    /// symptom is the least significant reason, and `PeerDisconnected` is the next. A close by this
    /// side that the peer has not confirmed is less significant than an Abort or Failure from the
    /// peer. Of two equally significant reasons, returns the current one.
    fn cause(&self, side: &mut Side, new: CloseReason) -> CloseReason {
        let old = match &self.phase {
            Phase::Greeting(_) | Phase::Established => return new,
            Phase::Closing(closing) => &closing.reason,
            Phase::Draining(draining) => &draining.reason,
        };
        let unconfirmed_close = *old == CloseReason::LocallyClosed && !self.transfer.delivered();
        let weight = |reason: &CloseReason| match reason {
            symptom if is_symptom(symptom) => 0,
            CloseReason::PeerDisconnected => 1,
            notice if unconfirmed_close && is_notice(notice) => 3,
            // `PeerBusy` takes precedence, because it assures the caller that the peer's program
            // has processed no message.
            CloseReason::PeerBusy => 3,
            _ => 2,
        };
        if weight(old) >= weight(&new) {
            return old.clone();
        }
        side.outputs.note(
            Level::Debug,
            format_args!("found the cause of the end: {new} (first reported as \"{old}\")"),
        );
        new
    }

    /// Returns the reason for the end if draining is complete: all work requests are flushed, and
    /// this side no longer waits for the event DISCONNECTED. Returns `None` if draining is not
    /// complete.
    pub(super) fn end(&self) -> Option<CloseReason> {
        let Phase::Draining(Draining {
            sends_done: true,
            recvs_done: true,
            cm_done: true,
            reason,
            ..
        }) = &self.phase
        else {
            return None;
        };
        let missing = self.transfer.inbound.undelivered();
        Some(match reason {
            // The peer's Close arrived after all messages of the peer, but this side has not read
            // all large messages.
            //= PROTOCOL.md#closing
            //# A connection may also end after the peer's Close and before all its large messages
            //# have been read: messages are missing then, too.
            CloseReason::PeerClosed if missing > 0 => CloseReason::Truncated { missing },
            reason => reason.clone(),
        })
    }
}

/// Returns whether this reason is a symptom whose cause is not known yet.
pub(super) fn is_symptom(reason: &CloseReason) -> bool {
    match reason {
        // REM_OP_ERR can mean that the peer's process is ending, because the kernel releases the
        // memory of a process before it closes the connections of the process.
        CloseReason::WorkRequest { status, .. } => {
            matches!(*status, WcStatus::WR_FLUSH_ERR | WcStatus::REM_OP_ERR)
        }
        // Some drivers refuse work requests after a queue pair has left its connected state.
        CloseReason::Os(error) => error.errno == libc::ENOTCONN,
        _ => false,
    }
}

/// Returns whether this reason results from the peer's Abort or Failure.
pub(super) fn is_notice(reason: &CloseReason) -> bool {
    matches!(
        reason,
        CloseReason::PeerAborted(_)
            | CloseReason::PeerOutOfResources
            | CloseReason::PeerBusy
            | CloseReason::PeerGaveUp(_)
            | CloseReason::PeerFailed(_)
    )
}

/// Returns whether a DISCONNECTED event can still arrive after the connection has ended for this
/// reason. If the peer or the device is unreachable, no such event arrives.
pub(super) fn expects_disconnected(reason: &CloseReason) -> bool {
    !matches!(
        reason,
        CloseReason::KeepaliveTimeout
            | CloseReason::DeviceRemoved
            | CloseReason::DeviceFault(DeviceFault::Device)
            | CloseReason::WorkRequest {
                status: WcStatus::RETRY_EXC_ERR,
                ..
            }
    )
}
