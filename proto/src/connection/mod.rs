mod accepting;
mod closing;
mod connecting;
mod control;
mod establish;
mod keepalive;
mod nudge;
mod reading;
mod receiving;
mod refusal;
mod sending;
mod streaming;
mod timers;
mod transfer;

pub use self::{
    keepalive::{Activity, MovedBytes},
    sending::{Flush, Proof},
};

#[cfg(test)]
mod tests;

use std::{collections::VecDeque, sync::Arc, time::Instant};

use log::Level;
use rdma_status::{OsError, WcStatus};

use self::{
    closing::{Closing, Draining, disconnected_may_come, is_notice, is_symptom},
    connecting::Attempts,
    establish::Early,
    timers::earlier,
    transfer::Transfer,
};
use super::{
    Account, Capabilities, Clock, CloseReason, CmCall, CmInput, CmOp, DrainSide, Event, Negotiated,
    Output, Params, Phase, Statistics, Topic, TransportTraits, Work, credit::CONTROL_RECEIVES,
    output::Outputs,
};

/// The state machine of one connection, from the first step of establishing it to its end.
///
/// It does no I/O and reads no clock. Its driver
///
/// 1. makes one with [`connect`](Self::connect) or, for a CONNECT_REQUEST, with
///    [`requested`](Self::requested);
/// 2. feeds it commands ([`accept`](Self::accept), [`send`](Self::send),
///    [`release`](Self::release), [`close`](Self::close) …), connection manager events,
///    completions, and [`handle_timeout`](Self::handle_timeout) when
///    [`next_timeout`](Self::next_timeout) has passed;
/// 3. after each of these calls [`poll_output`](Self::poll_output) until it returns `None`, and
///    carries the outputs out in that order before anything else. A frame that `send` returns is
///    posted before the outputs.
///
/// Completions of one queue are fed in the order in which they come. Completions and connection
/// manager events may overtake each other. Completions that are already there are fed before
/// `handle_timeout`, which judges the peer by them. Every input is allowed in every state; one that
/// makes no sense there changes nothing, and a note for the log reports it.
///
/// The last output is [`Event::Disconnected`]; it comes exactly once. It reports the first cause of
/// the end, except that a mere symptom (flushed work requests, a DISCONNECTED without a close)
/// gives way to the cause itself when that is found in the completion queue while draining, and a
/// close of this side gives way to the peer's Abort or Failure unless the peer has confirmed it.
#[derive(Debug)]
pub struct Connection {
    params: Params,
    state: State,
    outputs: Outputs,
    /// The cause of the end, once the connection is ending.
    reason: Option<CloseReason>,
    /// What the transport is like, once there is one.
    traits: Option<TransportTraits>,
    /// The application's bytes of the peer's hello.
    peer_data: Vec<u8>,
    /// What exists from the peer's hello on.
    transfer: Option<Transfer>,
    /// The account of receives that are shared with other connections, while this connection has a
    /// share of it.
    account: Option<Arc<Account>>,
    /// Whether this side ever exposed memory that the peer may write: immediates come with writes.
    exposed_writable: bool,
    /// The deadline that the driver knows of.
    reported_timeout: Option<Instant>,
}

/// The state of a connection, with what exists in this state only.
#[derive(Debug)]
enum State {
    /// Active: the next attempt waits until the engine has time for it.
    Waiting(Attempts),
    /// Active: the address is being resolved.
    ResolvingAddr(Attempts),
    /// Active: the route is being resolved.
    ResolvingRoute(Attempts),
    /// Active: the request has been sent. Frames that overtake ESTABLISHED wait here for the peer's
    /// hello.
    Connecting(Attempts, VecDeque<Early>),
    /// Active: an attempt failed; the next one starts later.
    Backoff { attempts: Attempts, until: Instant },
    /// Passive: the application has not answered yet.
    Requested { deadline: Instant },
    /// Passive: the application has accepted, with these bytes. The reply waits until the engine
    /// has time for it.
    Accepted { deadline: Instant, data: Vec<u8> },
    /// Passive: accepted, with these bytes until the reply is made; but neither ESTABLISHED nor a
    /// frame has come.
    Accepting { deadline: Instant, data: Vec<u8> },
    /// Messages flow.
    Established,
    /// The application may send no more; the close handshake is under way.
    Closing(Closing),
    /// The queue pair is in its error state, and its work requests are being flushed.
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
            traits: None,
            peer_data: Vec::new(),
            transfer: None,
            account: None,
            exposed_writable: false,
            reported_timeout: None,
        }
    }

    /// Has receives promised from this account, where [`Account::open`] has reserved the minimum.
    pub fn use_account(&mut self, account: Arc<Account>) {
        self.account = Some(account);
    }

    /// Gives what was promised back to the account.
    ///
    /// The caller has destroyed the queue pair and posted all receives again that it had taken,
    /// except for `held` of them, which hold messages that the application has. It gives each of
    /// those back when it posts it.
    pub fn release_account(&mut self, held: u32) {
        if let Some(account) = self.account.take() {
            let promised = match &self.transfer {
                Some(transfer) => CONTROL_RECEIVES + transfer.recv_credit.promised(),
                None => Account::least(self.params.window),
            };
            account.close(self.params.window, promised - held);
        }
    }

    /// Allows immediates from now on: this side exposes memory that the peer may write.
    pub fn allow_immediates(&mut self) {
        self.exposed_writable = true;
    }

    /// Whether there is no output, as after most inputs while messages flow. `false` says nothing.
    pub fn is_settled(&self) -> bool {
        matches!(self.state, State::Established)
            && self.outputs.is_empty()
            && matches!(&self.transfer, Some(transfer) if !transfer.timers.is_touched())
    }

    /// Takes the next output. A changed deadline comes last, and is found by comparison: no input
    /// can forget to report it.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop().or_else(|| self.changed_timer())
    }

    /// Returns [`Output::Timer`] if the driver knows of another deadline than the present one.
    fn changed_timer(&mut self) -> Option<Output> {
        if let (State::Established, Some(transfer)) = (&self.state, &mut self.transfer)
            && !transfer.timers.take_touched()
        {
            return None;
        }
        let timeout = self.next_timeout();
        // Nothing comes after the end, with which the deadline is void.
        if timeout == self.reported_timeout || matches!(self.state, State::Closed) {
            return None;
        }
        self.reported_timeout = timeout;
        Some(Output::Timer)
    }

    /// Returns the time at which to call [`handle_timeout`](Self::handle_timeout). It changes with
    /// [`Output::Timer`] only.
    pub fn next_timeout(&self) -> Option<Instant> {
        match &self.state {
            State::Waiting(attempts)
            | State::ResolvingAddr(attempts)
            | State::ResolvingRoute(attempts)
            | State::Connecting(attempts, _) => Some(attempts.deadline),
            State::Backoff { attempts, until } => Some(attempts.deadline.min(*until)),
            State::Requested { deadline }
            | State::Accepted { deadline, .. }
            | State::Accepting { deadline, .. } => Some(*deadline),
            State::Established => self.transfer.as_ref()?.timers.deadline(),
            State::Closing(closing) => {
                let transfer = self.transfer.as_ref();
                let others = transfer.and_then(|transfer| transfer.timers.while_closing());
                earlier(Some(closing.deadline()), others)
            }
            State::Draining(draining) => Some(draining.deadline()),
            State::Closed => None,
        }
    }

    /// Returns the cause of the end, if the connection is ending or has ended. As long as there is
    /// only a symptom, that is what it mostly turns out to be.
    pub fn close_reason(&self) -> Option<&CloseReason> {
        if self.is_ending_for_a_cause_to_come() {
            return Some(&CloseReason::PeerDisconnected);
        }
        self.reason.as_ref()
    }

    /// Whether the connection ends, and an event is waited for that says why.
    pub fn is_ending_for_a_cause_to_come(&self) -> bool {
        let State::Draining(draining) = &self.state else {
            return false;
        };
        draining.is_suspecting() || self.reason.as_ref().is_some_and(is_symptom)
    }

    /// Returns the outcome of the two hellos; `None` before the peer's is known.
    pub fn negotiated(&self) -> Option<Negotiated> {
        self.transfer.as_ref().map(Transfer::negotiated)
    }

    /// Returns the bytes that the peer's application sent along with its hello.
    pub fn peer_data(&self) -> &[u8] {
        &self.peer_data
    }

    /// Returns the numbers of what passed; zeros before the connection is established.
    pub fn statistics(&self) -> Statistics {
        self.transfer
            .as_ref()
            .map(Transfer::statistics)
            .unwrap_or_default()
    }

    /// Whether a large message is in flight, in either direction.
    pub fn transfers_large(&self) -> bool {
        self.transfer
            .as_ref()
            .is_some_and(|transfer| !transfer.inbound.is_idle() || !transfer.outbound.is_empty())
    }

    /// Whether a receive buffer is to be posted again when it is free.
    pub fn accepts_receives(&self) -> bool {
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
    pub fn handle_cm_event(&mut self, event: CmInput<'_>, now: Instant) {
        match event {
            CmInput::AddrResolved => self.on_addr_resolved(),
            CmInput::RouteResolved => self.on_route_resolved(),
            CmInput::AddrError(status) => self.on_addr_error(status, now),
            CmInput::RouteError(status) => self.on_route_error(status, now),
            CmInput::Unreachable(status) => {
                self.on_connect_failure(CloseReason::Unreachable(status), "UNREACHABLE", now)
            }
            CmInput::ConnectError(status) => self.on_connect_error(status, now),
            CmInput::Failed(reason) => self.on_attempt_failure(reason.clone(), now),
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
            // It concerns a queue pair that is being destroyed.
            CmInput::TimewaitExit => {}
            // Only an id without a queue pair gets it, and ours have one.
            CmInput::ConnectResponse => self.unexpected("CONNECT_RESPONSE"),
            CmInput::Other(number) => self.outputs.warn(
                Topic::UnexpectedEvent,
                format_args!(
                    "connection manager event {number} in state {}: ignored",
                    self.state.name()
                ),
            ),
        }
    }

    /// Returns what the devices of both sides can do, once both are known.
    pub fn capabilities(&self) -> Option<Capabilities> {
        let here = self.traits?.capabilities;
        Some(here.and(self.transfer.as_ref()?.peer_capabilities))
    }

    /// Takes the failure of a connection manager call.
    pub fn handle_cm_failure(&mut self, call: CmCall, error: OsError, now: Instant) {
        match call {
            CmCall::ResolveAddr => self.on_resolve_addr_failure(error, now),
            CmCall::CreateTransport => self.on_create_transport_failure(error, now),
            CmCall::Connect => self.on_connect_call_failure(error, now),
            CmCall::CreateId | CmCall::ResolveRoute | CmCall::Accept => {
                self.fail(CloseReason::Os(error), now);
            }
            // Nothing is lost: the peer's deadline, the default RNR timer and the destruction of
            // the id do the same, later.
            CmCall::AwaitTurn | CmCall::Discard | CmCall::Reject | CmCall::SetMinRnrTimer => {
                self.outputs.note(Level::Debug, format_args!("{error}"));
            }
            CmCall::Disconnect => {
                self.outputs.note(Level::Debug, format_args!("{error}"));
                self.on_disconnect_failure();
            }
        }
    }

    /// Takes the failure to post a work request.
    pub fn handle_post_failure(&mut self, error: OsError, now: Instant) {
        self.fail(CloseReason::Os(error), now);
    }

    /// Takes a failed completion.
    pub fn handle_work_error(
        &mut self,
        work: Work,
        status: WcStatus,
        vendor_err: u32,
        now: impl Clock,
    ) {
        self.outputs
            .note(Level::Trace, format_args!("{work:?}: {status}"));
        if let (Work::Recv { buffer }, true) = (work, self.params.shared) {
            // Other connections can use it, even if this one cannot.
            self.repost(buffer);
        }
        match &self.state {
            // There is no queue pair, or the end has been reported.
            State::Waiting(_)
            | State::ResolvingAddr(_)
            | State::ResolvingRoute(_)
            | State::Backoff { .. }
            | State::Requested { .. }
            | State::Accepted { .. }
            | State::Closed => {}
            // The queue pair has failed, which ESTABLISHED would not change.
            State::Connecting(..) | State::Accepting { .. } => {
                self.fail(CloseReason::WorkRequest { status, vendor_err }, now.now());
            }
            State::Established | State::Closing(_) | State::Draining(_) => {
                let reason = self.failure_of(work, status, vendor_err);
                let of_the_key = matches!(reason, CloseReason::ProtocolViolation(_));
                match &self.state {
                    State::Established if of_the_key => self.suspect(reason, now.now()),
                    // It is known to be gone, and its memory went with it.
                    _ if of_the_key && self.reason == Some(CloseReason::PeerDisconnected) => {}
                    _ => self.fail(reason, now.now()),
                }
            }
        }
    }

    /// Takes the completion of a drain marker: everything posted before it on that queue is done.
    pub fn handle_drained(&mut self, side: DrainSide) {
        if let State::Draining(draining) = &mut self.state {
            draining.marker(side);
        }
        self.end_if_drained();
    }

    /// Acts on the deadlines that have passed.
    pub fn handle_timeout(&mut self, now: Instant) {
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
                    self.on_grant_timeout(now);
                    self.on_nudge_timeout(now);
                    self.on_reading_timeout(now);
                    self.on_keepalive_timeout(now);
                }
                State::Closing(closing) if closing.deadline() <= now => self.drain(now),
                State::Closing(_) => {
                    self.on_nudge_timeout(now);
                    self.on_reading_timeout(now);
                    self.on_keepalive_timeout(now);
                }
                State::Draining(draining) if draining.is_suspecting() => self.accuse(now),
                State::Draining(_) => self.end(),
                State::Closed => {}
            }
        }
    }

    /// Ends the connection for this cause.
    fn fail(&mut self, reason: CloseReason, now: Instant) {
        match &self.state {
            // The connection manager's event says why.
            State::Connecting(..) | State::Accepting { .. } if is_symptom(&reason) => {}
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
                let expected = disconnected_may_come(&reason);
                self.record_cause(reason);
                self.drain(now);
                if !expected {
                    self.expect_no_disconnected();
                }
            }
            State::Draining(_) => {
                let expected = disconnected_may_come(&reason);
                self.record_cause(reason);
                if !expected {
                    self.expect_no_disconnected();
                }
            }
            State::Closed => {}
        }
    }

    /// Records the cause of the end. The first one stays, unless it was a mere symptom, or a close
    /// of this side that the peer has not confirmed before it gave notice.
    fn record_cause(&mut self, reason: CloseReason) {
        let unconfirmed_close = matches!(self.reason, Some(CloseReason::LocallyClosed))
            && !self.transfer.as_ref().is_some_and(Transfer::delivered);
        let weight = |reason: &CloseReason| match reason {
            symptom if is_symptom(symptom) => 0,
            CloseReason::PeerDisconnected => 1,
            notice if unconfirmed_close && is_notice(notice) => 3,
            // The peer's program has processed nothing, which the caller has to know.
            CloseReason::PeerBusy => 3,
            _ => 2,
        };
        if self
            .reason
            .as_ref()
            .is_none_or(|old| weight(old) < weight(&reason))
        {
            if let Some(symptom) = &self.reason {
                self.outputs
                    .note(Level::Debug, format_args!("{symptom}: because {reason}"));
            }
            self.reason = Some(reason);
        }
    }

    /// Reports the end.
    fn end(&mut self) {
        let delivered = self.transfer.as_ref().is_some_and(Transfer::delivered);
        self.state = State::Closed;
        let missing = self
            .transfer
            .as_ref()
            .map_or(0, |transfer| transfer.inbound.undelivered());
        let reason = match self.reason.take() {
            // Its Close came behind everything that it sent, but not all of that was read.
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

    fn unexpected(&mut self, event: &str) {
        let state = self.state.name();
        self.outputs.warn(
            Topic::UnexpectedEvent,
            format_args!("{event} in state {state}: ignored"),
        );
    }
}

impl State {
    /// Returns the state's name for the log.
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
