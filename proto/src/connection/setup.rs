//! Establishes a connection, from the first step to the event ESTABLISHED.

use std::{collections::VecDeque, time::Instant};

use super::{
    accepting::Accepting, connecting::Connecting, greeting::Greeting, receiving::Incoming,
    side::Side,
};
use crate::{
    CloseReason, CmInput,
    hello::{Hello, PrivateBytes},
    reason::Violation,
    reject::Reject,
};

/// A connection that is being established.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
pub(super) enum Setup {
    /// This side connects.
    Connecting(Connecting),
    /// This side accepts.
    Accepting(Accepting),
}

/// The result of a successful setup.
#[derive(Debug)]
pub(super) struct Agreed {
    /// The peer's hello, which this side has accepted.
    pub(super) hello: Hello,
    /// The frames that arrived before the event ESTABLISHED, oldest first.
    pub(super) early: VecDeque<Early>,
    /// Whether this side must send the first frame.
    pub(super) speaks_first: bool,
    /// The exchange of private data in frames. `None` if there is no such exchange.
    pub(super) greeting: Option<Greeting>,
    /// This side's private data, if they must be sent in a frame.
    pub(super) request: Option<PrivateBytes>,
}

/// The receive buffer and the content of a frame that arrived before the event ESTABLISHED.
pub(super) type Early = (u32, Result<Incoming, Violation>);

/// The result of an input during the setup: `Some` if the setup is complete, and `None` if the
/// setup continues. An error ends the connection.
pub(super) type Progress = Result<Option<Agreed>, CloseReason>;

impl Setup {
    /// Returns the name of the current step, for log lines.
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::Connecting(connecting) => connecting.name(),
            Self::Accepting(accepting) => accepting.name(),
        }
    }

    pub(super) fn peer_hello(&self) -> Option<&Hello> {
        match self {
            Self::Connecting(_) => None,
            Self::Accepting(accepting) => Some(accepting.hello()),
        }
    }

    pub(super) fn deadline(&self) -> Instant {
        match self {
            Self::Connecting(connecting) => connecting.deadline(),
            Self::Accepting(accepting) => accepting.deadline(),
        }
    }

    /// Returns whether the setup counts against the limit on concurrent setups. A setup does not
    /// count while it waits for the application's decision, for its turn under the limit, or for
    /// the start of the next attempt.
    pub(super) fn counts_as_setup(&self) -> bool {
        match self {
            Self::Connecting(connecting) => connecting.counts_as_setup(),
            Self::Accepting(accepting) => accepting.has_queue_pair(),
        }
    }

    /// Returns whether the queue pair is in use: the active side has sent its request, or the
    /// passive side has begun to prepare its reply. The active side creates its queue pair earlier,
    /// but does not use the queue pair before it has sent its request.
    pub(super) fn has_queue_pair(&self) -> bool {
        match self {
            Self::Connecting(connecting) => connecting.has_queue_pair(),
            Self::Accepting(accepting) => accepting.has_queue_pair(),
        }
    }

    pub(super) fn begin_setup(&mut self, side: &mut Side, now: Instant) {
        match self {
            Self::Connecting(connecting) => connecting.begin_setup(side, now),
            Self::Accepting(accepting) => accepting.begin_setup(side),
        }
    }

    /// Handles a connection manager event during the setup.
    pub(super) fn on_cm_event(
        &mut self,
        side: &mut Side,
        event: CmInput<'_>,
        now: Instant,
    ) -> Progress {
        match (self, event) {
            (Self::Connecting(connecting), event) => connecting.on_cm_event(side, event, now),
            (Self::Accepting(accepting), event) => accepting.on_cm_event(side, event),
        }
    }

    pub(super) fn on_frame(
        &mut self,
        side: &mut Side,
        buffer: u32,
        incoming: Result<Incoming, Violation>,
    ) -> Progress {
        match self {
            Self::Connecting(connecting) => connecting.on_frame(side, buffer, incoming),
            Self::Accepting(accepting) => accepting.on_frame(side, buffer, incoming),
        }
    }

    pub(super) fn on_timeout(&mut self, side: &mut Side, now: Instant) -> Progress {
        match self {
            Self::Connecting(connecting) => connecting.on_timeout(side, now),
            Self::Accepting(accepting) => accepting.on_timeout(side),
        }
    }

    /// Rejects a request that has not been answered. Returns whether there was such a request.
    pub(super) fn reject(&mut self, side: &mut Side, reject: &Reject, data: &[u8]) -> bool {
        match self {
            Self::Connecting(_) => false,
            Self::Accepting(accepting) => accepting.reject(side, reject, data),
        }
    }
}
