//! Tests of byte streams while the receiving application does not read.

use super::{
    pair::{A, B, Pair},
    params,
};
use crate::Params;

const MIB: u64 = 1 << 20;

fn streams(window: u16) -> Pair {
    let params = Params {
        window,
        send_slots: 8,
        stream: true,
        ..params()
    };
    Pair::established(params.clone(), params)
}

#[test]
fn messages_are_copied_beyond_half_of_the_receives() {
    let mut pair = streams(8);
    for held in 1..=7 {
        assert!(pair.send(A));
        pair.run();
        let conn = &pair.sides[B].conn;
        assert_eq!(
            conn.may_copy(100, 0, false),
            held > 4,
            "{held} messages are held"
        );
        assert_eq!(
            conn.may_copy(100, 0, true),
            held > 6,
            "{held} messages are held"
        );
    }
    let conn = &pair.sides[B].conn;
    assert!(
        !conn.may_copy(0, 0, false),
        "an empty message is not copied"
    );
    assert!(conn.may_copy(2 << 20, 0, false));
    assert!(!conn.may_copy(2 << 20, 1, false), "the buffer has no room");
    pair.release_all(B);
    assert!(
        !pair.sides[B].conn.may_copy(100, 0, false),
        "no receive is occupied"
    );
}

#[test]
fn large_message_waits_until_copies_are_read() {
    let mut pair = streams(2);
    for _ in 0..2 {
        assert!(pair.send(A));
        pair.run();
    }
    assert!(pair.sides[B].conn.may_copy(100, 0, false));
    pair.sides[B].conn.copied(100);
    pair.release_all(B);
    pair.run();
    assert!(pair.send_large(A, 2 * MIB));
    pair.run();
    assert_eq!(
        pair.sides[B].received, 2,
        "the message and the copy exceed the limit"
    );
    let now = pair.now;
    pair.sides[B].conn.release_copied(100, now);
    pair.perform_outputs(B);
    pair.run();
    assert_eq!(pair.sides[B].received, 3);
}

#[test]
fn pieces_beyond_half_the_held_limit_are_copied() {
    let mut pair = streams(4);
    for held in 1..=3 {
        assert!(pair.send_large(A, 1000));
        pair.run();
        let copies = pair.sides[B].conn.may_copy_large();
        assert_eq!(copies, held == 3, "{held} messages are held");
    }
}

#[test]
fn pieces_in_flight_and_unread_exceed_buffer_by_one() {
    let mut pair = streams(8);
    let piece = pair.sides[A].conn.stream_piece();
    assert_eq!(piece, MIB);
    let mut sent = 0;
    while pair.send_large(A, piece) {
        pair.run();
        sent += 1;
    }
    assert_eq!((sent, pair.sides[B].received), (5, 2));
    let frame = params().eager_size.into();
    assert_eq!(pair.sides[A].conn.most_held_back(), frame);
    assert_eq!(pair.sides[B].conn.most_held_back(), 2 * MIB);
    pair.run_until_idle();
    assert_eq!(pair.sides[B].received, 5);
}

#[test]
fn endpoint_that_becomes_a_stream_takes_its_limits() {
    let mut pair = super::pair();
    pair.sides[A].conn.carry_bytes();
    assert!((0..3).all(|_| pair.send_large(A, MIB)));
    assert!(!pair.send_large(A, MIB));
}
