//! Tests of an established connection: credits, slots and keepalive.

use std::time::Duration;

use super::{
    pair,
    pair::{A, B, Pair, Step},
    params,
    side::Completion,
};
use crate::{CONTROL_SENDS, CloseReason, Fragmentation, Params};

#[test]
fn full_window_stalls_until_a_release() {
    let mut pair = pair();
    assert_eq!((0..10).filter(|_| pair.send(A)).count(), 4);
    pair.run();
    assert!(!pair.send(A), "held messages keep the window full");
    pair.release(B, true);
    pair.run();
    assert!(
        !pair.sides[A].writable,
        "the grant waits for further releases"
    );
    pair.release(B, true);
    pair.run();
    assert!(pair.sides[A].writable, "half of the window is granted");
    assert_eq!((0..10).filter(|_| pair.send(A)).count(), 2);
}

#[test]
fn peer_without_credit_gets_delayed_grant_of_one() {
    let mut pair = pair();
    assert_eq!((0..10).filter(|_| pair.send(A)).count(), 4);
    pair.run();
    pair.release(B, true);
    pair.run();
    assert!(!pair.sides[A].writable);
    pair.wait(Duration::from_millis(2));
    pair.run();
    assert!(pair.sides[A].writable);
    assert_eq!((0..10).filter(|_| pair.send(A)).count(), 1);
}

#[test]
fn fragments_get_slots_of_unsignalled_frames() {
    let params = Params {
        window: 32,
        send_slots: 16,
        fragmentation: Fragmentation {
            max: 16,
            shortest_first: false,
        },
        ..params()
    };
    let longest = 16 * params.eager_size;
    // Earlier frames occupy slots. If `completes_first` is true, all frames have arrived, and only
    // unsignalled ones still occupy slots. If it is false, all frames are in flight, and some of
    // them are signalled.
    for (sends, completes_first) in (0..16).flat_map(|sends| [(sends, true), (sends, false)]) {
        let mut pair = Pair::established(params.clone(), params.clone());
        for _ in 0..sends {
            assert!(pair.send(A));
        }
        if completes_first {
            pair.run();
        }
        if !pair.send_fragments(A, longest) {
            pair.run();
            assert!(
                pair.sides[A].writable,
                "after {sends} sends, the slots are freed without a delay"
            );
            assert!(pair.send_fragments(A, longest));
        }
        pair.finish();
    }
}

#[test]
fn send_at_once_counts_no_stall() {
    let mut pair = pair();
    while pair.send(A) {}
    let stalls = pair.sides[A].conn.statistics().stalls;
    assert_eq!(stalls, 1, "only the refused send is counted");
    assert_eq!(pair.sides[A].conn.send_at_once(1), None);
    assert_eq!(pair.sides[A].conn.statistics().stalls, stalls);
}

#[test]
fn grant_without_delays_needs_no_timer() {
    let params = Params {
        delays_grants: false,
        ..params()
    };
    let mut pair = Pair::established(params.clone(), params);
    assert_eq!((0..10).filter(|_| pair.send(A)).count(), 4);
    pair.run();
    pair.release(B, true);
    pair.run();
    assert!(pair.sides[A].writable, "the grant is not delayed");
    assert_eq!((0..10).filter(|_| pair.send(A)).count(), 1);
}

#[test]
fn slow_receiver_grants_half_windows() {
    let mut pair = pair();
    let mut sent = 0;
    for _ in 0..100 {
        while pair.send(A) {
            sent += 1;
        }
        pair.run();
        pair.release(B, true);
        pair.wait(Duration::from_micros(500));
        pair.run();
    }
    let grants = pair.sides[B].conn.statistics().grants_sent;
    assert!(grants <= sent / 2 + 1, "{grants} for {sent} messages");
    pair.release_all(B);
    pair.finish();
}

#[test]
fn batch_takes_one_credit_per_message() {
    let mut pair = pair();
    assert_eq!(pair.send_batch(A, 3), 3);
    assert_eq!(pair.send_batch(A, 3), 1, "the window has four credits");
    assert!(!pair.send(A));
    pair.run();
    assert_eq!(pair.sides[B].received, 4);
    // B's application releases all messages except the third message of the first batch. The third
    // message occupies a buffer and one credit of the window.
    pair.release(B, true);
    pair.release(B, true);
    pair.release(B, false);
    pair.run();
    // B has sent a Grant for two of the three released credits. One credit is less than half of the
    // window, so B grants the third credit only with its next frame.
    assert_eq!(pair.send_batch(A, 10), 2);
    pair.run();
    assert_eq!(pair.sides[B].received, 6);
    pair.release_all(B);
    pair.run();
    assert_eq!((0..10).filter(|_| pair.send(A)).count(), 4);
    pair.close(A);
    pair.finish();
    assert!(pair.delivered(A));
    assert_eq!(pair.sides[B].received, 10);
}

#[test]
fn a_batch_behind_a_large_message_waits_for_it() {
    let mut pair = pair();
    assert!(pair.send_large(A, 100_000));
    assert_eq!(pair.send_batch(A, 2), 2);
    pair.run();
    assert_eq!(
        pair.sides[B].received, 3,
        "all three messages must arrive, in order"
    );
}

#[test]
fn receiver_that_holds_most_credits_grants_the_rest() {
    let mut pair = pair();
    assert_eq!((0..10).filter(|_| pair.send(A)).count(), 4);
    pair.run();
    // B's application holds three messages until the end of the test. All other messages pass one
    // at a time and use the fourth credit of the window. B delays only the first grant, and then
    // sends each grant immediately.
    for number in 0..50 {
        pair.release(B, false);
        pair.run();
        if number == 0 {
            pair.wait(Duration::from_millis(2));
            pair.run();
        }
        assert!(pair.send(A), "{pair:?}");
        pair.run();
    }
    assert_eq!(pair.sides[B].received, 54);
}

#[test]
fn grants_ride_on_data_of_the_other_direction() {
    let mut pair = pair();
    assert!(pair.send(A));
    pair.run();
    pair.release(B, true);
    assert!(pair.send(B), "this frame carries the grant");
    pair.run();
    assert_eq!((0..10).filter(|_| pair.send(A)).count(), 4);
}

#[test]
fn smallest_window_and_ring_make_progress() {
    let tiny = Params {
        window: 1,
        send_slots: 1,
        ..params()
    };
    let mut pair = Pair::established(tiny.clone(), tiny);
    for _ in 0..100 {
        for at in [A, B] {
            assert!(pair.send(at), "{pair:?}");
        }
        pair.run();
        pair.release_all(A);
        pair.release_all(B);
        pair.run();
    }
    assert_eq!([pair.sides[A].received, pair.sides[B].received], [100, 100]);
}

#[test]
fn counters_wrap_around() {
    let mut pair = Pair::near_the_wrap(params(), params());
    for _ in 0..30 {
        assert!(pair.send(A) && pair.send(B), "{pair:?}");
        pair.run();
        pair.release_all(A);
        pair.release_all(B);
        pair.run();
    }
    pair.close(A);
    pair.finish();
    assert_eq!([pair.sides[A].received, pair.sides[B].received], [30, 30]);
    assert!(pair.delivered(A));
}

#[test]
fn a_silent_peer_is_probed_and_then_given_up() {
    let alive = Params {
        keepalive_interval: Some(Duration::from_secs(1)),
        ..params()
    };
    let mut pair = Pair::established(alive.clone(), alive);
    for _ in 0..20 {
        assert!(pair.pass());
        pair.run();
        assert!(
            pair.sides.iter().all(|side| side.ended.is_none()),
            "an idle peer answers Pings"
        );
    }
    let start = pair.now;
    pair.vanish(B);
    pair.finish();
    assert_eq!(pair.reason(A), &CloseReason::KeepaliveTimeout);
    assert!(
        pair.now - start <= Duration::from_secs(1 + 3),
        "the loss is detected within interval + timeout"
    );
}

#[test]
fn the_smaller_keepalive_interval_holds_for_both() {
    let [slow, fast, off] = [Some(9), Some(1), None].map(|seconds| Params {
        keepalive_interval: seconds.map(Duration::from_secs),
        ..params()
    });
    let of = |pair: &Pair, at: usize| pair.sides[at].conn.negotiated().unwrap().keepalive_interval;
    let pair = Pair::established(slow.clone(), fast);
    assert_eq!(
        [A, B].map(|at| of(&pair, at)),
        [Some(Duration::from_secs(1)); 2]
    );
    let pair = Pair::established(slow, off);
    assert_eq!(
        [A, B].map(|at| of(&pair, at)),
        [Some(Duration::from_secs(9)), None],
        "a side without an interval sends no probes"
    );
}

#[test]
fn short_peer_interval_keeps_local_timer() {
    let [slow, hasty] = [2000, 1].map(|millis| Params {
        keepalive_interval: Some(Duration::from_millis(millis)),
        ..params()
    });
    let pair = Pair::established(slow, hasty);
    let of = |at: usize| pair.sides[at].conn.negotiated().unwrap().keepalive_interval;
    assert_eq!(of(A), Some(Duration::from_millis(100)));
    assert_eq!(
        of(B),
        Some(Duration::from_millis(1)),
        "the minimum limits only the peer's interval"
    );
}

#[test]
fn sender_without_slot_is_notified_of_room() {
    let few = Params {
        window: 4,
        send_slots: 1,
        ..params()
    };
    let mut pair = Pair::established(few.clone(), few);
    assert!(pair.send(A));
    assert!(!pair.send(A), "a credit is available, but no slot");
    pair.take(Step::Wire(A));
    assert!(!pair.can(Step::Cq(A)), "the frame is not acknowledged yet");
    pair.take(Step::Ack(A));
    pair.take(Step::Cq(A));
    assert!(pair.sides[A].writable);
    assert!(pair.send(A));
}

#[test]
fn message_for_blocked_sender_takes_general_path() {
    let mut pair = pair();
    while pair.send(A) {}
    assert!(pair.send(B));
    pair.take(Step::Wire(B));
    let side = &mut pair.sides[A];
    let Some(Completion::Recv { frame, .. }) = side.cq.front() else {
        panic!("a frame must have arrived");
    };
    let frame = frame.clone();
    assert_eq!(side.conn.take_message(&frame), None);
    pair.run();
    pair.release_all(A);
    pair.release_all(B);
    pair.run();
    assert!(pair.sides[A].writable);
    assert!(pair.send(B));
    pair.take(Step::Wire(B));
    let side = &mut pair.sides[A];
    let Some(Completion::Recv { frame, .. }) = side.cq.pop_front() else {
        panic!("a frame must have arrived");
    };
    assert_eq!(side.conn.take_message(&frame), Some(4));
    assert!(side.conn.is_settled());
}

/// Checks that B delays a Grant while no slot is free. In this test, B's sends do not complete, so
/// B's Grants fill the slots that are reserved for control frames.
#[test]
fn grant_without_slot_is_sent_at_next_completion() {
    let tiny = Params {
        window: 1,
        send_slots: 1,
        ..params()
    };
    let mut pair = Pair::established(tiny.clone(), tiny);
    let mut rounds = 0;
    while pair.send(A) {
        for step in [Step::Wire(A), Step::Ack(A), Step::Cq(A), Step::Cq(B)] {
            pair.take(step);
        }
        pair.release_all(B);
        for step in [Step::Wire(B), Step::Cq(A)] {
            if pair.can(step) {
                pair.take(step);
            }
        }
        rounds += 1;
        assert!(rounds < 100, "the Grants exhaust the slots");
    }
    assert!(rounds >= CONTROL_SENDS, "{rounds}");
    pair.take(Step::Ack(B));
    pair.take(Step::Cq(B));
    pair.take(Step::Wire(B));
    pair.take(Step::Cq(A));
    assert!(pair.sides[A].writable);
    assert!(pair.send(A));
}

#[test]
fn an_answer_may_come_before_the_acknowledgement() {
    let mut pair = pair();
    assert!(pair.send(A));
    for step in [Step::Wire(A), Step::Cq(B)] {
        pair.take(step);
    }
    assert!(pair.send(B));
    for step in [Step::Wire(B), Step::Cq(A)] {
        pair.take(step);
    }
    assert_eq!(pair.sides[A].received, 1);
    pair.run();
    assert!(pair.sides.iter().all(|side| side.ended.is_none()));
}
