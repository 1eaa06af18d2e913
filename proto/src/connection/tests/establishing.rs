//! Tests of the steps until the event ESTABLISHED, and of events that prevent the establishment.

use std::time::{Duration, Instant};

use rdma_status::{CmStatus, OsError, WcStatus};

use super::{
    connecting, end, hello, last_event, ops,
    pair::{A, B, Pair, Step},
    params,
    side::WorkKind,
    started,
};
use crate::{
    Arrival, Capabilities, CloseReason, CmCall, CmInput, CmOp, Connection, Event, Output, Phase,
    TransportTraits, Work,
    frame::{Header, Kind},
    hello::VERSION,
    reject::Reject,
    testing::BOTH_WAYS,
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
    assert_eq!(
        (a.send_eager, b.send_eager),
        (32, 32),
        "the smaller eager size applies"
    );
    assert_eq!(pair.sides[A].conn.peer_data(), b"from b");
    assert_eq!(pair.sides[B].conn.peer_data(), b"from a");
}

#[test]
fn frame_before_established_establishes_passive_side() {
    let mut pair = Pair::new(params(), params());
    for step in [Step::Cm(A), Step::Cm(A), Step::Cm(A)] {
        pair.take(step);
    }
    assert!(pair.sides[A].established && !pair.sides[B].established);
    assert!(pair.send(A));
    pair.take(Step::Wire(A));
    pair.take(Step::Cq(B));
    assert!(
        pair.sides[B].established,
        "the frame arrived before the event"
    );
    assert_eq!(pair.sides[B].received, 1);
    pair.take(Step::Cm(B));
    pair.run();
    assert!(pair.sides[B].ended.is_none());
}

#[test]
fn active_side_queues_frames_until_the_hello() {
    let now = Instant::now();
    let frames: Vec<Vec<u8>> = [0_u32, 1]
        .iter()
        .map(|n| {
            [
                &Header {
                    kind: Kind::Data,
                    sequence: *n as u16,
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
fn address_errors_are_retried_until_the_deadline() {
    let start = Instant::now();
    let mut conn = started(params(), 1, b"", start);
    let mut attempts = 0;
    let mut now = start;
    let timed_out = CmStatus::from_raw(-libc::ETIMEDOUT);
    ops(&mut conn);
    while conn.state.name() != "Closed" {
        conn.handle_cm_event(CmInput::AddrError(timed_out), now);
        while let Some(next) = conn.next_timeout() {
            now = next;
            conn.handle_timeout(now);
            conn.begin_setup(now);
            if let [
                CmOp::Discard,
                CmOp::AwaitSetupSlot,
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
        "the last failure is more specific than a timeout"
    );
}

#[test]
fn clients_of_lost_server_retry_at_different_times() {
    let start = Instant::now();
    let waits = |nonce| {
        let mut conn = started(params(), nonce, b"", start);
        let mut now = start;
        std::array::from_fn::<Duration, 4, _>(|_| {
            let failed = CmStatus::from_raw(-libc::ETIMEDOUT);
            conn.handle_cm_event(CmInput::AddrError(failed), now);
            let until = conn.next_timeout().unwrap();
            conn.handle_timeout(until);
            conn.begin_setup(until);
            until - std::mem::replace(&mut now, until)
        })
    };
    assert_eq!(waits(1), waits(1), "the waits depend only on the nonce");
    assert_ne!(waits(1)[0], waits(2)[0]);
    for nonce in 0..100 {
        for (wait, longest) in waits(nonce).into_iter().zip([50, 100, 200, 400]) {
            let longest = Duration::from_millis(longest);
            assert!((longest / 2..=longest).contains(&wait), "{nonce}: {wait:?}");
        }
    }
}

#[test]
fn work_error_before_established_is_the_reason() {
    let now = Instant::now();
    let status = WcStatus::LOC_LEN_ERR;
    let mut active = started(params(), 1, b"", now);
    active.handle_cm_event(CmInput::AddrResolved, now);
    active.handle_cm_event(CmInput::RouteResolved, now);
    let mut accepting =
        Connection::requested(params(), &hello(VERSION, 4).emit(b""), BOTH_WAYS, now).unwrap();
    accepting.accept(b"", now);
    accepting.begin_setup(now);
    accepting.handle_transport(TransportTraits::UNRESTRICTED);
    for mut conn in [active, accepting] {
        conn.handle_work_error(Work::Recv { buffer: 1 }, WcStatus::WR_FLUSH_ERR, 0, now);
        let (call, errno) = ("ibv_post_recv", libc::ENOTCONN);
        conn.handle_post_failure(OsError { call, errno }, now);
        assert_eq!(conn.close_reason(), None, "an event will report the cause");
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
fn silent_peer_is_given_up_at_the_connect_deadline() {
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
fn queued_attempt_has_no_objects_and_ends_in_time() {
    let now = Instant::now();
    let deadline = now + Duration::from_secs(5);
    let late = CloseReason::TimedOut(Phase::Waiting);
    let mut active = Connection::connect(params(), 1, b"", now);
    let mut passive =
        Connection::requested(params(), &hello(VERSION, 4).emit(b""), BOTH_WAYS, now).unwrap();
    passive.accept(b"", now);
    for conn in [&mut active, &mut passive] {
        assert!(!conn.counts_as_setup());
        assert_eq!(conn.next_timeout(), Some(deadline));
        assert!(matches!(ops(conn)[..], [CmOp::AwaitSetupSlot]));
    }
    // A call of `begin_setup` at the deadline ends the attempt instead of starting it.
    active.begin_setup(deadline);
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
fn time_limit_of_the_setup_begins_with_the_turn() {
    let now = Instant::now();
    let limit = Duration::from_secs(2);
    let mut params = params();
    params.setup_timeout = Some(limit);
    let overall = now + params.connect_timeout;
    for waited in [0, 1, 3, 4] {
        let mut conn = Connection::connect(params.clone(), 1, b"", now);
        assert_eq!(conn.next_timeout(), Some(overall));
        let turn = now + Duration::from_secs(waited);
        conn.begin_setup(turn);
        assert_eq!(conn.next_timeout(), Some(overall.min(turn + limit)));
    }
}

#[test]
fn wait_for_a_turn_can_end_early() {
    let now = Instant::now();
    let mut conn = Connection::connect(params(), 1, b"", now);
    conn.end_wait(now);
    let late = CloseReason::TimedOut(Phase::Waiting);
    assert_eq!(conn.close_reason(), Some(&late));
    let mut conn = started(params(), 1, b"", now);
    conn.end_wait(now);
    assert_eq!(
        conn.close_reason(),
        None,
        "only a wait for the turn may end early"
    );
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
    // `rdma_resolve_addr` itself can fail with an address error. ENETUNREACH is permanent, and
    // EHOSTUNREACH is temporary.
    let no_network = CloseReason::AddrResolution(CmStatus::from_raw(-libc::ENETUNREACH));
    assert_eq!(end(&mut fail(libc::ENETUNREACH)), no_network);
    assert_eq!(last_event(&mut fail(libc::EHOSTUNREACH)), None);
}

#[test]
fn shortage_on_this_host_is_not_retried() {
    let now = Instant::now();
    for errno in [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::ENOBUFS] {
        for (turn, call) in [
            (CmCall::CreateId, "socket"),
            (CmCall::ResolveAddr, "rdma_resolve_addr"),
        ] {
            let mut conn = started(params(), 1, b"", now);
            let error = OsError::new(call, errno);
            conn.handle_cm_failure(turn, error, now);
            assert_eq!(end(&mut conn), CloseReason::Os(error));
        }
    }
}

/// A transport with the restrictions of iWARP.
const IWARP: TransportTraits = TransportTraits {
    capabilities: Capabilities {
        atomic: false,
        write_with_imm: false,
    },
    active_speaks_first: true,
    acknowledges_sends: false,
    flushes: false,
    reports_own_disconnect: true,
};

/// Returns a pair that is connected over iWARP. Both sides have handled all connection manager
/// events, and neither side has received a frame.
fn over_iwarp() -> Pair {
    let mut pair = Pair::over(IWARP, params(), params());
    while let Some(step) = [Step::Cm(A), Step::Cm(B)]
        .into_iter()
        .find(|it| pair.can(*it))
    {
        pair.take(step);
    }
    assert!(pair.sides[A].established);
    pair
}

#[test]
fn on_iwarp_the_side_that_connects_speaks_first() {
    let mut pair = over_iwarp();
    assert!(!pair.sides[B].established, "no frame has arrived from A");
    assert!(!pair.send(B), "B must not send first");
    // No application has sent a message. The library itself sends the first frames.
    pair.run();
    assert!(pair.sides[B].established);
    assert!(pair.send(B) && pair.send(A));
    pair.run();
    assert_eq!((pair.sides[A].received, pair.sides[B].received), (1, 1));
    pair.close(A);
    pair.finish();
}

#[test]
fn iwarp_peer_is_nudged_until_it_answers() {
    let mut pair = over_iwarp();
    let nudges = |pair: &Pair| {
        let sending = pair.sides[A].sending.iter();
        sending
            .filter(|it| matches!(it.what, WorkKind::Nudge))
            .count()
    };
    assert_eq!(nudges(&pair), 0);
    let start = pair.now;
    for count in 1..=7 {
        assert!(pair.pass());
        assert_eq!(nudges(&pair), count);
    }
    let waited = pair.now - start;
    assert!(
        waited > Duration::from_secs(1),
        "the pauses grow: {waited:?}"
    );
    // B answers A's Ping. After the Pong has arrived, A sends no further nudges.
    pair.run();
    assert!(pair.sides[B].established);
    assert!(pair.pass());
    assert_eq!((nudges(&pair), pair.sides[A].timer), (0, None));
    pair.close(A);
    pair.finish();
}

/// Checks that an active side that has closed still nudges the passive side. The passive side might
/// not have noticed the first frames, which include the Close.
#[test]
fn on_iwarp_a_side_that_is_closed_at_once_is_nudged() {
    let mut pair = over_iwarp();
    pair.close(A);
    assert!(pair.pass());
    let last = pair.sides[A].sending.back().map(|it| &it.what);
    assert!(matches!(last, Some(WorkKind::Nudge)), "{last:?}");
    pair.finish();
}

#[test]
fn iwarp_silent_connecting_side_is_given_up() {
    let pair = over_iwarp();
    let mut silent = pair.sides.into_iter().nth(B).unwrap().conn;
    let deadline = silent.next_timeout().unwrap();
    silent.handle_timeout(deadline);
    assert_eq!(end(&mut silent), CloseReason::TimedOut(Phase::Connecting));
}

#[test]
fn iwarp_flushed_request_waits_for_the_cause() {
    let mut pair = over_iwarp();
    pair.run();
    let mut conn = pair.sides.into_iter().nth(B).unwrap().conn;
    let now = Instant::now();
    conn.handle_work_error(Work::Recv { buffer: 1 }, WcStatus::WR_FLUSH_ERR, 0, now);
    let moment = Duration::from_millis(20);
    conn.handle_timeout(now + moment);
    assert!(
        conn.next_timeout().is_some(),
        "the connection still waits for the cause"
    );
    let later = now + moment * 2;
    conn.handle_cm_event(CmInput::Disconnected, later);
    // The connection ends although the device has not flushed the remaining work requests.
    conn.handle_timeout(later + moment);
    assert_eq!(end(&mut conn), CloseReason::PeerDisconnected);
}

#[test]
fn both_sides_know_what_both_devices_can_do() {
    let atomic_alone = TransportTraits {
        capabilities: Capabilities {
            atomic: true,
            write_with_imm: false,
        },
        ..TransportTraits::UNRESTRICTED
    };
    for traits in [TransportTraits::UNRESTRICTED, atomic_alone, IWARP] {
        let mut pair = Pair::over(traits, params(), params());
        pair.run();
        for side in [A, B] {
            let able = pair.sides[side].conn.capabilities();
            assert_eq!(able, Some(traits.capabilities));
        }
    }
    // The peer's hello contains no feature bits, so the peer supports neither atomic operations nor
    // writes with immediate data.
    let now = Instant::now();
    let mut conn =
        Connection::requested(params(), &hello(VERSION, 4).emit(b""), BOTH_WAYS, now).unwrap();
    assert_eq!(
        conn.capabilities(),
        None,
        "the traits of this side's device are unknown"
    );
    conn.handle_transport(TransportTraits::UNRESTRICTED);
    let none = IWARP.capabilities;
    assert_eq!(conn.capabilities(), Some(none));
}

#[test]
fn device_without_flush_does_not_delay_the_end() {
    for (traits, waits) in [(IWARP, 20), (TransportTraits::UNRESTRICTED, 2000)] {
        let mut conn = connecting(Instant::now());
        conn.handle_transport(traits);
        let now = Instant::now();
        let private_data = &hello(VERSION, 4).emit(b"");
        let event = CmInput::Established {
            private_data,
            reads: BOTH_WAYS,
        };
        conn.handle_cm_event(event, now);
        conn.handle_cm_event(CmInput::DeviceRemoval, now);
        let until = now + Duration::from_millis(waits);
        assert_eq!(conn.next_timeout(), Some(until));
        conn.handle_timeout(until);
        assert_eq!(end(&mut conn), CloseReason::DeviceRemoved);
    }
}
