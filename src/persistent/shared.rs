use std::{
    fmt,
    future::Future,
    mem,
    pin::Pin,
    sync::{Arc, Condvar, Mutex},
    task::{Context, Poll, Wake, Waker},
    thread,
    time::{Duration, Instant},
};

use super::{
    PersistentEvent,
    state::{Phase, State},
    target::Target,
};
use crate::{
    connector::{Connecting, Connector},
    endpoint::{Endpoint, Info},
    engine::Engine,
    error::{Error, TrySendError},
    link::{Completion, Deadline},
    os::lock,
    outgoing::Outgoing,
    proto::{CloseReason, Statistics},
};

/// The state of a client, shared by its handles and the thread of `events`.
///
/// No thread holds the lock while it polls or drops a connection or a dial, or while it writes log
/// lines. Only the thread that has the [`Turn`] polls. The polling thread applies the result under
/// the lock, before the next thread can begin to poll. So when a thread detects the loss of the
/// connection, the list of failed messages is complete.
pub(super) struct Shared {
    connector: Connector,
    /// Keeps the engine alive between two connections.
    _engine: Engine,
    target: Target,
    state: Mutex<State>,
    /// Notified after each change that a thread may be waiting for.
    changed: Condvar,
}

/// The exclusive right of a thread to poll. Dropping this value passes the right to the next
/// thread, even after a panic.
struct Turn<'a> {
    shared: &'a Shared,
    is_over: bool,
}

type Guard<'a> = crate::os::Guard<'a, State>;

impl Shared {
    pub(super) fn new(connector: Connector, engine: Engine, target: Target) -> Arc<Self> {
        let first = Phase::Pausing(Instant::now());
        Arc::new(Self::with(connector, engine, target, first))
    }

    /// Returns the state of an ended client. This client replaces inherited clients in a forked
    /// child.
    pub(super) fn forked() -> Arc<Self> {
        let target = Target::Name(String::new());
        let ended = Phase::Ended(Error::Forked);
        Arc::new(Self::with(
            Connector::new(),
            Engine::forked(),
            target,
            ended,
        ))
    }

    fn with(connector: Connector, engine: Engine, target: Target, phase: Phase) -> Self {
        Self {
            connector,
            _engine: engine,
            target,
            state: Mutex::new(State::new(phase)),
            changed: Condvar::new(),
        }
    }

    pub(super) fn next_until(
        self: &Arc<Self>,
        deadline: &Deadline,
    ) -> Result<PersistentEvent, Error> {
        let mut state = lock(&self.state);
        state.taker = Some(thread::current().id());
        loop {
            if state.has_turn {
                state = self.wait(state, deadline)?;
                continue;
            }
            match &mut state.phase {
                Phase::Ended(error) => return Err(error.clone()),
                Phase::Pausing(_) | Phase::Dialing(_) => state = self.dial(state, deadline)?,
                Phase::Connected(connection) if !connection.is_reported => {
                    connection.is_reported = true;
                    return Ok(PersistentEvent::Connected {
                        peer: connection.endpoint.peer_addr(),
                        transport: connection.endpoint.transport(),
                    });
                }
                Phase::Connected(connection) => {
                    let endpoint = connection.endpoint.clone();
                    let turn = self.take_turn(state);
                    let next = endpoint.next_until(deadline);
                    state = turn.end();
                    let reason = match next {
                        Ok(Completion::Failed { id, .. }) => {
                            if let Phase::Connected(connection) = &mut state.phase {
                                connection.unacknowledged.push(id);
                            }
                            continue;
                        }
                        Ok(Completion::Disconnected(reason)) | Err(Error::Disconnected(reason)) => {
                            reason
                        }
                        Ok(completion) => return Ok(PersistentEvent::Completion(completion)),
                        Err(error) => return Err(error),
                    };
                    let now = Instant::now();
                    let lost = state.lose(&reason, &self.connector.redial, now);
                    if let Some((unacknowledged, ended)) = lost {
                        self.notify(&state);
                        drop(state);
                        drop(ended);
                        return Ok(PersistentEvent::Lost {
                            reason,
                            unacknowledged,
                        });
                    }
                }
            }
        }
    }

    pub(super) fn send_until(
        self: &Arc<Self>,
        mut message: Outgoing<'_>,
        deadline: &Deadline,
    ) -> Result<(), Error> {
        let mut ended = None;
        loop {
            let endpoint = self.connection_until(ended.as_ref(), deadline)?;
            let sent = match deadline.left() {
                None => endpoint.send(&mut message),
                Some(left) => endpoint.send_timeout(&mut message, left),
            };
            match sent {
                Err(Error::Disconnected(_)) => ended = Some(endpoint),
                sent => return sent,
            }
        }
    }

    pub(super) fn try_send(&self, message: Outgoing<'_>) -> Result<(), TrySendError> {
        match self.connection()?.try_send(message) {
            Err(TrySendError::Failed(Error::Disconnected(_))) => Err(self.ended().into()),
            sent => sent,
        }
    }

    pub(super) fn send_control(&self, message: &[u8]) -> Result<(), Error> {
        match self.connection()?.send_control(message) {
            Err(Error::Disconnected(_)) => Err(self.ended()),
            sent => sent,
        }
    }

    pub(super) fn info(&self) -> Option<Info> {
        let connection = self.connection().ok()?;
        Some(connection.info())
    }

    /// Returns the sum of the statistics of all connections so far.
    pub(super) fn statistics(&self) -> Statistics {
        let state = lock(&self.state);
        let mut all = state.past;
        if let Phase::Connected(connection) = &state.phase {
            all += connection.endpoint.statistics();
        }
        all
    }

    /// Starts to close the connection. After the close, each thread that calls the client dials
    /// again. Does nothing if there is no connection.
    pub(super) fn redial(&self) -> Result<(), Error> {
        let state = lock(&self.state);
        let endpoint = match &state.phase {
            Phase::Connected(connection) if connection.is_closing => {
                return Err(Error::Disconnected(CloseReason::LocallyClosed));
            }
            Phase::Connected(connection) => connection.endpoint.clone(),
            Phase::Pausing(_) | Phase::Dialing(_) => return Ok(()),
            Phase::Ended(error) => return Err(error.clone()),
        };
        drop(state);
        endpoint.start_close();
        Ok(())
    }

    /// Returns the current connection. Fails if there is none.
    fn connection(&self) -> Result<Endpoint, Error> {
        match &lock(&self.state).phase {
            Phase::Connected(connection) => Ok(connection.endpoint.clone()),
            Phase::Pausing(_) | Phase::Dialing(_) => Err(Error::NotConnected),
            Phase::Ended(error) => Err(error.clone()),
        }
    }

    /// Returns the error of a call whose connection has ended. If the program has closed the
    /// client, or the client has ended, the error names the reason. In all other cases the error is
    /// [`Error::NotConnected`].
    fn ended(&self) -> Error {
        match &lock(&self.state).phase {
            Phase::Connected(connection) if connection.is_closing => {
                Error::Disconnected(CloseReason::LocallyClosed)
            }
            Phase::Connected(_) | Phase::Pausing(_) | Phase::Dialing(_) => Error::NotConnected,
            Phase::Ended(error) => error.clone(),
        }
    }

    pub(super) fn close(&self) -> Result<(), Error> {
        let mut state = lock(&self.state);
        match &mut state.phase {
            Phase::Connected(connection) => {
                connection.is_closing = true;
                let endpoint = connection.endpoint.clone();
                drop(state);
                endpoint.close()
            }
            Phase::Ended(Error::Forked) => Err(Error::Forked),
            Phase::Ended(_) => Ok(()),
            Phase::Pausing(_) | Phase::Dialing(_) => {
                self.end_phase(state);
                Ok(())
            }
        }
    }

    /// Ends the client when its last handle is dropped.
    pub(super) fn end(&self) {
        let state = lock(&self.state);
        if let Phase::Connected(connection) = self.end_phase(state) {
            // Dropping `connection` alone might not close the endpoint, because the thread of
            // `events` owns another handle to the endpoint while it polls.
            connection.endpoint.start_close();
        }
    }

    fn end_phase(&self, mut state: Guard<'_>) -> Phase {
        let ended = state.end(Error::Disconnected(CloseReason::LocallyClosed));
        self.notify(&state);
        ended
    }

    /// Returns the current connection, or dials if there is none. `ended` is a connection whose end
    /// the caller has noticed. While `ended` is still the current connection, waits until another
    /// thread has taken its remaining events. Fails with [`Error::NotConnected`] if no other thread
    /// takes events.
    fn connection_until(
        self: &Arc<Self>,
        ended: Option<&Endpoint>,
        deadline: &Deadline,
    ) -> Result<Endpoint, Error> {
        let mut state = lock(&self.state);
        loop {
            match &state.phase {
                Phase::Ended(error) => return Err(error.clone()),
                Phase::Pausing(_) | Phase::Dialing(_) => state = self.dial(state, deadline)?,
                Phase::Connected(connection) if ended != Some(&connection.endpoint) => {
                    return Ok(connection.endpoint.clone());
                }
                Phase::Connected(connection) if connection.is_closing => {
                    return Err(Error::Disconnected(CloseReason::LocallyClosed));
                }
                Phase::Connected(_) => {
                    let this = thread::current().id();
                    if state.taker.is_none_or(|taker| taker == this) {
                        return Err(Error::NotConnected);
                    }
                    state = self.wait(state, deadline)?;
                }
            }
        }
    }

    /// Performs one step of a dial: waits for the end of the pause, starts the dial, waits for its
    /// result, or handles the result.
    fn dial<'a>(
        self: &'a Arc<Self>,
        mut state: Guard<'a>,
        deadline: &Deadline,
    ) -> Result<Guard<'a>, Error> {
        if let Phase::Pausing(at) = state.phase {
            let now = Instant::now();
            let left = at.saturating_duration_since(now);
            if !left.is_zero() {
                return self.wait_at_most(state, deadline, left);
            }
            state.dial(now);
        }
        if state.has_turn || !mem::take(&mut state.is_woken) {
            return self.wait(state, deadline);
        }
        let connecting = match &mut state.phase {
            Phase::Dialing(connecting) => connecting.take(),
            Phase::Pausing(_) | Phase::Connected(_) | Phase::Ended(_) => return Ok(state),
        };
        let turn = self.take_turn(state);
        let (connecting, polled) = self.poll_dial(connecting);
        let mut state = turn.end();
        let Phase::Dialing(place) = &mut state.phase else {
            // Another thread has closed the client. The dial is dropped after the lock is released.
            drop(state);
            drop((connecting, polled));
            return Ok(lock(&self.state));
        };
        let now = Instant::now();
        match polled {
            Poll::Pending => *place = connecting,
            Poll::Ready(Ok(endpoint)) => {
                state.connect(endpoint, now);
                self.notify(&state);
            }
            Poll::Ready(Err(error)) => {
                let pause = state.fail(&error, &self.connector.redial, now);
                self.notify(&state);
                drop(state);
                let (target, label) = (&self.target, &self.connector.config.label);
                match pause {
                    Some(pause) => {
                        warn_sparsely!(
                            Connect,
                            "{target}{label}: {error}; the client dials again in {pause:.1?}"
                        );
                    }
                    None => warn_sparsely!(Connect, "{target}{label}: {error}; the client ends"),
                }
                state = lock(&self.state);
            }
        }
        Ok(state)
    }

    /// Polls the current dial, or starts one. The engine's thread or a lookup thread wakes this
    /// client when the dial may have a result.
    fn poll_dial(
        self: &Arc<Self>,
        connecting: Option<Box<Connecting>>,
    ) -> (Option<Box<Connecting>>, Poll<Result<Endpoint, Error>>) {
        let begin = || Connecting::new(self.connector.clone(), &self.target).map(Box::new);
        let mut connecting = match connecting.map_or_else(begin, Ok) {
            Ok(connecting) => connecting,
            Err(error) => return (None, Poll::Ready(Err(error))),
        };
        let waker = Waker::from(Arc::clone(self));
        let polled = Pin::new(&mut connecting).poll(&mut Context::from_waker(&waker));
        match polled {
            Poll::Pending => (Some(connecting), polled),
            Poll::Ready(_) => (None, polled),
        }
    }

    fn take_turn<'a>(&'a self, mut state: Guard<'a>) -> Turn<'a> {
        state.has_turn = true;
        Turn {
            shared: self,
            is_over: false,
        }
    }

    fn wait<'a>(&'a self, state: Guard<'a>, deadline: &Deadline) -> Result<Guard<'a>, Error> {
        self.wait_at_most(state, deadline, Duration::MAX)
    }

    /// Waits for a change until the deadline, but no longer than `most`. Fails if the deadline has
    /// already passed.
    fn wait_at_most<'a>(
        &'a self,
        mut state: Guard<'a>,
        deadline: &Deadline,
        most: Duration,
    ) -> Result<Guard<'a>, Error> {
        let left = deadline.left();
        if left.is_some_and(|left| left.is_zero()) {
            return Err(Error::TimedOut);
        }
        state.waiting += 1;
        let left = left.map_or(most, |left| left.min(most));
        let limit = (left < Duration::MAX).then_some(left);
        let mut state = state.wait(&self.state, &self.changed, limit);
        state.waiting -= 1;
        Ok(state)
    }

    fn notify(&self, state: &State) {
        if state.waiting > 0 {
            self.changed.notify_all();
        }
    }
}

impl<'a> Turn<'a> {
    /// Passes the turn to the next thread. Returns the locked state, so that the caller can apply
    /// the result of its poll before the next thread polls.
    fn end(mut self) -> Guard<'a> {
        self.is_over = true;
        self.shared.pass_turn()
    }
}

impl Shared {
    fn pass_turn(&self) -> Guard<'_> {
        let mut state = lock(&self.state);
        state.has_turn = false;
        self.notify(&state);
        state
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            drop(self.shared.pass_turn());
        }
    }
}

/// Wakes the client. The engine's thread or a lookup thread calls this without holding a lock.
impl Wake for Shared {
    fn wake(self: Arc<Self>) {
        let mut state = lock(&self.state);
        state.is_woken = true;
        self.notify(&state);
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The fields behind the lock are omitted, because in a forked child the lock may never be
        // released.
        f.debug_struct("Persistent")
            .field("target", &self.target)
            .finish_non_exhaustive()
    }
}
