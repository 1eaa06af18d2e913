//! The active side of a connection. It attempts to connect until an attempt succeeds or the
//! deadline passes.

use std::{
    collections::VecDeque,
    mem,
    time::{Duration, Instant},
};

use rdma_status::{CmStatus, OsError, RejectReason};

use super::{
    Connection,
    greeting::Greeting,
    hello_checks::{compatible, is_permanent, is_refusal, is_transient, rejection, unreadable},
    receiving::Incoming,
    setup::{Agreed, Early, Progress, Setup},
    side::Side,
};
use crate::{
    CloseReason, CmInput, CmOp, Mismatch, Params, Phase, ReadDepth, SessionOffer,
    hello::{Hello, LONG_REQUEST, PrivateBytes, REQUEST_DATA_MAX},
    reason::Violation,
    reject::Reject,
};

/// The state of the active side while it attempts to connect.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
pub(super) struct Connecting {
    /// The overall deadline of all attempts. `Params::setup_timeout` can bring it forward.
    deadline: Instant,
    /// The maximum wait before the next attempt.
    backoff: Duration,
    /// The generator of the random numbers that vary the waits. Without variation, clients that
    /// lost the same server would all reconnect at the same moment.
    jitter: Jitter,
    /// The failure of the previous attempt. If the deadline passes, this failure is reported
    /// instead of the timeout, because the failure is more specific.
    last: Option<CloseReason>,
    /// The application's private data for the request.
    data: PrivateBytes,
    step: Step,
}

#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
enum Step {
    /// The next attempt waits until the limit on concurrent setups permits it.
    Waiting,
    ResolvingAddr,
    ResolvingRoute,
    /// The request has been sent. Frames that arrive before the event ESTABLISHED are queued here
    /// until the peer's hello is known.
    Requested(VecDeque<Early>),
    /// An attempt failed. The next attempt starts at this time.
    Backoff(Instant),
}

/// The maximum wait before the second attempt. The maximum doubles with each further attempt.
const FIRST_BACKOFF: Duration = Duration::from_millis(50);
/// The upper limit of the maximum wait, at which the doubling stops.
const LONGEST_BACKOFF: Duration = Duration::from_secs(1);

/// A generator of pseudo-random numbers (SplitMix64).
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
struct Jitter(u64);

impl Jitter {
    /// Returns a random wait between half of `longest` and `longest`.
    fn draw(&mut self, longest: Duration) -> Duration {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        // The upper 32 bits, as a fraction of 2³².
        let fraction = (mixed >> 32) as u32;
        let half = longest / 2;
        half + Duration::from_nanos(((half.as_nanos() * u128::from(fraction)) >> 32) as u64)
    }
}

/// Returns whether this error concerns this side's port: the port is in use, or was recently used
/// for a connection to the same peer. Such errors occur on iWARP: its ports are TCP ports, but the
/// connection manager chooses a port without checking which ports TCP sockets use. The next attempt
/// uses another port. The wait before that attempt does not grow, because the peer has not refused
/// anything.
const fn is_local_port_error(errno: i32) -> bool {
    matches!(errno, libc::EADDRINUSE | libc::EADDRNOTAVAIL)
}

impl Connection {
    /// Creates the active side of a connection. The peer receives the application's `data`, at most
    /// [`PRIVATE_DATA_MAX`](crate::PRIVATE_DATA_MAX) bytes. If the data have at most
    /// [`REQUEST_DATA_MAX`] bytes, they are sent in the request. Longer data are sent in a separate
    /// frame after the peer's reply.
    pub fn connect(params: Params, seed: u64, data: &[u8], now: Instant) -> Self {
        let connecting = Connecting {
            deadline: now + params.connect_timeout,
            backoff: FIRST_BACKOFF,
            jitter: Jitter(seed),
            last: None,
            data: data.into(),
            step: Step::Waiting,
        };
        let mut side = Side::new(params);
        side.has_long_request = data.len() > REQUEST_DATA_MAX;
        side.cm(CmOp::AwaitSetupSlot);
        Self::new(side, Setup::Connecting(connecting))
    }

    /// Creates the active side of a connection like [`connect`](Self::connect), but for a retry.
    /// `refused` is the number of attempts that the peer has already refused, at least 1. The retry
    /// starts after a random wait, whose maximum grows with `refused`. `cause` is the reason for
    /// the last refusal. If the deadline passes before another attempt fails, the connection fails
    /// with `cause`.
    pub fn connect_again(
        params: Params,
        seed: u64,
        data: &[u8],
        (refused, cause): (u32, CloseReason),
        now: Instant,
    ) -> Self {
        let doubled = 1_u32.checked_shl(refused - 1).unwrap_or(u32::MAX);
        let longest = FIRST_BACKOFF.saturating_mul(doubled).min(LONGEST_BACKOFF);
        let mut jitter = Jitter(seed);
        let until = now + jitter.draw(longest);
        let connecting = Connecting {
            deadline: now + params.connect_timeout,
            backoff: (longest * 2).min(LONGEST_BACKOFF),
            jitter,
            last: Some(cause),
            data: data.into(),
            step: Step::Backoff(until),
        };
        let mut side = Side::new(params);
        side.has_long_request = data.len() > REQUEST_DATA_MAX;
        Self::new(side, Setup::Connecting(connecting))
    }

    /// Returns whether the caller may [connect again](Self::connect_again), after the connection
    /// has failed with `reason` before it was established. The caller may do so if `reason` is a
    /// refusal, the parameters permit retries, and the request had private data in a separate
    /// frame. The state machine itself retries all other requests.
    pub fn may_connect_again(&self, reason: &CloseReason) -> bool {
        self.has_long_request() && self.side.params.retry_refused && is_refusal(reason)
    }
}

impl Connecting {
    pub(super) const fn name(&self) -> &'static str {
        match self.step {
            Step::Waiting => "Waiting",
            Step::ResolvingAddr => "ResolvingAddr",
            Step::ResolvingRoute => "ResolvingRoute",
            Step::Requested(_) => "Connecting",
            Step::Backoff(_) => "Backoff",
        }
    }

    pub(super) fn deadline(&self) -> Instant {
        match self.step {
            Step::Backoff(until) => self.deadline.min(until),
            Step::Waiting | Step::ResolvingAddr | Step::ResolvingRoute | Step::Requested(_) => {
                self.deadline
            }
        }
    }

    pub(super) fn counts_as_setup(&self) -> bool {
        !matches!(self.step, Step::Waiting | Step::Backoff(_))
    }

    pub(super) fn has_queue_pair(&self) -> bool {
        matches!(self.step, Step::Requested(_))
    }

    pub(super) fn begin_setup(&mut self, side: &mut Side, now: Instant) {
        if let Step::Waiting = self.step {
            if let Some(limit) = side.params.setup_timeout {
                self.deadline = self.deadline.min(now + limit);
            }
            self.step = Step::ResolvingAddr;
            side.cm(CmOp::CreateId);
            side.cm(CmOp::ResolveAddr {
                timeout: side.params.resolve_timeout,
            });
        }
    }

    /// Makes a setup that waits for its turn time out at the next check.
    pub(super) fn end_wait(&mut self, now: Instant) {
        if let Step::Waiting = self.step {
            self.deadline = self.deadline.min(now);
        }
    }

    pub(super) fn on_cm_event(
        &mut self,
        side: &mut Side,
        event: CmInput<'_>,
        now: Instant,
    ) -> Progress {
        match (&mut self.step, event) {
            (Step::ResolvingAddr, CmInput::AddrResolved) => {
                self.step = Step::ResolvingRoute;
                side.cm(CmOp::CreateTransport);
                side.cm(CmOp::ResolveRoute {
                    timeout: side.params.resolve_timeout,
                });
                Ok(None)
            }
            (Step::ResolvingAddr, CmInput::AddrError(status)) => {
                let is_transient = !is_permanent(-status.raw());
                self.try_again_if(is_transient, side, CloseReason::AddrResolution(status), now)
            }
            (Step::ResolvingRoute, CmInput::RouteResolved) => {
                self.step = Step::Requested(VecDeque::new());
                let data: &[u8] = if side.has_long_request {
                    &[]
                } else {
                    &self.data
                };
                let private_data = side.hello().emit(data);
                side.cm(CmOp::Connect { private_data });
                Ok(None)
            }
            (Step::ResolvingRoute, CmInput::RouteError(status)) => {
                let is_transient = !is_permanent(-status.raw());
                self.try_again_if(
                    is_transient,
                    side,
                    CloseReason::RouteResolution(status),
                    now,
                )
            }
            (
                Step::Requested(early),
                CmInput::Established {
                    private_data,
                    reads,
                },
            ) => {
                let early = mem::take(early);
                self.agree(side, early, private_data, reads)
            }
            (
                Step::Requested(_),
                CmInput::Rejected {
                    reason,
                    private_data,
                },
            ) => {
                let resumes = side.params.session == SessionOffer::Resume;
                let rejected = Reject::parse(private_data).filter(|_| resumes);
                side.over = rejected.and_then(|(reject, _)| reject.session_over());
                let cause = match rejection(reason, private_data) {
                    // The rejection names a session, but the request resumes no session. The peer
                    // must therefore be incompatible.
                    CloseReason::SessionLost if !resumes => {
                        CloseReason::PeerIncompatible(Mismatch {
                            field: "session",
                            ours: 0,
                            theirs: 0,
                        })
                    }
                    // The eager size of one side is too small for the answer to a long request.
                    CloseReason::PeerIncompatible(Mismatch {
                        field: "eager_size",
                        theirs,
                        ..
                    }) if side.has_long_request => CloseReason::PeerIncompatible(Mismatch {
                        field: "private_data",
                        ours: self.data.len() as u64,
                        theirs,
                    }),
                    cause => cause,
                };
                let is_transient = side.params.retry_refused && is_transient(&cause, reason);
                self.try_again_if(is_transient, side, cause, now)
            }
            // A peer that disconnects before it answers may be a server that is shutting down.
            // Another server may replace it, so a retry can succeed.
            (Step::Requested(_), CmInput::Disconnected) => {
                let is_transient = side.params.retry_refused;
                self.try_again_if(is_transient, side, CloseReason::PeerDisconnected, now)
            }
            (Step::Requested(_), CmInput::Failed(reason)) => {
                let is_transient = side.params.retry_refused && is_refusal(reason);
                self.try_again_if(is_transient, side, reason.clone(), now)
            }
            (Step::Requested(_), CmInput::ConnectError(status))
                if is_local_port_error(-status.raw()) =>
            {
                self.back_off(side, FIRST_BACKOFF, CloseReason::ConnectFailed(status), now)
            }
            (_, CmInput::Disconnected) => Err(CloseReason::PeerDisconnected),
            (
                Step::ResolvingAddr | Step::ResolvingRoute | Step::Requested(_),
                CmInput::Unreachable(status),
            ) => Err(CloseReason::Unreachable(status)),
            (
                Step::ResolvingAddr | Step::ResolvingRoute | Step::Requested(_),
                CmInput::ConnectError(status),
            ) => Err(CloseReason::ConnectFailed(status)),
            (Step::ResolvingAddr | Step::ResolvingRoute, CmInput::Failed(reason)) => {
                Err(reason.clone())
            }
            (_, event) => {
                side.unexpected(event.name(), self.name());
                Ok(None)
            }
        }
    }

    /// Handles a frame that arrived before the event ESTABLISHED.
    pub(super) fn on_frame(
        &mut self,
        side: &mut Side,
        buffer: u32,
        incoming: Result<Incoming, Violation>,
    ) -> Progress {
        match &mut self.step {
            //= PROTOCOL.md#violations
            //# | `frames before the hello` | their number does not exceed the number of receives |
            Step::Requested(early) if early.len() as u32 >= side.params.first_receives() => {
                let violation = Violation::new(
                    "frames before the hello",
                    early.len() as u64 + 1,
                    "no more than this side's hello allows",
                );
                side.note_violation(&violation);
                Err(CloseReason::ProtocolViolation(violation))
            }
            //= PROTOCOL.md#establishing-a-connection
            //# The active side may receive frames before the reply's event reaches its program; it
            //# must keep them until it has read the hello.
            Step::Requested(early) => {
                early.push_back((buffer, incoming));
                Ok(None)
            }
            Step::Waiting | Step::ResolvingAddr | Step::ResolvingRoute | Step::Backoff(_) => {
                side.unexpected("a frame", self.name());
                Ok(None)
            }
        }
    }

    /// Handles the failure of the call that resolves the address. An error that concerns the
    /// address is handled like the event ADDR_ERROR, because the error can be temporary. All other
    /// errors end the connection.
    pub(super) fn on_resolve_addr_failure(
        &mut self,
        side: &mut Side,
        error: OsError,
        now: Instant,
    ) -> Progress {
        match error.errno {
            // These errors do not concern the address.
            libc::EINVAL | libc::EAFNOSUPPORT | libc::EACCES | libc::EPERM => {
                Err(CloseReason::Os(error))
            }
            _ if error.is_shortage() => Err(CloseReason::Os(error)),
            errno => {
                let event = CmInput::AddrError(CmStatus::from_raw(-errno));
                self.on_cm_event(side, event, now)
            }
        }
    }

    /// Handles the failure of the connect call. Some drivers establish a TCP connection before the
    /// call returns. With these drivers, the call itself returns errors that other drivers report
    /// later, in an event.
    pub(super) fn on_connect_call_failure(
        &mut self,
        side: &mut Side,
        error: OsError,
        now: Instant,
    ) -> Progress {
        let event = match error.errno {
            libc::ECONNREFUSED => CmInput::Rejected {
                reason: RejectReason::from_raw(-error.errno),
                private_data: &[],
            },
            libc::ECONNRESET => CmInput::Failed(&CloseReason::PeerDisconnected),
            libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH => {
                CmInput::Unreachable(CmStatus::from_raw(-error.errno))
            }
            errno if is_local_port_error(errno) => {
                return self.back_off(side, FIRST_BACKOFF, CloseReason::Os(error), now);
            }
            _ => return Err(CloseReason::Os(error)),
        };
        self.on_cm_event(side, event, now)
    }

    /// If `is_transient` is true, schedules the next attempt, which starts after a wait. Otherwise
    /// returns `cause` as an error.
    fn try_again_if(
        &mut self,
        is_transient: bool,
        side: &mut Side,
        cause: CloseReason,
        now: Instant,
    ) -> Progress {
        if !is_transient {
            return Err(cause);
        }
        let longest = self.backoff;
        self.backoff = (longest * 2).min(LONGEST_BACKOFF);
        self.back_off(side, longest, cause, now)
    }

    fn back_off(
        &mut self,
        side: &mut Side,
        longest: Duration,
        cause: CloseReason,
        now: Instant,
    ) -> Progress {
        self.step = Step::Backoff(now + self.jitter.draw(longest));
        self.last = Some(cause);
        // The transport and the id are destroyed now, because the next attempt may start much
        // later.
        side.cm(CmOp::Discard);
        Ok(None)
    }

    /// Starts the next attempt after the wait. Fails if the overall deadline has passed.
    pub(super) fn on_timeout(&mut self, side: &mut Side, now: Instant) -> Progress {
        let phase = match self.step {
            Step::Backoff(_) if self.deadline > now => {
                self.step = Step::Waiting;
                side.cm(CmOp::AwaitSetupSlot);
                return Ok(None);
            }
            Step::Waiting => Phase::Waiting,
            Step::ResolvingAddr => Phase::ResolvingAddr,
            Step::ResolvingRoute => Phase::ResolvingRoute,
            Step::Requested(_) | Step::Backoff(_) => Phase::Connecting,
        };
        Err(self.last.take().unwrap_or(CloseReason::TimedOut(phase)))
    }

    /// Checks the hello in the peer's reply.
    fn agree(
        &mut self,
        side: &mut Side,
        early: VecDeque<Early>,
        private_data: &[u8],
        reads: ReadDepth,
    ) -> Progress {
        let (hello, data) = Hello::parse(private_data).map_err(unreadable)?;
        //= PROTOCOL.md#establishing-a-connection
        //# The active side disconnects if it cannot accept the hello in the reply.
        compatible(&side.params, &hello, reads)
            .map_err(|(_, mismatch)| CloseReason::PeerIncompatible(mismatch))?;
        if side.has_long_request {
            check_takes_request(&hello, self.data.len())?;
        }
        side.peer_data = data.into();
        let deadline = self.deadline;
        let greeting = Greeting::Asked { deadline };
        Ok(Some(Agreed {
            hello,
            early,
            speaks_first: side.active_speaks_first(),
            greeting: side.has_long_request.then_some(greeting),
            request: side.has_long_request.then(|| mem::take(&mut self.data)),
        }))
    }
}

/// Checks that the sender of this hello accepts private data of `len` bytes in a separate frame.
fn check_takes_request(hello: &Hello, len: usize) -> Result<(), CloseReason> {
    //= PROTOCOL.md#long-requests
    //# The active side disconnects if bit 8 is not set in the reply, or if the passive side's eager
    //# size is less than the length of the private data.
    let takes_requests = hello.features & LONG_REQUEST != 0;
    let most = if takes_requests { hello.eager_size } else { 0 };
    if len as u64 > most.into() {
        return Err(CloseReason::PeerIncompatible(Mismatch {
            field: "private_data",
            ours: len as u64,
            theirs: most.into(),
        }));
    }
    Ok(())
}
