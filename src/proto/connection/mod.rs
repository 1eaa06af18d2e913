mod closing;
mod establish;
mod keepalive;
mod reading;
mod receiving;
mod transfer;

pub(crate) use self::{keepalive::Activity, transfer::Flush};

#[cfg(test)]
mod tests;

use std::{collections::VecDeque, sync::Arc, time::Instant};

use self::{
    closing::{Closing, Draining, farewell_may_come},
    establish::{Attempts, Early},
    transfer::Transfer,
};
use super::{
    Account, Clock, CloseReason, CmCall, CmInput, CmOp, Descriptor, DrainSide, Event, Negotiated,
    Output, Params, Phase, SendRefused, Transmit, Work, control_receives::CONTROL_RECEIVES,
    outputs::Outputs,
};
use crate::status::{OsError, WcStatus};

/// One connection, from the first step of establishing it to its end: what is to be done next, and nothing else.
///
/// It does no I/O and reads no clock. Whoever drives it
///
/// 1. makes one with [`connect`](Self::connect) or, for a CONNECT_REQUEST, with [`requested`](Self::requested);
/// 2. feeds it commands ([`accept`](Self::accept), [`send`](Self::send), [`release`](Self::release), [`close`](Self::close) …), connection manager
///    events, completions, and [`handle_timeout`](Self::handle_timeout) when [`next_timeout`](Self::next_timeout) is past;
/// 3. after every one of these takes [`poll_output`](Self::poll_output) until it is empty, and does what it says, in that order, before
///    anything else. A frame that `send` returns is posted before the outputs.
///
/// Completions of one queue are fed in the order in which they come. Completions and connection manager events may overtake
/// each other. Completions that are already there are fed before `handle_timeout`, which judges the peer by them. Every input is allowed in every state; what makes no sense there is logged and changes nothing.
///
/// The last output is [`Event::Disconnected`]; it comes exactly once. The first cause of the end is the one that is reported,
/// except that a mere sign of it (flushed work requests, a DISCONNECTED without a close) gives way to the cause itself when that
/// is found in the completion queue while draining.
#[derive(Debug)]
pub(crate) struct Connection {
    params: Params,
    state: State,
    outputs: Outputs,
    /// Why the connection is ending, from the moment on that it is.
    reason: Option<CloseReason>,
    /// The peer's application's bytes from its hello.
    peer_data: Vec<u8>,
    /// What is there from the peer's hello on.
    transfer: Option<Transfer>,
    /// Where receives are shared with other connections: the account from which they are promised, while this connection's share is reserved.
    account: Option<Arc<Account>>,
    /// Whether this side ever gave out memory that the peer may write: immediates come with writes.
    gave_out_writable: bool,
    /// The deadline that the driver was last told of.
    announced_timeout: Option<Instant>,
}

/// Where a connection stands. What exists in one state only lives there.
#[derive(Debug)]
enum State {
    /// Active: the next attempt waits for its turn.
    Waiting(Attempts),
    /// Active: the address is being resolved.
    ResolvingAddr(Attempts),
    /// Active: the route is being resolved.
    ResolvingRoute(Attempts),
    /// Active: the request is out. Frames that overtake ESTABLISHED wait here for the peer's hello.
    Connecting(Attempts, VecDeque<Early>),
    /// Active: an attempt failed; the next one starts later.
    Backoff { attempts: Attempts, until: Instant },
    /// Passive: the application has not answered yet.
    Requested { deadline: Instant },
    /// Passive: the application has accepted, with these bytes of its own. That waits for its turn.
    Accepted { deadline: Instant, data: Vec<u8> },
    /// Passive: accepted, but neither ESTABLISHED nor a frame has come.
    Accepting { deadline: Instant },
    /// Messages flow.
    Established,
    /// No more messages are taken from the application; the rest is being said.
    Closing(Closing),
    /// The queue pair is in its error state, and its work requests are coming back.
    Draining(Draining),
    /// Over.
    Closed,
}

impl Connection {
    fn new(params: Params, state: State) -> Self {
        Self {
            params,
            state,
            outputs: Outputs::new(),
            reason: None,
            peer_data: Vec::new(),
            transfer: None,
            account: None,
            gave_out_writable: false,
            announced_timeout: None,
        }
    }

    /// Receives are promised from this account from now on, where [`Account::open`] reserved the least that is needed.
    pub(crate) fn use_account(&mut self, account: Arc<Account>) {
        self.account = Some(account);
    }

    /// The queue pair is gone, and all receives that it took are posted again, except for the `held` that hold messages which the
    /// application has. Gives what was promised back to the account; each of those is to be given when it is posted again.
    pub(crate) fn release_account(&mut self, held: u32) {
        if let Some(account) = self.account.take() {
            let promised = match &self.transfer {
                Some(transfer) => CONTROL_RECEIVES + transfer.recv_credit.promised(),
                None => Account::least(self.params.window),
            };
            account.give(promised - held);
        }
    }

    /// This side gives out memory that the peer may write, so the peer may send immediates from now
    /// on.
    pub(crate) fn allow_immediates(&mut self) {
        self.gave_out_writable = true;
    }

    /// Takes the next thing to do. The deadline comes last, so whatever an input changes about it is
    /// reported without the input's doing.
    pub(crate) fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop().or_else(|| self.changed_timer())
    }

    /// [`Output::Timer`], if the deadline is another one than the driver knows of.
    fn changed_timer(&mut self) -> Option<Output> {
        let timeout = self.next_timeout();
        // Nothing comes after the end, which takes the deadline away by itself.
        if timeout == self.announced_timeout || matches!(self.state, State::Closed) {
            return None;
        }
        self.announced_timeout = timeout;
        Some(Output::Timer)
    }

    /// When [`handle_timeout`](Self::handle_timeout) is to be called; look again after [`Output::Timer`].
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        match &self.state {
            State::Waiting(attempts)
            | State::ResolvingAddr(attempts)
            | State::ResolvingRoute(attempts)
            | State::Connecting(attempts, _) => Some(attempts.deadline),
            State::Backoff { attempts, until } => Some(attempts.deadline.min(*until)),
            State::Requested { deadline }
            | State::Accepted { deadline, .. }
            | State::Accepting { deadline } => Some(*deadline),
            State::Established => {
                let transfer = self.transfer.as_ref()?;
                earlier(transfer.keepalive_deadline(), transfer.patience.deadline())
            }
            State::Closing(closing) => {
                let reading = self.transfer.as_ref().and_then(|t| t.patience.deadline());
                earlier(Some(closing.deadline()), reading)
            }
            State::Draining(draining) => Some(draining.deadline()),
            State::Closed => None,
        }
    }

    /// Why the connection is ending or has ended.
    pub(crate) fn close_reason(&self) -> Option<&CloseReason> {
        self.reason.as_ref()
    }

    /// What the hellos came to; `None` before the peer's is there.
    pub(crate) fn negotiated(&self) -> Option<Negotiated> {
        self.transfer.as_ref().map(Transfer::negotiated)
    }

    /// The bytes that the peer's application sent along with its hello.
    pub(crate) fn peer_data(&self) -> &[u8] {
        &self.peer_data
    }

    /// Whether a receive buffer that is free again is worth posting.
    pub(crate) fn takes_receives(&self) -> bool {
        match &self.state {
            State::Connecting(..)
            | State::Accepting { .. }
            | State::Established
            | State::Closing(_) => true,
            State::Waiting(_)
            | State::ResolvingAddr(_)
            | State::ResolvingRoute(_)
            | State::Backoff { .. }
            | State::Requested { .. }
            | State::Accepted { .. }
            | State::Draining(_)
            | State::Closed => false,
        }
    }

    /// Takes a connection manager event.
    pub(crate) fn handle_cm_event(&mut self, event: CmInput<'_>, now: Instant) {
        match event {
            CmInput::AddrResolved => self.on_addr_resolved(),
            CmInput::RouteResolved => self.on_route_resolved(),
            CmInput::AddrError(status) => self.on_addr_error(status, now),
            CmInput::RouteError(status) => self.on_route_error(status, now),
            CmInput::Unreachable(status) => {
                self.on_connect_failure(CloseReason::Unreachable(status), "UNREACHABLE", now)
            }
            CmInput::ConnectError(status) => {
                self.on_connect_failure(CloseReason::ConnectFailed(status), "CONNECT_ERROR", now);
            }
            CmInput::Rejected {
                reason,
                private_data,
            } => self.on_rejected(reason, private_data, now),
            CmInput::Established {
                private_data,
                reads,
            } => self.on_established(private_data, reads, now),
            CmInput::Disconnected => self.on_disconnected(now),
            CmInput::DeviceRemoval => self.fail(CloseReason::DeviceRemoved, now),
            CmInput::AddrChange => self.fail(CloseReason::AddressChanged, now),
            // The last word of a queue pair that is gone anyway.
            CmInput::TimewaitExit => {}
            // Only an id without a queue pair gets it, and ours have one.
            CmInput::ConnectResponse => self.unexpected("CONNECT_RESPONSE"),
            CmInput::Other(number) => log::warn!(
                "connection manager event {number} in state {}: ignored",
                self.state.name()
            ),
        }
    }

    /// Learns that a connection manager call could not be made.
    pub(crate) fn handle_cm_failure(&mut self, call: CmCall, error: OsError, now: Instant) {
        match call {
            CmCall::ResolveAddr => self.on_resolve_addr_failure(error, now),
            CmCall::CreateTransport => self.on_create_transport_failure(error, now),
            CmCall::CreateId | CmCall::ResolveRoute | CmCall::Connect | CmCall::Accept => {
                self.fail(CloseReason::Os(error), now);
            }
            // Nothing is lost: the peer's deadline, the safety net's default, and the id's destruction do the same, later.
            CmCall::AwaitTurn | CmCall::Discard | CmCall::Reject | CmCall::SetMinRnrTimer => {
                log::debug!("{error}");
            }
            CmCall::Disconnect => {
                log::debug!("{error}");
                self.on_disconnect_failure();
            }
        }
    }

    /// Learns that something could not be posted.
    pub(crate) fn handle_post_failure(&mut self, error: OsError, now: Instant) {
        self.fail(CloseReason::Os(error), now);
    }

    /// Takes a failed completion.
    pub(crate) fn handle_work_error(
        &mut self,
        work: Work,
        status: WcStatus,
        vendor_err: u32,
        now: impl Clock,
    ) {
        log::trace!("{work:?}: {status}");
        if let (Work::Recv { buffer }, true) = (work, self.params.shared) {
            // The others can use it, even if this connection cannot.
            self.give_back(buffer);
        }
        match &self.state {
            // A connection that does not come about flushes its receives; the connection manager's event says why.
            State::Connecting(..) | State::Accepting { .. } if status == WcStatus::WR_FLUSH_ERR => {
            }
            // There is no queue pair, or nobody cares any more.
            State::Waiting(_)
            | State::ResolvingAddr(_)
            | State::ResolvingRoute(_)
            | State::Backoff { .. }
            | State::Requested { .. }
            | State::Accepted { .. }
            | State::Closed => {}
            // The queue pair has failed, and ESTABLISHED would not mend it.
            State::Connecting(..) | State::Accepting { .. } => {
                self.fail(CloseReason::WorkRequest { status, vendor_err }, now.now());
            }
            State::Established | State::Closing(_) | State::Draining(_) => {
                let reason = self
                    .forgery(work, status)
                    .unwrap_or(CloseReason::WorkRequest { status, vendor_err });
                self.fail(reason, now.now());
            }
        }
    }

    /// A marker came back: so has everything posted before it on that queue.
    pub(crate) fn handle_drained(&mut self, side: DrainSide) {
        if let State::Draining(draining) = &mut self.state {
            draining.marker(side);
        }
        self.end_if_drained();
    }

    /// A deadline may be past.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        if self.next_timeout().is_some_and(|at| at <= now) {
            match &self.state {
                State::Waiting(_) => self.on_attempt_timeout(Phase::Waiting, now),
                State::ResolvingAddr(_) => self.on_attempt_timeout(Phase::ResolvingAddr, now),
                State::ResolvingRoute(_) => self.on_attempt_timeout(Phase::ResolvingRoute, now),
                State::Connecting(..) => self.on_attempt_timeout(Phase::Connecting, now),
                State::Backoff { .. } => self.on_backoff_timeout(now),
                State::Requested { .. } => self.on_request_timeout(now),
                State::Accepted { .. } => self.on_turn_timeout(now),
                State::Accepting { .. } => self.fail(CloseReason::TimedOut(Phase::Connecting), now),
                State::Established => {
                    self.on_reading_timeout(now);
                    self.on_keepalive_timeout(now);
                }
                State::Closing(closing) if closing.deadline() <= now => self.drain(now),
                State::Closing(_) => self.on_reading_timeout(now),
                State::Draining(_) => self.end(),
                State::Closed => {}
            }
        }
    }

    /// The connection cannot go on.
    fn fail(&mut self, reason: CloseReason, now: Instant) {
        match &self.state {
            State::Waiting(_)
            | State::ResolvingAddr(_)
            | State::ResolvingRoute(_)
            | State::Connecting(..)
            | State::Backoff { .. }
            | State::Requested { .. }
            | State::Accepted { .. }
            | State::Accepting { .. } => {
                self.reason = Some(reason);
                self.end();
            }
            State::Established | State::Closing(_) => {
                let farewell = farewell_may_come(&reason);
                self.blame(reason);
                self.drain(now);
                if !farewell {
                    self.expect_no_farewell();
                }
            }
            State::Draining(_) => {
                let farewell = farewell_may_come(&reason);
                self.blame(reason);
                if !farewell {
                    self.expect_no_farewell();
                }
            }
            State::Closed => {}
        }
    }

    /// Keeps the first cause, unless that was a mere sign of what is the cause now.
    fn blame(&mut self, reason: CloseReason) {
        let weight = |reason: &CloseReason| match reason {
            CloseReason::WorkRequest {
                status: WcStatus::WR_FLUSH_ERR,
                ..
            } => 0,
            CloseReason::PeerDisconnected => 1,
            _ => 2,
        };
        if self
            .reason
            .as_ref()
            .is_none_or(|old| weight(old) < weight(&reason))
        {
            self.reason = Some(reason);
        }
    }

    /// The end, told once.
    fn end(&mut self) {
        let delivered = self.transfer.as_ref().is_some_and(Transfer::delivered);
        self.state = State::Closed;
        let missing = self.transfer.as_ref().map_or(0, Transfer::undelivered);
        let reason = match self.reason.take() {
            // Its close came behind everything that it sent, but what it sent was not all read.
            Some(CloseReason::PeerClosed) if missing > 0 => CloseReason::Truncated { missing },
            Some(reason) => reason,
            None => CloseReason::PeerDisconnected,
        };
        self.reason = Some(reason.clone());
        self.outputs
            .push(Output::Event(Event::Disconnected { reason, delivered }));
    }

    fn cm(&mut self, op: CmOp) {
        self.outputs.push(Output::Cm(op));
    }

    fn unexpected(&self, event: &str) {
        log::warn!("{event} in state {}: ignored", self.state.name());
    }

    /// Gives out a slot and a header for a message of `len` bytes, which go into the same frame. It is to be posted at once.
    pub(crate) fn send(&mut self, len: usize) -> Result<Transmit, SendRefused> {
        self.sending()?.send(len)
    }

    /// Gives out a slot and a header for the descriptor of a large message, which is to be posted at once. The memory that it names is
    /// the peer's to read until [`Event::Taken`].
    pub(crate) fn send_large(&mut self, descriptor: &Descriptor) -> Result<Transmit, SendRefused> {
        self.sending()?.send_large(descriptor.len)
    }

    /// Whether a message of `len` bytes goes into a frame of its own.
    pub(crate) fn is_eager(&self, len: usize) -> bool {
        self.transfer
            .as_ref()
            .is_some_and(|transfer| transfer.is_eager(len))
    }

    /// Whether a message of `len` bytes could be sent now. One that is refused as blocked is told when it may work.
    pub(crate) fn may_send(&mut self, len: usize) -> Result<(), SendRefused> {
        self.sending()?.may_send(len)
    }

    /// Gives out a slot for a one-sided operation, which is to be posted at once, and signalled. One that makes the peer's device take a
    /// receive takes a credit as well.
    pub(crate) fn operate(&mut self, takes_receive: bool) -> Result<u32, SendRefused> {
        self.sending()?.operate(takes_receive)
    }

    fn sending(&mut self) -> Result<&mut Transfer, SendRefused> {
        match (&self.state, self.transfer.as_mut()) {
            (State::Established, Some(transfer)) => Ok(transfer),
            (State::Closing(_) | State::Draining(_) | State::Closed, _) => Err(
                SendRefused::Closed(self.reason.clone().unwrap_or(CloseReason::LocallyClosed)),
            ),
            (_, _) => Err(SendRefused::Blocked),
        }
    }
}

/// The earlier of two deadlines that there may be.
fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

impl State {
    /// For the log.
    const fn name(&self) -> &'static str {
        match self {
            Self::Waiting(_) => "Waiting",
            Self::ResolvingAddr(_) => "ResolvingAddr",
            Self::ResolvingRoute(_) => "ResolvingRoute",
            Self::Connecting(..) => "Connecting",
            Self::Backoff { .. } => "Backoff",
            Self::Requested { .. } => "Requested",
            Self::Accepted { .. } => "Accepted",
            Self::Accepting { .. } => "Accepting",
            Self::Established => "Established",
            Self::Closing(_) => "Closing",
            Self::Draining(_) => "Draining",
            Self::Closed => "Closed",
        }
    }
}
