//! What both sides do from the first step to ESTABLISHED.

use std::{mem, time::Instant};

use super::{
    Connection, State,
    nudge::Nudge,
    receiving::Incoming,
    refusal::{compatible, unreadable},
    transfer::Transfer,
};
use crate::{
    CloseReason, CmOp, Event, Output, ReadDepth, TransportTraits,
    hello::{ATOMIC, BATCHES, Hello, STREAM, VERSION, WRITE_WITH_IMM},
    reason::Violation,
};

/// A frame that overtook the peer's hello, with its buffer.
pub(super) type Early = (u32, Result<Incoming, Violation>);

impl Connection {
    /// Takes the steps that cost the engine time, for which [`CmOp::AwaitTurn`] has asked. The turn
    /// lasts while [`has_turn`](Self::has_turn) says so.
    pub fn take_turn(&mut self, now: Instant) {
        if self.next_timeout().is_some_and(|at| at <= now) {
            return self.handle_timeout(now);
        }
        match self.take_state() {
            State::Waiting(attempts) => {
                self.state = State::ResolvingAddr(attempts);
                self.cm(CmOp::CreateId);
                self.cm(CmOp::ResolveAddr {
                    timeout: self.params.resolve_timeout,
                });
            }
            State::Accepted { deadline, data } => {
                self.state = State::Accepting { deadline, data };
                self.cm(CmOp::CreateTransport);
            }
            other => self.state = other,
        }
    }

    /// Takes what the transport is like that has been made.
    pub fn handle_transport(&mut self, traits: TransportTraits) {
        self.traits = Some(traits);
        if let State::Accepting { data, .. } = &mut self.state {
            let data = mem::take(data);
            let private_data = self.hello().emit(&data);
            self.cm(CmOp::Accept { private_data });
        }
    }

    /// Whether the connection is being established, which may cost the engine time at any moment.
    pub fn has_turn(&self) -> bool {
        match &self.state {
            State::ResolvingAddr(_)
            | State::ResolvingRoute(_)
            | State::Connecting(..)
            | State::Accepting { .. } => true,
            State::Waiting(_)
            | State::Backoff { .. }
            | State::Requested { .. }
            | State::Accepted { .. }
            | State::Established
            | State::Closing(_)
            | State::Draining(_)
            | State::Closed => false,
        }
    }

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
            (STREAM, self.params.stream),
            (ATOMIC, able.is_some_and(|able| able.atomic)),
            (WRITE_WITH_IMM, able.is_some_and(|able| able.write_with_imm)),
        ]
        .into_iter()
        .filter(|(_, has)| *has)
        .fold(0, |features, (feature, _)| features | feature)
    }

    /// Takes UNREACHABLE or CONNECT_ERROR. Both may come late, after ESTABLISHED, and mean nothing
    /// then.
    pub(super) fn on_connect_failure(&mut self, reason: CloseReason, event: &str, now: Instant) {
        match &self.state {
            State::ResolvingAddr(_)
            | State::ResolvingRoute(_)
            | State::Connecting(..)
            | State::Requested { .. }
            | State::Accepted { .. }
            | State::Accepting { .. } => self.fail(reason, now),
            State::Waiting(_)
            | State::Backoff { .. }
            | State::Established
            | State::Closing(_)
            | State::Draining(_)
            | State::Closed => {
                self.unexpected(event);
            }
        }
    }

    pub(super) fn on_established(&mut self, private_data: &[u8], reads: ReadDepth, now: Instant) {
        match self.take_state() {
            State::Connecting(attempts, early) => match Hello::parse(private_data) {
                Ok((hello, data)) => {
                    if let Err((_, mismatch)) = compatible(&self.params, &hello, reads) {
                        self.state = State::Connecting(attempts, early);
                        return self.fail(CloseReason::PeerIncompatible(mismatch), now);
                    }
                    self.peer_data = data.to_vec();
                    self.transfer = Some(Transfer::new(&self.params, &hello));
                    self.establish(now);
                    self.greet(now);
                    for (buffer, incoming) in early {
                        self.on_incoming(buffer, incoming, now);
                    }
                }
                Err(error) => {
                    self.state = State::Connecting(attempts, early);
                    self.fail(unreadable(error), now);
                }
            },
            // The peer's first frame establishes it.
            state @ State::Accepting { .. } if self.active_speaks_first() => self.state = state,
            State::Accepting { .. } => self.establish(now),
            // The first frame came before the event.
            state @ (State::Established | State::Closing(_) | State::Draining(_)) => {
                self.state = state
            }
            other => self.put_back(other, "ESTABLISHED"),
        }
    }

    /// Begins the exchange of messages.
    pub(super) fn establish(&mut self, now: Instant) {
        self.state = State::Established;
        self.cm(CmOp::SetMinRnrTimer);
        if let Some(transfer) = &mut self.transfer {
            transfer.start_keepalive(now);
        }
        self.outputs.push(Output::Event(Event::Established));
    }

    /// The active side speaks first where it has to, for the application may not.
    fn greet(&mut self, now: Instant) {
        if self.active_speaks_first()
            && let Some(transfer) = &mut self.transfer
        {
            transfer.probe.wanted();
            transfer.timers.nudge = Some(Nudge::new(now));
            self.send_control();
        }
    }

    /// Whether the side that connects has to speak before the other may.
    fn active_speaks_first(&self) -> bool {
        self.traits.is_some_and(|traits| traits.active_speaks_first)
    }

    /// Takes the state out, to move what it owns. The caller sets another one.
    pub(super) fn take_state(&mut self) -> State {
        mem::replace(&mut self.state, State::Closed)
    }

    /// Sets a state again in which an event makes no sense.
    pub(super) fn put_back(&mut self, state: State, event: &str) {
        self.state = state;
        self.unexpected(event);
    }
}
