//! From the close, or another end of a connection, to the last work request.
//!
//! Closing precedes draining. Each side sends Close and acknowledges the Close of the other while
//! their queue pairs still work. A message is *delivered* when that acknowledgement has arrived: a
//! device also acknowledges frames for a process that never reads them, and never acknowledges a
//! frame if its queue pair fails right after it. The side that closed first disconnects when the
//! peer's device has acknowledged its CloseAck; the other side waits for the disconnect. A Close is
//! acknowledged when all messages before it were read, and the disconnect waits for the large
//! messages of both sides.
//!
//! Draining ends when the marker after the last work request of each queue has completed. Counting
//! completions would not suffice, because an unsignalled send that succeeded before the error never
//! completes.

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

/// The close handshake.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
pub(super) struct Closing {
    deadline: Instant,
    role: Role,
    /// The cause of the end.
    reason: CloseReason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
enum Role {
    /// This side closed first, as far as it knows. It disconnects when each side has acknowledged
    /// the other's Close.
    Initiator,
    /// The peer closed first, and disconnects.
    Responder,
    /// This side aborts. It disconnects when its Abort or Failure has been acknowledged.
    Aborter,
    /// As `Aborter`, but the peer gives no sign of life, so this side does not wait for
    /// DISCONNECTED.
    Abandoner,
}

/// The time limit for sending an Abort or a Failure, after which the connection is disconnected
/// without it.
const ABORT_TIMEOUT: Duration = Duration::from_millis(100);

impl Closing {
    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    pub(super) fn reason(&self) -> &CloseReason {
        &self.reason
    }

    /// Whether this side disconnects now.
    fn is_done(&self, transfer: &Transfer) -> bool {
        let acknowledged = transfer.control.is_final_frame_acknowledged();
        match self.role {
            //= PROTOCOL.md#closing
            //# The side that closed first disconnects when the peer's device has acknowledged its
            //# CloseAck (the send has completed), the peer's CloseAck has arrived, all large
            //# messages of both sides are taken, and everything posted has completed.
            Role::Initiator => acknowledged && transfer.delivered() && transfer.is_quiescent(),
            Role::Aborter | Role::Abandoner => acknowledged,
            // The peer disconnects.
            //= PROTOCOL.md#closing
            //# The other waits for the DISCONNECTED event.
            Role::Responder => false,
        }
    }
}

/// The state while the work requests are being flushed.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
pub(super) struct Draining {
    deadline: Instant,
    sends_done: bool,
    recvs_done: bool,
    /// Whether the last event of the connection manager has arrived.
    cm_done: bool,
    /// The cause of the end. While the peer is suspected, the cause is that it has disconnected.
    reason: CloseReason,
    /// The suspected violation, which becomes the cause of the end if the peer does not disconnect
    /// before this side does.
    blame: Option<CloseReason>,
}

/// The time that draining lasts if no event reports that the work requests are flushed. Completions
/// within this time are handled.
const UNMARKED: Duration = Duration::from_millis(20);

impl Draining {
    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Whether the peer is suspected of a violation, but may have ended instead.
    pub(super) fn is_suspecting(&self) -> bool {
        self.blame.is_some()
    }

    /// Whether the connection waits for an event that reports the cause of its end.
    #[inline]
    pub(super) fn awaits_cause(&self) -> bool {
        self.is_suspecting() || is_symptom(&self.reason)
    }

    /// Stops waiting.
    pub(super) fn give_up(&mut self) {
        self.sends_done = true;
        self.recvs_done = true;
        self.cm_done = true;
    }

    /// Returns the time limit for flushing all work requests and learning the cause.
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
    /// Returns the cause of the end, if the connection is ending: the probable one, while only a
    /// symptom is known.
    pub(super) fn close_reason(&self) -> Option<&CloseReason> {
        match &self.phase {
            Phase::Established => None,
            Phase::Closing(closing) => Some(&closing.reason),
            Phase::Draining(draining) if draining.awaits_cause() => {
                Some(&CloseReason::PeerDisconnected)
            }
            Phase::Draining(draining) => Some(&draining.reason),
        }
    }

    /// Closes the connection, unless it is closing.
    pub(super) fn close(&mut self, side: &mut Side, now: Instant) {
        match &self.phase {
            Phase::Established => {
                self.start_handshake(side, Role::Initiator, CloseReason::LocallyClosed, now);
            }
            Phase::Closing(_) => {}
            Phase::Draining(_) => self.disconnect_suspect(side, now),
        }
    }

    /// Sends an Abort or a Failure and disconnects, unless one has been sent before, or the queue
    /// pair has failed.
    pub(super) fn notify_and_disconnect(
        &mut self,
        side: &mut Side,
        reason: CloseReason,
        control: Control,
        code: u32,
        now: Instant,
    ) {
        match &self.phase {
            Phase::Established => {}
            Phase::Closing(closing) => match closing.role {
                Role::Initiator | Role::Responder => {}
                Role::Aborter | Role::Abandoner => return,
            },
            Phase::Draining(_) => return,
        }
        let role = if expects_disconnected(&reason) {
            Role::Aborter
        } else {
            Role::Abandoner
        };
        self.start_closing(side, role, reason, ABORT_TIMEOUT, now);
        self.transfer.queue_notice(control, code);
        self.send_control(side);
    }

    /// Sends this side's Close.
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
            format_args!("closing, for {timeout:?} at most: {reason}"),
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
        // The peer ignores further messages.
        transfer.control.release_ending();
        match &self.phase {
            Phase::Established => {
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

    /// Acknowledges the peer's Close once its large messages have been read: the peer keeps their
    /// memory exposed for no longer than it waits for this.
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
        // Each side sends its Close before its CloseAck.
        if !transfer.control.is_close_sent() || transfer.peer_close != PeerClose::Received {
            return Err(Kind::Control(Control::CloseAck)
                .unexpected("one acknowledgement of a close, after the sender's own close"));
        }
        transfer.peer_close = PeerClose::Acknowledged;
        self.disconnect_if_done(side, now);
        Ok(())
    }

    /// Disconnects when the handshake is complete and all large messages have been read.
    #[inline]
    pub(super) fn disconnect_if_done(&mut self, side: &mut Side, now: impl Clock) {
        if let Phase::Closing(closing) = &self.phase
            && closing.is_done(&self.transfer)
        {
            let reason = closing.reason.clone();
            self.disconnect(side, reason, now.now());
        }
    }

    /// Ends the connection for this cause.
    pub(super) fn fail(&mut self, side: &mut Side, reason: CloseReason, now: Instant) {
        let gone = !expects_disconnected(&reason);
        if let Phase::Closing(closing) = &self.phase
            && matches!(closing.role, Role::Initiator | Role::Responder)
        {
            self.lost_in_close = if !reason.is_loss() {
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
            Phase::Established | Phase::Closing(_) => {
                let reason = self.cause(side, reason);
                self.disconnect(side, reason, now);
            }
            Phase::Draining(_) => self.record_cause(side, reason),
        }
        if gone {
            self.expect_no_disconnected();
        }
    }

    /// Handles a failed completion.
    pub(super) fn on_work_error(
        &mut self,
        side: &mut Side,
        work: Work,
        status: WcStatus,
        vendor_err: u32,
        now: impl Clock,
    ) {
        let reason = self.failure_of(work, status, vendor_err);
        let of_the_key = matches!(reason, CloseReason::ProtocolViolation(_));
        match &self.phase {
            Phase::Established if of_the_key => self.suspect(side, reason, now.now()),
            // The peer has ended or may have ended, which also revoked its memory.
            Phase::Draining(draining)
                if of_the_key && draining.reason == CloseReason::PeerDisconnected => {}
            Phase::Established | Phase::Closing(_) | Phase::Draining(_) => {
                self.fail(side, reason, now.now());
            }
        }
    }

    pub(super) fn on_disconnected(&mut self, side: &mut Side, now: Instant) {
        self.fail(side, CloseReason::PeerDisconnected, now);
        if let Phase::Draining(draining) = &mut self.phase {
            draining.blame = None;
            draining.cm_done = true;
            let limit = now + draining.timeout(side);
            draining.deadline = draining.deadline.min(limit);
        }
    }

    /// Handles the failure of a disconnect, which means that the connection is gone.
    pub(super) fn on_disconnect_failure(&mut self, side: &mut Side) {
        if let Phase::Draining(_) = self.phase {
            self.record_cause(side, CloseReason::PeerDisconnected);
            self.expect_no_disconnected();
        }
    }

    /// Stops waiting for DISCONNECTED, which no longer arrives.
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

    /// Disconnects and waits for the work requests to be flushed.
    pub(super) fn disconnect(&mut self, side: &mut Side, reason: CloseReason, now: Instant) {
        let abandons =
            matches!(&self.phase, Phase::Closing(closing) if closing.role == Role::Abandoner);
        side.cm(CmOp::Disconnect);
        self.start_draining(side, reason, None, now);
        if abandons {
            self.expect_no_disconnected();
        }
    }

    /// Ends the connection because a large message could not be read. The kernel revokes the memory
    /// of a process that has ended before it disconnects the process's connections. If the peer
    /// does not disconnect, it has violated the protocol. So this side waits before it disconnects,
    /// to distinguish the two cases.
    fn suspect(&mut self, side: &mut Side, blame: CloseReason, now: Instant) {
        //= PROTOCOL.md#violations
        //# The kernel of a process that is killed may refuse a READ, too, since it revokes keys
        //# before it destroys queue pairs: it is a violation if the peer has not disconnected two
        //# seconds later.
        self.start_draining(side, CloseReason::PeerDisconnected, Some(blame), now);
    }

    fn start_draining(
        &mut self,
        side: &mut Side,
        reason: CloseReason,
        blame: Option<CloseReason>,
        now: Instant,
    ) {
        self.transfer.cancel_pending();
        let mut draining = Draining {
            deadline: now + side.params.drain_timeout,
            sends_done: false,
            recvs_done: false,
            cm_done: false,
            reason,
            blame,
        };
        if !draining.is_suspecting() {
            draining.deadline = now + draining.timeout(side);
        }
        self.phase = Phase::Draining(draining);
        side.outputs.push(Output::PostDrainMarkers);
        self.report_blocked(side);
    }

    /// Disconnects from a suspected peer, whose violation is then the cause of the end. Does
    /// nothing without a suspicion.
    pub(super) fn disconnect_suspect(&mut self, side: &mut Side, now: Instant) {
        if let Phase::Draining(draining) = &mut self.phase
            && let Some(blame) = draining.blame.take()
        {
            if draining.reason == CloseReason::PeerDisconnected {
                draining.reason = blame;
            }
            draining.deadline = now + draining.timeout(side);
            side.cm(CmOp::Disconnect);
        }
    }

    /// Records a cause of the end while draining.
    fn record_cause(&mut self, side: &mut Side, new: CloseReason) {
        let reason = self.cause(side, new);
        if let Phase::Draining(draining) = &mut self.phase {
            draining.reason = reason;
        }
    }

    /// Returns the cause of the end, given the present cause and a new one. The present cause
    /// stays, unless it is a mere symptom, or a close of this side that the peer had not confirmed
    /// when its notice arrived.
    fn cause(&self, side: &mut Side, new: CloseReason) -> CloseReason {
        let old = match &self.phase {
            Phase::Established => return new,
            Phase::Closing(closing) => &closing.reason,
            Phase::Draining(draining) => &draining.reason,
        };
        let unconfirmed_close = *old == CloseReason::LocallyClosed && !self.transfer.delivered();
        let weight = |reason: &CloseReason| match reason {
            symptom if is_symptom(symptom) => 0,
            CloseReason::PeerDisconnected => 1,
            notice if unconfirmed_close && is_notice(notice) => 3,
            // The peer's program has processed no message, which the caller has to know.
            CloseReason::PeerBusy => 3,
            _ => 2,
        };
        if weight(old) >= weight(&new) {
            return old.clone();
        }
        side.outputs
            .note(Level::Debug, format_args!("{old}: because {new}"));
        new
    }

    /// Returns the cause of the end, once all work requests are flushed and the cause is known.
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
            // The Close came behind everything that the peer sent, but not all of that was read.
            //= PROTOCOL.md#closing
            //# A connection may also end after the peer's Close and before all its large messages
            //# have been read: messages are missing then, too.
            CloseReason::PeerClosed if missing > 0 => CloseReason::Truncated { missing },
            reason => reason.clone(),
        })
    }
}

/// Whether this is a symptom of a cause that is not known yet.
pub(super) fn is_symptom(reason: &CloseReason) -> bool {
    match reason {
        // REM_OP_ERR may mean that the process of the peer has ended, because its memory is
        // released before its connection.
        CloseReason::WorkRequest { status, .. } => {
            matches!(*status, WcStatus::WR_FLUSH_ERR | WcStatus::REM_OP_ERR)
        }
        // Some drivers refuse work requests when a queue pair has left its connected state.
        CloseReason::Os(error) => error.errno == libc::ENOTCONN,
        _ => false,
    }
}

/// Whether an Abort or a Failure of the peer gave this cause.
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

/// Whether DISCONNECTED may follow this cause. It cannot if the peer or the device is unreachable.
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
