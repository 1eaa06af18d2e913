//! Tests lists of work requests. If a request cannot be posted, the requests after it are not
//! posted either.

use rdmsg::verbs::{
    CompletionQueue, Inline, QpInitAttr, QpType, QueuePair, RecvWr, RemoteAddr, SendWr, Sge,
};

use crate::pair::{EINVAL, ENOMEM, Pair, assert_none, completions, success};

#[test]
fn a_list_is_posted_in_order() {
    let Pair { a, b, .. } = &Pair::new();
    let recvs: Vec<_> = (0..8)
        .map(|id| RecvWr::new(id, Sge::new(&b.region, ..8)))
        .collect();
    b.qp.post_recv(&recvs).unwrap();
    let sends: Vec<_> = (10..18)
        .map(|id| SendWr::send(id, Inline(b"in order")).signaled())
        .collect();
    a.qp.post_send(&sends).unwrap();
    let ids = |cq| {
        completions(cq, 8)
            .iter()
            .map(|wc| wc.result().unwrap().wr_id)
            .collect::<Vec<_>>()
    };
    assert_eq!(ids(&b.cq), (0..8).collect::<Vec<_>>());
    assert_eq!(ids(&a.cq), (10..18).collect::<Vec<_>>());
    a.qp.post_send(&[]).unwrap();
    a.qp.post_recv(&[]).unwrap();
}

#[test]
fn requests_before_one_that_does_not_fit_are_sent() {
    let Pair { a, b, .. } = &Pair::new();
    b.qp.post_recv(&[1, 2, 3].map(|id| RecvWr::new(id, Sge::new(&b.region, ..64))))
        .unwrap();
    let long = vec![0; a.qp.cap().max_inline_data as usize + 1];
    let error =
        a.qp.post_send(&[
            SendWr::send(1, Inline(b"first")).signaled(),
            SendWr::send(2, Inline(b"second")).signaled(),
            SendWr::send(3, Inline(&long)).signaled(),
            SendWr::send(4, Inline(b"fourth")).signaled(),
        ])
        .unwrap_err();
    assert_eq!(
        (error.posted, error.error.call, error.error.errno),
        (2, "ibv_post_send", EINVAL)
    );
    assert_eq!([success(&a.cq).wr_id, success(&a.cq).wr_id], [1, 2]);
    assert_eq!([success(&b.cq).byte_len, success(&b.cq).byte_len], [5, 6]);

    // The queue pair can still be used.
    a.qp.post_send(&[SendWr::send(5, Inline(b"fifth!!")).signaled()])
        .unwrap();
    assert_eq!(success(&a.cq).wr_id, 5);
    assert_eq!((success(&b.cq).wr_id, b.cq.poll(&mut [])), (3, Ok(0)));
    assert_none(&b.cq);
}

/// The driver stops in the middle of the list, and reports the position of the first request that
/// it has not posted.
#[test]
fn requests_that_fit_the_queue_are_posted() {
    let Pair { a, b, .. } = &Pair::new();
    let depth = a.qp.cap().max_recv_wr as usize;
    let recvs: Vec<_> = (0..)
        .map(|id| RecvWr::new(id, Sge::new(&a.region, ..4)))
        .take(4 * depth)
        .collect();
    let error = a.qp.post_recv(&recvs).unwrap_err();
    assert_eq!(error.error.errno, ENOMEM, "{error}");
    assert!(
        error.posted >= depth,
        "the queue must hold {depth} receives: {error}"
    );

    // Check that exactly the reported number of receives was posted: each posted receive gets one
    // message, and the receives complete in order.
    for id in 0..error.posted as u64 {
        b.qp.post_send(&[SendWr::send(id, Inline(b"four")).signaled()])
            .unwrap();
        assert_eq!(success(&a.cq).wr_id, id);
        assert_eq!(success(&b.cq).wr_id, id);
    }
    a.qp.post_recv(&recvs[..error.posted]).unwrap();
    assert_eq!(a.qp.post_recv(&recvs[..1]).unwrap_err().posted, 0);
}

#[test]
fn unsupported_requests_are_refused() {
    let Pair { a, b, .. } = &Pair::new();
    let sges = vec![Sge::new(&a.region, ..1); a.qp.cap().max_send_sge as usize + 1];
    assert_eq!(
        a.qp.post_send(&[SendWr::send(1, &sges[..])])
            .unwrap_err()
            .error
            .errno,
        EINVAL
    );
    let sges = vec![Sge::new(&a.region, ..1); a.qp.cap().max_recv_sge as usize + 1];
    assert_eq!(
        a.qp.post_recv(&[RecvWr::new(1, &sges[..])])
            .unwrap_err()
            .error
            .errno,
        EINVAL
    );
    assert_none(&a.cq);
    assert_none(&b.cq);
}

#[test]
fn queue_pair_refuses_requests_of_another_kind() {
    let Pair { a, pd, context, .. } = &Pair::new();
    let cq = CompletionQueue::new(context, 8, None).unwrap();
    let make = |qp_type| {
        let cap = a.qp.cap();
        let attr = QpInitAttr {
            sq_sig_all: true,
            ..QpInitAttr::new(qp_type, &cq, cap)
        };
        QueuePair::new(pd, &attr).unwrap()
    };
    let (uc, ud) = (make(QpType::UC), make(QpType::UD));
    let remote = RemoteAddr {
        addr: a.region.addr(),
        rkey: a.region.rkey(),
    };
    let read = SendWr::read(1, Sge::new(&a.region, ..1), remote);
    assert_eq!(uc.post_send(&[read]).unwrap_err().error.errno, EINVAL);
    assert_eq!(ud.post_send(&[read]).unwrap_err().error.errno, EINVAL);
    assert_eq!(
        ud.post_send(&[SendWr::send(1, &[])])
            .unwrap_err()
            .error
            .errno,
        EINVAL
    );
}
