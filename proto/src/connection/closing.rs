//! From the close, or another end of a connection, to the last work request.
//!
//! Closing precedes draining. Each side sends Close and acknowledges the Close of the other while
//! their queue pairs still work. A message is *delivered* when that acknowledgement has arrived: a
//! device also acknowledges frames for a process that never reads them, and never acknowledges a
//! frame if its queue pair fails right after it. The side that closed first disconnects when its
//! own acknowledgement is at the device of the peer; the other side waits for that. A Close is
//! acknowledged when everything was read, and the disconnect waits for the large messages of both
//! sides.
//!
//! Draining ends with a marker behind the last work request of each queue. Counting completions
//! would not suffice, because an unsignalled send that succeeded before the error never completes.

use std::time::{Duration, Instant};

use log::Level;
use rdma_status::WcStatus;

use super::{Connection, State, transfer::PeerClose};
use crate::{
    Clock, CloseReason, CmOp, DrainSide, Output,
    frame::{Control, Kind, WAKER_PANICKED},
    reason::Violation,
};

/// The bound on sending an Abort or a Failure before the connection is taken down.
const ABORT_TIMEOUT: Duration = Duration::from_millis(100);

/// The close handshake.
#[derive(Debug)]
pub(super) struct Closing {
    deadline: Instant,
    role: Role,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// This side closed first, as far as it knows. It disconnects when each side has acknowledged
    /// the other's Close.
    Initiator,
    /// The peer closed first, and disconnects.
    Responder,
    /// This side aborts. It disconnects when its Abort or Failure has been acknowledged.
    Aborter,
    /// The same, and the peer gives no sign of life, so DISCONNECTED is not waited for.
    Abandoner,
}

/// How long work requests are waited for where nothing says that they are flushed. What has
/// completed by then is taken.
const UNMARKED: Duration = Duration::from_millis(20);

/// Waiting for the work requests to be flushed.
#[derive(Debug)]
pub(super) struct Draining {
    deadline: Instant,
    sends_done: bool,
    recvs_done: bool,
    /// Whether no more connection manager event is expected.
    cm_done: bool,
    /// What ends the connection, unless the peer disconnects before this side does.
    blame: Option<CloseReason>,
}

impl Closing {
    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }
}

impl Draining {
    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Whether the peer may turn out to be gone, rather than to blame.
    pub(super) fn is_suspecting(&self) -> bool {
        self.blame.is_some()
    }

    pub(super) fn marker(&mut self, side: DrainSide) {
        match side {
            DrainSide::Send => self.sends_done = true,
            DrainSide::Recv => self.recvs_done = true,
        }
    }
}

impl Connection {
    /// Closes the connection: nothing more is sent, and what was sent is delivered first.
    pub fn close(&mut self, now: Instant) {
        match &self.state {
            State::Requested { .. } | State::Accepted { .. } => self.turn_away(now),
            State::Waiting(_)
            | State::ResolvingAddr(_)
            | State::ResolvingRoute(_)
            | State::Connecting(..)
            | State::Backoff { .. }
            | State::Accepting { .. } => self.fail(CloseReason::LocallyClosed, now),
            State::Established => {
                self.start_handshake(Role::Initiator, CloseReason::LocallyClosed, now);
            }
            // Who ends it does not wait to learn who is to blame.
            State::Draining(_) => self.accuse(now),
            State::Closing(_) | State::Closed => {}
        }
    }

    /// Ends the connection at once. The peer is sent the application's `code`, if that takes no
    /// longer than a moment.
    pub fn abort(&mut self, code: u32, now: Instant) {
        self.end_at_once(CloseReason::LocallyAborted, Control::Abort, code, now);
    }

    /// Ends the connection at once because a waker of the application panicked.
    pub fn handle_waker_panic(&mut self, now: Instant) {
        let reason = CloseReason::WakerPanicked;
        self.end_at_once(reason, Control::Failure, WAKER_PANICKED, now);
    }

    fn end_at_once(&mut self, reason: CloseReason, control: Control, code: u32, now: Instant) {
        match &self.state {
            State::Requested { .. } | State::Accepted { .. } => self.turn_away(now),
            State::Waiting(_)
            | State::ResolvingAddr(_)
            | State::ResolvingRoute(_)
            | State::Connecting(..)
            | State::Backoff { .. }
            | State::Accepting { .. } => self.fail(reason, now),
            State::Established | State::Closing(_) => {
                self.notify_and_disconnect(reason, control, code, now);
            }
            // Who ends it does not wait to learn who is to blame.
            State::Draining(_) => self.accuse(now),
            State::Closed => {}
        }
    }

    /// Sends an Abort or a Failure and disconnects, unless one has been sent before.
    pub(super) fn notify_and_disconnect(
        &mut self,
        reason: CloseReason,
        control: Control,
        code: u32,
        now: Instant,
    ) {
        if let State::Closing(Closing {
            role: Role::Aborter | Role::Abandoner,
            ..
        }) = &self.state
        {
            return;
        }
        let role = if disconnected_may_come(&reason) {
            Role::Aborter
        } else {
            Role::Abandoner
        };
        self.start_closing(role, reason, ABORT_TIMEOUT, now);
        if let Some(transfer) = &mut self.transfer {
            transfer.queue_notice(control, code);
        }
        self.send_control();
    }

    /// Sends this side's Close.
    fn start_handshake(&mut self, role: Role, reason: CloseReason, now: Instant) {
        self.start_closing(role, reason, self.params.close_timeout, now);
        if let Some(transfer) = &mut self.transfer {
            transfer.control.queue_close();
        }
        self.send_control();
    }

    fn start_closing(&mut self, role: Role, reason: CloseReason, timeout: Duration, now: Instant) {
        self.outputs.note(
            Level::Debug,
            format_args!("closing, for {timeout:?} at most: {reason}"),
        );
        self.record_cause(reason);
        self.state = State::Closing(Closing {
            deadline: now + timeout,
            role,
        });
        if let Some(transfer) = &mut self.transfer {
            transfer.recv_credit.lose_patience();
            transfer.timers.grant = None;
        }
        self.grant_if_due();
        self.report_blocked();
    }

    /// Takes the peer's Close.
    pub(super) fn on_close_frame(&mut self, now: impl Clock) -> Result<(), Violation> {
        let Some(transfer) = &mut self.transfer else {
            return Ok(());
        };
        if transfer.has_peer_closed() {
            return Err(Kind::Control(Control::Close).unexpected("one close"));
        }
        transfer.peer_close = PeerClose::Received;
        // It takes no messages any more.
        transfer.control.let_go();
        match &self.state {
            State::Established => {
                self.start_handshake(Role::Responder, CloseReason::PeerClosed, now.now());
                self.acknowledge_close();
            }
            State::Closing(_) => self.acknowledge_close(),
            State::Draining(_) => self.record_cause(CloseReason::PeerClosed),
            State::Waiting(_)
            | State::ResolvingAddr(_)
            | State::ResolvingRoute(_)
            | State::Connecting(..)
            | State::Backoff { .. }
            | State::Requested { .. }
            | State::Accepted { .. }
            | State::Accepting { .. }
            | State::Closed => {}
        }
        Ok(())
    }

    /// Acknowledges the peer's Close once its large messages have been read: the peer keeps their
    /// memory exposed for no longer than it waits for this.
    pub(super) fn acknowledge_close(&mut self) {
        if let (State::Closing(_), Some(transfer)) = (&self.state, &mut self.transfer)
            && transfer.has_peer_closed()
            && transfer.has_read_all()
            && !transfer.control.has_final_frame()
        {
            transfer.control.queue_close_ack();
            self.send_control();
        }
    }

    /// Takes the peer's CloseAck.
    pub(super) fn on_close_ack(&mut self, now: impl Clock) -> Result<(), Violation> {
        // This side's Close goes out before its CloseAck, and so does the peer's.
        match &mut self.transfer {
            Some(transfer)
                if transfer.control.is_close_sent()
                    && transfer.peer_close == PeerClose::Received =>
            {
                transfer.peer_close = PeerClose::Acknowledged;
            }
            _ => {
                return Err(Kind::Control(Control::CloseAck)
                    .unexpected("one acknowledgement of a close, after the sender's own close"));
            }
        }
        self.disconnect_if_done(now);
        Ok(())
    }

    /// Disconnects when the handshake is complete and all large messages have been read.
    pub(super) fn disconnect_if_done(&mut self, now: impl Clock) {
        let (State::Closing(closing), Some(transfer)) = (&self.state, &self.transfer) else {
            return;
        };
        let acknowledged = transfer.control.is_final_frame_acknowledged();
        let done = match closing.role {
            Role::Initiator => acknowledged && transfer.delivered() && transfer.is_quiescent(),
            Role::Aborter | Role::Abandoner => acknowledged,
            // The peer disconnects.
            Role::Responder => false,
        };
        if done {
            self.drain(now.now());
        }
    }

    pub(super) fn on_disconnected(&mut self, now: Instant) {
        match &self.state {
            State::Connecting(..) => self.on_attempt_failure(CloseReason::PeerDisconnected, now),
            State::Draining(_) => {
                self.record_cause(CloseReason::PeerDisconnected);
                let limit = now + self.drain_timeout();
                if let State::Draining(draining) = &mut self.state {
                    draining.blame = None;
                    draining.deadline = draining.deadline.min(limit);
                }
                self.expect_no_disconnected();
            }
            State::Waiting(_)
            | State::ResolvingAddr(_)
            | State::ResolvingRoute(_)
            | State::Backoff { .. }
            | State::Requested { .. }
            | State::Accepted { .. }
            | State::Accepting { .. } => self.fail(CloseReason::PeerDisconnected, now),
            State::Established | State::Closing(_) => {
                self.fail(CloseReason::PeerDisconnected, now);
                self.expect_no_disconnected();
            }
            State::Closed => {}
        }
    }

    /// Takes the failure of a disconnect: there is no connection any more.
    pub(super) fn on_disconnect_failure(&mut self) {
        if let State::Draining(_) = self.state {
            self.record_cause(CloseReason::PeerDisconnected);
            self.expect_no_disconnected();
        }
    }

    /// Stops waiting for DISCONNECTED.
    pub(super) fn expect_no_disconnected(&mut self) {
        if let State::Draining(draining) = &mut self.state {
            draining.cm_done = true;
        }
        self.end_if_drained();
    }

    /// Disconnects and waits for the work requests to be flushed.
    pub(super) fn drain(&mut self, now: Instant) {
        let abandons =
            matches!(&self.state, State::Closing(closing) if closing.role == Role::Abandoner);
        self.cm(CmOp::Disconnect);
        self.start_draining(None, now);
        if abandons {
            self.expect_no_disconnected();
        }
    }

    /// Ends the connection because a large message could not be read. A process that ended loses
    /// its memory before its connection, and disconnects then: a peer that does not is to blame. So
    /// this side does not disconnect at once, or nobody could tell who did.
    pub(super) fn suspect(&mut self, blame: CloseReason, now: Instant) {
        self.start_draining(Some(blame), now);
    }

    fn start_draining(&mut self, blame: Option<CloseReason>, now: Instant) {
        if let Some(transfer) = &mut self.transfer {
            transfer.cancel_pending();
        }
        let timeout = match blame {
            Some(_) => self.params.drain_timeout,
            None => self.drain_timeout(),
        };
        self.state = State::Draining(Draining {
            deadline: now + timeout,
            sends_done: false,
            recvs_done: false,
            cm_done: false,
            blame,
        });
        self.outputs.push(Output::PostDrainMarkers);
        self.report_blocked();
    }

    /// Disconnects from a peer that is suspected, if one is: it is to blame.
    pub(super) fn accuse(&mut self, now: Instant) {
        let State::Draining(draining) = &mut self.state else {
            return;
        };
        let Some(blame) = draining.blame.take() else {
            return;
        };
        self.record_cause(blame);
        self.cm(CmOp::Disconnect);
        let limit = now + self.drain_timeout();
        if let State::Draining(draining) = &mut self.state {
            draining.deadline = limit;
        }
    }

    /// How long it may take until everything is flushed and the cause is known.
    fn drain_timeout(&self) -> Duration {
        let unmarked = self.traits.is_some_and(|traits| !traits.flushes);
        if unmarked && !self.reason.as_ref().is_some_and(is_symptom) {
            self.params.drain_timeout.min(UNMARKED)
        } else {
            self.params.drain_timeout
        }
    }

    pub(super) fn end_if_drained(&mut self) {
        if let State::Draining(Draining {
            sends_done: true,
            recvs_done: true,
            cm_done: true,
            ..
        }) = self.state
        {
            self.end();
        }
    }
}

/// Whether this is no cause of an end, but follows from one that is not known yet.
pub(super) fn is_symptom(reason: &CloseReason) -> bool {
    match reason {
        // The latter of a process that ended, whose memory went before its connection.
        CloseReason::WorkRequest { status, .. } => {
            matches!(*status, WcStatus::WR_FLUSH_ERR | WcStatus::REM_OP_ERR)
        }
        // Where a queue pair has left its connected state, some drivers refuse what is posted.
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

/// Whether DISCONNECTED may follow this cause. It is not waited for where the peer or the device
/// cannot be reached any more.
pub(super) fn disconnected_may_come(reason: &CloseReason) -> bool {
    !matches!(
        reason,
        CloseReason::KeepaliveTimeout
            | CloseReason::DeviceRemoved
            | CloseReason::WorkRequest {
                status: WcStatus::RETRY_EXC_ERR,
                ..
            }
    )
}
