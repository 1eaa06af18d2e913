//! The passive side of a connection, from the arrival of the connect request until the connection
//! is established or the request is rejected.

use std::{collections::VecDeque, mem, time::Instant};

use super::{
    Connection,
    greeting::Greeting,
    hello_checks::{compatible, malformed_resume, rejection, unreadable},
    receiving::Incoming,
    setup::{Agreed, Early, Progress, Setup},
    side::Side,
};
use crate::{
    CloseReason, CmInput, CmOp, Mismatch, Params, Phase, ReadDepth, Refusal, SessionOffer,
    hello::{
        Hello, HelloError, LONG_REQUEST, PrivateBytes, REPLY_DATA_MAX, RESUMES, SESSION, VERSION,
    },
    reason::Violation,
    reject::{Reject, RejectCode},
};

/// The state of the passive side from the arrival of a connect request until the event ESTABLISHED
/// or the first frame.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
pub(super) struct Accepting {
    /// The deadline of the current `step`.
    deadline: Instant,
    /// The peer's hello.
    hello: Hello,
    step: Step,
}

#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
enum Step {
    /// The application has not decided yet.
    Requested,
    /// The application has accepted the request. The connection waits until the limit on concurrent
    /// setups permits the connection to continue. The reply will contain these bytes.
    Accepted(PrivateBytes),
    /// The driver is creating the transport. Afterwards, this side sends the reply, which contains
    /// these bytes.
    Preparing(PrivateBytes),
    /// The reply has been sent. Neither the event ESTABLISHED nor a frame has arrived yet.
    Replied,
}

impl Connection {
    /// Creates the passive side of a connection for a CONNECT_REQUEST event.
    pub fn requested(
        mut params: Params,
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
                //= PROTOCOL.md#versions
                //# So each of two sides can name the other's version when it refuses: the passive
                //# side rejects with code 1, its own version and the other's; an active side that
                //# nevertheless receives a reply with another version disconnects.
                let own = VERSION.into();
                return refuse(RejectCode::Version, own, theirs, unreadable(error));
            }
        };
        if let Err((code, mismatch)) = compatible(&params, &hello, reads) {
            let Mismatch { ours, theirs, .. } = mismatch;
            return refuse(code, ours, theirs, CloseReason::PeerIncompatible(mismatch));
        }
        //= PROTOCOL.md#sessions
        //# The passive side rejects with code 10 if it does not know the session, or if a request
        //# with bit 5 does not have this form.
        if hello.features & RESUMES != 0 && Self::resume_request(private_data).is_none() {
            let cause = malformed_resume(data.len());
            return refuse(RejectCode::Session, 0, data.len() as u64, cause);
        }
        //= PROTOCOL.md#long-requests
        //# The passive side rejects with code 3 if the eager size of either side is less than 160,
        //# because the answer may be that long.
        let has_long_request = hello.features & LONG_REQUEST != 0;
        let eager_size = params.eager_size.min(hello.eager_size) as usize;
        if has_long_request && eager_size < REPLY_DATA_MAX {
            let (ours, theirs) = (params.eager_size.into(), hello.eager_size.into());
            let code = RejectCode::EagerSize;
            let field = code.field();
            let mismatch = Mismatch {
                field,
                ours,
                theirs,
            };
            return refuse(code, ours, theirs, CloseReason::PeerIncompatible(mismatch));
        }
        if hello.features & SESSION == 0 {
            params.session = SessionOffer::None;
        }
        let accepting = Accepting {
            deadline: now + params.connect_timeout,
            hello,
            step: Step::Requested,
        };
        let mut this = Self::new(Side::new(params), Setup::Accepting(accepting));
        this.side.has_long_request = has_long_request;
        if !has_long_request {
            this.side.peer_data = data.into();
        }
        Ok(this)
    }
}

impl Accepting {
    pub(super) const fn name(&self) -> &'static str {
        match self.step {
            Step::Requested => "Requested",
            Step::Accepted(_) => "Accepted",
            Step::Preparing(_) | Step::Replied => "Accepting",
        }
    }

    pub(super) fn hello(&self) -> &Hello {
        &self.hello
    }

    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    pub(super) fn has_queue_pair(&self) -> bool {
        matches!(self.step, Step::Preparing(_) | Step::Replied)
    }

    /// Accepts the request. If the private data of the request follow in a frame, the peer sends
    /// that frame only after the reply. In this case, the driver therefore calls this function
    /// without asking the application.
    pub(super) fn accept(&mut self, side: &mut Side, data: &[u8], now: Instant) {
        if let Step::Requested = self.step {
            self.step = Step::Accepted(data.into());
            self.deadline = now + side.params.connect_timeout;
            side.cm(CmOp::AwaitSetupSlot);
        }
    }

    pub(super) fn reject(&mut self, side: &mut Side, reject: &Reject, data: &[u8]) -> bool {
        let pending = matches!(self.step, Step::Requested | Step::Accepted(_));
        if pending {
            let private_data = reject.emit(data);
            side.cm(CmOp::Reject { private_data });
        }
        pending
    }

    pub(super) fn begin_setup(&mut self, side: &mut Side) {
        if let Step::Accepted(data) = &mut self.step {
            self.step = Step::Preparing(mem::take(data));
            side.cm(CmOp::CreateTransport);
        }
    }

    /// Sends the reply, after the driver has created the queue pair and the buffers.
    pub(super) fn on_transport(&mut self, side: &mut Side) {
        //= PROTOCOL.md#transport
        //# Each side posts its receives before its request or its reply leaves: a frame may arrive
        //# as soon as the peer's connection manager knows of the connection.
        if let Step::Preparing(data) = &self.step {
            let private_data = side.hello().emit(data);
            self.step = Step::Replied;
            side.cm(CmOp::Accept { private_data });
        }
    }

    /// Rejects the request, because the driver cannot create the queue pair or the buffers.
    pub(super) fn on_create_transport_failure(&mut self, side: &mut Side) {
        if let Step::Preparing(_) = self.step {
            let reject = Reject {
                code: RejectCode::Resources,
                own: 0,
                theirs: 0,
            };
            let private_data = reject.emit(&[]);
            side.cm(CmOp::Reject { private_data });
        }
    }

    pub(super) fn on_cm_event(&mut self, side: &mut Side, event: CmInput<'_>) -> Progress {
        match (&self.step, event) {
            // On a transport where the active side must send first, this event does not establish
            // the connection. The first frame of the active side does.
            (Step::Replied, CmInput::Established { .. }) if side.active_speaks_first() => Ok(None),
            (Step::Replied, CmInput::Established { .. }) => self.agree(side, VecDeque::new()),
            // The peer has withdrawn its request or refused the reply.
            (
                _,
                CmInput::Rejected {
                    reason,
                    private_data,
                },
            ) => Err(rejection(reason, private_data)),
            (_, CmInput::Unreachable(status)) => Err(CloseReason::Unreachable(status)),
            (_, CmInput::ConnectError(status)) => Err(CloseReason::ConnectFailed(status)),
            (_, CmInput::Failed(reason)) => Err(reason.clone()),
            (_, CmInput::Disconnected) => Err(CloseReason::PeerDisconnected),
            (_, event) => {
                side.unexpected(event.name(), self.name());
                Ok(None)
            }
        }
    }

    /// Handles a frame. The peer sends frames only after it has received the reply, so the frame
    /// establishes the connection. A frame that arrives before this side has sent the reply is
    /// ignored.
    pub(super) fn on_frame(
        &mut self,
        side: &mut Side,
        buffer: u32,
        incoming: Result<Incoming, Violation>,
    ) -> Progress {
        match self.step {
            //= PROTOCOL.md#establishing-a-connection
            //# The passive side must not send before it has received the event ESTABLISHED or a
            //# frame. The frame may overtake the event.
            Step::Replied => self.agree(side, [(buffer, incoming)].into()),
            Step::Requested | Step::Accepted(_) | Step::Preparing(_) => {
                side.unexpected("a frame", self.name());
                Ok(None)
            }
        }
    }

    fn agree(&self, side: &Side, early: VecDeque<Early>) -> Progress {
        let greeting = Greeting::Receiving {
            deadline: self.deadline,
        };
        Ok(Some(Agreed {
            hello: self.hello,
            early,
            speaks_first: false,
            greeting: side.has_long_request.then_some(greeting),
            request: None,
        }))
    }

    /// Ends the setup, because the deadline of the current step has passed. If the request can
    /// still be rejected, rejects the request as busy, so that the peer can retry.
    pub(super) fn on_timeout(&mut self, side: &mut Side) -> Progress {
        let phase = match self.step {
            Step::Requested => Phase::Accepting,
            Step::Accepted(_) => Phase::Waiting,
            Step::Preparing(_) | Step::Replied => Phase::Connecting,
        };
        self.reject(side, &Reject::BUSY, &[]);
        Err(CloseReason::TimedOut(phase))
    }
}
