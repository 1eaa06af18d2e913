//! Tests random sequences of operations.

use std::time::Duration;

use proptest::prelude::*;
use rdma_status::WcStatus;

use super::{
    pair::{A, B, Pair, Step},
    params,
};
use crate::{
    CloseReason, Connection, Params,
    testing::{BOTH_WAYS, cases},
};

/// One operation in a random sequence.
#[derive(Clone, Copy, Debug)]
enum Op {
    Step(Step),
    Send(usize),
    SendBatch(usize),
    SendLarge {
        at: usize,
        len: u64,
    },
    Flush(usize),
    Finish(usize),
    HoldBack(usize),
    Release {
        at: usize,
        oldest: bool,
    },
    Wait(u16),
    Close(usize),
    Abort(usize),
    Kill(usize),
    RemoveDevice(usize),
    GiveUp(usize),
    /// An action on another connection that shares receives with this side. The other connection
    /// claims receives, receives a message, or releases a message.
    OtherConnections {
        at: usize,
        kind: u8,
    },
}

fn side() -> impl Strategy<Value = usize> {
    prop_oneof![Just(A), Just(B)]
}

fn step() -> impl Strategy<Value = Op> {
    (side(), 0..5).prop_map(|(at, kind)| {
        Op::Step(match kind {
            0 => Step::Wire(at),
            1 => Step::Cq(at),
            2 => Step::Ack(at),
            3 => Step::Memory(at),
            _ => Step::Cm(at),
        })
    })
}

/// Operations that do not end the connection.
fn life() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => step(),
        5 => side().prop_map(Op::Send),
        3 => side().prop_map(Op::SendBatch),
        3 => (side(), 1_u64..8 << 20).prop_map(|(at, len)| Op::SendLarge { at, len }),
        4 => (side(), any::<bool>()).prop_map(|(at, oldest)| Op::Release { at, oldest }),
        1 => side().prop_map(Op::Flush),
        1 => side().prop_map(Op::HoldBack),
        1 => (0_u16..1500).prop_map(Op::Wait),
        2 => (side(), 0_u8..3).prop_map(|(at, kind)| Op::OtherConnections { at, kind }),
    ]
}

/// Operations that end a connection.
fn ending_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => side().prop_map(Op::Close),
        4 => side().prop_map(Op::Finish),
        2 => side().prop_map(Op::Abort),
        1 => side().prop_map(Op::Kill),
        1 => side().prop_map(Op::RemoveDevice),
        1 => side().prop_map(Op::GiveUp),
    ]
}

fn sizes() -> impl Strategy<Value = Params> {
    (
        1_u16..6,
        any::<bool>(),
        1_u32..6,
        prop::option::of(300_u64..2000),
    )
        .prop_map(|(window, shared, send_slots, keepalive)| Params {
            window,
            shared,
            send_slots,
            keepalive_interval: keepalive.map(Duration::from_millis),
            // Time passes while neither side polls. The timeout is a day, so that a side does not
            // consider its peer dead for this reason alone.
            keepalive_timeout: Duration::from_secs(86_400),
            ..params()
        })
}

fn apply(pair: &mut Pair, op: Op) {
    let alive =
        |pair: &Pair, at: usize| pair.sides[at].ended.is_none() && pair.sides[at].established;
    match op {
        Op::Step(step) if pair.can(step) => pair.take(step),
        Op::Send(at) if alive(pair, at) => {
            pair.send(at);
        }
        Op::SendBatch(at) if alive(pair, at) => {
            pair.send_batch(at, 3);
        }
        Op::SendLarge { at, len } if alive(pair, at) => {
            // If `len` is odd, the message is sent in fragments, provided that enough credits and
            // slots are free. In all other cases, the message is announced.
            let words = len as u32 % 50 + 17;
            if len % 2 == 0 || !pair.send_fragments(at, 4 * words) {
                pair.send_large(at, len.max(65));
            }
        }
        Op::Flush(at) if alive(pair, at) && pair.sides[at].conn.close_reason().is_none() => {
            pair.flush(at);
        }
        Op::Finish(at) if alive(pair, at) => pair.finish_sending(at),
        Op::HoldBack(at) if alive(pair, at) => {
            pair.hold_back(at);
        }
        Op::Release { at, oldest } => pair.release(at, oldest),
        Op::Wait(millis) => pair.wait(Duration::from_millis(millis.into())),
        Op::Close(at) if alive(pair, at) => pair.close(at),
        Op::Abort(at) if alive(pair, at) => pair.abort(at, 3),
        Op::Kill(at) if alive(pair, at) => pair.kill(at),
        Op::RemoveDevice(at) if alive(pair, at) => pair.remove_device(at),
        Op::GiveUp(at) if alive(pair, at) => pair.sides[at].give_up(WcStatus::RETRY_EXC_ERR),
        Op::OtherConnections { at, kind: 0 } => pair.sides[at].others_claim(4),
        Op::OtherConnections { at, kind: 1 } => pair.sides[at].others_receive(),
        Op::OtherConnections { at, .. } => pair.sides[at].others_release(),
        Op::Step(_)
        | Op::Send(_)
        | Op::SendBatch(_)
        | Op::SendLarge { .. }
        | Op::Flush(_)
        | Op::Finish(_)
        | Op::HoldBack(_)
        | Op::Close(_)
        | Op::Abort(_)
        | Op::Kill(_)
        | Op::RemoveDevice(_)
        | Op::GiveUp(_) => {}
    }
}

proptest! {
    #![proptest_config(cases(250))]

    /// Checks that no credit is lost, that a close delivers everything, and that both sides report
    /// the delivery. All this must hold even if pending acknowledgements of a device are lost when
    /// its queue pair fails. The pair itself checks that each frame finds a receive, that no slot
    /// is used twice, and that messages stay in order.
    #[test]
    fn nothing_is_lost_and_no_credit_leaks(
        a in sizes(),
        b in sizes(),
        ops in prop::collection::vec(life(), 0..300),
        both_close in any::<bool>(),
        last in prop::collection::vec(step(), 0..60),
        acknowledgements_get_lost in any::<bool>(),
    ) {
        let mut pair = Pair::established(a, b);
        pair.acknowledgements_get_lost = acknowledgements_get_lost;
        for op in ops {
            apply(&mut pair, op);
        }
        // The applications release all messages, so that memory for further large messages is
        // available. Then both sides must be able to send again.
        pair.run_until_idle();
        for at in [A, B] {
            prop_assert!(pair.sides[at].ended.is_none(), "{:?}", pair.sides[at].ended);
            prop_assert!(pair.sides[at].writable, "the stalled sender must be notified");
            prop_assert!(pair.send(at), "the stalled sender must be able to send again");
        }
        pair.close(A);
        if both_close {
            pair.close(B);
        }
        for op in last {
            apply(&mut pair, op);
        }
        pair.finish();
        prop_assert_eq!(pair.sides[A].sent, pair.sides[B].received);
        prop_assert_eq!(pair.sides[B].sent, pair.sides[A].received);
        prop_assert!(pair.delivered(A) && pair.delivered(B));
        prop_assert_eq!(pair.reason(A), &CloseReason::LocallyClosed);
        let at_b = if both_close { CloseReason::LocallyClosed } else { CloseReason::PeerClosed };
        prop_assert_eq!(pair.reason(B), &at_b);
        for side in &mut pair.sides {
            side.release_account();
        }
    }

    /// Checks each way to end the connection, at each side: each side must end once and in bounded
    /// time, and messages must stay in order. If a side reports complete delivery, a close by the
    /// peer or missing messages, the numbers of messages sent and received must match this report.
    #[test]
    fn every_ending_operation_ends_the_connection(
        a in sizes(),
        b in sizes(),
        before in prop::collection::vec(life(), 0..100),
        deaths in prop::collection::vec(ending_op(), 1..4),
        after in prop::collection::vec(life(), 0..60),
        acknowledgements_get_lost in any::<bool>(),
    ) {
        let mut pair = Pair::new(a, b);
        pair.acknowledgements_get_lost = acknowledgements_get_lost;
        for op in before.into_iter().chain(deaths).chain(after) {
            apply(&mut pair, op);
        }
        if !pair.sides[A].established || !pair.sides[B].established {
            pair.run();
        }
        // If one side has ended and the other side was notified, the other side ends too. The loop
        // below closes each side that has not ended.
        pair.finish();
        for at in [A, B] {
            if pair.sides[at].ended.is_none() {
                pair.close(at);
            }
            pair.finish();
        }
        for at in [A, B] {
            prop_assert!(pair.sides[at].ended.is_some(), "side {at}: {pair:?}");
            prop_assert!(pair.sides[1 - at].received <= pair.sides[at].sent);
            if pair.delivered(at) && !pair.sides[1 - at].killed {
                prop_assert_eq!(pair.sides[at].sent, pair.sides[1 - at].received);
            }
            let (sent, received) = (pair.sides[1 - at].sent, pair.sides[at].received);
            match pair.reason(at) {
                CloseReason::PeerClosed => prop_assert_eq!(sent, received),
                CloseReason::Truncated { missing } => {
                    prop_assert_eq!(u64::from(sent - received), *missing);
                }
                _ => {}
            }
            pair.sides[at].release_account();
        }
    }

    /// Checks that random bytes from a peer never cause a panic of the state machine.
    #[test]
    fn random_frames_do_no_harm(
        frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..4),
    ) {
        let mut pair = Pair::established(params(), params());
        for frame in &frames {
            pair.forge(A, frame);
        }
        pair.finish();
    }

    #[test]
    fn random_requests_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..255)) {
        let now = std::time::Instant::now();
        prop_assert!(Connection::requested(params(), &bytes, BOTH_WAYS, now).is_err());
    }
}
