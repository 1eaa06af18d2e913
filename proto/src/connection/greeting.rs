//! The exchange of private data that are too long for the connect request.
//!
//! The active side sends its private data in a frame as soon as the queue pairs work, and the
//! passive side answers in a frame. Only then is the connection considered established. Each wait
//! is limited to `connect_timeout`, because a peer might not complete the exchange.

use std::{sync::Arc, time::Instant};

use rdma_status::RejectReason;

use super::{
    open::{Open, Phase},
    side::Side,
    transfer::Accepts,
};
use crate::{
    Clock, CloseReason, Event, Output,
    frame::{Answer, Control, Header, Kind, NOT_TAKEN},
    hello::PrivateBytes,
    reason::{self, Violation},
};

/// The progress of an exchange of private data in frames.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
pub(super) enum Greeting {
    /// The active side has sent its private data, and waits for the answer.
    Asked { deadline: Instant },
    /// The passive side waits for the peer's private data.
    Receiving { deadline: Instant },
    /// The passive side waits for its application to decide.
    Deciding { deadline: Instant },
}

impl Greeting {
    pub(super) fn deadline(&self) -> Instant {
        match self {
            Self::Asked { deadline }
            | Self::Receiving { deadline }
            | Self::Deciding { deadline } => *deadline,
        }
    }

    /// Returns the name of this step, for log lines.
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::Asked { .. } => "Asked",
            Self::Receiving { .. } => "Receiving",
            Self::Deciding { .. } => "Deciding",
        }
    }
}

impl Open {
    /// Returns whether the connection waits for the passive side's application to decide.
    pub(super) fn awaits_decision(&self) -> bool {
        matches!(self.phase, Phase::Greeting(Greeting::Deciding { .. }))
    }

    /// Returns whether this side is the passive side and has not sent its answer.
    pub(super) fn is_unanswered(&self) -> bool {
        matches!(
            self.phase,
            Phase::Greeting(Greeting::Receiving { .. } | Greeting::Deciding { .. })
        )
    }

    /// Sends the active side's private data in a Request frame.
    pub(super) fn send_request(&mut self, side: &mut Side, data: &[u8]) {
        self.transfer.greet(Kind::Request, 0, data.into());
        self.send_control(side);
    }

    /// Accepts the request on behalf of the passive side's application.
    pub(super) fn accept(&mut self, side: &mut Side, data: &[u8]) {
        if self.awaits_decision() {
            self.answer(side, Answer::Accepted, data.into());
            self.establish(side);
        }
    }

    /// Rejects the request on behalf of the passive side's application. Returns false if the
    /// request was already answered.
    pub(super) fn reject(&mut self, side: &mut Side, data: &[u8], now: Instant) -> bool {
        let rejects = self.is_unanswered();
        if rejects {
            self.abort(side, CloseReason::LocallyClosed, now);
            self.transfer.cancel_pending();
            self.transfer.control.queue_rejection();
            self.answer(side, Answer::Rejected, data.into());
        }
        rejects
    }

    fn answer(&mut self, side: &mut Side, answer: Answer, data: Arc<[u8]>) {
        self.transfer.greet(Kind::Answer, answer.number(), data);
        self.send_control(side);
    }

    /// Ends the exchange and the connection, because this side closes the connection or a deadline
    /// of the exchange has passed.
    pub(super) fn give_up_greeting(&mut self, side: &mut Side, reason: CloseReason, now: Instant) {
        if self.is_unanswered() {
            // A Failure with this code permits the peer to retry.
            self.notify_and_disconnect(side, reason, Control::Failure, NOT_TAKEN, now);
        } else {
            // Without this notice, the peer could believe that the connection was lost, and keep
            // the session.
            self.notify_and_disconnect(side, reason, Control::Abort, 0, now);
        }
    }

    /// Ends the exchange, because its deadline has passed.
    pub(super) fn on_greeting_timeout(&mut self, side: &mut Side, now: Instant) {
        let phase = match self.phase {
            Phase::Greeting(Greeting::Deciding { .. }) => reason::Phase::Accepting,
            Phase::Greeting(_) => reason::Phase::Connecting,
            Phase::Established | Phase::Closing(_) | Phase::Draining(_) => return,
        };
        self.give_up_greeting(side, CloseReason::TimedOut(phase), now);
    }

    /// Handles private data from the peer, in a Request or an Answer frame.
    pub(super) fn on_private_data(
        &mut self,
        side: &mut Side,
        header: Header,
        data: PrivateBytes,
        now: impl Clock,
    ) -> Result<(), Violation> {
        self.apply_header(side, header)?;
        match (&self.phase, header.kind) {
            (Phase::Greeting(Greeting::Receiving { .. }), Kind::Request) => {
                side.peer_data.put(&data);
                let deadline = now.now() + side.params.connect_timeout;
                self.phase = Phase::Greeting(Greeting::Deciding { deadline });
                side.outputs.push(Output::Event(Event::Requested));
                Ok(())
            }
            (Phase::Greeting(Greeting::Asked { .. }), Kind::Answer) => {
                match Answer::parse(header.arg)? {
                    Answer::Accepted => {
                        side.peer_data.put(&data);
                        self.establish(side);
                    }
                    Answer::Rejected => {
                        self.transfer.accepts = Accepts::Nothing;
                        self.fail(side, rejected(data), now.now());
                    }
                }
                Ok(())
            }
            // The connection is already ending. Either a work request failed before this frame was
            // processed, or this side has stopped waiting for the Answer. The peer may send
            // messages after the Answer, but this side no longer accepts them.
            (Phase::Closing(_) | Phase::Draining(_), Kind::Answer) if !self.was_established() => {
                self.transfer.accepts = Accepts::Nothing;
                if header.arg == Answer::Rejected.number() {
                    self.fail(side, rejected(data), now.now());
                }
                Ok(())
            }
            (Phase::Closing(_) | Phase::Draining(_), _) => Ok(()),
            (Phase::Greeting(_) | Phase::Established, kind) => {
                Err(kind.unexpected("one request, and one answer to it"))
            }
        }
    }
}

/// Returns the reason for the end after the peer's application has rejected the request with this
/// private data.
fn rejected(data: PrivateBytes) -> CloseReason {
    CloseReason::Rejected {
        reason: RejectReason::CONSUMER_DEFINED,
        data: (*data).into(),
    }
}
