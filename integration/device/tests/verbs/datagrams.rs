//! Tests unreliable datagrams.

use rdmsg::verbs::{AddressHandle, Inline, QpType, RecvWr, SendWr, Sge};

use crate::pair::{EINVAL, PORT, Pair, QKEY, Setup, assert_none, bytes, open, path, success};

fn pair() -> Pair {
    Pair::with(
        Setup {
            qp_type: QpType::UD,
            ..Setup::default()
        },
        None,
    )
}

#[test]
fn a_datagram_arrives_and_can_be_answered() {
    let Pair {
        a, b, pd, context, ..
    } = &pair();
    let handle = AddressHandle::new(pd, &path(context)).unwrap();
    b.qp.post_recv(&[RecvWr::new(1, Sge::new(&b.region, ..))])
        .unwrap();
    let request = SendWr::send_with_imm(2, Inline(b"request"), 5)
        .to(&handle, b.qp.qp_num(), QKEY)
        .signaled();
    a.qp.post_send(&[request]).unwrap();
    // The queue pair holds a reference to the address handle until the send completes.
    drop(handle);
    assert_eq!(success(&a.cq).wr_id, 2);
    let received = success(&b.cq);
    assert_eq!(received.byte_len as usize, AddressHandle::GRH_LEN + 7);
    assert_eq!(
        (received.src_qp, received.imm_data, received.grh),
        (a.qp.qp_num(), Some(5), true)
    );
    assert_eq!(bytes(&b.region, AddressHandle::GRH_LEN, 7), b"request");

    // Send a second message, and answer it. The answer goes to the source address in the global
    // route header (GRH) of the first message.
    let mut grh = [0; AddressHandle::GRH_LEN];
    b.region.copy_out(0, &mut grh);
    a.qp.post_recv(&[RecvWr::new(3, Sge::new(&a.region, ..))])
        .unwrap();
    b.qp.post_recv(&[RecvWr::new(4, Sge::new(&b.region, ..))])
        .unwrap();
    a.qp.post_send(&[SendWr::send(5, Inline(b"again")).to(
        &AddressHandle::new(pd, &path(context)).unwrap(),
        b.qp.qp_num(),
        QKEY,
    )])
    .unwrap();
    let wc = crate::pair::completions(&b.cq, 1)[0];
    let back = AddressHandle::from_wc(pd, &wc, &grh, PORT).unwrap();
    b.qp.post_send(&[SendWr::send(6, Inline(b"answer")).to(&back, wc.src_qp(), QKEY)])
        .unwrap();
    assert_eq!(success(&a.cq).src_qp, b.qp.qp_num());
    assert_eq!(bytes(&a.region, AddressHandle::GRH_LEN, 6), b"answer");
}

#[test]
fn a_wrong_key_is_dropped_silently() {
    let Pair {
        a, b, pd, context, ..
    } = &pair();
    let handle = AddressHandle::new(pd, &path(context)).unwrap();
    b.qp.post_recv(&[RecvWr::new(1, Sge::new(&b.region, ..))])
        .unwrap();
    let to = |id, text, qkey| {
        SendWr::send(id, Inline(text))
            .to(&handle, b.qp.qp_num(), qkey)
            .signaled()
    };
    a.qp.post_send(&[to(2, b"lost", QKEY + 1), to(3, b"kept", QKEY).solicited()])
        .unwrap();
    assert_eq!([success(&a.cq).wr_id, success(&a.cq).wr_id], [2, 3]);
    assert_eq!(success(&b.cq).wr_id, 1);
    assert_eq!(bytes(&b.region, AddressHandle::GRH_LEN, 4), b"kept");
    assert_none(&b.cq);
}

#[test]
fn a_path_of_another_context_is_refused() {
    let Pair { a, b, .. } = &pair();
    let other = open();
    let pd = rdmsg::verbs::ProtectionDomain::new(&other).unwrap();
    let foreign = AddressHandle::new(&pd, &path(&other)).unwrap();
    let error =
        a.qp.post_send(&[SendWr::send(1, Inline(b"x")).to(&foreign, b.qp.qp_num(), QKEY)])
            .unwrap_err();
    assert_eq!((error.posted, error.error.errno), (0, EINVAL));
}
