//! Tests of the keepalive with live and dead peers, and of the time until a dead peer is detected.

use std::time::Duration;

use super::{
    pair::{A, B, Pair, Step},
    params,
};
use crate::{Activity, CloseReason, MovedBytes, Params, PeerTimeout};

const INTERVAL: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = Duration::from_secs(3);
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

/// Stops the process of the side `at`: its completions are no longer polled, but its device
/// continues to work.
fn stop(pair: &mut Pair, at: usize) {
    pair.sides[at].ended = Some((CloseReason::LocallyAborted, false));
}

#[test]
fn dead_host_is_detected_in_time_at_any_phase() {
    for offset in (0..3000).step_by(50) {
        for busy in [false, true] {
            let mut pair = Pair::established(alive(), alive());
            // The peer answers Pings until just before it dies. A busy peer also sends messages.
            for _ in 0..offset / 50 {
                pair.wait(Duration::from_millis(50));
                if busy {
                    assert!(pair.send(B));
                }
                pair.run_until_idle();
                assert!(pair.sides.iter().all(|side| side.ended.is_none()));
            }
            let death = pair.now;
            pair.vanish(B);
            pair.finish();
            assert_eq!(pair.reason(A), &CloseReason::KeepaliveTimeout);
            let noticed = pair.now - death;
            assert!(
                noticed <= INTERVAL + TIMEOUT + NOTICE,
                "at {offset} ms, busy {busy}: after {noticed:?}"
            );
        }
    }
}

#[test]
fn a_dead_host_is_noticed_in_time_while_closing() {
    let patient = Params {
        close_timeout: 10 * (INTERVAL + TIMEOUT),
        ..alive()
    };
    for offset in [0, 700, 2_500] {
        let mut pair = Pair::established(patient.clone(), patient.clone());
        assert!(pair.send(B));
        pair.run_until_idle();
        let death = pair.now;
        pair.vanish(B);
        for _ in 0..offset / 50 {
            pair.wait(Duration::from_millis(50));
        }
        pair.close(A);
        pair.finish();
        assert_eq!(
            (pair.reason(A), pair.delivered(A)),
            (&CloseReason::LocallyClosed, false)
        );
        let noticed = pair.now - death;
        assert!(
            noticed <= INTERVAL + TIMEOUT + NOTICE,
            "at {offset} ms: after {noticed:?}"
        );
    }
}

#[test]
fn bytes_acked_by_peer_device_are_a_sign_of_life() {
    let wide = Params {
        window: 16,
        send_slots: 16,
        ..alive()
    };
    let mut pair = Pair::established(wide.clone(), wide);
    for _ in 0..16 {
        assert!(pair.send(A));
    }
    stop(&mut pair, B);
    // On this slow link, each frame takes 900 ms to arrive, and only acknowledgements return.
    for frame in 0..16 {
        pair.wait(Duration::from_millis(900));
        pair.take(Step::Wire(A));
        pair.take(Step::Ack(A));
        while pair.can(Step::Cq(A)) {
            pair.take(Step::Cq(A));
        }
        assert!(pair.sides[A].ended.is_none(), "frame {frame}");
    }
    // The peer's device also acknowledges the Ping, but the acknowledgement proves nothing about
    // the peer's library.
    let start = pair.now;
    loop {
        let steps = [Step::Wire(A), Step::Ack(A), Step::Cq(A)];
        while let Some(step) = steps.into_iter().find(|step| pair.can(*step)) {
            pair.take(step);
        }
        if pair.sides[A].ended.is_some() {
            break;
        }
        assert!(pair.pass());
    }
    assert!(pair.now - start <= INTERVAL + TIMEOUT);
    assert_eq!(pair.reason(A), &CloseReason::KeepaliveTimeout);
}

/// The Ping's completion also covers data that the device acknowledged long before, because most
/// frames have no completion of their own.
#[test]
fn ack_of_a_ping_after_data_is_no_sign_of_life() {
    let wide = Params {
        window: 16,
        send_slots: 16,
        ..alive()
    };
    for count in 1..=16 {
        let mut pair = Pair::established(wide.clone(), wide.clone());
        for _ in 0..count {
            assert!(pair.send(A));
        }
        pair.run_until_idle();
        stop(&mut pair, B);
        let start = pair.now;
        while pair.sides[A].ended.is_none() {
            let steps = [Step::Wire(A), Step::Ack(A), Step::Cq(A)];
            match steps.into_iter().find(|step| pair.can(*step)) {
                Some(step) => pair.take(step),
                None => assert!(pair.pass()),
            }
        }
        assert_eq!(pair.reason(A), &CloseReason::KeepaliveTimeout);
        let noticed = pair.now - start;
        assert!(
            noticed <= INTERVAL + TIMEOUT,
            "after {count} messages: after {noticed:?}"
        );
    }
}

/// The time between two Pings of a connection, while the peer gives signs of life on other
/// connections only.
const PING_PERIOD: Duration = Duration::from_secs(16);

fn show_life_elsewhere(pair: &mut Pair, sides: &[usize], signs: u64) {
    for side in sides {
        let activity = Activity { signs, chunks: 0 };
        pair.sides[*side].conn.set_engine_activity(activity);
    }
    pair.wait(Duration::from_millis(500));
}

#[test]
fn sign_of_life_elsewhere_reduces_probes() {
    let mut pair = Pair::established(alive(), alive());
    for half_second in 1..120 {
        show_life_elsewhere(&mut pair, &[A, B], half_second);
        pair.run_until_idle();
        assert!(pair.sides[A].ended.is_none(), "{half_second}");
    }
    for side in [A, B] {
        let pings = pair.sides[side].conn.statistics().pings_sent;
        assert!((1..=4).contains(&pings), "{pings} in 60 s");
    }
}

#[test]
fn unanswered_ping_ends_connection_despite_life_elsewhere() {
    let mut pair = Pair::established(alive(), alive());
    stop(&mut pair, B);
    let start = pair.now;
    for half_second in 1.. {
        show_life_elsewhere(&mut pair, &[A], half_second);
        if pair.sides[A].conn.close_reason().is_some() {
            break;
        }
        assert!(pair.now - start <= PING_PERIOD + INTERVAL + TIMEOUT);
    }
    let statistics = pair.sides[A].conn.statistics();
    assert_eq!(statistics.pings_sent, 1);
    let reason = pair.sides[A].conn.close_reason();
    assert_eq!(reason, Some(&CloseReason::KeepaliveTimeout));
}

#[test]
fn bytes_that_move_are_signs_of_life() {
    let mut pair = Pair::established(alive(), alive());
    stop(&mut pair, B);
    for signs in 1..60 {
        pair.sides[A].conn.set_moved(MovedBytes {
            signs,
            ..MovedBytes::default()
        });
        pair.wait(Duration::from_millis(500));
        assert!(pair.sides[A].ended.is_none(), "after {signs} half seconds");
    }
    let start = pair.now;
    while pair.sides[A].conn.close_reason().is_none() {
        // Another thread can change the counters while the driver reads them, so `signs` can be
        // lower than before.
        let moved = MovedBytes {
            signs: 58,
            ..MovedBytes::default()
        };
        pair.sides[A].conn.set_moved(moved);
        pair.wait(Duration::from_millis(500));
    }
    let reason = pair.sides[A].conn.close_reason();
    assert_eq!(reason, Some(&CloseReason::KeepaliveTimeout));
    assert!(pair.now - start <= INTERVAL + TIMEOUT);
}

#[test]
fn bytes_to_retransmit_extend_timeout_once() {
    let moved = |acknowledged, wait: u64| MovedBytes {
        acknowledged,
        retransmits_in: Some(Duration::from_millis(wait)),
        ..MovedBytes::default()
    };
    for wait in [0, 1200, 3000, 3001] {
        for acknowledges in [false, true] {
            let mut pair = Pair::established(alive(), alive());
            stop(&mut pair, B);
            pair.sides[A].conn.set_moved(moved(0, wait));
            let start = pair.now;
            let mut extended = None;
            while pair.sides[A].conn.close_reason().is_none() {
                assert!(pair.pass());
                if pair.sides[A].conn.close_reason().is_none()
                    && pair.now - start >= INTERVAL / 2 + TIMEOUT
                {
                    extended.get_or_insert(pair.now - start);
                    if acknowledges {
                        pair.sides[A].conn.set_moved(moved(1, wait));
                    }
                }
            }
            let reason = pair.sides[A].conn.close_reason();
            assert_eq!(reason, Some(&CloseReason::KeepaliveTimeout));
            let limit = INTERVAL + TIMEOUT;
            let overtime = Duration::from_millis(wait + 100);
            let limit = match (wait <= 3000, acknowledges) {
                (false, _) => limit,
                (true, false) => limit + overtime,
                (true, true) => limit + overtime + TIMEOUT,
            };
            assert_eq!(extended.is_some(), wait <= 3000, "{wait}, {acknowledges}");
            let noticed = pair.now - start;
            assert!(noticed <= limit, "{wait}, {acknowledges}: {noticed:?}");
            assert!(
                noticed > limit - INTERVAL,
                "{wait}, {acknowledges}: {noticed:?}"
            );
        }
    }
}

/// Checks that a silent peer is given exactly one further timeout if bytes of this side were
/// retransmitted during the silence. The peer's system has received these bytes, but the peer's
/// answer might have been lost and might still wait for a retransmission.
#[test]
fn bytes_retransmitted_in_silence_extend_timeout_once() {
    for repeats in [false, true] {
        let mut pair = Pair::established(alive(), alive());
        stop(&mut pair, B);
        let start = pair.now;
        while pair.sides[A].conn.close_reason().is_none() {
            // Two retransmissions happen before the silence is detected. If `repeats` is true, a
            // third one follows.
            let late = pair.now - start > INTERVAL;
            let moved = MovedBytes {
                retransmissions: if repeats && late { 3 } else { 2 },
                ..MovedBytes::default()
            };
            pair.sides[A].conn.set_moved(moved);
            assert!(pair.pass());
        }
        let noticed = pair.now - start;
        let limit = INTERVAL + if repeats { 2 * TIMEOUT } else { TIMEOUT };
        assert!(noticed <= limit, "{repeats}: {noticed:?}");
        assert!(noticed > limit - INTERVAL, "{repeats}: {noticed:?}");
    }
}

#[test]
fn peer_that_was_stopped_reads_that_it_was_given_up() {
    let mut pair = Pair::established(alive(), alive());
    // B's process is stopped, but its device continues to work.
    while pair.sides[A].ended.is_none() {
        for step in [Step::Wire(A), Step::Ack(A), Step::Cq(A), Step::Cm(A)] {
            while pair.can(step) {
                pair.take(step);
            }
        }
        pair.now = pair.sides[A].conn.next_timeout().unwrap_or(pair.now);
        pair.sides[A].conn.handle_timeout(pair.now);
        pair.perform_outputs(A);
    }
    assert_eq!(pair.reason(A), &CloseReason::KeepaliveTimeout);
    pair.finish();
    let expected = CloseReason::PeerGaveUp(PeerTimeout::Keepalive);
    assert_eq!(pair.reason(B), &expected);
}

#[test]
fn engine_alive_elsewhere_needs_few_probes() {
    let mut pair = Pair::established(alive(), alive());
    let pings = |pair: &Pair| -> u64 {
        let sent = |at: usize| pair.sides[at].conn.statistics().pings_sent;
        sent(A) + sent(B)
    };
    for half in 1..=160 {
        let signs = half;
        for at in [A, B] {
            let elsewhere = Activity { signs, chunks: 0 };
            pair.sides[at].conn.set_engine_activity(elsewhere);
        }
        pair.wait(Duration::from_millis(500));
        pair.run_until_idle();
        assert!(pair.sides.iter().all(|side| side.ended.is_none()));
    }
    let probed = pings(&pair);
    assert!((4..=12).contains(&probed), "{probed} Pings in 80 intervals");
    // From now on, no sign of life arrives on any connection. The peer must therefore be detected
    // as dead within the usual time.
    let start = pair.now;
    pair.vanish(B);
    pair.finish();
    assert_eq!(pair.reason(A), &CloseReason::KeepaliveTimeout);
    assert!(pair.now - start <= INTERVAL + TIMEOUT);
}

#[test]
fn busy_side_does_not_time_out_its_peer() {
    let mut pair = Pair::established(alive(), alive());
    // Neither side polls for 20 s, ten times in a row. A side can therefore process a Pong up to
    // 20 s after the Pong's arrival.
    for _ in 0..10 {
        pair.wait(Duration::from_secs(20));
        assert!(pair.sides[A].ended.is_none() && pair.sides[B].ended.is_none());
    }
    pair.run();
    for _ in 0..10 {
        assert!(pair.pass());
        pair.run();
        assert!(pair.sides.iter().all(|side| side.ended.is_none()));
    }
}
