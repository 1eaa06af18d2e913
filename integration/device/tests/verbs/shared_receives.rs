//! Tests shared receive queues.

use rdmsg::verbs::{Inline, ProtectionDomain, RecvWr, SendWr, Sge, SharedReceiveQueue, SrqAttr};

use crate::pair::{EINVAL, ENOMEM, Pair, Setup, bytes, open, region, success};

#[test]
fn both_queue_pairs_take_from_it() {
    let pd = ProtectionDomain::new(&open()).unwrap();
    let srq = SharedReceiveQueue::new(
        &pd,
        &SrqAttr {
            max_wr: 4,
            max_sge: 2,
            srq_limit: 0,
        },
        0,
    )
    .unwrap();
    let granted = srq.query().unwrap();
    assert!(
        granted.max_wr >= 4 && granted.max_sge >= 2 && granted.srq_limit == 0,
        "{granted:?}"
    );

    let Pair { a, b, .. } = &Pair::with(Setup::default(), Some(&srq));
    let memory = region(&pd, 64);
    srq.post_recv(&[
        RecvWr::new(1, Sge::new(&memory, ..16)),
        RecvWr::new(2, &[Sge::new(&memory, 16..18), Sge::new(&memory, 32..48)]),
    ])
    .unwrap();
    a.qp.post_send(&[SendWr::send(3, Inline(b"to b"))]).unwrap();
    let received = success(&b.cq);
    assert_eq!(
        (received.wr_id, received.qp_num, received.byte_len),
        (1, b.qp.qp_num(), 4)
    );
    b.qp.post_send(&[SendWr::send(4, Inline(b"to a"))]).unwrap();
    let received = success(&a.cq);
    assert_eq!((received.wr_id, received.qp_num), (2, a.qp.qp_num()));
    assert_eq!(bytes(&memory, 0, 4), b"to b");
    assert_eq!(
        (bytes(&memory, 16, 3), bytes(&memory, 32, 3)),
        (b"to\0".to_vec(), b" a\0".to_vec())
    );

    // A queue pair with a shared receive queue has no receive queue of its own, so posting to it
    // fails.
    let error =
        a.qp.post_recv(&[RecvWr::new(5, Sge::new(&memory, ..))])
            .unwrap_err();
    assert_eq!((error.posted, error.error.errno), (0, EINVAL));
}

#[test]
fn requests_that_fit_the_queue_are_posted() {
    let pd = ProtectionDomain::new(&open()).unwrap();
    let srq = SharedReceiveQueue::new(
        &pd,
        &SrqAttr {
            max_wr: 4,
            ..SrqAttr::default()
        },
        0,
    )
    .unwrap();
    let memory = region(&pd, 64);
    let wrs = vec![RecvWr::new(1, Sge::new(&memory, ..)); srq.max_wr() as usize + 8];
    let error = srq.post_recv(&wrs).unwrap_err();
    assert_eq!(error.error.errno, ENOMEM, "{error}");
    assert!(
        error.posted >= srq.max_wr() as usize,
        "the queue must hold {} receives: {error}",
        srq.max_wr()
    );
    assert_eq!(srq.post_recv(&wrs[..1]).unwrap_err().posted, 0);
}
