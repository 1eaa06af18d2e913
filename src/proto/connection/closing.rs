//! From the first word of the end to the last work request.

use std::time::{Duration, Instant};

use super::{Connection, State, transfer::Farewell};
use crate::{
    proto::{
        Clock, CloseReason, CmOp, DrainSide, Output,
        frame::{Control, Kind},
        reason::Violation,
    },
    status::WcStatus,
};

/// How long an abort's notice may take before the connection is taken down without it.
const ABORT_TIMEOUT: Duration = Duration::from_millis(100);

/// Saying what is still to be said.
#[derive(Debug)]
pub(super) struct Closing {
    deadline: Instant,
    role: Role,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// This side closed first, as far as it knows, and disconnects when each has acknowledged the other's close.
    Initiator,
    /// The peer closed first, and disconnects.
    Responder,
    /// This side aborts: it disconnects when the notice has arrived.
    Aborter,
}

/// Waiting for the work requests to come back.
#[derive(Debug)]
pub(super) struct Draining {
    deadline: Instant,
    sends_back: bool,
    recvs_back: bool,
    /// Whether the connection manager has nothing more to say.
    cm_down: bool,
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

    pub(super) fn marker(&mut self, side: DrainSide) {
        match side {
            DrainSide::Send => self.sends_back = true,
            DrainSide::Recv => self.recvs_back = true,
        }
    }
}

impl Connection {
    /// The application closes: nothing more is sent, what was sent is delivered, and the peer is told.
    pub(crate) fn close(&mut self, now: Instant) {
        match &self.state {
            State::Requested { .. } | State::Accepted { .. } => self.reject(&[], now),
            State::Waiting(_)
            | State::ResolvingAddr(_)
            | State::ResolvingRoute(_)
            | State::Connecting(..)
            | State::Backoff { .. }
            | State::Accepting { .. } => self.fail(CloseReason::LocallyClosed, now),
            State::Established => {
                self.start_closing(
                    Role::Initiator,
                    CloseReason::LocallyClosed,
                    self.params.close_timeout,
                    now,
                );
                if let Some(transfer) = &mut self.transfer {
                    transfer.want_close();
                }
                self.send_control();
            }
            State::Closing(_) | State::Draining(_) | State::Closed => {}
        }
    }

    /// The application ends the connection without waiting for anything but, for a moment, the notice to the peer.
    pub(crate) fn abort(&mut self, code: u32, now: Instant) {
        match &self.state {
            State::Requested { .. } | State::Accepted { .. } => self.reject(&[], now),
            State::Waiting(_)
            | State::ResolvingAddr(_)
            | State::ResolvingRoute(_)
            | State::Connecting(..)
            | State::Backoff { .. }
            | State::Accepting { .. } => self.fail(CloseReason::LocallyAborted, now),
            State::Established | State::Closing(_) => {
                self.say_and_leave(CloseReason::LocallyAborted, Control::Abort, code, now);
            }
            State::Draining(_) | State::Closed => {}
        }
    }

    /// Ends the connection without waiting for anything but, for a moment, the notice to the peer.
    /// Nothing is said twice.
    pub(super) fn say_and_leave(
        &mut self,
        reason: CloseReason,
        control: Control,
        code: u32,
        now: Instant,
    ) {
        if matches!(&self.state, State::Closing(closing) if closing.role == Role::Aborter) {
            return;
        }
        self.start_closing(Role::Aborter, reason, ABORT_TIMEOUT, now);
        if let Some(transfer) = &mut self.transfer {
            transfer.want_abort(control, code);
        }
        self.send_control();
    }

    fn start_closing(&mut self, role: Role, reason: CloseReason, timeout: Duration, now: Instant) {
        self.blame(reason);
        self.state = State::Closing(Closing {
            deadline: now + timeout,
            role,
        });
        self.tell_blocked();
    }

    /// The peer's close came.
    pub(super) fn on_close_frame(&mut self, now: impl Clock) -> Result<(), Violation> {
        let Some(transfer) = &mut self.transfer else {
            return Ok(());
        };
        if transfer.has_peer_closed() {
            return Err(Kind::Control(Control::Close).unexpected("one close"));
        }
        transfer.farewell = Farewell::Closed;
        match &self.state {
            State::Established => {
                self.start_closing(
                    Role::Responder,
                    CloseReason::PeerClosed,
                    self.params.close_timeout,
                    now.now(),
                );
                if let Some(transfer) = &mut self.transfer {
                    transfer.want_close();
                }
                self.send_control();
                self.acknowledge_close();
            }
            State::Closing(_) => self.acknowledge_close(),
            State::Draining(_) => self.blame(CloseReason::PeerClosed),
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

    /// Tells the peer that its close has come, once its large messages have been read: it keeps their memory for no longer than it waits
    /// for this.
    pub(super) fn acknowledge_close(&mut self) {
        if let (State::Closing(_), Some(transfer)) = (&self.state, &mut self.transfer)
            && transfer.has_peer_closed()
            && transfer.has_read_all()
            && !transfer.has_last_word()
        {
            transfer.want_close_ack();
            self.send_control();
        }
    }

    /// The peer has our close.
    pub(super) fn on_close_ack(&mut self, now: impl Clock) -> Result<(), Violation> {
        // This side's close goes out before its acknowledgement of the peer's, and so does the peer's.
        match &mut self.transfer {
            Some(transfer) if transfer.has_closed() && transfer.farewell == Farewell::Closed => {
                transfer.farewell = Farewell::Acknowledged;
            }
            _ => {
                return Err(Kind::Control(Control::CloseAck)
                    .unexpected("one acknowledgement of a close, after the sender's own close"));
            }
        }
        self.on_goodbye(now);
        Ok(())
    }

    /// Disconnects when everything has been said on both sides, and everything was read.
    pub(super) fn on_goodbye(&mut self, now: impl Clock) {
        let (State::Closing(closing), Some(transfer)) = (&self.state, &self.transfer) else {
            return;
        };
        let said = transfer.said_goodbye();
        let done = match closing.role {
            Role::Initiator => said && transfer.delivered() && transfer.is_settled(),
            Role::Aborter => said,
            // The peer disconnects.
            Role::Responder => false,
        };
        if done {
            self.drain(now.now());
        }
    }

    pub(super) fn on_disconnected(&mut self, now: Instant) {
        match &self.state {
            State::Draining(_) => {
                self.blame(CloseReason::PeerDisconnected);
                self.expect_no_farewell();
            }
            State::Waiting(_)
            | State::ResolvingAddr(_)
            | State::ResolvingRoute(_)
            | State::Connecting(..)
            | State::Backoff { .. }
            | State::Requested { .. }
            | State::Accepted { .. }
            | State::Accepting { .. } => self.fail(CloseReason::PeerDisconnected, now),
            State::Established | State::Closing(_) => {
                self.fail(CloseReason::PeerDisconnected, now);
                self.expect_no_farewell();
            }
            State::Closed => {}
        }
    }

    /// There is nothing to disconnect.
    pub(super) fn on_disconnect_failure(&mut self) {
        if let State::Draining(_) = self.state {
            self.blame(CloseReason::PeerDisconnected);
            self.expect_no_farewell();
        }
    }

    /// No DISCONNECTED is to be waited for.
    pub(super) fn expect_no_farewell(&mut self) {
        if let State::Draining(draining) = &mut self.state {
            draining.cm_down = true;
        }
        self.end_if_drained();
    }

    /// Takes the connection down and waits for its work requests.
    pub(super) fn drain(&mut self, now: Instant) {
        if let Some(transfer) = &mut self.transfer {
            transfer.silence();
        }
        self.state = State::Draining(Draining {
            deadline: now + self.params.drain_timeout,
            sends_back: false,
            recvs_back: false,
            cm_down: false,
        });
        self.cm(CmOp::Disconnect);
        self.outputs.push(Output::PostDrainMarkers);
        self.tell_blocked();
    }

    pub(super) fn end_if_drained(&mut self) {
        if let State::Draining(Draining {
            sends_back: true,
            recvs_back: true,
            cm_down: true,
            ..
        }) = self.state
        {
            self.end();
        }
    }
}

/// Whether DISCONNECTED may still come after this: from a peer or a device that is gone it need not be waited for.
pub(super) fn farewell_may_come(reason: &CloseReason) -> bool {
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
