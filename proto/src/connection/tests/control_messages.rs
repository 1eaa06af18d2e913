//! Tests of control messages.

use super::{
    hostile::{control, violated_field},
    pair,
    pair::{A, B, Pair, Step},
    params,
};
use crate::{
    CONTROL_WINDOW, CloseReason, ControlRefused, MAX_CONTROL_MESSAGE, Params,
    frame::{Control, Header, Kind},
};

/// Returns a ControlMessage frame with this number and payload.
fn message(number: u32, payload: &[u8]) -> Vec<u8> {
    let header = Header {
        kind: Kind::ControlMessage,
        sequence: 0,
        grant: 4,
        len: payload.len() as u32,
        arg: number,
    };
    [&header.emit()[..], payload].concat()
}

fn grant(limit: u32) -> Vec<u8> {
    let header = Header {
        kind: Kind::Control(Control::Permit),
        sequence: 0,
        grant: 4,
        len: 0,
        arg: limit,
    };
    header.emit().to_vec()
}

#[test]
fn control_message_passes_a_full_window() {
    let mut pair = pair();
    while pair.send(A) {}
    pair.run();
    assert_eq!(
        pair.sides[B].received, 4,
        "the application holds all messages"
    );
    assert!(pair.send_control_message(A));
    pair.run();
    assert_eq!(pair.sides[B].control_received, 1);
    assert!(!pair.send(A), "the window is still full");
}

#[test]
fn control_message_beyond_the_window_is_refused() {
    let mut pair = pair();
    for _ in 0..CONTROL_WINDOW {
        assert!(pair.send_control_message(A));
    }
    pair.run();
    let refused = pair.sides[A].conn.send_control_message(b"more");
    assert_eq!(refused, Err(ControlRefused::Full));
    pair.take_control_message(B);
    pair.run();
    assert!(
        pair.send_control_message(A),
        "the application has taken one message"
    );
    pair.run();
    assert_eq!(pair.sides[B].control_received, CONTROL_WINDOW + 1);
}

#[test]
fn control_messages_pass_the_wrap_of_their_numbers() {
    let mut pair = Pair::near_the_wrap(params(), params());
    for at in [A, B] {
        pair.sides[at].conn.permit_control_messages(64);
    }
    for number in 1..20 {
        assert!(pair.send_control_message(A) && pair.send_control_message(B));
        pair.run();
        for at in [A, B] {
            assert_eq!(pair.sides[at].control_received, number);
            pair.take_control_message(at);
        }
        pair.run();
    }
}

#[test]
fn control_message_needs_a_peer_that_takes_it() {
    let none = Params {
        takes_control_messages: false,
        ..params()
    };
    let mut pair = Pair::established(params(), none);
    let refused = pair.sides[A].conn.send_control_message(b"x");
    assert_eq!(refused, Err(ControlRefused::NotTaken));
    assert!(pair.send_control_message(B), "A supports control messages");
    pair.forge(A, &message(0, b"x"));
    pair.finish();
    assert_eq!(violated_field(pair.reason(B)), "kind");
}

#[test]
fn longest_control_message_fits_the_eager_size() {
    for (eager_size, limit) in [(64, 64), (16 << 10, MAX_CONTROL_MESSAGE)] {
        let small = Params {
            eager_size,
            ..params()
        };
        let large = Params {
            eager_size: 32 << 10,
            ..params()
        };
        let mut pair = Pair::established(large, small);
        let longer = vec![1; limit as usize + 1];
        let refused = pair.sides[A].conn.send_control_message(&longer);
        assert_eq!(refused, Err(ControlRefused::TooLong { limit }));
        let sent = pair.sides[A].conn.send_control_message(&longer[1..]);
        assert_eq!(sent, Ok(()));
    }
}

#[test]
fn hostile_control_message_ends_the_connection() {
    let flood = |count: u32| (0..count).map(|number| message(number, &number.to_le_bytes()));
    let sized = |len: usize| vec![message(0, &vec![0; len])];
    let cases: [(&str, &str, Vec<Vec<u8>>); 9] = [
        (
            "more than the credit",
            "kind",
            flood(CONTROL_WINDOW + 1).collect(),
        ),
        ("longer than 256 bytes", "len", sized(257)),
        ("longer than the eager size", "len", sized(65)),
        (
            "not the first number",
            "control number",
            vec![message(1, b"x")],
        ),
        (
            "a repeated number",
            "control number",
            vec![message(0, &[0; 4]), message(0, &[0; 4])],
        ),
        (
            "a grant of more than was sent",
            "permit",
            vec![grant(2 * CONTROL_WINDOW)],
        ),
        ("a grant of nothing", "permit", vec![grant(CONTROL_WINDOW)]),
        (
            "a grant that goes back",
            "permit",
            vec![grant(CONTROL_WINDOW - 1)],
        ),
        ("a payload in a grant", "len", {
            let mut frame = grant(CONTROL_WINDOW + 1);
            frame[11] = 1;
            frame.push(0);
            vec![frame]
        }),
    ];
    for (what, field, frames) in cases {
        let mut pair = pair();
        // Makes B's simulated device accept frames that are longer than B's receive buffers.
        pair.sides[B].params.eager_size = 1024;
        for frame in frames {
            pair.forge(A, &frame);
        }
        pair.finish();
        assert_eq!(violated_field(pair.reason(B)), field, "{what}");
    }
}

#[test]
fn control_message_behind_a_close_is_not_delivered() {
    let mut pair = pair();
    pair.forge(A, &control(Control::Close));
    pair.forge(A, &message(0, &0_u32.to_le_bytes()));
    let before = pair.now;
    pair.run();
    // B disconnects immediately because of the violation, without completing the close handshake.
    assert_eq!(
        pair.sides[B].conn.close_reason(),
        Some(&CloseReason::PeerClosed)
    );
    assert!(pair.sides[B].broken && pair.now == before);
    assert_eq!(pair.sides[B].control_received, 0);
}

#[test]
fn grant_must_not_exceed_the_sent_control_messages() {
    // In each case, B first sends as many control messages as A has permitted.
    for (limit, field) in [(3, None), (4, None), (5, Some("permit"))] {
        let mut pair = pair();
        for _ in 0..CONTROL_WINDOW {
            assert!(pair.send_control_message(B));
        }
        pair.run();
        pair.forge(A, &grant(limit));
        pair.finish();
        let ended = pair.sides[B].ended.as_ref();
        assert_eq!(ended.map(|(reason, _)| violated_field(reason)), field);
    }
}

#[test]
fn close_comes_behind_control_messages() {
    let mut pair = pair();
    for _ in 0..CONTROL_WINDOW {
        assert!(pair.send_control_message(A));
    }
    pair.close(A);
    assert!(!pair.send_control_message(A), "A has closed");
    pair.finish();
    assert_eq!(pair.sides[B].control_received, CONTROL_WINDOW);
    assert_eq!(pair.reason(A), &CloseReason::LocallyClosed);
    assert!(pair.delivered(A));
}

#[test]
fn nothing_follows_an_abort() {
    let mut pair = pair();
    pair.abort(A, 7);
    assert!(!pair.send_control_message(A));
    pair.finish();
    assert_eq!(pair.reason(B), &CloseReason::PeerAborted(7));
    assert_eq!(pair.sides[B].control_received, 0);
}

#[test]
fn peer_learns_once_that_the_other_side_leaves() {
    let mut pair = pair();
    while pair.send(A) {}
    // The Leave waits until the Pong for the Ping in flight arrives.
    let flush = pair.flush(A);
    assert!(pair.ask_to_leave(A) && pair.ask_to_leave(A));
    pair.run();
    assert!(pair.sides[A].conn.is_flushed(&flush));
    assert!(pair.sides[B].peer_leaves && !pair.sides[A].peer_leaves);
    assert!(pair.ask_to_leave(A) && pair.ask_to_leave(B));
    pair.run_until_idle();
    assert!(pair.sides[A].peer_leaves);
    assert!(pair.send(A) && pair.send(B), "both sides can still send");
    pair.close(B);
    assert!(!pair.ask_to_leave(B));
    pair.finish();
    assert!(pair.delivered(A) && pair.delivered(B));
}

#[test]
fn leave_needs_a_peer_that_knows_it() {
    let none = Params {
        takes_control_messages: false,
        ..params()
    };
    let mut pair = Pair::established(params(), none);
    let refused = pair.sides[A].conn.ask_to_leave();
    assert_eq!(refused, Err(ControlRefused::NotTaken));
    pair.forge(A, &control(Control::Leave));
    pair.finish();
    assert_eq!(violated_field(pair.reason(B)), "kind");
}

#[test]
fn a_second_leave_is_a_violation() {
    let mut pair = pair();
    pair.forge(A, &control(Control::Leave));
    pair.forge(A, &control(Control::Leave));
    pair.finish();
    assert!(pair.sides[B].peer_leaves);
    assert_eq!(violated_field(pair.reason(B)), "kind");
}

/// Creates a pair for the session's next connection.
fn resumed(last: &mut Pair) -> Pair {
    let mut pair = Pair::new(params(), params());
    let [a, b] = &mut last.sides;
    pair.sides[A].conn.resume_control_messages(&mut a.conn);
    // B's connection is created when A's request arrives.
    while !pair.sides[B].conn.accepts_receives() {
        pair.take(Step::Cm(A));
    }
    pair.sides[B].conn.resume_control_messages(&mut b.conn);
    for (new, old) in pair.sides.iter_mut().zip(&last.sides) {
        new.control_sent = old.control_sent;
        new.control_received = old.control_received;
        new.control_kept = old.control_kept;
    }
    pair.run();
    pair
}

#[test]
fn session_delivers_each_control_message_once() {
    let mut last = pair();
    for side in &mut last.sides {
        side.conn.start_control_messages_at(0, 4);
    }
    for _ in 0..3 {
        assert!(last.send_control_message(A));
    }
    // Two of three messages arrive before the connection is lost, and the application takes one of
    // them.
    for _ in 0..2 {
        last.take(Step::Wire(A));
        last.take(Step::Cq(B));
    }
    last.take_control_message(B);
    let kept = last.sides[A]
        .conn
        .keep_control_message(&3_u32.to_le_bytes());
    assert_eq!(kept, Ok(()), "the session stores the message");
    last.sides[A].control_sent += 1;
    let mut pair = resumed(&mut last);
    assert_eq!(pair.sides[B].control_received, 4);
    assert!(
        pair.send_control_message(A),
        "the application has taken one of four"
    );
    pair.run();
    assert_eq!(pair.sides[B].control_received, 5);
    assert!(
        !pair.send_control_message(A),
        "four untaken messages fill the window"
    );
}

#[test]
fn session_repeats_a_grant_that_was_lost() {
    let mut last = pair();
    for _ in 0..CONTROL_WINDOW {
        assert!(last.send_control_message(A));
    }
    last.run();
    for _ in 0..CONTROL_WINDOW {
        last.take_control_message(B);
    }
    // The grant is lost together with the connection.
    let mut pair = resumed(&mut last);
    assert_eq!(
        pair.sides[B].control_received, CONTROL_WINDOW,
        "no message is delivered twice"
    );
    for _ in 0..CONTROL_WINDOW {
        assert!(pair.send_control_message(A));
    }
    pair.run();
    assert_eq!(pair.sides[B].control_received, 2 * CONTROL_WINDOW);
}

#[test]
fn number_that_was_never_granted_cannot_resume() {
    for number in [1, CONTROL_WINDOW + 1, u32::MAX / 2] {
        let mut pair = resumed(&mut pair());
        pair.forge(A, &message(number, b"1234"));
        pair.finish();
        assert_eq!(violated_field(pair.reason(B)), "control number", "{number}");
    }
}
