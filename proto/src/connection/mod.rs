mod accepting;
mod closing;
mod commands;
mod connecting;
mod control;
mod greeting;
mod hello_checks;
mod inputs;
mod iwarp_nudge;
mod keepalive;
mod open;
mod reading;
mod receiving;
mod sending;
mod sessions;
mod setup;
mod side;
mod timers;
mod transfer;

pub use self::{
    commands::{Flush, Proof, Releasing},
    keepalive::{Activity, MovedBytes},
    sending::Stall,
    transfer::SendMethod,
};

#[cfg(test)]
mod tests;

use std::{mem, sync::Arc, time::Instant};

use self::{
    closing::is_symptom,
    open::Open,
    setup::{Agreed, Progress, Setup},
    side::Side,
};
use super::{
    Account, CONTROL_RECEIVES, Capabilities, CloseReason, Event, Negotiated, Output, Statistics,
    Transmit, hello::Hello,
};

/// The state machine of one connection, from the first step of establishing it to its end.
///
/// A `Connection` does no I/O and reads no clock. Its driver
///
/// 1. creates a `Connection` with [`connect`](Self::connect), or with
///    [`requested`](Self::requested) for a CONNECT_REQUEST event;
/// 2. passes inputs to the `Connection`: commands ([`accept`](Self::accept), [`send`](Self::send),
///    [`release`](Self::release), [`close`](Self::close) …), connection manager events,
///    completions, and [`handle_timeout`](Self::handle_timeout) when
///    [`next_timeout`](Self::next_timeout) has passed;
/// 3. after each input, calls [`poll_output`](Self::poll_output) until it returns `None`, and
///    performs the outputs in order before anything else. A frame that `send` returns must be
///    posted before the outputs.
///
/// The driver passes the completions of one queue in order. Completions and connection manager
/// events can overtake each other. The driver passes all available completions before it calls
/// `handle_timeout`, which uses them to judge whether the peer is alive. Every input is allowed in
/// every state. An input that has no meaning in the current state is ignored, except for a log
/// line.
///
/// The final output is [`Event::Disconnected`], which occurs exactly once. It reports the first
/// reason for the end, with three exceptions. A mere symptom (flushed work requests, a DISCONNECTED
/// without a close) is replaced by its cause, if the completion queue reveals the cause while
/// draining. If this side closed the connection and the peer then sends an Abort or a Failure, this
/// frame becomes the reason, unless the peer has already confirmed the close.
/// [`CloseReason::PeerBusy`] replaces every earlier reason, because it states that the peer's
/// program has processed no message.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
pub struct Connection {
    side: Side,
    state: State,
}

/// The state of a connection, with the data that exist only in this state.
///
/// If the setup fails, the connection ends immediately: this side has sent no frame that must
/// arrive, so the driver simply destroys the queue pair together with its work requests.
///
/// The enum's tag is a separate byte, so that one comparison tests the state.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
#[repr(u8)]
enum State {
    /// The connection is being established.
    Setup(Setup),
    /// The connection is established, closing or draining. The value is boxed, so that only
    /// a pointer is moved when the setup completes.
    Open(Box<Open>),
    /// The connection has ended, and has queued its final output.
    Closed(Ended),
}

/// A connection that has ended.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
struct Ended {
    reason: CloseReason,
    /// The state before the end, which is kept for its counters. `None` if the setup failed.
    open: Option<Box<Open>>,
}

impl Ended {
    /// Records that the application has released a large message of `len` bytes.
    fn release_large(&mut self, len: u64) {
        if let Some(open) = &mut self.open {
            open.transfer.inbound.release(len);
        }
    }
}

impl Connection {
    fn new(side: Side, setup: Setup) -> Self {
        Self {
            side,
            state: State::Setup(setup),
        }
    }

    /// Makes the connection use the shared receives of `account`. Before the call, the caller must
    /// reserve the connection's minimum number of receives with [`Account::open`].
    pub fn use_account(&mut self, account: Arc<Account>) {
        self.side.account = Some(account);
    }

    /// Gives the receives that are promised to the peer back to the account, except `held` of them.
    ///
    /// Before the call, the caller must destroy the queue pair and repost all its receives, except
    /// those of the messages that the application still holds. `held` is the number of these
    /// messages. When the application releases one of them, the caller must repost the message's
    /// receive and free the receive in the account.
    pub fn release_account(&mut self, held: u32) {
        if let Some(account) = self.side.account.take() {
            let window = self.side.params.window;
            let promised = match self.opened() {
                Some(open) => CONTROL_RECEIVES + open.transfer.recv_credit.promised(),
                None => Account::min_receives(window),
            };
            account.close(window, promised - held);
        }
    }

    /// Permits the peer to write with immediate data, because this side exposes memory that the
    /// peer may write.
    pub fn allow_immediates(&mut self) {
        self.side.exposed_writable = true;
    }

    /// Returns true if no output is pending. This is the usual case while messages are exchanged.
    /// If the result is false, an output may be pending.
    #[inline]
    pub fn is_settled(&self) -> bool {
        match &self.state {
            State::Open(open) => open.is_settled(&self.side),
            State::Setup(_) | State::Closed(_) => false,
        }
    }

    /// Removes and returns the next output. If the deadline has changed, [`Output::Timer`] follows
    /// the other outputs. Only this function detects such a change: it compares the deadline with
    /// the deadline that was last reported.
    #[inline]
    pub fn poll_output(&mut self) -> Option<Output> {
        self.side.outputs.pop().or_else(|| self.changed_timer())
    }

    /// Removes the next output if it is [`Output::Post`], and returns its frame. The driver can
    /// call this function after it has fetched an `Output::Post`, and post both frames with one
    /// call.
    pub fn poll_post(&mut self) -> Option<Transmit> {
        self.side.outputs.pop_post()
    }

    /// Returns [`Output::Timer`] if the current deadline differs from the deadline that was last
    /// reported to the driver.
    fn changed_timer(&mut self) -> Option<Output> {
        match &mut self.state {
            State::Open(open) if open.is_established() => {
                if !open.transfer.timers.take_changed() {
                    return None;
                }
            }
            State::Setup(_) | State::Open(_) => {}
            // A closed connection has no deadline.
            State::Closed(_) => return None,
        }
        let timeout = self.next_timeout();
        if timeout == self.side.reported_timeout {
            return None;
        }
        self.side.reported_timeout = timeout;
        Some(Output::Timer)
    }

    /// Returns the time at which the driver must call [`handle_timeout`](Self::handle_timeout), or
    /// `None` if the connection has no deadline. [`Output::Timer`] reports each change.
    pub fn next_timeout(&self) -> Option<Instant> {
        match &self.state {
            State::Setup(setup) => Some(setup.deadline()),
            State::Open(open) => open.deadline(),
            State::Closed(_) => None,
        }
    }

    /// Returns the reason for the end, if the connection is ending or has ended. While only a
    /// symptom is known, returns its most frequent cause.
    pub fn close_reason(&self) -> Option<&CloseReason> {
        match &self.state {
            State::Setup(_) => None,
            State::Open(open) => open.close_reason(),
            State::Closed(ended) => Some(&ended.reason),
        }
    }

    /// Returns whether the connection is ending or has ended.
    #[inline]
    pub fn is_ending(&self) -> bool {
        match &self.state {
            State::Setup(_) => false,
            State::Open(open) => open.is_ending(),
            State::Closed(_) => true,
        }
    }

    /// Returns true if the connection is ending, and an event that reveals the cause of the end is
    /// still expected.
    pub fn awaits_end_cause(&self) -> bool {
        matches!(&self.state, State::Open(open) if open.awaits_cause())
    }

    /// Returns whether a large message is in flight in either direction.
    pub fn transfers_large(&self) -> bool {
        self.opened().is_some_and(|open| {
            !open.transfer.inbound.is_idle() || !open.transfer.outbound.is_empty()
        })
    }

    /// Returns whether the driver must repost free receive buffers.
    #[inline]
    pub fn accepts_receives(&self) -> bool {
        match &self.state {
            State::Setup(setup) => setup.has_queue_pair(),
            State::Open(open) => open.is_connected(),
            State::Closed(_) => false,
        }
    }

    /// Returns whether the setup counts against the limit on concurrent setups. A setup does not
    /// count while it waits for the application's decision, for its turn under the limit, or for
    /// the start of the next attempt.
    pub fn counts_as_setup(&self) -> bool {
        matches!(&self.state, State::Setup(setup) if setup.counts_as_setup())
    }

    /// Returns the parameters that result from the hellos of both sides. Returns `None` before the
    /// peer's hello is known.
    pub fn negotiated(&self) -> Option<Negotiated> {
        let negotiated = |peer| Negotiated::new(&self.side.params, peer);
        self.peer_hello().map(negotiated)
    }

    /// Returns the private data from the peer's application.
    pub fn peer_data(&self) -> &[u8] {
        &self.side.peer_data
    }

    /// Returns the number that identifies the peer's engine, according to the peer's hello.
    pub fn peer_engine(&self) -> Option<u64> {
        self.peer_hello().map(|peer| peer.engine)
    }

    /// Returns the operations that the devices of both sides support. Returns `None` until both
    /// devices are known.
    pub fn capabilities(&self) -> Option<Capabilities> {
        let here = self.side.traits?.capabilities;
        Some(here.and(self.peer_hello()?.capabilities()))
    }

    fn peer_hello(&self) -> Option<&Hello> {
        match &self.state {
            State::Setup(setup) => setup.peer_hello(),
            State::Open(_) | State::Closed(_) => self.opened().map(|open| &open.transfer.hello),
        }
    }

    /// Returns the connection's counters. All counters are 0 before the connection is established.
    pub fn statistics(&self) -> Statistics {
        self.opened()
            .map(|open| open.transfer.statistics())
            .unwrap_or_default()
    }

    /// Returns counters that increase when the peer gives a sign of life on this connection.
    #[inline]
    pub fn peer_activity(&self) -> Activity {
        self.opened().map(Open::activity).unwrap_or_default()
    }

    /// Returns the connection if it was ever open, even after its end.
    #[inline]
    fn opened(&self) -> Option<&Open> {
        match &self.state {
            State::Setup(_) => None,
            State::Open(open) => Some(open),
            State::Closed(ended) => ended.open.as_deref(),
        }
    }

    /// Returns the open connection, together with the [`Side`] that its handlers use.
    #[inline]
    fn open(&mut self) -> Option<(&mut Open, &mut Side)> {
        match &mut self.state {
            State::Open(open) => Some((open, &mut self.side)),
            State::Setup(_) | State::Closed(_) => None,
        }
    }

    /// Continues the setup, establishes the connection or ends it, depending on `progress`.
    fn proceed(&mut self, progress: Progress, now: Instant) {
        match progress {
            Ok(None) => {}
            Ok(Some(agreed)) => self.establish(agreed, now),
            Err(reason) => self.fail(reason, now),
        }
    }

    /// Completes the setup. Then begins the exchange of private data if private data must be sent
    /// in frames, and otherwise the exchange of messages.
    fn establish(&mut self, agreed: Agreed, now: Instant) {
        let side = &mut self.side;
        let mut open = Box::new(Open::new(side, &agreed.hello, agreed.greeting, now));
        if let Some(data) = &agreed.request {
            open.send_request(side, data);
        }
        if agreed.speaks_first {
            open.send_first_frame(side, now);
        }
        if open.is_established() {
            open.establish(side);
        }
        for (buffer, incoming) in agreed.early {
            open.on_incoming(side, buffer, incoming, now);
        }
        self.state = State::Open(open);
    }

    /// Ends the connection with this reason.
    fn fail(&mut self, reason: CloseReason, now: Instant) {
        match &mut self.state {
            // A connection manager event will follow and report the cause of this symptom.
            State::Setup(setup) if setup.has_queue_pair() && is_symptom(&reason) => {}
            State::Setup(_) => self.end(reason, false),
            State::Open(open) => {
                open.fail(&mut self.side, reason, now);
                self.end_if_drained();
            }
            State::Closed(_) => {}
        }
    }

    /// Ends the connection if draining is complete. Must be called after each input that can
    /// complete draining.
    fn end_if_drained(&mut self) {
        if let State::Open(open) = &self.state
            && let Some(reason) = open.end()
        {
            let delivered = open.transfer.delivered();
            self.end(reason, delivered);
        }
    }

    /// Records the end of the connection, and reports it to the driver.
    fn end(&mut self, reason: CloseReason, delivered: bool) {
        let ended = Ended {
            reason: reason.clone(),
            open: None,
        };
        let before = mem::replace(&mut self.state, State::Closed(ended));
        if let (State::Open(open), State::Closed(ended)) = (before, &mut self.state) {
            ended.open = Some(open);
        }
        let event = Event::Disconnected { reason, delivered };
        self.side.outputs.push(Output::Event(event));
    }
}

impl State {
    /// Returns the name of this state, for log lines.
    const fn name(&self) -> &'static str {
        match self {
            Self::Setup(setup) => setup.name(),
            Self::Open(open) => open.name(),
            Self::Closed(_) => "Closed",
        }
    }
}
