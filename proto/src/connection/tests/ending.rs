//! Tests of the end of a connection: closes, aborts, failures, and combinations of these events.

use std::time::Duration;

use rdma_status::{OsError, WcStatus};

use super::{
    pair,
    pair::{A, B, Pair, Step},
    params,
};
use crate::{CloseReason, Params, SendRefused, TransportTraits};

#[test]
fn a_close_delivers_what_was_sent_before() {
    let mut pair = pair();
    assert!(pair.send(A) && pair.send(B) && pair.send(A));
    pair.close(A);
    assert!(!pair.send(A), "no message after a close");
    pair.finish();
    assert_eq!(
        (pair.reason(A), pair.delivered(A)),
        (&CloseReason::LocallyClosed, true)
    );
    assert_eq!(
        (pair.reason(B), pair.delivered(B)),
        (&CloseReason::PeerClosed, true)
    );
    assert_eq!((pair.sides[A].received, pair.sides[B].received), (1, 2));
}

#[test]
fn a_close_passes_a_full_window() {
    let mut pair = pair();
    while pair.send(A) {}
    while pair.send(B) {}
    pair.close(A);
    pair.finish();
    assert!(pair.delivered(A));
    assert_eq!((pair.sides[A].received, pair.sides[B].received), (4, 4));
}

#[test]
fn both_sides_may_close_at_once() {
    let mut pair = pair();
    pair.close(A);
    pair.close(B);
    pair.finish();
    for at in [A, B] {
        assert_eq!(
            (pair.reason(at), pair.delivered(at)),
            (&CloseReason::LocallyClosed, true)
        );
    }
}

#[test]
fn close_frame_after_disconnected_is_the_reason() {
    let mut pair = pair();
    assert!(pair.send(A));
    pair.close(A);
    // B's device has received everything, but B has processed nothing and sends no answer. A
    // disconnects at its deadline.
    pair.take(Step::Wire(A));
    pair.take(Step::Wire(A));
    pair.wait(Duration::from_secs(5));
    assert!(pair.can(Step::Cm(B)));
    pair.take(Step::Cm(B));
    pair.finish();
    assert_eq!(pair.reason(B), &CloseReason::PeerClosed);
    assert_eq!(
        pair.sides[B].received, 1,
        "the message before the close is delivered, too"
    );
    assert_eq!(pair.reason(A), &CloseReason::LocallyClosed);
}

#[test]
fn a_close_without_an_answer_ends_at_its_deadline() {
    let mut pair = pair();
    assert!(pair.send(A));
    pair.close(A);
    pair.vanish(B);
    pair.finish();
    assert_eq!(
        (pair.reason(A), pair.delivered(A)),
        (&CloseReason::LocallyClosed, false)
    );
}

#[test]
fn abort_carries_its_code() {
    let mut pair = pair();
    while pair.send(A) {}
    pair.abort(A, 9);
    pair.finish();
    assert_eq!(
        (pair.reason(A), pair.delivered(A)),
        (&CloseReason::LocallyAborted, false)
    );
    assert_eq!(pair.reason(B), &CloseReason::PeerAborted(9));
}

#[test]
fn untaken_connection_is_rejected_as_busy() {
    let mut pair = pair();
    while pair.send(A) {}
    pair.close(A);
    pair.reject_untaken(B);
    pair.finish();
    assert_eq!(
        (pair.reason(A), pair.delivered(A)),
        (&CloseReason::PeerBusy, false),
        "PeerBusy is more specific than the close by this side"
    );

    let mut pair = super::pair();
    pair.send(A);
    pair.reject_untaken(B);
    pair.finish();
    assert_eq!(
        (pair.reason(A), pair.delivered(A)),
        (&CloseReason::PeerBusy, false)
    );
    assert_eq!(pair.reason(B), &CloseReason::LocallyClosed);
}

#[test]
fn an_abort_cuts_a_close_short() {
    let mut pair = pair();
    pair.close(A);
    pair.vanish(B);
    pair.abort(A, 9);
    let start = pair.now;
    pair.finish();
    assert_eq!(
        pair.reason(A),
        &CloseReason::LocallyClosed,
        "the first cause remains the reason"
    );
    assert!(
        pair.now - start < Duration::from_secs(4),
        "the abort does not wait for the close's deadline"
    );
}

#[test]
fn peer_death_differs_from_peer_close() {
    let mut pair = pair();
    assert!(pair.send(A));
    pair.take(Step::Wire(A));
    pair.kill(A);
    pair.finish();
    assert_eq!(pair.reason(B), &CloseReason::PeerDisconnected);
    assert_eq!(
        pair.sides[B].received, 1,
        "the arrived message is delivered"
    );
}

#[test]
fn device_failure_is_the_reason() {
    let mut pair = pair();
    assert!(pair.send(A));
    pair.vanish(B);
    pair.fail_send(A, WcStatus::WR_FLUSH_ERR);
    pair.fail_send(A, WcStatus::RETRY_EXC_ERR);
    pair.fail_send(A, WcStatus::FATAL_ERR);
    pair.finish();
    let expected = CloseReason::WorkRequest {
        status: WcStatus::RETRY_EXC_ERR,
        vendor_err: 0x81,
    };
    assert_eq!(
        pair.reason(A),
        &expected,
        "the reason is the first cause that is not a mere symptom"
    );
    assert!(!pair.delivered(A));
}

#[test]
fn close_acked_only_by_peer_device_is_undelivered() {
    for disconnects in [false, true] {
        let mut pair = pair();
        assert!(pair.send(A));
        pair.close(A);
        while pair.can(Step::Wire(A)) {
            pair.take(Step::Wire(A));
        }
        if disconnects {
            pair.kill(B);
        } else {
            pair.vanish(B);
        }
        pair.finish();
        assert_eq!(pair.reason(A), &CloseReason::LocallyClosed);
        assert!(
            !pair.delivered(A),
            "B's library has not received the message"
        );
    }
}

#[test]
fn first_closer_disconnects_after_close_ack() {
    let mut pair = pair();
    pair.close(A);
    for step in [
        Step::Wire(A),
        Step::Cq(B),
        // B's Close arrives, followed by B's CloseAck for A's Close.
        Step::Wire(B),
        Step::Wire(B),
        Step::Cq(A),
        Step::Cq(A),
        // A's CloseAck for B's Close arrives.
        Step::Wire(A),
        Step::Cq(B),
    ] {
        pair.take(step);
        assert!(
            !pair.can(Step::Cm(A)),
            "B only answers A's Close, so B does not disconnect"
        );
        assert!(
            !pair.can(Step::Cm(B)),
            "A waits until its CloseAck is acknowledged"
        );
    }
    for step in [Step::Ack(A), Step::Cq(A), Step::Ack(A), Step::Cq(A)] {
        pair.take(step);
    }
    assert!(pair.can(Step::Cm(B)), "A has disconnected");
    // A's last acknowledgements are lost, so B's device never reports B's last frames as
    // acknowledged.
    pair.acknowledgements_get_lost = true;
    pair.finish();
    assert!(pair.delivered(A) && pair.delivered(B));
}

#[test]
fn simultaneous_closes_need_no_final_ack() {
    let mut pair = pair();
    pair.close(A);
    pair.close(B);
    pair.acknowledgements_get_lost = true;
    for step in [
        Step::Wire(A),
        Step::Wire(B),
        Step::Cq(A),
        Step::Cq(B),
        Step::Wire(A),
        Step::Wire(B),
        Step::Ack(A),
        Step::Ack(A),
    ] {
        pair.take(step);
    }
    while pair.can(Step::Cq(A)) {
        pair.take(Step::Cq(A));
    }
    assert!(pair.can(Step::Cm(B)), "A has disconnected");
    pair.take(Step::Cm(B));
    pair.finish();
    assert!(pair.delivered(A) && pair.delivered(B));
}

#[test]
fn abort_waits_for_its_own_notice() {
    let one = Params {
        send_slots: 1,
        ..params()
    };
    let mut pair = Pair::established(one.clone(), one);
    assert!(pair.send(A));
    pair.abort(A, 9);
    for step in [Step::Wire(A), Step::Ack(A), Step::Cq(A)] {
        pair.take(step);
    }
    assert!(!pair.can(Step::Cm(B)), "A has not disconnected");
    pair.finish();
    assert_eq!(pair.reason(B), &CloseReason::PeerAborted(9));
}

#[test]
fn a_blocked_sender_learns_of_the_end_when_it_begins() {
    let ends: [fn(&mut Pair); 3] = [
        |pair| pair.close(A),
        |pair| {
            pair.close(B);
            pair.take(Step::Wire(B));
            pair.take(Step::Cq(A));
        },
        |pair| pair.fail_send(A, WcStatus::RETRY_EXC_ERR),
    ];
    for end in ends {
        let mut pair = pair();
        while pair.send(A) {}
        assert!(!pair.sides[A].writable);
        end(&mut pair);
        assert!(pair.sides[A].writable && pair.sides[A].ended.is_none());
        assert!(!pair.send(A), "the retry reports the end");
    }
}

#[test]
fn queued_frames_arrive_after_drain_deadline() {
    let mut pair = pair();
    assert!(pair.send(A));
    pair.take(Step::Wire(A));
    pair.kill(A);
    // B handles the event DISCONNECTED, and then does not run until its deadline has passed.
    pair.take(Step::Cm(B));
    pair.wait(Duration::from_secs(60));
    assert_eq!(pair.sides[B].received, 1);
    pair.finish();
}

#[test]
fn a_removed_device_is_not_waited_for() {
    let mut pair = pair();
    assert!(pair.send(B));
    pair.take(Step::Wire(B));
    pair.remove_device(A);
    let start = pair.now;
    pair.run();
    assert_eq!(pair.reason(A), &CloseReason::DeviceRemoved);
    assert_eq!(
        pair.sides[A].received, 1,
        "the arrived message is delivered"
    );
    assert_eq!(pair.now, start);
}

#[test]
fn a_disconnect_that_cannot_be_made_is_not_waited_for() {
    let mut pair = pair();
    pair.sides[A].removed = true;
    assert!(pair.send(A));
    pair.fail_send(A, WcStatus::FATAL_ERR);
    let start = pair.now;
    pair.run();
    assert!(matches!(
        pair.reason(A),
        CloseReason::WorkRequest {
            status: WcStatus::FATAL_ERR,
            ..
        }
    ));
    assert_eq!(pair.now, start);
}

#[test]
fn flushed_sender_waits_for_cause_of_end() {
    let mut pair = pair();
    assert!(pair.send(A));
    pair.abort(B, 3);
    pair.take(Step::Wire(B));
    pair.fail_send(A, WcStatus::WR_FLUSH_ERR);
    let early = &mut pair.sides[A].conn;
    assert_eq!(early.may_send(1), Err(SendRefused::Blocked));
    assert_eq!(early.close_reason(), Some(&CloseReason::PeerDisconnected));
    pair.finish();
    let late = &mut pair.sides[A].conn;
    let cause = CloseReason::PeerAborted(3);
    assert_eq!(late.may_send(1), Err(SendRefused::Closed(cause)));
}

#[test]
fn a_post_that_is_refused_at_an_end_is_not_its_reason() {
    let refused = OsError {
        call: "ibv_post_send",
        errno: libc::ENOTCONN,
    };
    let mut pair = pair();
    pair.abort(B, 3);
    pair.take(Step::Wire(B));
    let early = &mut pair.sides[A].conn;
    early.handle_post_failure(refused, pair.now);
    assert_eq!(early.may_send(1), Err(SendRefused::Blocked));
    pair.finish();
    assert_eq!(pair.reason(A), &CloseReason::PeerAborted(3));
}

#[test]
fn failure_of_ended_peer_process_is_not_the_reason() {
    let mut pair = pair();
    assert!(pair.send(A));
    pair.kill(B);
    pair.fail_send(A, WcStatus::REM_OP_ERR);
    pair.finish();
    assert_eq!(pair.reason(A), &CloseReason::PeerDisconnected);
}

#[test]
fn symptom_during_close_counts_as_loss() {
    let symptoms: [fn(&mut Pair); 2] = [
        |pair| pair.fail_send(A, WcStatus::REM_OP_ERR),
        |pair| {
            let refused = OsError {
                call: "ibv_post_send",
                errno: libc::ENOTCONN,
            };
            let now = pair.now;
            pair.sides[A].conn.handle_post_failure(refused, now);
        },
    ];
    for symptom in symptoms {
        let mut pair = pair();
        assert!(pair.send(A));
        pair.close(A);
        pair.kill(B);
        symptom(&mut pair);
        pair.finish();
        let reason = pair.reason(A).clone();
        assert_eq!(reason, CloseReason::LocallyClosed);
        assert!(pair.sides[A].conn.is_lost(&reason));
    }
}

#[test]
fn later_event_replaces_flush_as_reason() {
    let mut first = pair();
    assert!(first.send(A));
    first.fail_send(A, WcStatus::WR_FLUSH_ERR);
    first.finish();
    assert_eq!(first.reason(A), &CloseReason::PeerDisconnected);

    let mut second = pair();
    assert!(second.send(A));
    second.abort(B, 3);
    second.take(Step::Wire(B));
    second.fail_send(A, WcStatus::WR_FLUSH_ERR);
    second.finish();
    assert_eq!(second.reason(A), &CloseReason::PeerAborted(3));
}

#[test]
fn own_disconnect_needs_no_event_if_none_follows() {
    for reports_own_disconnect in [true, false] {
        let traits = TransportTraits {
            reports_own_disconnect,
            ..TransportTraits::UNRESTRICTED
        };
        let mut pair = Pair::over(traits, params(), params());
        pair.run();
        pair.close(A);
        let steps = [
            Step::Wire(A),
            Step::Wire(B),
            Step::Ack(A),
            Step::Ack(B),
            Step::Cq(A),
            Step::Cq(B),
            Step::Cm(B),
        ];
        while let Some(step) = steps.into_iter().find(|step| pair.can(*step)) {
            pair.take(step);
        }
        assert_eq!(pair.sides[A].ended.is_some(), !reports_own_disconnect);
        pair.finish();
        assert!(pair.delivered(A) && pair.delivered(B));
    }
}
