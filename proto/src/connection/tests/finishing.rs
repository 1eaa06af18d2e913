//! Tests of half-close, and of messages that the driver holds back.

use super::{
    pair,
    pair::{A, B, Step},
};
use crate::{
    CloseReason, SendRefused,
    frame::{Control, Kind},
};

use super::hostile::{control, data, violated_field};

#[test]
fn a_finish_ends_one_direction_after_everything_in_it() {
    let mut pair = pair();
    assert!(pair.send(A) && pair.send_large(A, 3 << 20) && pair.send(A));
    pair.finish_sending(A);
    assert!(!pair.send(A));
    assert_eq!(pair.sides[A].conn.may_send(1), Err(SendRefused::Finished));
    pair.run();
    assert!(pair.sides[B].peer_finished);
    assert_eq!(pair.sides[B].received, 3);
    for _ in 0..20 {
        assert!(pair.send(B), "the other direction stays open: {pair:?}");
        pair.run();
        pair.release_all(A);
        pair.run();
    }
    pair.finish_sending(B);
    pair.run();
    assert!(pair.sides[A].peer_finished);
    assert!(
        pair.sides.iter().all(|side| side.ended.is_none()),
        "no side has closed"
    );
    pair.close(B);
    pair.finish();
    assert_eq!(pair.reason(A), &CloseReason::PeerClosed);
    assert!(pair.delivered(A) && pair.delivered(B));
}

#[test]
fn a_finish_needs_no_credit_and_is_sent_once() {
    let mut pair = pair();
    while pair.send(A) {}
    pair.finish_sending(A);
    pair.finish_sending(A);
    pair.run();
    assert!(pair.sides[B].peer_finished);
    assert_eq!(pair.sides[B].received, 4);
}

#[test]
fn one_sided_operations_continue_after_finish() {
    let mut pair = pair();
    pair.finish_sending(A);
    let conn = &mut pair.sides[A].conn;
    assert_eq!(conn.operate(true), Err(SendRefused::Finished));
    assert!(conn.operate(false).is_ok());
    assert!(conn.flush().is_ok());
}

#[test]
fn held_messages_precede_finish_and_close() {
    for closes in [false, true] {
        let mut pair = pair();
        while pair.send(A) {}
        // The window allows only four of these six messages at once.
        assert!((0..6).all(|_| pair.hold_back(A)));
        pair.finish_sending(A);
        if closes {
            pair.close(A);
        }
        pair.run();
        assert!(
            !pair.sides[B].peer_finished,
            "held messages precede the Finish"
        );
        assert_eq!(pair.sides[B].received, 4);
        pair.release_all(B);
        pair.run();
        assert!(
            !pair.sides[B].peer_finished,
            "two held messages still precede the Finish"
        );
        assert_eq!(pair.sides[B].received, 8);
        pair.release_all(B);
        pair.run();
        assert!(pair.sides[B].peer_finished);
        assert_eq!(pair.sides[B].received, 10);
        if !closes {
            pair.close(A);
        }
        pair.finish();
        assert!(pair.delivered(A));
        assert_eq!(pair.reason(B), &CloseReason::PeerClosed);
    }
}

#[test]
fn close_timeout_includes_held_messages() {
    let mut pair = pair();
    while pair.send(A) {}
    assert!(pair.hold_back(A));
    let start = pair.now;
    pair.close(A);
    pair.finish();
    assert!(!pair.delivered(A), "the held message was never sent");
    assert!(pair.now - start <= pair.sides[A].params.close_timeout * 2);
}

#[test]
fn what_is_held_back_is_dropped_when_the_peer_closes() {
    let mut pair = pair();
    while pair.send(A) {}
    assert!(pair.hold_back(A));
    pair.close(B);
    pair.finish();
    assert_eq!(pair.sides[A].held, 0);
    assert_eq!(pair.reason(A), &CloseReason::PeerClosed);
    assert_eq!(pair.sides[B].received, 4);
}

#[test]
fn nothing_but_control_frames_may_follow_a_finish() {
    for behind in [data(4, &0_u32.to_le_bytes()), control(Control::Finish)] {
        let mut pair = pair();
        pair.forge(A, &control(Control::Finish));
        pair.forge(A, &control(Control::Grant));
        pair.forge(A, &behind);
        while pair.can(Step::Wire(A)) {
            pair.take(Step::Wire(A));
        }
        pair.finish();
        assert_eq!(violated_field(pair.reason(B)), "kind", "{behind:?}");
        assert_eq!(pair.sides[B].received, 0);
    }
    let mut pair = pair();
    pair.forge(A, &control(Control::Close));
    pair.forge(A, &control(Control::Finish));
    pair.finish();
    assert_eq!(pair.reason(B), &CloseReason::PeerClosed);
    assert!(!pair.sides[B].peer_finished);
    assert_eq!(Kind::Control(Control::Finish).number(), 9);
}
