//! Tests of large messages that are not received in time, because no memory is available, or
//! because the bytes of the message arrive slowly or never.

use std::time::Duration;

use super::{
    pair,
    pair::{A, B, Pair, Step, no_memory},
    params,
};
use crate::{Activity, CloseReason, Params, frame::Header};

const MIB: u64 = 1 << 20;

/// Makes A announce a message of 3 MiB, and makes B process the announcement.
fn announced(pair: &mut Pair) {
    assert!(pair.send_large(A, 3 * MIB));
    pair.take(Step::Wire(A));
    pair.take(Step::Cq(B));
}

/// Checks the timeout of a READ that the peer's device never answers, because the peer has offered
/// no responder resources. In all other respects, the peer follows the protocol.
#[test]
fn unanswered_read_ends_connection_with_its_reason() {
    let mut pair = pair();
    announced(&mut pair);
    pair.take(Step::Memory(B));
    let reads = pair.sides[B].sending.len();
    assert_eq!(reads, 2, "only the memory of two chunks is pinned");
    pair.wait(Duration::from_secs(15));
    pair.wait(Duration::from_secs(14));
    assert_eq!(pair.sides[B].conn.close_reason(), None);
    pair.wait(Duration::from_secs(16));
    assert_eq!(
        pair.sides[B].conn.close_reason(),
        Some(&CloseReason::ReadTimeout)
    );
}

/// Checks that a read does not time out while other connections to the same engine make progress.
/// On a slow path, the read can wait behind the reads of those connections.
#[test]
fn read_stalls_only_if_other_connections_stall() {
    let mut pair = pair();
    announced(&mut pair);
    pair.take(Step::Memory(B));
    for chunks in 1..10 {
        pair.wait(Duration::from_secs(15));
        let signs = 2 * chunks;
        pair.sides[B]
            .conn
            .set_engine_activity(Activity { signs, chunks });
    }
    assert_eq!(pair.sides[B].conn.close_reason(), None);
    for signs in 20..23 {
        pair.wait(Duration::from_secs(15));
        let chunks = 9;
        pair.sides[B]
            .conn
            .set_engine_activity(Activity { signs, chunks });
    }
    assert_eq!(
        pair.sides[B].conn.close_reason(),
        Some(&CloseReason::ReadTimeout),
        "a sign of life is not progress"
    );
}

#[test]
fn slow_message_does_not_time_out() {
    let mut pair = pair();
    announced(&mut pair);
    pair.take(Step::Memory(B));
    let mut chunks = 0;
    while pair.sides[B].received == 0 {
        pair.wait(Duration::from_secs(12));
        for step in [Step::Wire(B), Step::Ack(B), Step::Cq(B)] {
            pair.take(step);
        }
        chunks += 1;
    }
    assert!(chunks >= 3 * 16, "all chunks have the minimum length");
    assert_eq!(pair.sides[B].conn.state.name(), "Established");
}

/// Checks that the keepalive does not consider the peer dead while a slow link transfers a message.
/// The bytes that arrive are signs of life.
#[test]
fn slow_link_with_progress_is_alive() {
    let keepalive = Params {
        keepalive_interval: Some(Duration::from_secs(2)),
        ..params()
    };
    let mut pair = Pair::established(params(), keepalive);
    announced(&mut pair);
    pair.take(Step::Memory(B));
    for _ in 0..20 {
        // In 1.9 s, a link of 1 Mbit/s transfers about 230 KiB: a chunk of 64 KiB, and bytes of
        // other connections. Pings wait behind all these bytes.
        pair.wait(Duration::from_millis(1900));
        for step in [Step::Wire(B), Step::Ack(B), Step::Cq(B)] {
            pair.take(step);
        }
    }
    assert_eq!(pair.sides[B].conn.state.name(), "Established");
}

/// Checks that a close continues while the peer answers Pings, even if the peer reads the message
/// only much later.
#[test]
fn slow_close_continues_while_peer_answers() {
    let patient = Params {
        keepalive_interval: Some(Duration::from_secs(1)),
        keepalive_timeout: Duration::from_secs(2),
        close_timeout: Duration::from_secs(60),
        ..params()
    };
    let mut pair = Pair::established(patient.clone(), patient);
    pair.sides[B].lacks_memory = true;
    announced(&mut pair);
    pair.close(A);
    for _ in 0..20 {
        pair.run_until_idle();
        pair.wait(Duration::from_millis(500));
    }
    pair.sides[B].lacks_memory = false;
    pair.wait(Duration::from_secs(1));
    pair.finish();
    assert!(pair.delivered(A));
}

#[test]
fn message_waits_until_memory_is_available() {
    let mut pair = pair();
    pair.sides[B].lacks_memory = true;
    announced(&mut pair);
    assert_eq!(pair.sides[B].failed_allocations, 1);
    // The lack of memory must not delay anything else.
    assert!(pair.send(B));
    pair.run();
    assert_eq!(pair.sides[A].received, 1);
    pair.wait(Duration::from_millis(10));
    pair.wait(Duration::from_millis(20));
    assert_eq!(
        pair.sides[B].failed_allocations, 3,
        "the connection retries by itself"
    );
    pair.restore_memory(B);
    assert_eq!(
        pair.sides[B].failed_allocations, 4,
        "the connection also retries when memory is released"
    );
    pair.sides[B].lacks_memory = false;
    pair.restore_memory(B);
    pair.take(Step::Memory(B));
    pair.sides[B].lacks_memory = true;
    pair.take(Step::Wire(B));
    pair.take(Step::Ack(B));
    pair.take(Step::Cq(B));
    assert_eq!(
        pair.sides[B].failed_allocations, 5,
        "the next chunk finds no memory"
    );
    pair.sides[B].lacks_memory = false;
    pair.wait(Duration::from_secs(1));
    pair.run();
    assert_eq!(pair.sides[B].received, 1);
}

/// Checks that the peer receives a Failure. Without the Failure, the peer could report only a
/// disconnect without a reason.
#[test]
fn peer_learns_of_missing_memory_for_message() {
    let mut pair = pair();
    pair.sides[B].lacks_memory = true;
    announced(&mut pair);
    let mut waited = Duration::ZERO;
    while pair.sides[B].conn.close_reason().is_none() {
        assert!(waited < Duration::from_secs(31), "the wait is bounded");
        pair.wait(Duration::from_millis(500));
        waited += Duration::from_millis(500);
    }
    assert!(waited >= Duration::from_secs(30), "{waited:?}");
    assert!(
        (10..50).contains(&pair.sides[B].failed_allocations),
        "the retries become less frequent"
    );
    // A later abort by the application sends no further frame.
    pair.abort(B, 7);
    assert_eq!(pair.sides[B].sending.len(), 1);
    pair.finish();
    assert_eq!(pair.reason(B), &CloseReason::OutOfMemory(no_memory()));
    assert_eq!(pair.reason(A), &CloseReason::PeerOutOfResources);
}

#[test]
fn unknown_failure_code_ends_the_connection() {
    let mut pair = pair();
    let header = Header {
        kind: crate::frame::Kind::Control(crate::frame::Control::Failure),
        sequence: 0,
        grant: 4,
        len: 0,
        arg: 77,
    };
    pair.forge(A, &header.emit());
    pair.finish();
    assert_eq!(pair.reason(B), &CloseReason::PeerFailed(77));
}
