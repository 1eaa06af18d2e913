//! The passive side: from the request to the reply or the rejection.

use std::time::Instant;

use rdma_status::OsError;

use super::{
    Connection, State,
    refusal::{compatible, unreadable},
    transfer::Transfer,
};
use crate::{
    CloseReason, CmOp, Mismatch, Params, Phase, ReadDepth, Refusal,
    frame::{Control, NOT_TAKEN},
    hello::{Hello, HelloError, VERSION},
    reject::{Reject, RejectCode},
};

impl Connection {
    /// Makes the passive side of a connection for a CONNECT_REQUEST.
    pub fn requested(
        params: Params,
        private_data: &[u8],
        reads: ReadDepth,
        now: Instant,
    ) -> Result<Self, Box<Refusal>> {
        let refuse = |code, own, theirs, reason| {
            Err(Box::new(Refusal {
                private_data: Reject { code, own, theirs }.emit(&[]),
                reason,
            }))
        };
        let (hello, data) = match Hello::parse(private_data) {
            Ok(parsed) => parsed,
            Err(error) => {
                let theirs = match error {
                    HelloError::NotRdmsg | HelloError::Rsocket => 0,
                    HelloError::Version(theirs) => theirs.into(),
                };
                let own = VERSION.into();
                return refuse(RejectCode::Version, own, theirs, unreadable(error));
            }
        };
        if let Err((code, mismatch)) = compatible(&params, &hello, reads) {
            let Mismatch { ours, theirs, .. } = mismatch;
            return refuse(code, ours, theirs, CloseReason::PeerIncompatible(mismatch));
        }
        let deadline = now + params.connect_timeout;
        let transfer = Transfer::new(&params, &hello);
        let mut this = Self::new(params, State::Requested { deadline });
        this.peer_data = data.to_vec();
        this.transfer = Some(transfer);
        Ok(this)
    }

    /// Accepts the request, with at most [`REPLY_DATA_MAX`](crate::REPLY_DATA_MAX) bytes of
    /// the application.
    pub fn accept(&mut self, data: &[u8], now: Instant) {
        if let State::Requested { .. } = self.state {
            self.state = State::Accepted {
                deadline: now + self.params.connect_timeout,
                data: data.to_vec(),
            };
            self.cm(CmOp::AwaitTurn);
        }
    }

    /// Rejects the request, with at most [`REJECT_DATA_MAX`](crate::REJECT_DATA_MAX) bytes
    /// of the application.
    pub fn reject(&mut self, data: &[u8], now: Instant) {
        let reject = Reject {
            code: RejectCode::Application,
            own: 0,
            theirs: 0,
        };
        self.reject_with(&reject, data, now);
    }

    /// Rejects the request, or ends the connection, because the program has not taken it and its
    /// listener has ended. A connection in between is turned away when it is established.
    pub fn turn_away(&mut self, now: Instant) {
        match &self.state {
            State::Established | State::Closing(_) => {
                let reason = CloseReason::LocallyClosed;
                self.notify_and_disconnect(reason, Control::Failure, NOT_TAKEN, now);
            }
            State::Requested { .. } | State::Accepted { .. } => {
                self.reject_with(&Reject::BUSY, &[], now);
            }
            State::Waiting(_)
            | State::ResolvingAddr(_)
            | State::ResolvingRoute(_)
            | State::Connecting(..)
            | State::Backoff { .. }
            | State::Accepting { .. }
            | State::Draining(_)
            | State::Closed => {}
        }
    }

    fn reject_with(&mut self, reject: &Reject, data: &[u8], now: Instant) {
        if let State::Requested { .. } | State::Accepted { .. } = self.state {
            let private_data = reject.emit(data);
            self.cm(CmOp::Reject { private_data });
            self.fail(CloseReason::LocallyClosed, now);
        }
    }

    /// Takes the failure to make queue pair and buffers. A peer that was accepted is told so.
    pub(super) fn on_create_transport_failure(&mut self, error: OsError, now: Instant) {
        if let State::Accepting { .. } = self.state {
            let private_data = Reject {
                code: RejectCode::Resources,
                own: 0,
                theirs: 0,
            }
            .emit(&[]);
            self.cm(CmOp::Reject { private_data });
        }
        self.fail(CloseReason::Os(error), now);
    }

    /// Rejects a request that the application has not answered in time. The peer may try again.
    pub(super) fn on_request_timeout(&mut self, now: Instant) {
        self.reject_late(Phase::Accepting, now);
    }

    /// Rejects an accepted request for which this host had no time. The peer may try again.
    pub(super) fn on_turn_timeout(&mut self, now: Instant) {
        self.reject_late(Phase::Waiting, now);
    }

    fn reject_late(&mut self, phase: Phase, now: Instant) {
        let private_data = Reject::BUSY.emit(&[]);
        self.cm(CmOp::Reject { private_data });
        self.fail(CloseReason::TimedOut(phase), now);
    }
}
