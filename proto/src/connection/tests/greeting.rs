//! Tests of requests whose private data are sent in a separate frame.

use std::time::{Duration, Instant};

use super::{
    end, last_event, ops,
    pair::{A, B, Pair},
    params,
};
use crate::{
    CloseReason, CmOp, Connection, Params, Phase, TransportTraits,
    frame::{Control, Header, Kind},
};

/// Returns parameters with an eager size that suffices for the Answer to a long request.
fn roomy() -> Params {
    Params {
        eager_size: 4096,
        ..params()
    }
}

/// Creates a pair whose active side has sent a long request with these data. The application of the
/// passive side has received the request and has not answered it yet.
fn requested(data: &[u8]) -> Pair {
    let traits = TransportTraits::UNRESTRICTED;
    let mut pair = Pair::with_request(traits, roomy(), roomy(), data);
    pair.run();
    assert!(pair.sides[B].requested);
    assert!(!pair.sides[A].established && !pair.sides[B].established);
    pair
}

fn reason(pair: &Pair, at: usize) -> &CloseReason {
    let (reason, _) = pair.sides[at].ended.as_ref().expect("the side has ended");
    reason
}

#[test]
fn long_request_is_shown_whole_before_the_answer() {
    for len in [21, 4096] {
        let data = vec![7; len];
        let mut pair = requested(&data);
        assert_eq!(pair.sides[B].conn.peer_data(), data);
        assert!(pair.sides[A].conn.send(4).is_err());
        pair.accept(B);
        pair.run();
        assert!(pair.sides[A].established && pair.sides[B].established);
        assert_eq!(pair.sides[A].conn.peer_data(), b"from b");
        assert!(pair.send(A) && pair.send(B));
        pair.run();
        assert_eq!((pair.sides[A].received, pair.sides[B].received), (1, 1));
    }
}

#[test]
fn rejection_of_long_request_carries_data() {
    let mut pair = requested(&[7; 100]);
    pair.reject(B);
    pair.run();
    let CloseReason::Rejected { data, .. } = reason(&pair, A) else {
        panic!("{pair:?}");
    };
    assert_eq!(**data, *b"no");
    assert_eq!(*reason(&pair, B), CloseReason::LocallyClosed);
}

#[test]
fn unanswered_long_request_is_busy_after_timeout() {
    let mut pair = requested(&[7; 100]);
    let due = pair.sides[B].conn.next_timeout().unwrap();
    assert_eq!(due, pair.now + Duration::from_secs(5));
    pair.sides[B].conn.handle_timeout(due);
    pair.perform_outputs(B);
    pair.run();
    let late = CloseReason::TimedOut(Phase::Accepting);
    assert_eq!(*reason(&pair, B), late);
    assert_eq!(*reason(&pair, A), CloseReason::PeerBusy);
}

#[test]
fn active_side_gives_up_at_its_deadline() {
    let mut pair = requested(&[7; 100]);
    pair.now = pair.sides[A].conn.next_timeout().unwrap();
    pair.sides[A].conn.handle_timeout(pair.now);
    pair.perform_outputs(A);
    pair.run();
    let late = CloseReason::TimedOut(Phase::Connecting);
    assert_eq!(*reason(&pair, A), late);
    assert_eq!(*reason(&pair, B), CloseReason::PeerAborted(0));
}

#[test]
fn close_before_the_answer_ends_both_sides() {
    for at in [A, B] {
        let mut pair = requested(&[7; 100]);
        pair.close(at);
        pair.run();
        assert_eq!(*reason(&pair, at), CloseReason::LocallyClosed);
        let theirs = if at == A {
            CloseReason::PeerAborted(0)
        } else {
            CloseReason::PeerBusy
        };
        assert_eq!(*reason(&pair, 1 - at), theirs);
    }
}

#[test]
fn eager_size_too_small_for_request_is_named() {
    let traits = TransportTraits::UNRESTRICTED;
    let small = Params {
        eager_size: 200,
        ..params()
    };
    let mut pair = Pair::with_request(traits, roomy(), small, &[7; 201]);
    pair.run();
    let CloseReason::PeerIncompatible(mismatch) = reason(&pair, A) else {
        panic!("{pair:?}");
    };
    let values = (mismatch.field, mismatch.ours, mismatch.theirs);
    assert_eq!(values, ("private_data", 201, 200));
    assert_eq!(
        reason(&pair, A).to_string(),
        "the two sides are incompatible: the private data have 201 bytes, which eager_size allows \
         here, but eager_size at the peer is 200; send at most 20 bytes, or raise it there to at \
         least 201"
    );
}

#[test]
fn refused_long_request_may_be_repeated_if_asked() {
    for (retry_refused, len) in [(true, 100), (true, 20), (false, 100)] {
        let params = Params {
            retry_refused,
            ..roomy()
        };
        let conn = Connection::connect(params, 1, &vec![7; len], Instant::now());
        let rejected = CloseReason::Rejected {
            reason: rdma_status::RejectReason::CONSUMER_DEFINED,
            data: Box::default(),
        };
        for (reason, is_refusal) in [
            (CloseReason::PeerBusy, true),
            (CloseReason::PeerOutOfResources, true),
            (CloseReason::PeerDisconnected, true),
            (rejected, false),
            (CloseReason::TimedOut(Phase::Connecting), false),
            (CloseReason::LocallyClosed, false),
        ] {
            let expected = is_refusal && retry_refused && len > 20;
            assert_eq!(conn.may_connect_again(&reason), expected, "{reason}");
        }
    }
}

#[test]
fn repeated_request_waits_longer_after_each_refusal() {
    let now = Instant::now();
    for (refused, longest) in [(1, 50), (2, 100), (5, 800), (6, 1000), (u32::MAX, 1000)] {
        let longest = Duration::from_millis(longest);
        let cause = (refused, CloseReason::PeerBusy);
        let mut conn = Connection::connect_again(roomy(), 1, &[7; 100], cause, now);
        assert!(conn.has_long_request() && !conn.counts_as_setup());
        let due = conn.next_timeout().unwrap();
        assert!((now + longest / 2..=now + longest).contains(&due));
        assert_eq!(last_event(&mut conn), None);
        conn.handle_timeout(due);
        assert!(matches!(ops(&mut conn)[..], [CmOp::AwaitSetupSlot]));
        conn.handle_timeout(now + roomy().connect_timeout);
        assert_eq!(end(&mut conn), CloseReason::PeerBusy);
    }
}

/// Returns a frame of this kind with sequence number 0.
fn frame(kind: Kind, arg: u32, payload: &[u8]) -> Vec<u8> {
    let header = Header {
        kind,
        sequence: 0,
        grant: 4,
        len: payload.len() as u32,
        arg,
    };
    [&header.emit()[..], payload].concat()
}

/// Passes a frame to a side that has received no frame before.
fn receive(pair: &mut Pair, at: usize, frame: &[u8]) {
    let buffer = pair.sides[at].posted.pop_front().unwrap();
    let now = pair.now;
    pair.sides[at].conn.handle_recv(buffer, frame, now);
    pair.perform_outputs(at);
    pair.run();
}

#[test]
fn frames_before_the_answer_are_violations() {
    let cases = [
        (Kind::Data, 0, &b"x"[..], "kind"),
        (Kind::ControlMessage, 0, b"x", "kind"),
        (Kind::Control(Control::Close), 0, b"", "kind"),
        (Kind::Control(Control::Finish), 0, b"", "kind"),
        (Kind::Control(Control::Leave), 0, b"", "kind"),
        (Kind::Control(Control::Permit), 5, b"", "kind"),
        (Kind::Control(Control::Pong), 0, b"", "kind"),
        (Kind::Request, 0, b"x", "kind"),
        (Kind::Answer, 1, &[0; 125], "len"),
        (Kind::Answer, 2, b"", "answer"),
        (Kind::Answer, 0, &[0; 161], "len"),
    ];
    for (kind, arg, payload, field) in cases {
        let mut pair = requested(&[7; 21]);
        receive(&mut pair, A, &frame(kind, arg, payload));
        let CloseReason::ProtocolViolation(violation) = reason(&pair, A) else {
            panic!("{kind:?}: {pair:?}");
        };
        assert_eq!(violation.field(), field, "{kind:?}");
        assert!(!pair.sides[A].established);
    }
}

#[test]
fn frames_instead_of_the_request_are_violations() {
    let cases = [
        (Kind::Data, &b"x"[..], "kind"),
        (Kind::Answer, b"", "kind"),
        (Kind::Request, &[0; 4097], "len"),
    ];
    for (kind, payload, field) in cases {
        let traits = TransportTraits::UNRESTRICTED;
        let mut pair = Pair::with_request(traits, roomy(), roomy(), &[7; 21]);
        while pair.sides[A].sending.is_empty() {
            pair.take(super::pair::Step::Cm(A));
        }
        pair.sides[A].sending.clear();
        receive(&mut pair, B, &frame(kind, 0, payload));
        let CloseReason::ProtocolViolation(violation) = reason(&pair, B) else {
            panic!("{kind:?}: {pair:?}");
        };
        assert_eq!(violation.field(), field, "{kind:?}");
        assert!(!pair.sides[B].requested);
    }
}

#[test]
fn request_on_established_connection_is_a_violation() {
    for kind in [Kind::Request, Kind::Answer] {
        let mut pair = Pair::established(params(), params());
        receive(&mut pair, B, &frame(kind, 0, b"x"));
        let CloseReason::ProtocolViolation(violation) = reason(&pair, B) else {
            panic!("{kind:?}: {pair:?}");
        };
        assert_eq!(violation.field(), "kind");
    }
}
