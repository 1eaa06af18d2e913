//! Tests in which a device reports a lost link or the failure of an object.

use std::time::Duration;

use super::{
    pair::{A, B, Pair},
    params,
};
use crate::{Activity, CloseReason, DeviceFault, Params};

const INTERVAL: Duration = Duration::from_secs(2);
const TIMEOUT: Duration = Duration::from_secs(3);
const SHORT: Duration = Duration::from_millis(500);
/// The maximum time between the detection of a dead peer and the end of the connection. In this
/// time, the connection tries to send a Failure to the peer.
const NOTICE: Duration = Duration::from_millis(100);

fn alive() -> Params {
    Params {
        keepalive_interval: Some(INTERVAL),
        keepalive_timeout: TIMEOUT,
        ..params()
    }
}

fn suspect(pair: &mut Pair, timeout: Duration) {
    let now = pair.now;
    pair.sides[A].conn.suspect_path(timeout, now);
    pair.perform_outputs(A);
}

fn pings(pair: &Pair) -> u64 {
    pair.sides[A].conn.statistics().pings_sent
}

/// Runs until both sides have ended. Checks that the keepalive has ended side A. Returns the time
/// that passed.
fn time_to_end(pair: &mut Pair) -> Duration {
    let start = pair.now;
    pair.finish();
    assert_eq!(pair.reason(A), &CloseReason::KeepaliveTimeout);
    pair.now - start
}

#[test]
fn dead_path_is_detected_in_suspicion_timeout() {
    for (timeout, expected) in [(SHORT, SHORT), (2 * TIMEOUT, TIMEOUT)] {
        // The suspicion begins while the connection is idle, or after an unanswered Ping.
        for silent in [Duration::ZERO, INTERVAL] {
            let mut pair = Pair::established(alive(), alive());
            pair.vanish(B);
            pair.wait(silent);
            suspect(&mut pair, timeout);
            assert_eq!(pings(&pair), 1, "a Ping is sent now or already in flight");
            // A second report has no effect.
            suspect(&mut pair, timeout);
            let taken = time_to_end(&mut pair);
            assert!(taken <= expected + NOTICE, "{timeout:?}: {taken:?}");
        }
    }
}

#[test]
fn sign_of_life_here_ends_a_suspicion() {
    let mut pair = Pair::established(alive(), alive());
    suspect(&mut pair, SHORT);
    pair.run_until_idle();
    pair.wait(SHORT);
    assert!(pair.sides[A].ended.is_none());
    pair.vanish(B);
    let taken = time_to_end(&mut pair);
    assert!(
        taken > TIMEOUT && taken <= INTERVAL + TIMEOUT + NOTICE,
        "{taken:?}"
    );
}

#[test]
fn sign_of_life_elsewhere_ends_no_suspicion() {
    let mut pair = Pair::established(alive(), alive());
    pair.vanish(B);
    suspect(&mut pair, SHORT);
    let elsewhere = Activity {
        signs: 1,
        chunks: 0,
    };
    let now = pair.now + SHORT;
    assert!(!pair.sides[A].conn.passes_check(elsewhere, now));
    let taken = time_to_end(&mut pair);
    assert!(taken <= SHORT + NOTICE, "{taken:?}");
}

#[test]
fn link_that_returns_ends_a_suspicion() {
    let mut pair = Pair::established(alive(), alive());
    pair.vanish(B);
    suspect(&mut pair, SHORT);
    pair.wait(SHORT - Duration::from_millis(1));
    let now = pair.now;
    pair.sides[A].conn.trust_path(now);
    pair.perform_outputs(A);
    let taken = time_to_end(&mut pair);
    assert!(
        taken > TIMEOUT && taken <= INTERVAL + TIMEOUT + NOTICE,
        "{taken:?}"
    );
}

/// Checks that the report of a restored link changes no deadline if the path was not suspected.
#[test]
fn return_of_a_link_that_was_not_lost_changes_nothing() {
    let mut pair = Pair::established(alive(), alive());
    pair.wait(INTERVAL / 4);
    let before = pair.sides[A].conn.next_timeout();
    let now = pair.now;
    pair.sides[A].conn.trust_path(now);
    assert_eq!(pair.sides[A].conn.next_timeout(), before);
}

#[test]
fn suspicion_without_keepalive_pings() {
    let mut pair = Pair::established(params(), params());
    suspect(&mut pair, SHORT);
    assert_eq!(pings(&pair), 1);
    pair.run_until_idle();
    assert!(!pair.pass(), "no deadline");
    assert!(pair.sides[A].ended.is_none());
}

#[test]
fn suspicion_pings_while_closing() {
    let mut pair = Pair::established(alive(), alive());
    pair.close(A);
    suspect(&mut pair, SHORT);
    assert_eq!(pings(&pair), 1);
    pair.finish();
    let end = (pair.reason(A), pair.delivered(A));
    assert_eq!(end, (&CloseReason::LocallyClosed, true));
}

#[test]
fn fault_ends_the_connection_with_its_cause() {
    for (fault, is_loss) in [
        (DeviceFault::Device, true),
        (DeviceFault::QueuePair, true),
        (DeviceFault::CompletionQueue, true),
        (DeviceFault::SharedReceives, true),
        (DeviceFault::Request, false),
        (DeviceFault::Access, false),
    ] {
        let mut pair = Pair::established(params(), params());
        let now = pair.now;
        pair.sides[A].conn.handle_device_fault(fault, now);
        pair.perform_outputs(A);
        pair.finish();
        let reason = CloseReason::DeviceFault(fault);
        assert_eq!(pair.reason(A), &reason);
        assert_eq!(reason.is_loss(), is_loss, "{fault:?}");
    }
}

#[test]
fn fault_after_the_end_changes_nothing() {
    let mut pair = Pair::established(params(), params());
    pair.close(A);
    pair.close(B);
    pair.finish();
    let before = pair.reason(A).clone();
    let now = pair.now;
    pair.sides[A]
        .conn
        .handle_device_fault(DeviceFault::Device, now);
    pair.sides[A].conn.suspect_path(SHORT, now);
    pair.perform_outputs(A);
    assert_eq!(pair.reason(A), &before);
}
