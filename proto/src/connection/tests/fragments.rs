//! Tests of messages that are sent in several frames.

use std::time::Duration;

use super::{
    hostile::violated_field,
    pair,
    pair::{A, B, Pair, Step},
    params,
};
use crate::{
    CloseReason, Params, SendMethod,
    frame::{Control, DESCRIPTOR_LEN, Header, Kind},
};

/// The eager size of both sides.
const EAGER: u32 = 64;

/// Returns a Fragment frame with `payload` bytes of payload. `len` is the number of bytes from the
/// start of this fragment to the end of the message.
fn fragment(len: u32, payload: usize) -> Vec<u8> {
    [header(Kind::Fragment, len), vec![0; payload]].concat()
}

fn header(kind: Kind, len: u32) -> Vec<u8> {
    let header = Header {
        kind,
        sequence: 0,
        grant: 4,
        len,
        arg: 0,
    };
    header.emit().to_vec()
}

/// Creates a pair whose windows and send rings suffice for two messages of four fragments each.
fn pair_of_fragments() -> Pair {
    let sides = Params {
        window: 8,
        send_slots: 8,
        ..params()
    };
    Pair::established(sides.clone(), sides)
}

#[test]
fn fragments_arrive_as_one_message_in_order() {
    let mut pair = pair_of_fragments();
    assert!(pair.send(A) && pair.send_fragments(A, 4 * EAGER) && pair.send(A));
    assert!(pair.send_fragments(A, EAGER + 4));
    pair.run();
    assert_eq!(pair.sides[B].received, 4);
    let sent = pair.sides[A].conn.statistics();
    let received = pair.sides[B].conn.statistics();
    let bytes = 4 + 4 * u64::from(EAGER) + 4 + u64::from(EAGER) + 4;
    assert_eq!((sent.messages_sent, sent.bytes_sent), (4, bytes));
    assert_eq!(
        (received.messages_received, received.bytes_received),
        (4, bytes)
    );
    assert_eq!(sent.large_sent, 0);
    assert_eq!(pair.sides[B].conn.delivered_messages(), 4);
    pair.close(A);
    pair.run_until_idle();
    pair.finish();
    assert!(pair.delivered(A));
}

#[test]
fn fragments_return_receives_before_release() {
    let mut pair = pair();
    for round in 1..10 {
        assert!(pair.send_fragments(A, 4 * EAGER), "round {round}");
        pair.run();
        assert_eq!(pair.sides[B].received, round);
        // B's window is 4, so at most four large messages can be in progress or held by B's
        // application.
        if round % 4 == 0 {
            pair.release_all(B);
        }
    }
}

#[test]
fn message_that_cannot_be_fragmented_is_announced() {
    let mut pair = pair();
    let way = |pair: &Pair, len: u32| pair.sides[A].conn.send_method(len as usize);
    assert_eq!(way(&pair, EAGER), SendMethod::Frame);
    assert_eq!(way(&pair, EAGER + 1), SendMethod::Fragments(2));
    assert_eq!(way(&pair, 4 * EAGER), SendMethod::Fragments(4));
    assert_eq!(way(&pair, 4 * EAGER + 1), SendMethod::Announcement);
    assert!(pair.send(A));
    assert_eq!(way(&pair, 3 * EAGER), SendMethod::Fragments(3));
    assert_eq!(way(&pair, 3 * EAGER + 1), SendMethod::Announcement);
    let alone = Params {
        window: 1,
        ..params()
    };
    let pair = Pair::established(params(), alone);
    assert_eq!(way(&pair, EAGER + 1), SendMethod::Announcement);
}

#[test]
fn a_send_waits_for_the_slots_of_all_fragments() {
    let sides = Params {
        window: 8,
        ..params()
    };
    let mut pair = Pair::established(sides.clone(), sides);
    assert!(pair.send(A));
    assert!(
        !pair.send_fragments(A, 4 * EAGER),
        "one of the four slots is in use"
    );
    assert!(!pair.sides[A].writable);
    pair.run();
    assert!(pair.sides[A].writable);
    assert!(pair.send_fragments(A, 4 * EAGER));
}

#[test]
fn fragments_wait_in_their_receives_for_memory() {
    let mut pair = pair_of_fragments();
    pair.sides[B].lacks_memory = true;
    assert!(pair.send_fragments(A, 2 * EAGER) && pair.send(A));
    pair.close(A);
    pair.run();
    assert_eq!(pair.sides[B].received, 0);
    assert_eq!(pair.sides[B].conn.held_messages(), 0);
    assert!(
        pair.sides[A].ended.is_none(),
        "B has not received all messages"
    );
    pair.sides[B].lacks_memory = false;
    pair.restore_memory(B);
    pair.run_until_idle();
    pair.finish();
    assert_eq!(pair.sides[B].received, 2);
    assert_eq!(pair.reason(B), &CloseReason::PeerClosed);
    assert!(pair.delivered(A));
}

/// Checks that the connection periodically retries the memory allocation for a message in
/// fragments. The retries are necessary because no event reports that memory is available again.
#[test]
fn fragments_that_arrive_without_memory_ask_again() {
    let mut pair = pair_of_fragments();
    pair.sides[B].lacks_memory = true;
    assert!(pair.send_fragments(A, 4 * EAGER));
    pair.run();
    assert_eq!(pair.sides[B].failed_allocations, 1);
    pair.sides[B].lacks_memory = false;
    pair.wait(Duration::from_millis(10));
    pair.run();
    assert_eq!(pair.sides[B].received, 1);
}

#[test]
fn stopped_peer_is_given_up_after_memory_shortage() {
    let mut pair = pair();
    pair.sides[B].lacks_memory = true;
    pair.forge(A, &fragment(EAGER + 1, 64));
    pair.run();
    pair.sides[B].lacks_memory = false;
    pair.wait(Duration::from_millis(10));
    pair.finish();
    assert_eq!(pair.reason(B), &CloseReason::ReadTimeout);
}

#[test]
fn fragments_received_before_the_end_are_delivered() {
    let mut pair = pair();
    assert!(pair.send_fragments(A, 2 * EAGER));
    while pair.can(Step::Wire(A)) {
        pair.take(Step::Wire(A));
    }
    // Memory is reserved for the message before the connection fails.
    pair.take(Step::Cq(B));
    pair.take(Step::Memory(B));
    pair.kill(A);
    pair.finish();
    assert_eq!(pair.sides[B].received, 1);
    assert_eq!(pair.reason(B), &CloseReason::PeerDisconnected);
}

#[test]
fn a_message_that_is_cut_off_is_not_delivered() {
    let mut pair = pair();
    assert!(pair.send_fragments(A, 2 * EAGER));
    pair.take(Step::Wire(A));
    pair.kill(A);
    pair.finish();
    assert_eq!(pair.sides[B].received, 0);
    assert_eq!(pair.sides[B].conn.delivered_messages(), 0);
    assert_eq!(pair.reason(B), &CloseReason::PeerDisconnected);
}

#[test]
fn a_peer_that_sends_no_further_fragment_is_given_up() {
    let mut pair = pair();
    pair.forge(A, &fragment(EAGER + 1, 64));
    pair.run();
    pair.wait(Duration::from_secs(29));
    assert!(pair.sides[B].ended.is_none());
    pair.finish();
    assert_eq!(pair.reason(B), &CloseReason::ReadTimeout);
}

#[test]
fn fragments_that_do_not_fit_name_the_field() {
    let data = [header(Kind::Data, 1), vec![0]].concat();
    let rendezvous = [
        header(Kind::Rendezvous, 24),
        super::side::exposed(1, 100).emit().to_vec(),
    ]
    .concat();
    assert_eq!(
        rendezvous.len(),
        header(Kind::Data, 0).len() + DESCRIPTOR_LEN
    );
    let batch = [header(Kind::Batch, 4), vec![0; 4]].concat();
    let control = |control| header(Kind::Control(control), 0);
    let begun = fragment(100, 50);
    let cases: [(&str, &str, Vec<Vec<u8>>); 10] = [
        ("an empty fragment", "len", vec![fragment(100, 0)]),
        (
            "a fragment longer than its message",
            "len",
            vec![fragment(9, 10)],
        ),
        (
            "a message that is too long",
            "len",
            vec![fragment((8 << 20) + 1, 64)],
        ),
        (
            "a message that grows",
            "len",
            vec![begun.clone(), fragment(51, 50)],
        ),
        (
            "a message that shrinks",
            "len",
            vec![begun.clone(), fragment(49, 49)],
        ),
        ("a message in between", "kind", vec![begun.clone(), data]),
        (
            "an announcement in between",
            "kind",
            vec![begun.clone(), rendezvous],
        ),
        ("a batch in between", "kind", vec![begun.clone(), batch]),
        (
            "a finish in between",
            "kind",
            vec![begun.clone(), control(Control::Finish)],
        ),
        (
            "a close in between",
            "kind",
            vec![begun, control(Control::Close)],
        ),
    ];
    for (what, field, frames) in cases {
        let mut pair = pair();
        for frame in frames {
            pair.forge(A, &frame);
        }
        pair.finish();
        assert_eq!(violated_field(pair.reason(B)), field, "{what}");
        assert_eq!(pair.sides[B].received, 0, "{what}");
    }
}

#[test]
fn control_frames_pass_between_fragments() {
    let mut pair = pair();
    let words = 0_u32.to_le_bytes().repeat(25);
    pair.forge(
        A,
        &[&header(Kind::Fragment, 100)[..], &words[..60]].concat(),
    );
    pair.forge(A, &header(Kind::Control(Control::Grant), 0));
    pair.forge(A, &[&header(Kind::Fragment, 40)[..], &words[..40]].concat());
    pair.run();
    assert_eq!(pair.sides[B].received, 1);
}

#[test]
fn a_peer_without_the_feature_gets_an_announcement() {
    let pair = Pair::near_the_wrap(params(), params());
    assert_eq!(
        pair.sides[A].conn.send_method(EAGER as usize + 1),
        SendMethod::Announcement
    );
}
