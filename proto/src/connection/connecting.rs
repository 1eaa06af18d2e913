//! The active side: attempts to connect, until one succeeds or the time is over.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use rdma_status::{CmStatus, OsError, RejectReason};

use super::{
    Connection, State,
    refusal::{is_permanent, is_refusal, may_pass, rejection},
};
use crate::{CloseReason, CmOp, Params, Phase};

/// The upper bound of the wait before the second attempt. It doubles from attempt to attempt.
const FIRST_BACKOFF: Duration = Duration::from_millis(50);
/// The upper bound of the wait between any two attempts.
const LONGEST_BACKOFF: Duration = Duration::from_secs(1);

/// What the attempts to connect have in common.
#[derive(Debug)]
pub(super) struct Attempts {
    /// The bound on all of them.
    pub(super) deadline: Instant,
    /// The upper bound of the wait before the next one.
    backoff: Duration,
    /// Varies the waits: clients that lost the same server must not all return at the same moment.
    jitter: Jitter,
    /// How the last one failed, which says more than "timed out".
    last: Option<CloseReason>,
    /// The application's bytes in the request.
    data: Vec<u8>,
}

/// Pseudo-random numbers (SplitMix64).
#[derive(Debug)]
struct Jitter(u64);

impl Jitter {
    /// Returns a wait between half of `longest` and all of it.
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

/// Whether a connection failed for this side's port: it is in use, or was a moment ago for a
/// connection to the same peer.
const fn is_about_the_port(errno: i32) -> bool {
    matches!(errno, libc::EADDRINUSE | libc::EADDRNOTAVAIL)
}

impl Connection {
    /// Makes the active side of a connection, with at most
    /// [`REQUEST_DATA_MAX`](crate::REQUEST_DATA_MAX) bytes of the application.
    pub fn connect(params: Params, seed: u64, data: &[u8], now: Instant) -> Self {
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
                self.state = State::Connecting(attempts, VecDeque::new());
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

    /// Takes the failure of the call. Address errors that it finds may be as temporary as those of
    /// the event; wrong arguments stay wrong.
    pub(super) fn on_resolve_addr_failure(&mut self, error: OsError, now: Instant) {
        match error.errno {
            // Not about the address.
            libc::EINVAL | libc::EAFNOSUPPORT | libc::EACCES | libc::EPERM => {
                self.fail(CloseReason::Os(error), now);
            }
            _ if error.is_shortage() => self.fail(CloseReason::Os(error), now),
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
            // The peer withdrew its request, or refused the reply.
            state
            @ (State::Requested { .. } | State::Accepted { .. } | State::Accepting { .. }) => {
                self.state = state;
                self.fail(rejection(reason, private_data), now);
            }
            other => self.put_back(other, "REJECTED"),
        }
    }

    /// Takes the failure of the call. Where a driver connects by TCP before the call comes back, it
    /// tells what an event would have told.
    pub(super) fn on_connect_call_failure(&mut self, error: OsError, now: Instant) {
        match error.errno {
            libc::ECONNREFUSED => self.on_rejected(RejectReason::from_raw(-error.errno), &[], now),
            libc::ECONNRESET => self.on_attempt_failure(CloseReason::PeerDisconnected, now),
            libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH => {
                let status = CmStatus::from_raw(-error.errno);
                self.on_connect_failure(CloseReason::Unreachable(status), "rdma_connect", now);
            }
            errno if is_about_the_port(errno) => self.on_port_in_use(CloseReason::Os(error), now),
            _ => self.fail(CloseReason::Os(error), now),
        }
    }

    /// Takes the failure of an attempt. A peer that ends the connection before it answers may be a
    /// server that ends, after which another one starts.
    pub(super) fn on_attempt_failure(&mut self, reason: CloseReason, now: Instant) {
        match self.take_state() {
            State::Connecting(attempts, _) if self.params.retry_refused && is_refusal(&reason) => {
                self.try_again(attempts, reason, now);
            }
            state => {
                self.state = state;
                self.on_connect_failure(reason, "FAILED", now);
            }
        }
    }

    pub(super) fn on_connect_error(&mut self, status: CmStatus, now: Instant) {
        let reason = CloseReason::ConnectFailed(status);
        if is_about_the_port(-status.raw()) {
            self.on_port_in_use(reason, now);
        } else {
            self.on_connect_failure(reason, "CONNECT_ERROR", now);
        }
    }

    /// The connection manager chooses this side's port without regard to TCP, of which the ports of
    /// iWARP are. It will choose another one.
    fn on_port_in_use(&mut self, cause: CloseReason, now: Instant) {
        match self.take_state() {
            // Which does not take longer and longer, as what is with the peer may.
            State::Connecting(attempts, _) => self.back_off(attempts, FIRST_BACKOFF, cause, now),
            other => {
                self.state = other;
                self.on_connect_failure(cause, "CONNECT_ERROR", now);
            }
        }
    }

    /// Starts the next attempt later, if the deadline leaves time for it.
    fn try_again(&mut self, mut attempts: Attempts, cause: CloseReason, now: Instant) {
        let longest = attempts.backoff;
        attempts.backoff = (longest * 2).min(LONGEST_BACKOFF);
        self.back_off(attempts, longest, cause, now);
    }

    fn back_off(
        &mut self,
        mut attempts: Attempts,
        longest: Duration,
        cause: CloseReason,
        now: Instant,
    ) {
        let until = now + attempts.jitter.draw(longest);
        attempts.last = Some(cause);
        self.state = State::Backoff { attempts, until };
        // Transport and id are not kept for the next one, which may be far away.
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

    /// Ends all attempts when their deadline has passed.
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
}
