//! Tests in which the peer violates the protocol.

use std::time::Instant;

use rdma_status::WcStatus;

use super::{
    super::transfer::Accepts,
    pair,
    pair::{A, B, Step},
    params, started,
};
use crate::{
    CloseReason, CmInput, Connection, Descriptor, Event, Output, Params, TransportTraits, Work,
    frame::{Control, DESCRIPTOR_LEN, Header, Kind},
    hello::{Hello, VERSION},
    testing::BOTH_WAYS,
};

#[test]
fn hostile_frame_ends_connection_and_names_field() {
    let header = |kind, grant, len, arg| {
        Header {
            kind,
            sequence: 0,
            grant,
            len,
            arg,
        }
        .emit()
    };
    let data =
        |grant, len, payload: &[u8]| [&header(Kind::Data, grant, len, 0)[..], payload].concat();
    let batch = |payload: &[u8]| {
        let len = payload.len() as u32;
        [&header(Kind::Batch, 4, len, 0)[..], payload].concat()
    };
    let edit = |at: usize, byte: u8| {
        let mut frame = data(4, 1, b"x");
        frame[at] = byte;
        frame
    };
    let cases: [(&str, &str, Vec<u8>); 15] = [
        ("short", "frame length", vec![1; 15]),
        ("unknown kind", "kind", edit(0, 99)),
        ("flags", "flags", edit(1, 1)),
        ("length too large", "len", data(4, 2, b"x")),
        ("length too small", "len", data(4, 0, b"x")),
        ("forged grant", "grant", data(9, 1, b"x")),
        ("grant that goes back", "grant", data(3, 1, b"x")),
        ("argument", "arg", edit(12, 1)),
        ("no message in a batch", "batch", batch(b"")),
        ("half a length in a batch", "batch", batch(b"\0\0\0")),
        (
            "a batch that ends too soon",
            "batch",
            batch(b"\0\0\0\x04abc"),
        ),
        (
            "bytes behind a batch",
            "batch",
            batch(b"\0\0\0\x04abcd\0\0"),
        ),
        ("a batch beyond the credit", "kind", batch(&[0; 5 * 4])),
        (
            "payload in a control frame",
            "len",
            [&header(Kind::Control(Control::Ping), 4, 1, 0)[..], b"x"].concat(),
        ),
        (
            "pong without a ping",
            "kind",
            header(Kind::Control(Control::Pong), 4, 0, 0).to_vec(),
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
fn repeated_or_lost_frame_ends_the_connection() {
    let number = |number: u16| {
        let mut frame = data(4, &u32::from(number).to_le_bytes());
        frame[2..4].copy_from_slice(&number.to_be_bytes());
        frame
    };
    for (numbers, delivered) in [([0, 0, 1], 1), ([0, 2, 3], 1), ([1, 0, 1], 0)] {
        let mut pair = pair();
        for each in numbers {
            pair.put_on_wire(A, number(each));
        }
        pair.finish();
        assert_eq!(violated_field(pair.reason(B)), "sequence", "{numbers:?}");
        assert_eq!(pair.sides[B].received, delivered, "{numbers:?}");
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
                sequence: 0,
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

pub(super) fn data(grant: u32, payload: &[u8]) -> Vec<u8> {
    let header = Header {
        kind: Kind::Data,
        sequence: 0,
        grant,
        len: payload.len() as u32,
        arg: 0,
    };
    [&header.emit()[..], payload].concat()
}

pub(super) fn control(control: Control) -> Vec<u8> {
    let header = Header {
        kind: Kind::Control(control),
        sequence: 0,
        grant: 4,
        len: 0,
        arg: 0,
    };
    header.emit().to_vec()
}

pub(super) fn violated_field(reason: &CloseReason) -> &'static str {
    match reason {
        CloseReason::ProtocolViolation(violation) => violation.field(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_message_behind_a_bad_frame_is_not_delivered() {
    let mut pair = pair();
    assert!(pair.send(A));
    pair.forge(A, &[15; 16]);
    pair.forge(A, &data(4, &1_u32.to_le_bytes()));
    pair.finish();
    assert_eq!(violated_field(pair.reason(B)), "kind");
    assert_eq!(
        pair.sides[B].received, 1,
        "no message after a violation is delivered"
    );
}

#[test]
fn nothing_counts_behind_an_abort() {
    let mut pair = pair();
    pair.forge(A, &control(Control::Abort));
    pair.forge(A, &data(4, &0_u32.to_le_bytes()));
    pair.forge(A, &[15; 16]);
    pair.finish();
    assert_eq!(pair.reason(B), &CloseReason::PeerAborted(0));
    assert_eq!(pair.sides[B].received, 0);
}

#[test]
fn a_close_is_acknowledged_once_and_after_both() {
    let close_ack = || control(Control::CloseAck);
    let cases: [(bool, &[Vec<u8>]); 4] = [
        // B has not sent its Close yet.
        (false, &[close_ack()]),
        // A has not sent its Close yet.
        (true, &[close_ack()]),
        (true, &[close_ack(), control(Control::Close)]),
        // A sends two CloseAcks.
        (true, &[control(Control::Close), close_ack(), close_ack()]),
    ];
    for (closes, frames) in cases {
        let mut pair = pair();
        for frame in frames {
            pair.forge(A, frame);
        }
        if closes {
            pair.close(B);
        }
        while pair.can(Step::Wire(A)) {
            pair.take(Step::Wire(A));
        }
        while pair.can(Step::Cq(B)) {
            pair.take(Step::Cq(B));
        }
        let accepts = pair.sides[B]
            .conn
            .opened()
            .map(|open| open.transfer.accepts);
        assert_eq!(accepts, Some(Accepts::Nothing));
        pair.finish();
        // The first cause remains the reason for the end.
        match pair.reason(B) {
            CloseReason::LocallyClosed => assert!(closes),
            violation => assert_eq!(violated_field(violation), "kind"),
        }
    }
}

#[test]
fn only_control_frames_may_follow_a_close() {
    for draining in [false, true] {
        for (behind, expected) in [
            (data(4, &0_u32.to_le_bytes()), 0),
            (control(Control::Close), 0),
        ] {
            let mut pair = pair();
            pair.forge(A, &control(Control::Close));
            pair.forge(A, &control(Control::Grant));
            pair.forge(A, &behind);
            pair.forge(A, &data(4, &0_u32.to_le_bytes()));
            while pair.can(Step::Wire(A)) {
                pair.take(Step::Wire(A));
            }
            if draining {
                pair.kill(A);
                pair.take(Step::Cm(B));
            }
            pair.finish();
            assert_eq!(pair.reason(B), &CloseReason::PeerClosed);
            assert_eq!(pair.sides[B].received, expected);
        }
    }
}

#[test]
fn message_beyond_hello_limits_is_a_violation() {
    let now = Instant::now();
    let hello = Hello {
        version: VERSION,
        features: 0,
        window: 4,
        credits: 0,
        eager_size: 64,
        max_message: 64,
        keepalive_ms: 0,
        engine: 1,
    };
    for (len, allowed) in [(64, true), (65, false)] {
        let mut conn = Connection::requested(params(), &hello.emit(b""), BOTH_WAYS, now).unwrap();
        conn.accept(b"", now);
        conn.begin_setup(now);
        conn.handle_transport(TransportTraits::UNRESTRICTED);
        conn.handle_cm_event(
            CmInput::Established {
                private_data: &[],
                reads: BOTH_WAYS,
            },
            now,
        );
        conn.handle_recv(0, &data(4, &vec![0; len]), now);
        let messages = std::iter::from_fn(|| conn.poll_output())
            .filter(|output| matches!(output, Output::Event(Event::Arrived(_))))
            .count();
        assert_eq!(messages, usize::from(allowed));
        if !allowed {
            assert_eq!(violated_field(conn.close_reason().unwrap()), "len");
        }
    }
}

#[test]
fn a_second_close_takes_the_connection_down() {
    let mut pair = pair();
    for _ in 0..2 {
        pair.forge(A, &control(Control::Close));
        pair.take(Step::Wire(A));
    }
    pair.take(Step::Cq(B));
    assert_eq!(pair.sides[B].conn.state.name(), "Closing");
    pair.take(Step::Cq(B));
    assert_eq!(pair.sides[B].conn.state.name(), "Draining");
}

/// Returns the passive side of an established connection. This side shares its receives with other
/// connections.
fn sharing() -> Connection {
    let now = Instant::now();
    let params = Params {
        shared: true,
        ..params()
    };
    let hello = Hello {
        version: VERSION,
        features: 0,
        window: 4,
        credits: 0,
        eager_size: 64,
        max_message: 8 << 20,
        keepalive_ms: 0,
        engine: 1,
    };
    let mut conn = Connection::requested(params, &hello.emit(b""), BOTH_WAYS, now).unwrap();
    conn.accept(b"", now);
    conn.begin_setup(now);
    conn.handle_transport(TransportTraits::UNRESTRICTED);
    conn.handle_cm_event(
        CmInput::Established {
            private_data: &[],
            reads: BOTH_WAYS,
        },
        now,
    );
    while conn.poll_output().is_some() {}
    conn
}

/// Returns the receive buffers that the connection's outputs repost.
fn returned_buffers(conn: &mut Connection) -> Vec<u32> {
    std::iter::from_fn(|| conn.poll_output())
        .filter_map(|output| match output {
            Output::Repost(buffer) | Output::Release(buffer) => Some(buffer),
            _ => None,
        })
        .collect()
}

#[test]
fn shared_buffers_behind_a_violation_go_back_at_once() {
    let now = Instant::now();
    let descriptor = Descriptor {
        addr: 0,
        len: 1 << 20,
        rkey: 1,
    };
    let rendezvous = || {
        let header = Header {
            kind: Kind::Rendezvous,
            sequence: 0,
            grant: 4,
            len: DESCRIPTOR_LEN as u32,
            arg: 0,
        };
        [&header.emit()[..], &descriptor.emit()].concat()
    };
    for bad in [vec![15; 16], data(9, b"x"), control(Control::Pong), vec![]] {
        let mut conn = sharing();
        let frames = [bad, data(4, b"x"), control(Control::Ping), rendezvous()];
        for (buffer, frame) in (0..).zip(&frames) {
            conn.handle_recv(buffer, frame, now);
        }
        let flushed = Work::Recv { buffer: 4 };
        conn.handle_work_error(flushed, WcStatus::WR_FLUSH_ERR, 0, now);
        assert_eq!(conn.state.name(), "Draining");
        assert_eq!(returned_buffers(&mut conn), [0, 1, 2, 3, 4]);
    }
}

#[test]
fn control_frame_buffers_return_while_draining() {
    let now = Instant::now();
    let mut conn = sharing();
    conn.handle_cm_event(CmInput::Disconnected, now);
    assert_eq!(conn.state.name(), "Draining");
    for (buffer, kind) in (0..).zip([Control::Grant, Control::Ping, Control::Close]) {
        conn.handle_recv(buffer, &control(kind), now);
    }
    assert_eq!(returned_buffers(&mut conn), [0, 1, 2]);
}

/// Checks that a connection reposts no receives after its end, because the driver itself then
/// reposts all of them.
#[test]
fn nothing_is_given_back_one_by_one_after_the_end() {
    let now = Instant::now();
    let mut conn = sharing();
    conn.handle_cm_event(CmInput::Disconnected, now);
    conn.handle_timeout(now + params().drain_timeout);
    assert_eq!(conn.state.name(), "Closed");
    while conn.poll_output().is_some() {}
    conn.handle_recv(0, &control(Control::Grant), now);
    conn.handle_work_error(Work::Recv { buffer: 1 }, WcStatus::WR_FLUSH_ERR, 0, now);
    assert!(conn.poll_output().is_none());
}

/// Checks that this side accepts only a limited number of frames before the peer's hello arrives.
/// Each such frame occupies a receive buffer, which other connections might need.
#[test]
fn frames_that_overtake_the_hello_are_bounded() {
    let now = Instant::now();
    for shared in [false, true] {
        let params = Params { shared, ..params() };
        let allowed = params.first_receives();
        let mut conn = started(params, 1, b"", now);
        conn.handle_cm_event(CmInput::AddrResolved, now);
        conn.handle_cm_event(CmInput::RouteResolved, now);
        for buffer in 0..allowed {
            conn.handle_recv(buffer, &control(Control::Grant), now);
            assert_eq!(conn.close_reason(), None);
        }
        conn.handle_recv(allowed, &control(Control::Grant), now);
        assert_eq!(
            violated_field(conn.close_reason().unwrap()),
            "frames before the hello"
        );
    }
}
