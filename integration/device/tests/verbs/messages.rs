//! Tests all forms of the SEND operation.

use rdmsg::verbs::{Inline, QpType, RecvWr, SendWr, Sge, WcOpcode};

use crate::pair::{Pair, Setup, assert_none, bytes, completions, success};

#[test]
fn a_send_arrives() {
    let Pair { a, b, .. } = &Pair::new();
    a.region.copy_in(100, b"hello");
    b.qp.post_recv(&[RecvWr::new(7, Sge::new(&b.region, 8..))])
        .unwrap();
    a.qp.post_send(&[SendWr::send(9, Sge::new(&a.region, 100..105)).signaled()])
        .unwrap();

    let sent = success(&a.cq);
    assert_eq!(
        (sent.wr_id, sent.opcode, sent.qp_num),
        (9, WcOpcode::SEND, a.qp.qp_num())
    );
    let received = success(&b.cq);
    assert_eq!(
        (received.wr_id, received.opcode, received.qp_num),
        (7, WcOpcode::RECV, b.qp.qp_num())
    );
    assert_eq!(
        (
            received.byte_len,
            received.imm_data,
            received.invalidated_rkey
        ),
        (5, None, None)
    );
    assert_eq!(bytes(&b.region, 7, 7), b"\0hello\0");
}

#[test]
fn pieces_are_gathered_and_scattered() {
    let Pair { a, b, .. } = &Pair::new();
    a.region.copy_in(0, b"one");
    a.region.copy_in(1000, b"two");
    a.region.copy_in(2000, b"three");
    let from = [
        Sge::new(&a.region, 0..3),
        Sge::new(&a.region, 1000..1003),
        Sge::new(&a.region, 2000..2005),
    ];
    let to = [
        Sge::new(&b.region, 0..2),
        Sge::new(&b.region, 500..507),
        Sge::new(&b.region, 900..1000),
    ];
    b.qp.post_recv(&[RecvWr::new(1, &to)]).unwrap();
    a.qp.post_send(&[SendWr::send(2, &from)]).unwrap();

    assert_eq!(success(&b.cq).byte_len, 11);
    assert_eq!(bytes(&b.region, 0, 3), b"on\0");
    assert_eq!(bytes(&b.region, 500, 8), b"etwothr\0");
    assert_eq!(bytes(&b.region, 900, 3), b"ee\0");
    // The send is not signaled, so it has no completion.
    assert_none(&a.cq);
}

#[test]
fn inline_bytes_may_change_after_posting() {
    let Pair { a, b, .. } = &Pair::new();
    b.qp.post_recv(&[RecvWr::new(1, Sge::new(&b.region, ..))])
        .unwrap();
    let mut message = *b"inline";
    a.qp.post_send(&[SendWr::send(2, Inline(&message)).signaled()])
        .unwrap();
    message.fill(b'x');
    assert_eq!(success(&b.cq).byte_len, 6);
    assert_eq!(success(&a.cq).wr_id, 2);
    assert_eq!(bytes(&b.region, 0, 6), b"inline");
    assert_eq!(&message, b"xxxxxx");
}

#[test]
fn immediate_data_arrives_in_host_order() {
    let Pair { a, b, .. } = &Pair::new();
    b.qp.post_recv(&[RecvWr::new(1, &[]), RecvWr::new(2, Sge::new(&b.region, ..))])
        .unwrap();
    a.qp.post_send(&[
        SendWr::send_with_imm(3, &[], 0x0102_0304),
        SendWr::send_with_imm(4, Inline(b"x"), u32::MAX).solicited(),
    ])
    .unwrap();
    let first = success(&b.cq);
    assert_eq!(
        (first.wr_id, first.byte_len, first.imm_data),
        (1, 0, Some(0x0102_0304))
    );
    let second = success(&b.cq);
    assert_eq!(
        (second.wr_id, second.byte_len, second.imm_data),
        (2, 1, Some(u32::MAX))
    );
}

#[test]
fn many_messages_keep_their_order_both_ways() {
    const ROUNDS: u64 = 500;
    let Pair { a, b, .. } = &Pair::new();
    b.qp.post_recv(&[RecvWr::new(0, Sge::new(&b.region, ..8))])
        .unwrap();
    for round in 0..ROUNDS {
        a.qp.post_recv(&[RecvWr::new(round, Sge::new(&a.region, ..8))])
            .unwrap();
        a.qp.post_send(&[SendWr::send(round, Inline(&round.to_le_bytes())).signaled()])
            .unwrap();
        assert_eq!(success(&b.cq).wr_id, round);
        assert_eq!(bytes(&b.region, 0, 8), round.to_le_bytes());
        b.qp.post_recv(&[RecvWr::new(round + 1, Sge::new(&b.region, ..8))])
            .unwrap();
        b.qp.post_send(&[SendWr::send(round, Sge::new(&b.region, ..8)).signaled()])
            .unwrap();
        // The receive and the send can complete in either order.
        let mut opcodes: Vec<_> = completions(&a.cq, 2)
            .iter()
            .map(|wc| wc.result().unwrap().opcode)
            .collect();
        opcodes.sort_unstable();
        assert_eq!(opcodes, [WcOpcode::SEND, WcOpcode::RECV]);
        assert_eq!(bytes(&a.region, 0, 8), round.to_le_bytes());
        assert_eq!(success(&b.cq).opcode, WcOpcode::SEND);
    }
}

#[test]
fn an_unreliable_connection_carries_messages() {
    let Pair { a, b, .. } = &Pair::with(
        Setup {
            qp_type: QpType::UC,
            ..Setup::default()
        },
        None,
    );
    b.qp.post_recv(&[RecvWr::new(1, Sge::new(&b.region, ..))])
        .unwrap();
    a.qp.post_send(&[SendWr::send_with_imm(2, Inline(b"maybe"), 5).signaled()])
        .unwrap();
    assert_eq!(success(&a.cq).wr_id, 2);
    let received = success(&b.cq);
    assert_eq!((received.byte_len, received.imm_data), (5, Some(5)));
    assert_eq!(bytes(&b.region, 0, 5), b"maybe");
}
