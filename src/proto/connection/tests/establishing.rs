//! Scenes from the first step to ESTABLISHED, and of what keeps it from coming.

use std::time::{Duration, Instant};

use super::{
    pair::{A, B, Pair, Step},
    params, started,
};
use crate::{
    proto::{
        Arrival, CloseReason, CmCall, CmInput, CmOp, Connection, Event, Mismatch, Output, Params,
        Phase, ReadDepth, Work,
        frame::{Header, Kind},
        hello::{Hello, VERSION},
        reject::{Reject, RejectCode},
        testing::BOTH_WAYS,
    },
    status::{CmStatus, OsError, RejectReason, WcStatus},
};

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
        (7, 4, 32, 8 << 20)
    );
    assert_eq!(
        (b.send_window, b.recv_window, b.send_limit, b.recv_limit),
        (4, 7, 8 << 20, 32)
    );
    assert_eq!((a.send_eager, b.send_eager), (32, 32), "the smaller one");
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
    let now = Instant::now();
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
    let mut conn = started(params(), 1, b"", now);
    conn.handle_cm_event(CmInput::AddrResolved, now);
    conn.handle_cm_event(CmInput::RouteResolved, now);
    conn.handle_recv(3, &frames[0], now);
    conn.handle_recv(4, &frames[1], now);
    conn.handle_cm_event(
        CmInput::Established {
            private_data: &hello(VERSION, 4).emit(b""),
            reads: BOTH_WAYS,
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
            Event::Arrived(Arrival::Message {
                buffer: 3,
                offset: 16,
                len: 4
            }),
            Event::Arrived(Arrival::Message {
                buffer: 4,
                offset: 16,
                len: 4
            })
        ]
    );
}

#[test]
fn address_errors_are_retried_within_the_deadline_and_reported_after_it() {
    let start = Instant::now();
    let mut conn = started(params(), 1, b"", start);
    let mut attempts = 0;
    let mut now = start;
    let timed_out = CmStatus::from_raw(-libc::ETIMEDOUT);
    ops(&mut conn);
    while !matches!(conn.state, super::super::State::Closed) {
        conn.handle_cm_event(CmInput::AddrError(timed_out), now);
        while let Some(next) = conn.next_timeout() {
            now = next;
            conn.handle_timeout(now);
            conn.take_turn(now);
            if let [
                CmOp::Discard,
                CmOp::AwaitTurn,
                CmOp::CreateId,
                CmOp::ResolveAddr { .. },
            ] = ops(&mut conn)[..]
            {
                attempts += 1;
                break;
            }
        }
    }
    assert_eq!(now - start, Duration::from_secs(5));
    assert!((7..15).contains(&attempts), "{attempts} attempts");
    assert_eq!(
        conn.close_reason(),
        Some(&CloseReason::AddrResolution(timed_out)),
        "it says more than a timeout"
    );
}

#[test]
fn clients_that_lost_the_same_server_come_back_at_different_times() {
    let start = Instant::now();
    let waits = |nonce| {
        let mut conn = started(params(), nonce, b"", start);
        let mut now = start;
        std::array::from_fn::<Duration, 4, _>(|_| {
            let failed = CmStatus::from_raw(-libc::ETIMEDOUT);
            conn.handle_cm_event(CmInput::AddrError(failed), now);
            let until = conn.next_timeout().unwrap();
            conn.handle_timeout(until);
            conn.take_turn(until);
            until - std::mem::replace(&mut now, until)
        })
    };
    assert_eq!(waits(1), waits(1), "a nonce has its waits");
    assert_ne!(waits(1)[0], waits(2)[0]);
    for nonce in 0..100 {
        for (wait, longest) in waits(nonce).into_iter().zip([50, 100, 200, 400]) {
            let longest = Duration::from_millis(longest);
            assert!((longest / 2..=longest).contains(&wait), "{nonce}: {wait:?}");
        }
    }
}

#[test]
fn a_work_request_that_fails_before_established_is_the_reason() {
    let now = Instant::now();
    let status = WcStatus::LOC_LEN_ERR;
    let mut active = started(params(), 1, b"", now);
    active.handle_cm_event(CmInput::AddrResolved, now);
    active.handle_cm_event(CmInput::RouteResolved, now);
    let mut accepting =
        Connection::requested(params(), &hello(VERSION, 4).emit(b""), BOTH_WAYS, now).unwrap();
    accepting.accept(b"", now);
    accepting.take_turn(now);
    for mut conn in [active, accepting] {
        conn.handle_work_error(Work::Recv { buffer: 1 }, WcStatus::WR_FLUSH_ERR, 0, now);
        assert_eq!(conn.close_reason(), None, "the event will say why");
        conn.handle_work_error(Work::Recv { buffer: 0 }, status, 7, now);
        let vendor_err = 7;
        assert_eq!(
            end(&mut conn),
            CloseReason::WorkRequest { status, vendor_err }
        );
    }
}

#[test]
fn no_device_for_the_address_is_final_at_once() {
    let now = Instant::now();
    let mut conn = started(params(), 1, b"", now);
    conn.handle_cm_event(CmInput::AddrError(CmStatus::from_raw(-libc::ENODEV)), now);
    let reason = end(&mut conn);
    assert!(
        reason
            .to_string()
            .starts_with("no RDMA device has a route to that address"),
        "{reason}"
    );
}

#[test]
fn a_refusal_is_final_unless_retries_are_asked_for() {
    let now = Instant::now();
    let refused = CmInput::Rejected {
        reason: RejectReason::INVALID_SERVICE_ID,
        private_data: &[],
    };
    for retry_refused in [false, true] {
        let mut conn = started(
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
            conn.take_turn(now + Duration::from_secs(1));
            assert!(matches!(
                ops(&mut conn)[..],
                [CmOp::AwaitTurn, CmOp::CreateId, CmOp::ResolveAddr { .. }]
            ));
            conn.handle_timeout(now + Duration::from_secs(5));
        }
        assert_eq!(end(&mut conn), CloseReason::Refused);
    }
}

#[test]
fn a_peer_that_never_answers_is_given_up_at_the_deadline() {
    let now = Instant::now();
    let mut conn = started(params(), 1, b"", now);
    conn.handle_cm_event(CmInput::AddrResolved, now);
    conn.handle_cm_event(CmInput::RouteResolved, now);
    conn.handle_timeout(now + Duration::from_millis(4999));
    assert_eq!(last_event(&mut conn), None);
    conn.handle_timeout(now + Duration::from_secs(5));
    assert_eq!(end(&mut conn), CloseReason::TimedOut(Phase::Connecting));
}

#[test]
fn rejections_are_told_apart() {
    let now = Instant::now();
    let reject = |reason: RejectReason, private_data: &[u8]| {
        let mut conn = started(params(), 1, b"", now);
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
    let mut passive =
        Connection::requested(params(), &hello(VERSION, 4).emit(b""), BOTH_WAYS, now).unwrap();
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
            "the two sides are incompatible: version is 9 here and 3 at the peer",
        ),
        (
            VERSION,
            0,
            "the two sides are incompatible: receive_window is 0 here and 4 at the peer",
        ),
    ] {
        let refusal =
            Connection::requested(params(), &hello(version, window).emit(b""), BOTH_WAYS, now)
                .unwrap_err();
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

#[test]
fn a_rejection_of_a_stranger_names_what_may_be_there_and_an_rsocket_what_it_is() {
    let rejected = |reason, private_data: &[u8]| {
        let now = Instant::now();
        let mut conn = started(params(), 1, b"", now);
        conn.handle_cm_event(CmInput::AddrResolved, now);
        conn.handle_cm_event(CmInput::RouteResolved, now);
        let event = CmInput::Rejected {
            reason,
            private_data,
        };
        conn.handle_cm_event(event, now);
        end(&mut conn)
    };
    let consumer = RejectReason::CONSUMER_DEFINED;
    for nothing in [&[][..], &[0; 148]] {
        let reason = rejected(consumer, nothing);
        assert_eq!(reason, CloseReason::RejectedWithoutCause);
        let text = reason.to_string();
        assert!(text.contains("another protocol"), "{text}");
        assert!(text.contains("the other of IPv4 and IPv6"), "{text}");
        assert!(text.contains("rsocket"), "{text}");
    }
    // An application's has a cause, if only that.
    let now = Instant::now();
    let mut passive =
        Connection::requested(params(), &hello(VERSION, 4).emit(b""), BOTH_WAYS, now).unwrap();
    passive.reject(b"", now);
    let Some(CmOp::Reject { private_data }) = ops(&mut passive).pop() else {
        panic!("no rejection")
    };
    assert_eq!(
        rejected(consumer, &private_data),
        CloseReason::Rejected {
            reason: consumer,
            data: Box::default()
        }
    );

    let mut rsocket = [0; 56];
    (rsocket[0], rsocket[1], rsocket[23]) = (1, 2, 2);
    assert_eq!(rejected(consumer, &rsocket), CloseReason::PeerIsRsocket);
    let refusal = Connection::requested(params(), &rsocket, BOTH_WAYS, Instant::now()).unwrap_err();
    assert_eq!(refusal.reason, CloseReason::PeerIsRsocket);
}

/// What version 2 sends and understands: its bytes are written down here, for they will not change
/// any more.
#[test]
fn a_peer_of_version_2_and_this_side_refuse_each_other_by_name() {
    let now = Instant::now();
    let hello = b"rdms\x02\x24\0\0\0\x20\0\0\0\0\x40\0\0\0\0\0\x40\0\0\0\
        \0\0\x13\x88\x01\x02\x03\x04\x05\x06\x07\x08";
    let mismatch = CloseReason::PeerIncompatible(Mismatch {
        field: "version",
        ours: 3,
        theirs: 2,
    });
    let active = || {
        let mut conn = started(params(), 1, b"", now);
        conn.handle_cm_event(CmInput::AddrResolved, now);
        conn.handle_cm_event(CmInput::RouteResolved, now);
        conn
    };

    // It asks: the rejection has the layout that it reads, with its own version as the last number.
    let refusal = Connection::requested(params(), hello, BOTH_WAYS, now).unwrap_err();
    assert_eq!(refusal.reason, mismatch);
    let expected = b"rdmR\x03\x18\0\x01\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x02";
    assert_eq!(*refusal.private_data, *expected);

    // It answers with a rejection, which is what it does, or with an acceptance.
    let mut conn = active();
    conn.handle_cm_event(
        CmInput::Rejected {
            reason: RejectReason::CONSUMER_DEFINED,
            private_data: b"rdmR\x02\x18\0\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x03",
        },
        now,
    );
    assert_eq!(end(&mut conn), mismatch);
    let mut conn = active();
    conn.handle_cm_event(
        CmInput::Established {
            private_data: hello,
            reads: BOTH_WAYS,
        },
        now,
    );
    assert_eq!(end(&mut conn), mismatch);
}

#[test]
fn a_reply_without_a_hello_is_not_rdmsg() {
    let now = Instant::now();
    for (private_data, expected) in [
        (&b""[..], CloseReason::NotRdmsg),
        (&[0; 196], CloseReason::NotRdmsg),
        (
            &hello(1, 4).emit(b""),
            CloseReason::PeerIncompatible(Mismatch {
                field: "version",
                ours: VERSION.into(),
                theirs: 1,
            }),
        ),
    ] {
        let mut conn = started(params(), 1, b"", now);
        conn.handle_cm_event(CmInput::AddrResolved, now);
        conn.handle_cm_event(CmInput::RouteResolved, now);
        conn.handle_cm_event(
            CmInput::Established {
                private_data,
                reads: BOTH_WAYS,
            },
            now,
        );
        assert_eq!(end(&mut conn), expected);
    }
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

fn hello(version: u8, window: u16) -> Hello {
    Hello {
        version,
        features: 0,
        window,
        credits: 0,
        eager_size: 64,
        max_message: 64,
        keepalive_ms: 0,
        engine: 1,
    }
}

#[test]
fn a_refusal_on_iwarp_is_tcps_and_a_programs_rejection_is_not() {
    let refused = RejectReason::from_raw(-libc::ECONNREFUSED);
    for (private_data, expected) in [
        (&b""[..], CloseReason::Refused),
        (&[0; 148], CloseReason::Refused),
        (
            b"go away",
            CloseReason::Rejected {
                reason: refused,
                data: Box::default(),
            },
        ),
    ] {
        let mut conn = connecting(Instant::now());
        let event = CmInput::Rejected {
            reason: refused,
            private_data,
        };
        conn.handle_cm_event(event, Instant::now());
        assert_eq!(end(&mut conn), expected);
    }
}

#[test]
fn what_may_pass_is_tried_again_where_that_is_asked_for() {
    let now = Instant::now();
    let busy = Reject::BUSY.emit(b"");
    let application = Reject {
        code: RejectCode::Application,
        ..Reject::BUSY
    }
    .emit(b"");
    let consumer = RejectReason::CONSUMER_DEFINED;
    for (reason, private_data, cause, passes) in [
        (consumer, &busy[..], CloseReason::PeerBusy, true),
        // Of a process that ended before it had answered.
        (consumer, &[], CloseReason::RejectedWithoutCause, true),
        (
            consumer,
            &application,
            CloseReason::Rejected {
                reason: consumer,
                data: Box::default(),
            },
            false,
        ),
    ] {
        for retry_refused in [false, true] {
            let params = Params {
                retry_refused,
                ..params()
            };
            let mut conn = started(params, 1, b"", now);
            conn.handle_cm_event(CmInput::AddrResolved, now);
            conn.handle_cm_event(CmInput::RouteResolved, now);
            let event = CmInput::Rejected {
                reason,
                private_data,
            };
            conn.handle_cm_event(event, now);
            let again = matches!(ops(&mut conn)[..], [.., CmOp::Discard]);
            assert_eq!(again, passes && retry_refused, "{cause}");
            assert_eq!(conn.close_reason().is_none(), again);
            if again {
                conn.handle_timeout(now + Duration::from_secs(5));
            }
            assert_eq!(conn.close_reason(), Some(&cause));
        }
    }
}

#[test]
fn who_waits_for_a_turn_costs_nothing_and_goes_at_its_deadline() {
    let now = Instant::now();
    let deadline = now + Duration::from_secs(5);
    let late = CloseReason::TimedOut(Phase::Waiting);
    let mut active = Connection::connect(params(), 1, b"", now);
    let mut passive =
        Connection::requested(params(), &hello(VERSION, 4).emit(b""), BOTH_WAYS, now).unwrap();
    passive.accept(b"", now);
    for conn in [&mut active, &mut passive] {
        assert!(!conn.has_turn());
        assert_eq!(conn.next_timeout(), Some(deadline));
        assert!(matches!(ops(conn)[..], [CmOp::AwaitTurn]));
    }
    // A turn that comes too late is none.
    active.take_turn(deadline);
    assert_eq!(active.close_reason(), Some(&late));
    assert!(matches!(ops(&mut active)[..], []));
    passive.handle_timeout(deadline);
    assert_eq!(passive.close_reason(), Some(&late));
    let Some(CmOp::Reject { private_data }) = ops(&mut passive).pop() else {
        panic!("no rejection")
    };
    assert_eq!(Reject::parse(&private_data), Some((Reject::BUSY, &b""[..])));
}

#[test]
fn a_call_with_wrong_arguments_is_not_made_again() {
    let now = Instant::now();
    let fail = |errno| {
        let mut conn = started(params(), 1, b"", now);
        let error = OsError::new("rdma_resolve_addr", errno);
        conn.handle_cm_failure(CmCall::ResolveAddr, error, now);
        conn
    };
    let error = OsError::new("rdma_resolve_addr", libc::EINVAL);
    assert_eq!(end(&mut fail(libc::EINVAL)), CloseReason::Os(error));
    let no_device = CloseReason::AddrResolution(CmStatus::from_raw(-libc::ENODEV));
    assert_eq!(end(&mut fail(libc::ENODEV)), no_device);
    // The call finds some errors of the address by itself. Some may pass.
    let no_network = CloseReason::AddrResolution(CmStatus::from_raw(-libc::ENETUNREACH));
    assert_eq!(end(&mut fail(libc::ENETUNREACH)), no_network);
    assert_eq!(last_event(&mut fail(libc::EHOSTUNREACH)), None);
}

#[test]
fn a_hello_of_nothing_is_refused_with_the_fields_name() {
    let usable = hello(VERSION, 4);
    for (unusable, field, ours) in [
        (
            Hello {
                window: 0,
                credits: 0,
                ..usable
            },
            "receive_window",
            4,
        ),
        (
            Hello {
                eager_size: 0,
                ..usable
            },
            "eager_size",
            64,
        ),
        (
            Hello {
                max_message: 0,
                ..usable
            },
            "max_message",
            8 << 20,
        ),
    ] {
        let expected = CloseReason::PeerIncompatible(Mismatch {
            field,
            ours,
            theirs: 0,
        });
        let now = Instant::now();
        let refusal =
            Connection::requested(params(), &unusable.emit(b""), BOTH_WAYS, now).unwrap_err();
        assert_eq!(refusal.reason, expected);
        let mut conn = connecting(now);
        let private_data = &unusable.emit(b"");
        conn.handle_cm_event(
            CmInput::Established {
                private_data,
                reads: BOTH_WAYS,
            },
            now,
        );
        assert_eq!(end(&mut conn), expected);
    }
}

#[test]
fn a_peer_without_reads_in_both_directions_is_refused_by_name() {
    let good = hello(VERSION, 4).emit(b"");
    for (reads, field) in [
        (
            ReadDepth {
                outgoing: 0,
                incoming: 1,
            },
            "responder_resources",
        ),
        (
            ReadDepth {
                outgoing: 1,
                incoming: 0,
            },
            "initiator_depth",
        ),
    ] {
        let expected = CloseReason::PeerIncompatible(Mismatch {
            field,
            ours: 1,
            theirs: 0,
        });
        let now = Instant::now();
        let refusal = Connection::requested(params(), &good, reads, now).unwrap_err();
        assert_eq!(refusal.reason, expected);
        // Who is refused learns the same, from its side.
        let mut conn = connecting(now);
        conn.handle_cm_event(
            CmInput::Rejected {
                reason: RejectReason::CONSUMER_DEFINED,
                private_data: &refusal.private_data,
            },
            now,
        );
        assert_eq!(
            end(&mut conn),
            CloseReason::PeerIncompatible(Mismatch {
                field,
                ours: 0,
                theirs: 1,
            })
        );
        let mut conn = connecting(now);
        let private_data = &good;
        conn.handle_cm_event(
            CmInput::Established {
                private_data,
                reads,
            },
            now,
        );
        assert_eq!(end(&mut conn), expected);
    }
}

fn connecting(now: Instant) -> Connection {
    let mut conn = started(params(), 1, b"", now);
    conn.handle_cm_event(CmInput::AddrResolved, now);
    conn.handle_cm_event(CmInput::RouteResolved, now);
    conn
}
