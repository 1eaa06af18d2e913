//! Tests of messages above the eager size, and of flushes. The [`Pair`] itself checks the order of
//! messages, the limits, and that memory is read only while it is exposed.

use rdma_status::WcStatus;

use super::{
    pair,
    pair::{A, B, Pair, Step},
    params,
    side::Kept,
};
use crate::{CloseReason, Params, SendRefused, frame::Descriptor};

const MIB: u64 = 1 << 20;

#[test]
fn later_message_arrives_after_large_message() {
    let mut pair = pair();
    assert!(pair.send(A) && pair.send_large(A, 3 * MIB) && pair.send(A));
    while pair.can(Step::Wire(A)) {
        pair.take(Step::Wire(A));
    }
    while pair.can(Step::Cq(B)) {
        pair.take(Step::Cq(B));
    }
    assert_eq!(
        pair.sides[B].received, 1,
        "the third message must wait for the large message"
    );
    assert!(
        pair.sides[B].sending.is_empty(),
        "B must not post a READ before memory is reserved"
    );
    pair.take(Step::Memory(B));
    assert_eq!(
        pair.sides[B].sending.len(),
        2,
        "the reads of the first two chunks are posted together"
    );
    pair.run();
    assert_eq!(pair.sides[B].received, 3);
    assert!(
        pair.sides[A].exposed.is_empty(),
        "B must report the large message as taken"
    );
}

#[test]
fn large_messages_in_flight_respect_the_limit() {
    let mut pair = Pair::established(
        Params {
            window: 8,
            send_slots: 8,
            ..params()
        },
        Params {
            window: 8,
            ..params()
        },
    );
    assert_eq!((0..8).filter(|_| pair.send_large(A, 100)).count(), 4);
    assert!(pair.send(A), "the limit concerns only large messages");
    pair.run();
    assert!(pair.sides[A].writable);
    assert_eq!((0..8).filter(|_| pair.send_large(A, 100)).count(), 4);
}

#[test]
fn memory_is_bounded_on_both_sides() {
    let mut pair = pair();
    // The receiver can hold 4 MiB, and the sender can expose 4 MiB.
    let sent = (0..20)
        .filter(|_| {
            let sent = pair.send_large(A, 2 * MIB);
            pair.run();
            sent
        })
        .count();
    assert_eq!(sent, 4, "B holds two, and A exposes two");
    assert_eq!(pair.sides[B].received, 2);
    assert!(matches!(pair.sides[B].kept[0], Kept::Large(len) if len == 2 * MIB));
    pair.release(B, true);
    pair.run();
    assert_eq!(pair.sides[B].received, 3);
    assert!(pair.sides[A].writable && pair.send_large(A, 2 * MIB));
    pair.run_until_idle();
    assert_eq!(pair.sides[B].received, 5);
}

#[test]
fn single_large_message_may_exceed_the_bound() {
    let mut pair = pair();
    for _ in 0..3 {
        assert!(
            pair.send_large(A, 8 * MIB),
            "a single message may exceed 4 MiB"
        );
        assert!(!pair.send_large(A, 100), "no second message fits");
        pair.run();
        pair.release_all(B);
        pair.run();
    }
    assert_eq!(pair.sides[B].received, 3);
    let len = 8 * MIB as usize + 1;
    assert_eq!(
        pair.sides[A].conn.may_send(len),
        Err(SendRefused::TooLong { limit: 8 * MIB })
    );
}

#[test]
fn a_close_is_answered_when_everything_was_read() {
    for both in [false, true] {
        let mut pair = pair();
        assert!(pair.send_large(A, 2 * MIB) && pair.send_large(B, 3 * MIB));
        assert!(pair.send(A) && pair.send(B));
        pair.close(A);
        if both {
            pair.close(B);
        }
        pair.finish();
        assert!(pair.delivered(A) && pair.delivered(B));
        assert_eq!([pair.sides[A].received, pair.sides[B].received], [2, 2]);
    }
}

#[test]
fn close_without_further_reads_is_undelivered() {
    let mut pair = pair();
    for _ in 0..3 {
        assert!(pair.send_large(A, 2 * MIB) || pair.sides[B].received > 0);
        pair.run();
    }
    pair.close(A);
    pair.finish();
    assert!(
        !pair.delivered(A),
        "the third message must count as undelivered, because B has no memory for it"
    );
    assert_eq!(pair.sides[B].received, 2);
}

#[test]
fn a_truncated_conversation_is_no_clean_end() {
    let mut pair = pair();
    // The receiver's application holds its messages, so there is memory for only two of the three
    // messages.
    for _ in 0..3 {
        assert!(pair.send_large(A, 2 * MIB));
        pair.run();
    }
    assert!(
        pair.send(A),
        "the fourth message must be accepted behind the third"
    );
    pair.run();
    pair.close(A);
    pair.finish();
    assert_eq!(pair.sides[B].received, 2);
    assert_eq!(pair.reason(B), &CloseReason::Truncated { missing: 2 });
    assert!(!pair.delivered(A));
}

#[test]
fn close_before_large_reads_truncates_conversation() {
    for orderly in [true, false] {
        let mut pair = pair();
        assert!(pair.send(A) && pair.send_large(A, 3 * MIB) && pair.send(A));
        pair.close(A);
        while pair.can(Step::Wire(A)) {
            pair.take(Step::Wire(A));
        }
        if orderly {
            pair.kill(A);
        } else {
            pair.sides[B].give_up(WcStatus::RETRY_EXC_ERR);
            pair.vanish(A);
        }
        pair.finish();
        assert_eq!(pair.sides[B].received, 1, "orderly: {orderly}");
        assert_eq!(
            pair.reason(B),
            &CloseReason::Truncated { missing: 2 },
            "orderly: {orderly}"
        );
    }
}

#[test]
fn sender_death_leaves_no_partial_message() {
    let mut pair = pair();
    assert!(pair.send_large(A, 3 * MIB) && pair.send(A));
    for step in [
        Step::Wire(A),
        Step::Wire(A),
        Step::Cq(B),
        Step::Cq(B),
        Step::Memory(B),
    ] {
        pair.take(step);
    }
    for _ in 0..2 {
        pair.take(Step::Wire(B));
        pair.take(Step::Ack(B));
        pair.take(Step::Cq(B));
    }
    pair.kill(A);
    pair.finish();
    assert_eq!(pair.reason(B), &CloseReason::PeerDisconnected);
    assert_eq!(pair.sides[B].received, 0);
}

/// Returns a pair in which B's READ of A's large message has failed. B has not polled the
/// completion of this READ yet.
fn with_a_read_that_fails(status: WcStatus) -> Pair {
    let mut pair = pair();
    assert!(pair.send_large(A, 2 * MIB));
    pair.take(Step::Wire(A));
    pair.take(Step::Cq(B));
    pair.take(Step::Memory(B));
    pair.sides[B].give_up(status);
    pair
}

#[test]
fn forged_key_differs_from_other_read_failures() {
    for (status, field) in [
        (WcStatus::REM_ACCESS_ERR, Some("rkey")),
        (WcStatus::REM_INV_REQ_ERR, Some("rkey")),
        (WcStatus::RETRY_EXC_ERR, None),
    ] {
        let mut pair = with_a_read_that_fails(status);
        pair.finish();
        match (pair.reason(B), field) {
            (CloseReason::ProtocolViolation(violation), Some(field)) => {
                assert_eq!(violation.field(), field);
            }
            (
                CloseReason::WorkRequest {
                    status: reported, ..
                },
                None,
            ) => assert_eq!(*reported, status),
            (reason, _) => panic!("{status}: {reason}"),
        }
    }
}

#[test]
fn memory_lost_before_disconnect_is_no_violation() {
    for status in [WcStatus::REM_ACCESS_ERR, WcStatus::REM_INV_REQ_ERR] {
        let mut pair = with_a_read_that_fails(status);
        pair.take(Step::Cq(B));
        assert!(pair.sides[B].conn.awaits_end_cause());
        pair.kill(A);
        pair.finish();
        assert_eq!(pair.reason(B), &CloseReason::PeerDisconnected, "{status}");
    }
}

#[test]
fn missing_memory_of_gone_peer_is_no_violation() {
    let mut pair = with_a_read_that_fails(WcStatus::REM_ACCESS_ERR);
    pair.kill(A);
    // B handles the event DISCONNECTED before it polls the completion.
    pair.take(Step::Cm(B));
    pair.finish();
    assert_eq!(pair.reason(B), &CloseReason::PeerDisconnected);
}

#[test]
fn closing_side_does_not_wait_for_the_cause() {
    let mut pair = with_a_read_that_fails(WcStatus::REM_ACCESS_ERR);
    pair.take(Step::Cq(B));
    let start = pair.now;
    pair.close(B);
    pair.finish();
    assert_eq!(pair.now, start);
    assert!(matches!(pair.reason(B), CloseReason::ProtocolViolation(_)));
}

#[test]
fn impossible_descriptor_is_a_violation() {
    let good = Descriptor {
        addr: 1 << 32,
        len: 100,
        rkey: 1,
    };
    let mut too_many = Pair::established(params(), params());
    for (descriptor, field) in [
        (Descriptor { len: 0, ..good }, "descriptor len"),
        (
            Descriptor {
                len: 8 * MIB + 1,
                ..good
            },
            "descriptor len",
        ),
        (
            Descriptor {
                addr: u64::MAX - 50,
                ..good
            },
            "descriptor len",
        ),
    ] {
        let mut pair = pair();
        pair.forge_large(A, &descriptor);
        pair.finish();
        match pair.reason(B) {
            CloseReason::ProtocolViolation(violation) => assert_eq!(violation.field(), field),
            reason => panic!("{descriptor:?}: {reason}"),
        }
    }
    for _ in 0..5 {
        too_many.forge_large(A, &good);
    }
    while too_many.can(Step::Wire(A)) {
        too_many.take(Step::Wire(A));
    }
    while too_many.can(Step::Cq(B)) && too_many.sides[B].conn.close_reason().is_none() {
        too_many.take(Step::Cq(B));
    }
    assert!(
        matches!(
            too_many.sides[B].conn.close_reason(),
            Some(CloseReason::ProtocolViolation(_))
        ),
        "the frames exceed the limit or the credit"
    );
}

#[test]
fn a_flush_waits_for_what_was_sent_before_it() {
    let mut pair = pair();
    assert!(pair.send(A) && pair.send_large(A, 3 * MIB));
    let first = pair.flush(A);
    let second = pair.flush(A);
    assert!(!pair.sides[A].conn.is_flushed(&first));
    pair.run();
    assert!(pair.sides[A].conn.is_flushed(&first) && pair.sides[A].conn.is_flushed(&second));
    assert!(pair.sides[A].answered >= 1);

    // The receiver has no memory for the next message, so a flush after this message must wait.
    assert!(pair.send_large(A, 3 * MIB));
    let third = pair.flush(A);
    pair.run();
    assert!(!pair.sides[A].conn.is_flushed(&third));
    pair.release_all(B);
    pair.run();
    assert!(pair.sides[A].conn.is_flushed(&third));
}
