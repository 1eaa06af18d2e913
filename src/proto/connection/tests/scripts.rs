//! Named scenes.

use std::time::Duration;

use super::{
    pair::{A, B, Pair, Step},
    params,
};
use crate::{
    proto::{
        CloseReason, CmInput, CmOp, Connection, Event, Output, Params, Phase,
        frame::{Header, Kind},
        hello::Hello,
    },
    status::{CmStatus, RejectReason, WcStatus},
};

fn pair() -> Pair {
    Pair::established(params(), params())
}

#[test]
fn hellos_and_private_data_reach_both_sides() {
    let mut other = params();
    other.window = 7;
    other.eager_size = 32;
    other.max_message = 32;
    let pair = Pair::established(params(), other);
    let [a, b] = [A, B].map(|at| pair.sides[at].conn.negotiated().unwrap());
    assert_eq!(
        (a.send_window, a.recv_window, a.send_limit, a.recv_limit),
        (7, 4, 32, 64)
    );
    assert_eq!(
        (b.send_window, b.recv_window, b.send_limit, b.recv_limit),
        (4, 7, 64, 32)
    );
    assert_eq!(pair.sides[A].conn.peer_data(), b"from b");
    assert_eq!(pair.sides[B].conn.peer_data(), b"from a");
}

#[test]
fn a_frame_before_established_establishes_the_passive_side() {
    let mut pair = Pair::new(params(), params());
    for step in [Step::Cm(A), Step::Cm(A), Step::Cm(A)] {
        pair.take(step);
    }
    assert!(pair.sides[A].established && !pair.sides[B].established);
    assert!(pair.send(A));
    pair.take(Step::Wire(A));
    pair.take(Step::Cq(B));
    assert!(pair.sides[B].established, "the frame came first");
    assert_eq!(pair.sides[B].received, 1);
    pair.take(Step::Cm(B));
    pair.run();
    assert!(pair.sides[B].ended.is_none());
}

#[test]
fn frames_before_established_wait_for_the_hello_on_the_active_side() {
    let now = std::time::Instant::now();
    let frames: Vec<Vec<u8>> = [0_u32, 1]
        .iter()
        .map(|n| {
            [
                &Header {
                    kind: Kind::Data,
                    grant: 4,
                    len: 4,
                    arg: 0,
                }
                .emit()[..],
                &n.to_le_bytes(),
            ]
            .concat()
        })
        .collect();
    let mut conn = Connection::connect(params(), 1, b"", now);
    conn.handle_cm_event(CmInput::AddrResolved, now);
    conn.handle_cm_event(CmInput::RouteResolved, now);
    conn.handle_recv(3, &frames[0], now);
    conn.handle_recv(4, &frames[1], now);
    conn.handle_cm_event(
        CmInput::Established {
            private_data: &hello(1, 4).emit(b""),
        },
        now,
    );
    let events: Vec<_> = std::iter::from_fn(|| conn.poll_output())
        .filter_map(|output| {
            if let Output::Event(event) = output {
                Some(event)
            } else {
                None
            }
        })
        .collect();
    assert_eq!(
        events,
        [
            Event::Established,
            Event::Message {
                buffer: 3,
                offset: 16,
                len: 4
            },
            Event::Message {
                buffer: 4,
                offset: 16,
                len: 4
            }
        ]
    );
}

#[test]
fn a_full_window_stalls_and_a_release_lets_go_on() {
    let mut pair = pair();
    assert_eq!((0..10).filter(|_| pair.send(A)).count(), 4);
    pair.run();
    assert!(!pair.send(A), "kept messages keep the window shut");
    pair.release(B, true);
    pair.run();
    assert!(
        !pair.sides[A].writable,
        "less than half the window is not worth a frame"
    );
    pair.release(B, true);
    pair.run();
    assert!(pair.sides[A].writable);
    assert_eq!((0..10).filter(|_| pair.send(A)).count(), 2);
}

#[test]
fn grants_ride_on_data_of_the_other_direction() {
    let mut pair = pair();
    assert!(pair.send(A));
    pair.run();
    pair.release(B, true);
    assert!(pair.send(B), "this frame tells A");
    pair.run();
    assert_eq!((0..10).filter(|_| pair.send(A)).count(), 4);
}

#[test]
fn the_smallest_window_and_ring_carry_on() {
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
fn a_close_frame_behind_disconnected_is_still_the_reason() {
    let mut pair = pair();
    assert!(pair.send(A));
    pair.close(A);
    // B's device has everything, B has looked at nothing, and answers nothing: A's deadline takes the connection down.
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
fn an_abort_tells_its_code() {
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
        "the first cause stays"
    );
    assert!(
        pair.now - start < Duration::from_secs(4),
        "it does not wait for the close's deadline"
    );
}

#[test]
fn a_peer_that_dies_is_told_from_one_that_closes() {
    let mut pair = pair();
    assert!(pair.send(A));
    pair.take(Step::Wire(A));
    pair.kill(A);
    pair.finish();
    assert_eq!(pair.reason(B), &CloseReason::PeerDisconnected);
    assert_eq!(pair.sides[B].received, 1, "what had arrived is delivered");
}

#[test]
fn a_device_that_gives_up_is_the_reason() {
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
        "the first cause that is more than a sign of one"
    );
    assert!(!pair.delivered(A));
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
            "an idle peer answers"
        );
    }
    let start = pair.now;
    pair.vanish(B);
    pair.finish();
    assert_eq!(pair.reason(A), &CloseReason::KeepaliveTimeout);
    assert!(
        pair.now - start <= Duration::from_secs(1 + 1 + 3),
        "interval, and another to notice, and the timeout"
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
        "who sends no probes answers them"
    );
}

#[test]
fn hostile_frames_end_the_connection_and_name_the_field() {
    let header = |kind, grant, len, arg| {
        Header {
            kind,
            grant,
            len,
            arg,
        }
        .emit()
    };
    let data =
        |grant, len, payload: &[u8]| [&header(Kind::Data, grant, len, 0)[..], payload].concat();
    let edit = |at: usize, byte: u8| {
        let mut frame = data(4, 1, b"x");
        frame[at] = byte;
        frame
    };
    let cases: [(&str, &str, Vec<u8>); 11] = [
        ("short", "frame length", vec![1; 15]),
        ("unknown kind", "kind", edit(0, 99)),
        ("flags", "flags", edit(1, 1)),
        ("reserved", "reserved", edit(3, 1)),
        ("length too large", "len", data(4, 2, b"x")),
        ("length too small", "len", data(4, 0, b"x")),
        ("forged grant", "grant", data(9, 1, b"x")),
        ("grant that goes back", "grant", data(3, 1, b"x")),
        ("argument", "arg", edit(12, 1)),
        (
            "payload in a control frame",
            "len",
            [&header(Kind::Ping, 4, 1, 0)[..], b"x"].concat(),
        ),
        (
            "pong without a ping",
            "kind",
            header(Kind::Pong, 4, 0, 0).to_vec(),
        ),
    ];
    for (what, field, frame) in cases {
        let mut pair = pair();
        pair.forge(A, &frame);
        pair.finish();
        match pair.reason(B) {
            CloseReason::ProtocolViolation(violation) => {
                assert_eq!(violation.field(), field, "{what}")
            }
            other => panic!("{what}: {other:?}"),
        }
    }
}

#[test]
fn data_beyond_the_credit_is_a_violation() {
    let mut pair = pair();
    while pair.send(A) {}
    pair.forge(
        A,
        &[
            &Header {
                kind: Kind::Data,
                grant: 4,
                len: 1,
                arg: 0,
            }
            .emit()[..],
            b"x",
        ]
        .concat(),
    );
    pair.finish();
    assert!(
        matches!(pair.reason(B), CloseReason::ProtocolViolation(_)),
        "{:?}",
        pair.reason(B)
    );
    assert_eq!(pair.sides[B].received, 4);
}

fn last_event(conn: &mut Connection) -> Option<Event> {
    std::iter::from_fn(|| conn.poll_output())
        .filter_map(|output| {
            if let Output::Event(event) = output {
                Some(event)
            } else {
                None
            }
        })
        .last()
}

fn ops(conn: &mut Connection) -> Vec<CmOp> {
    std::iter::from_fn(|| conn.poll_output())
        .filter_map(|output| {
            if let Output::Cm(op) = output {
                Some(op)
            } else {
                None
            }
        })
        .collect()
}

fn end(conn: &mut Connection) -> CloseReason {
    match last_event(conn) {
        Some(Event::Disconnected {
            reason,
            delivered: false,
        }) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn address_errors_are_retried_within_the_deadline_and_reported_after_it() {
    let start = std::time::Instant::now();
    let mut conn = Connection::connect(params(), 1, b"", start);
    let mut attempts = 0;
    let mut now = start;
    let timed_out = CmStatus::from_raw(-libc::ETIMEDOUT);
    ops(&mut conn);
    while !matches!(conn.state, super::super::State::Closed) {
        conn.handle_cm_event(CmInput::AddrError(timed_out), now);
        while let Some(next) = conn.next_timeout() {
            now = next;
            conn.handle_timeout(now);
            if let [CmOp::Recreate, CmOp::ResolveAddr { .. }] = ops(&mut conn)[..] {
                attempts += 1;
                break;
            }
        }
    }
    assert_eq!(now - start, Duration::from_secs(5));
    assert!((5..10).contains(&attempts), "{attempts} attempts");
    assert_eq!(
        conn.close_reason(),
        Some(&CloseReason::AddrResolution(timed_out)),
        "it says more than a timeout"
    );
}

#[test]
fn no_device_for_the_address_is_final_at_once() {
    let now = std::time::Instant::now();
    let mut conn = Connection::connect(params(), 1, b"", now);
    conn.handle_cm_event(CmInput::AddrError(CmStatus::from_raw(-libc::ENODEV)), now);
    let reason = end(&mut conn);
    assert!(
        reason
            .to_string()
            .starts_with("no RDMA device owns a route to that address"),
        "{reason}"
    );
}

#[test]
fn a_refusal_is_final_unless_retries_are_asked_for() {
    let now = std::time::Instant::now();
    let refused = CmInput::Rejected {
        reason: RejectReason::INVALID_SERVICE_ID,
        private_data: &[],
    };
    for retry_refused in [false, true] {
        let mut conn = Connection::connect(
            Params {
                retry_refused,
                ..params()
            },
            1,
            b"",
            now,
        );
        conn.handle_cm_event(CmInput::AddrResolved, now);
        conn.handle_cm_event(CmInput::RouteResolved, now);
        conn.handle_cm_event(refused, now);
        if retry_refused {
            assert_eq!(last_event(&mut conn), None);
            conn.handle_timeout(now + Duration::from_secs(1));
            assert!(matches!(
                ops(&mut conn)[..],
                [CmOp::Recreate, CmOp::ResolveAddr { .. }]
            ));
            conn.handle_timeout(now + Duration::from_secs(5));
        }
        assert_eq!(end(&mut conn), CloseReason::Refused);
    }
}

#[test]
fn a_peer_that_never_answers_is_given_up_at_the_deadline() {
    let now = std::time::Instant::now();
    let mut conn = Connection::connect(params(), 1, b"", now);
    conn.handle_cm_event(CmInput::AddrResolved, now);
    conn.handle_cm_event(CmInput::RouteResolved, now);
    conn.handle_timeout(now + Duration::from_millis(4999));
    assert_eq!(last_event(&mut conn), None);
    conn.handle_timeout(now + Duration::from_secs(5));
    assert_eq!(end(&mut conn), CloseReason::TimedOut(Phase::Connecting));
}

#[test]
fn rejections_are_told_apart() {
    let now = std::time::Instant::now();
    let reject = |reason: RejectReason, private_data: &[u8]| {
        let mut conn = Connection::connect(params(), 1, b"", now);
        conn.handle_cm_event(CmInput::AddrResolved, now);
        conn.handle_cm_event(CmInput::RouteResolved, now);
        conn.handle_cm_event(
            CmInput::Rejected {
                reason,
                private_data,
            },
            now,
        );
        end(&mut conn)
    };
    let consumer = RejectReason::CONSUMER_DEFINED;

    // The application's, through padding.
    let mut passive = Connection::requested(params(), 2, &hello(1, 4).emit(b""), now).unwrap();
    passive.reject(b"full", now);
    let Some(CmOp::Reject { private_data }) = ops(&mut passive).pop() else {
        panic!("no rejection")
    };
    let mut padded = private_data.to_vec();
    padded.resize(148, 0);
    assert_eq!(
        reject(consumer, &padded),
        CloseReason::Rejected {
            reason: consumer,
            data: b"full"[..].into()
        }
    );

    // Another version, and a window of nothing: typed, with both sides' values.
    for (version, window, text) in [
        (
            9,
            4,
            "the two sides do not go together: version is 9 here and 1 at the peer",
        ),
        (
            1,
            0,
            "the two sides do not go together: receive_window is 0 here and 4 at the peer",
        ),
    ] {
        let refusal =
            Connection::requested(params(), 2, &hello(version, window).emit(b""), now).unwrap_err();
        assert!(
            matches!(refusal.reason, CloseReason::PeerIncompatible(_)),
            "{:?}",
            refusal.reason
        );
        assert_eq!(reject(consumer, &refusal.private_data).to_string(), text);
    }

    // Somebody else's.
    assert_eq!(
        reject(consumer, b"go away"),
        CloseReason::Rejected {
            reason: consumer,
            data: Box::default()
        }
    );
    assert_eq!(
        reject(RejectReason::INVALID_SERVICE_ID, &[]),
        CloseReason::Refused
    );
}

fn hello(version: u8, window: u16) -> Hello {
    Hello {
        version,
        features: 0,
        window,
        eager_size: 64,
        max_message: 64,
        keepalive_ms: 0,
        nonce: 1,
    }
}

#[test]
fn a_reply_without_a_hello_is_not_rdmsg() {
    let now = std::time::Instant::now();
    for (private_data, expected) in [
        (&b""[..], CloseReason::NotRdmsg),
        (&[0; 196], CloseReason::NotRdmsg),
        (
            &hello(2, 4).emit(b""),
            CloseReason::PeerIncompatible(crate::proto::Mismatch {
                field: "version",
                ours: 1,
                theirs: 2,
            }),
        ),
    ] {
        let mut conn = Connection::connect(params(), 1, b"", now);
        conn.handle_cm_event(CmInput::AddrResolved, now);
        conn.handle_cm_event(CmInput::RouteResolved, now);
        conn.handle_cm_event(CmInput::Established { private_data }, now);
        assert_eq!(end(&mut conn), expected);
    }
}
