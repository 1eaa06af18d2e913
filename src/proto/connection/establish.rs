//! From the first step to ESTABLISHED, on both sides.

use std::time::{Duration, Instant};

use super::{Connection, State, receiving::Incoming, transfer::Transfer};
use crate::{
    proto::{
        CloseReason, CmOp, Event, Mismatch, Output, Params, Phase, ReadDepth, Refusal,
        hello::{Hello, HelloError, VERSION, is_rsocket},
        reason::Violation,
        reject::{Reject, RejectCode},
    },
    status::{CmStatus, OsError, RejectReason},
};

/// The longest wait before the second attempt; it doubles from attempt to attempt.
const FIRST_BACKOFF: Duration = Duration::from_millis(50);
/// The longest wait between two attempts.
const LONGEST_BACKOFF: Duration = Duration::from_secs(1);

/// What the attempts to connect have in common.
#[derive(Debug)]
pub(super) struct Attempts {
    /// The bound on all of them.
    pub(super) deadline: Instant,
    /// The longest wait before the next one.
    backoff: Duration,
    /// Draws the waits: clients that lost the same server do not all come back at the same moment.
    jitter: Jitter,
    /// How the last one failed: says more than "timed out".
    last: Option<CloseReason>,
    /// The application's bytes for the request.
    data: Vec<u8>,
}

/// Numbers that look random, and are the same for the same seed (SplitMix64).
#[derive(Debug)]
struct Jitter(u64);

impl Jitter {
    /// A wait between half of `longest` and all of it.
    fn draw(&mut self, longest: Duration) -> Duration {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        // The upper half of the bits, as a fraction of 2³².
        let fraction = (mixed >> 32) as u32;
        let half = longest / 2;
        half + Duration::from_nanos(((half.as_nanos() * u128::from(fraction)) >> 32) as u64)
    }
}

/// A frame that came before the peer's hello.
pub(super) type Early = (u32, Result<Incoming, Violation>);

impl Connection {
    /// The active side. `data` are at most [`REQUEST_DATA_MAX`](crate::proto::REQUEST_DATA_MAX) bytes of the application's.
    pub(crate) fn connect(params: Params, seed: u64, data: &[u8], now: Instant) -> Self {
        let attempts = Attempts {
            deadline: now + params.connect_timeout,
            backoff: FIRST_BACKOFF,
            jitter: Jitter(seed),
            last: None,
            data: data.to_vec(),
        };
        let mut this = Self::new(params, State::Waiting(attempts));
        this.cm(CmOp::AwaitTurn);
        this
    }

    /// There is time for this connection, for which [`CmOp::AwaitTurn`] asked: it takes the next
    /// steps now. Its turn lasts for as long as [`has_turn`](Self::has_turn) says.
    pub(crate) fn take_turn(&mut self, now: Instant) {
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
                self.state = State::Accepting { deadline };
                let private_data = self.hello().emit(&data);
                self.cm(CmOp::CreateTransport);
                self.cm(CmOp::Accept { private_data });
            }
            other => self.state = other,
        }
    }

    /// Whether the connection is being established, and may cost time at any moment.
    pub(crate) fn has_turn(&self) -> bool {
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

    /// The passive side, for a CONNECT_REQUEST with this private data, which allows so many READs.
    pub(crate) fn requested(
        params: Params,
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
            Err(stranger @ (HelloError::NotRdmsg | HelloError::Rsocket)) => {
                let reason = match stranger {
                    HelloError::Rsocket => CloseReason::PeerIsRsocket,
                    HelloError::NotRdmsg | HelloError::Version(_) => CloseReason::NotRdmsg,
                };
                return refuse(RejectCode::Version, VERSION.into(), 0, reason);
            }
            Err(HelloError::Version(theirs)) => {
                let mismatch = Mismatch {
                    field: "version",
                    ours: VERSION.into(),
                    theirs: theirs.into(),
                };
                return refuse(
                    RejectCode::Version,
                    VERSION.into(),
                    theirs.into(),
                    CloseReason::PeerIncompatible(mismatch),
                );
            }
        };
        if let Err((code, mismatch)) = compatible(&params, &hello, reads) {
            let Mismatch { ours, theirs, .. } = mismatch;
            return refuse(code, ours, theirs, CloseReason::PeerIncompatible(mismatch));
        }
        let deadline = now + params.connect_timeout;
        let transfer = Transfer::new(&params, &hello);
        let mut this = Self::new(params, State::Requested { deadline });
        this.peer_data = data.to_vec();
        this.transfer = Some(transfer);
        Ok(this)
    }

    /// The application accepts a request, with at most [`REPLY_DATA_MAX`](crate::proto::REPLY_DATA_MAX) bytes of its own.
    pub(crate) fn accept(&mut self, data: &[u8], now: Instant) {
        if let State::Requested { .. } = self.state {
            self.state = State::Accepted {
                deadline: now + self.params.connect_timeout,
                data: data.to_vec(),
            };
            self.cm(CmOp::AwaitTurn);
        }
    }

    /// The application rejects a request, with at most [`REJECT_DATA_MAX`](crate::proto::REJECT_DATA_MAX) bytes of its own.
    pub(crate) fn reject(&mut self, data: &[u8], now: Instant) {
        if let State::Requested { .. } | State::Accepted { .. } = self.state {
            let private_data = Reject {
                code: RejectCode::Application,
                own: 0,
                theirs: 0,
            }
            .emit(data);
            self.cm(CmOp::Reject { private_data });
            self.fail(CloseReason::LocallyClosed, now);
        }
    }

    /// There is no transport. A peer that was accepted is told why it is not connected.
    pub(super) fn on_create_transport_failure(&mut self, error: OsError, now: Instant) {
        if let State::Accepting { .. } = self.state {
            let private_data = Reject {
                code: RejectCode::Resources,
                own: 0,
                theirs: 0,
            }
            .emit(&[]);
            self.cm(CmOp::Reject { private_data });
        }
        self.fail(CloseReason::Os(error), now);
    }

    fn hello(&self) -> Hello {
        let keepalive_ms = self
            .params
            .keepalive_interval
            .map_or(0, |i| u32::try_from(i.as_millis()).unwrap_or(u32::MAX));
        Hello {
            version: VERSION,
            features: 0,
            window: self.params.window,
            credits: self.params.credits(),
            eager_size: self.params.eager_size,
            max_message: self.params.max_message,
            keepalive_ms,
            engine: self.params.engine,
        }
    }

    pub(super) fn on_addr_resolved(&mut self) {
        match self.take_state() {
            State::ResolvingAddr(attempts) => {
                self.state = State::ResolvingRoute(attempts);
                self.cm(CmOp::CreateTransport);
                self.cm(CmOp::ResolveRoute {
                    timeout: self.params.resolve_timeout,
                });
            }
            other => self.put_back(other, "ADDR_RESOLVED"),
        }
    }

    pub(super) fn on_route_resolved(&mut self) {
        match self.take_state() {
            State::ResolvingRoute(attempts) => {
                let private_data = self.hello().emit(&attempts.data);
                self.state = State::Connecting(attempts, std::collections::VecDeque::new());
                self.cm(CmOp::Connect { private_data });
            }
            other => self.put_back(other, "ROUTE_RESOLVED"),
        }
    }

    pub(super) fn on_addr_error(&mut self, status: CmStatus, now: Instant) {
        match self.take_state() {
            State::ResolvingAddr(attempts) if is_permanent(-status.raw()) => {
                self.state = State::ResolvingAddr(attempts);
                self.fail(CloseReason::AddrResolution(status), now);
            }
            State::ResolvingAddr(attempts) => {
                self.try_again(attempts, CloseReason::AddrResolution(status), now)
            }
            other => self.put_back(other, "ADDR_ERROR"),
        }
    }

    /// The call finds some address errors by itself, which may pass like those of the event. A call that is wrong stays wrong.
    pub(super) fn on_resolve_addr_failure(&mut self, error: OsError, now: Instant) {
        match error.errno {
            // Not of the address.
            libc::EINVAL | libc::EAFNOSUPPORT | libc::EACCES | libc::EPERM => {
                self.fail(CloseReason::Os(error), now);
            }
            errno => self.on_addr_error(CmStatus::from_raw(-errno), now),
        }
    }

    pub(super) fn on_route_error(&mut self, status: CmStatus, now: Instant) {
        match self.take_state() {
            State::ResolvingRoute(attempts) if is_permanent(-status.raw()) => {
                self.state = State::ResolvingRoute(attempts);
                self.fail(CloseReason::RouteResolution(status), now);
            }
            State::ResolvingRoute(attempts) => {
                self.try_again(attempts, CloseReason::RouteResolution(status), now)
            }
            other => self.put_back(other, "ROUTE_ERROR"),
        }
    }

    /// UNREACHABLE or CONNECT_ERROR. Both may come late, after ESTABLISHED, and mean nothing then.
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

    pub(super) fn on_rejected(&mut self, reason: RejectReason, private_data: &[u8], now: Instant) {
        match self.take_state() {
            State::Connecting(attempts, early) => {
                let cause = rejection(reason, private_data);
                if self.params.retry_refused && may_pass(&cause, reason) {
                    self.try_again(attempts, cause, now);
                } else {
                    self.state = State::Connecting(attempts, early);
                    self.fail(cause, now);
                }
            }
            // The peer withdrew its request, or did not like our acceptance.
            state
            @ (State::Requested { .. } | State::Accepted { .. } | State::Accepting { .. }) => {
                self.state = state;
                self.fail(rejection(reason, private_data), now);
            }
            other => self.put_back(other, "REJECTED"),
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
                    for (buffer, incoming) in early {
                        self.on_incoming(buffer, incoming, now);
                    }
                }
                Err(error) => {
                    self.state = State::Connecting(attempts, early);
                    self.fail(
                        match error {
                            HelloError::NotRdmsg => CloseReason::NotRdmsg,
                            HelloError::Rsocket => CloseReason::PeerIsRsocket,
                            HelloError::Version(theirs) => {
                                CloseReason::PeerIncompatible(Mismatch {
                                    field: "version",
                                    ours: VERSION.into(),
                                    theirs: theirs.into(),
                                })
                            }
                        },
                        now,
                    );
                }
            },
            State::Accepting { .. } => self.establish(now),
            // The first frame came before it.
            state @ (State::Established | State::Closing(_) | State::Draining(_)) => {
                self.state = state
            }
            other => self.put_back(other, "ESTABLISHED"),
        }
    }

    /// Messages may flow from now on.
    pub(super) fn establish(&mut self, now: Instant) {
        self.state = State::Established;
        self.cm(CmOp::SetMinRnrTimer);
        if let Some(transfer) = &mut self.transfer {
            transfer.start_keepalive(now);
        }
        self.outputs.push(Output::Event(Event::Established));
    }

    /// Starts the next attempt a while later, if the deadline leaves time for it.
    fn try_again(&mut self, mut attempts: Attempts, cause: CloseReason, now: Instant) {
        let until = now + attempts.jitter.draw(attempts.backoff);
        attempts.backoff = (attempts.backoff * 2).min(LONGEST_BACKOFF);
        attempts.last = Some(cause);
        self.state = State::Backoff { attempts, until };
        // Not kept for the next one, which may be far away.
        self.cm(CmOp::Discard);
    }

    pub(super) fn on_backoff_timeout(&mut self, now: Instant) {
        match self.take_state() {
            State::Backoff { attempts, .. } if attempts.deadline <= now => {
                let last = attempts
                    .last
                    .clone()
                    .unwrap_or(CloseReason::TimedOut(Phase::Connecting));
                self.state = State::Backoff {
                    attempts,
                    until: now,
                };
                self.fail(last, now);
            }
            State::Backoff { attempts, .. } => {
                self.state = State::Waiting(attempts);
                self.cm(CmOp::AwaitTurn);
            }
            other => self.state = other,
        }
    }

    /// The deadline of all attempts is past.
    pub(super) fn on_attempt_timeout(&mut self, phase: Phase, now: Instant) {
        let last = match &self.state {
            State::Waiting(attempts)
            | State::ResolvingAddr(attempts)
            | State::ResolvingRoute(attempts)
            | State::Connecting(attempts, _) => attempts.last.clone(),
            State::Backoff { .. }
            | State::Requested { .. }
            | State::Accepted { .. }
            | State::Accepting { .. }
            | State::Established
            | State::Closing(_)
            | State::Draining(_)
            | State::Closed => None,
        };
        self.fail(last.unwrap_or(CloseReason::TimedOut(phase)), now);
    }

    pub(super) fn on_request_timeout(&mut self, now: Instant) {
        let private_data = Reject {
            code: RejectCode::Application,
            own: 0,
            theirs: 0,
        }
        .emit(&[]);
        self.cm(CmOp::Reject { private_data });
        self.fail(CloseReason::TimedOut(Phase::Accepting), now);
    }

    /// The application has accepted, and this host had no time for it. The peer may try again.
    pub(super) fn on_turn_timeout(&mut self, now: Instant) {
        let private_data = Reject::BUSY.emit(&[]);
        self.cm(CmOp::Reject { private_data });
        self.fail(CloseReason::TimedOut(Phase::Waiting), now);
    }

    /// Takes the state out, to move what it owns. The caller puts one in.
    pub(super) fn take_state(&mut self) -> State {
        std::mem::replace(&mut self.state, State::Closed)
    }

    fn put_back(&mut self, state: State, event: &str) {
        self.state = state;
        self.unexpected(event);
    }
}

/// Whether two sides can work together at all. Without READs in both directions no message above
/// the eager size could ever be read, and everything sent after one would wait for ever.
fn compatible(
    params: &Params,
    hello: &Hello,
    reads: ReadDepth,
) -> Result<(), (RejectCode, Mismatch)> {
    for (code, ours, theirs) in [
        (
            RejectCode::Window,
            u64::from(params.window),
            u64::from(hello.window),
        ),
        (
            RejectCode::EagerSize,
            params.eager_size.into(),
            hello.eager_size.into(),
        ),
        (
            RejectCode::MaxMessage,
            params.max_message,
            hello.max_message,
        ),
        (RejectCode::ResponderResources, 1, reads.outgoing.into()),
        (RejectCode::InitiatorDepth, 1, reads.incoming.into()),
    ] {
        if theirs == 0 {
            return Err((
                code,
                Mismatch {
                    field: code.field(),
                    ours,
                    theirs,
                },
            ));
        }
    }
    Ok(())
}

/// What a REJECTED event means.
fn rejection(reason: RejectReason, private_data: &[u8]) -> CloseReason {
    match Reject::parse(private_data).filter(|_| reason.is_consumer()) {
        Some((
            Reject {
                code: RejectCode::Application,
                ..
            },
            data,
        )) => CloseReason::Rejected {
            reason,
            data: data.into(),
        },
        Some((
            Reject {
                code: RejectCode::Resources,
                ..
            },
            _,
        )) => CloseReason::PeerOutOfResources,
        Some((
            Reject {
                code: RejectCode::Busy,
                ..
            },
            _,
        )) => CloseReason::PeerBusy,
        // What is the rejecting side's own is the peer's here.
        Some((Reject { code, own, theirs }, _)) => CloseReason::PeerIncompatible(Mismatch {
            field: code.field(),
            ours: theirs,
            theirs: own,
        }),
        None if nobody_listens(reason, private_data) => CloseReason::Refused,
        None if is_rsocket(private_data) => CloseReason::PeerIsRsocket,
        None if reason == RejectReason::CONSUMER_DEFINED && is_blank(private_data) => {
            CloseReason::RejectedWithoutCause
        }
        None => CloseReason::Rejected {
            reason,
            data: Box::default(),
        },
    }
}

/// Whether the same request may be taken a while later. One that nobody answers any more, because
/// the listener's process has ended, is rejected by its kernel, in the name of a program but
/// without a word of one.
fn may_pass(cause: &CloseReason, reason: RejectReason) -> bool {
    let nobody = matches!(
        cause,
        CloseReason::Refused | CloseReason::PeerBusy | CloseReason::RejectedWithoutCause
    );
    nobody || reason == RejectReason::STALE_CONN
}

/// Whether an error is of the kind that does not change within seconds: there is no route, or no
/// right to go there.
fn is_permanent(errno: i32) -> bool {
    matches!(
        errno,
        libc::ENODEV
            | libc::ENETUNREACH
            | libc::EINVAL
            | libc::EAFNOSUPPORT
            | libc::EACCES
            | libc::EPERM
    )
}

/// InfiniBand and RoCE have a code for it. On iWARP it is TCP's refusal, which a program's rejection looks like but for its
/// private data.
fn nobody_listens(reason: RejectReason, private_data: &[u8]) -> bool {
    reason == RejectReason::INVALID_SERVICE_ID
        || (reason.raw() == -libc::ECONNREFUSED && is_blank(private_data))
}

/// The connection manager pads private data with zeros.
fn is_blank(private_data: &[u8]) -> bool {
    private_data.iter().all(|byte| *byte == 0)
}
