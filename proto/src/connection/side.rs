//! The data that all states of a connection use.

use std::{sync::Arc, time::Instant};

use crate::{
    Account, CmOp, Output, Params, SessionOffer, SessionOver, Topic, TransportTraits,
    control_messages::ControlMessages,
    hello::{
        ATOMIC, BATCHES, CONTROL_MESSAGES, FRAGMENTS, Hello, LONG_REQUEST, PrivateBytes, RESUMES,
        SESSION, STREAM, VERSION, WRITE_WITH_IMM,
    },
    output::Outputs,
    reason::Violation,
};

/// The data that all states of a connection use.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
pub(super) struct Side {
    pub(super) params: Params,
    pub(super) outputs: Outputs,
    /// The properties of the transport. `None` until the driver has created the transport.
    pub(super) traits: Option<TransportTraits>,
    /// The private data received from the peer: the bytes after the peer's hello, followed by the
    /// payload of a Request or Answer frame.
    pub(super) peer_data: PrivateBytes,
    /// Whether the active side's private data, and the private data in the passive side's answer,
    /// are sent in separate frames.
    pub(super) has_long_request: bool,
    /// The message counts in the peer's rejection, if the peer has closed the session that this
    /// side attempts to resume.
    pub(super) over: Option<SessionOver>,
    /// The account of the shared receives. `None` if the connection does not share receives, or has
    /// already returned its receives to the account.
    pub(super) account: Option<Arc<Account>>,
    /// Whether this side has ever exposed memory that the peer may write. If so, the peer may send
    /// immediate data.
    pub(super) exposed_writable: bool,
    /// The deadline that was last reported to the driver.
    pub(super) reported_timeout: Option<Instant>,
    /// The control messages of both directions. Their numbering continues on the session's next
    /// connection.
    pub(super) control_messages: ControlMessages,
}

impl Side {
    pub(super) fn new(params: Params) -> Self {
        Self {
            params,
            outputs: Outputs::new(),
            traits: None,
            peer_data: PrivateBytes::new(),
            has_long_request: false,
            over: None,
            account: None,
            exposed_writable: false,
            reported_timeout: None,
            control_messages: ControlMessages::new(),
        }
    }

    /// Queues the output that asks the driver to make a connection manager call.
    pub(super) fn cm(&mut self, op: CmOp) {
        self.outputs.push(Output::Cm(op));
    }

    /// Returns this side's hello.
    pub(super) fn hello(&self) -> Hello {
        let keepalive_ms = self
            .params
            .keepalive_interval
            .map_or(0, |i| u32::try_from(i.as_millis()).unwrap_or(u32::MAX));
        Hello {
            version: VERSION,
            features: self.features(),
            window: self.params.window,
            credits: self.params.credits(),
            eager_size: self.params.eager_size,
            max_message: self.params.max_message,
            keepalive_ms,
            engine: self.params.engine,
        }
    }

    fn features(&self) -> u16 {
        let able = self.traits.map(|traits| traits.capabilities);
        [
            (BATCHES, true),
            (FRAGMENTS, true),
            (CONTROL_MESSAGES, self.params.takes_control_messages),
            (LONG_REQUEST, self.has_long_request),
            (STREAM, self.params.stream),
            (ATOMIC, able.is_some_and(|able| able.atomic)),
            (WRITE_WITH_IMM, able.is_some_and(|able| able.write_with_imm)),
            (SESSION, self.params.session != SessionOffer::None),
            (RESUMES, self.params.session == SessionOffer::Resume),
        ]
        .into_iter()
        .filter(|(_, has)| *has)
        .fold(0, |features, (feature, _)| features | feature)
    }

    /// Returns whether the transport requires the active side to send the first frame.
    pub(super) fn active_speaks_first(&self) -> bool {
        self.traits.is_some_and(|traits| traits.active_speaks_first)
    }

    /// Returns whether the event DISCONNECTED follows after this side has disconnected.
    pub(super) fn reports_own_disconnect(&self) -> bool {
        self.traits
            .is_none_or(|traits| traits.reports_own_disconnect)
    }

    /// Returns whether a send or a write completes only after the peer's device has received the
    /// data.
    #[inline]
    pub(super) fn acknowledges_sends(&self) -> bool {
        self.traits.is_none_or(|traits| traits.acknowledges_sends)
    }

    /// Logs an event that has no meaning in the current state.
    pub(super) fn unexpected(&mut self, event: &str, state: &str) {
        self.outputs.warn(
            Topic::UnexpectedEvent,
            format_args!("ignored an unexpected event in state {state}: {event}"),
        );
    }

    /// Logs a protocol violation by the peer.
    pub(super) fn note_violation(&mut self, violation: &Violation) {
        let text = format_args!("the peer violated the protocol: {violation}");
        self.outputs.warn(Topic::Violation, text);
    }
}
