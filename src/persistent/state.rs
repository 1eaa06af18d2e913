use std::{
    mem,
    thread::ThreadId,
    time::{Duration, Instant},
};

use super::{Redial, redial::Dials};
use crate::{
    connector::Connecting,
    endpoint::Endpoint,
    error::Error,
    proto::{CloseReason, Statistics},
};

/// The state of a client, protected by a lock.
#[derive(Debug)]
pub(super) struct State {
    pub(super) phase: Phase,
    pub(super) dials: Dials,
    /// Whether a thread has the turn: it is polling the connection or the dial, without holding the
    /// lock.
    pub(super) has_turn: bool,
    /// Whether the dial must be polled, because it may have a result.
    pub(super) is_woken: bool,
    /// The number of threads that wait for a change.
    pub(super) waiting: usize,
    /// The thread that last requested an event.
    pub(super) taker: Option<ThreadId>,
    /// The sum of the counters of ended connections.
    pub(super) past: Statistics,
}

#[derive(Debug)]
pub(super) enum Phase {
    /// The client pauses until the next dial, which starts at this time.
    Pausing(Instant),
    /// A connection is being established. `None` before a thread has created the `Connecting`, and
    /// while a thread polls it.
    Dialing(Option<Box<Connecting>>),
    Connected(Connection),
    /// The client has ended; each call returns this error.
    Ended(Error),
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) endpoint: Endpoint,
    since: Instant,
    /// Whether the program has received the event `Connected`.
    pub(super) is_reported: bool,
    /// Whether the program has closed the client.
    pub(super) is_closing: bool,
    /// The ids of messages that failed, in the order of sending.
    pub(super) unacknowledged: Vec<u64>,
}

impl State {
    pub(super) fn new(phase: Phase) -> Self {
        Self {
            phase,
            dials: Dials::default(),
            has_turn: false,
            is_woken: false,
            waiting: 0,
            taker: None,
            past: Statistics::default(),
        }
    }

    /// Starts a dial. The thread with the turn creates the `Connecting`.
    pub(super) fn dial(&mut self, now: Instant) {
        self.dials.begin(now);
        self.is_woken = true;
        self.phase = Phase::Dialing(None);
    }

    pub(super) fn connect(&mut self, endpoint: Endpoint, now: Instant) {
        self.phase = Phase::Connected(Connection {
            endpoint,
            since: now,
            is_reported: false,
            is_closing: false,
            unacknowledged: Vec::new(),
        });
    }

    /// Handles the end of the connection. Returns the ids of the messages whose delivery is
    /// unknown, and the endpoint of the connection; `None` if there is no connection. The caller
    /// must release the lock before it drops the endpoint.
    pub(super) fn lose(
        &mut self,
        reason: &CloseReason,
        redial: &Redial,
        now: Instant,
    ) -> Option<(Vec<u64>, Endpoint)> {
        let Phase::Connected(connection) = &self.phase else {
            return None;
        };
        self.past += connection.endpoint.statistics().counters();
        let next = if connection.is_closing {
            Phase::Ended(Error::Disconnected(reason.clone()))
        } else {
            if now.saturating_duration_since(connection.since) >= redial.longest_pause {
                self.dials = Dials::default();
            }
            Phase::Pausing(now + self.dials.pause(redial))
        };
        match mem::replace(&mut self.phase, next) {
            Phase::Connected(connection) => Some((connection.unacknowledged, connection.endpoint)),
            Phase::Pausing(_) | Phase::Dialing(_) | Phase::Ended(_) => None,
        }
    }

    /// Handles a failed dial. Returns the pause before the next dial, or `None` if the client has
    /// ended.
    pub(super) fn fail(
        &mut self,
        error: &Error,
        redial: &Redial,
        now: Instant,
    ) -> Option<Duration> {
        let pause = self.dials.pause(redial);
        let is_final = match error {
            Error::EngineShutDown | Error::Forked | Error::InvalidConfig { .. } => true,
            _ => self.dials.exceed(redial.limit, now + pause),
        };
        if is_final {
            self.phase = Phase::Ended(error.clone());
            return None;
        }
        self.phase = Phase::Pausing(now + pause);
        Some(pause)
    }

    /// Ends the client. The caller must release the lock before it drops the returned phase.
    pub(super) fn end(&mut self, error: Error) -> Phase {
        mem::replace(&mut self.phase, Phase::Ended(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::Phase as Step;

    fn pause(state: &State, now: Instant) -> Duration {
        match &state.phase {
            Phase::Pausing(at) => at.saturating_duration_since(now),
            other => panic!("{other:?}"),
        }
    }

    /// Connects, and loses the connection after `lasted`. Returns the pause before the next dial.
    fn lose_after(state: &mut State, lasted: Duration, redial: &Redial) -> Duration {
        let (before, now) = (Instant::now(), Instant::now() + lasted);
        state.dial(before);
        state.connect(Endpoint::forked(), before);
        let lost = state.lose(&CloseReason::PeerDisconnected, redial, now);
        assert!(lost.is_some_and(|(unacknowledged, _)| unacknowledged.is_empty()));
        pause(state, now)
    }

    /// Returns the longest of 200 random pauses. Before each of these pauses, `number + 1`
    /// connections have been lost, each after the time `lasted`.
    fn longest(number: usize, lasted: Duration) -> Duration {
        let pauses = (0..200).map(|_| {
            let mut state = State::new(Phase::Pausing(Instant::now()));
            let mut last = Duration::ZERO;
            for _ in 0..=number {
                last = lose_after(&mut state, lasted, &Redial::default());
            }
            last
        });
        pauses.max().unwrap_or_default()
    }

    #[test]
    fn pauses_grow_while_connections_do_not_last() {
        let millis = Duration::from_millis;
        assert!((millis(50)..=millis(100)).contains(&longest(0, Duration::ZERO)));
        assert!((millis(400)..=millis(800)).contains(&longest(3, Duration::ZERO)));
        assert!((millis(5000)..=millis(10_000)).contains(&longest(20, millis(9000))));
        assert!((millis(50)..=millis(100)).contains(&longest(3, millis(10_000))));
    }

    #[test]
    fn dials_end_at_the_limit() {
        let redial = Redial {
            limit: Some(Duration::from_secs(60)),
            ..Redial::default()
        };
        let silent = Error::Connect {
            peer: ([10, 8, 0, 1], 7471).into(),
            reason: CloseReason::TimedOut(Step::Connecting),
        };
        let mut state = State::new(Phase::Pausing(Instant::now()));
        let start = Instant::now();
        let mut now = start;
        loop {
            state.dial(now);
            now += Duration::from_secs(5);
            match state.fail(&silent, &redial, now) {
                Some(pause) => now += pause,
                None => break,
            }
        }
        let time = now - start;
        assert!((45..=65).contains(&time.as_secs()), "{time:?}");
        assert!(matches!(
            state.phase,
            Phase::Ended(Error::Connect {
                reason: CloseReason::TimedOut(_),
                ..
            })
        ));
    }

    #[test]
    fn dials_end_with_their_engine() {
        let mut state = State::new(Phase::Pausing(Instant::now()));
        let now = Instant::now();
        state.dial(now);
        let pause = state.fail(&Error::EngineShutDown, &Redial::default(), now);
        assert_eq!(pause, None);
        assert!(matches!(state.phase, Phase::Ended(Error::EngineShutDown)));
    }
}
