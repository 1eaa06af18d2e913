//! Tests failures of calls and work requests, and the errors that report these failures.

use rdmsg::{
    status::WcStatus,
    verbs::{
        AccessFlags, CompletionChannel, CompletionQueue, Inline, MemoryRegion, ProtectionDomain,
        QpAttr, QpAttrMask, QpCap, QpInitAttr, QpState, QueuePair, RecvWr, SendWr, Sge, WcError,
    },
};

use crate::pair::{EINVAL, ENOMEM, PORT, Pair, Setup, completions, failure, open, success};

#[test]
fn a_failed_modify_names_what_is_missing() {
    let context = open();
    let pd = ProtectionDomain::new(&context).unwrap();
    let cq = CompletionQueue::new(&context, 8, None).unwrap();
    let attr = QpInitAttr::rc(&cq, QpCap::default());
    let qp = QueuePair::new(&pd, &attr).unwrap();
    assert_eq!(qp.state(), Ok(QpState::RESET));

    let init = QpAttr {
        qp_state: Some(QpState::INIT),
        port_num: Some(PORT),
        ..QpAttr::default()
    };
    let error = qp.modify(&init).unwrap_err();
    assert_eq!(
        (error.error.call, error.error.errno),
        ("ibv_modify_qp", EINVAL)
    );
    assert_eq!(
        (error.from, error.to),
        (Some(QpState::RESET), Some(QpState::INIT))
    );
    assert_eq!(
        error.missing,
        QpAttrMask::ACCESS_FLAGS | QpAttrMask::PKEY_INDEX
    );
    assert_eq!(error.invalid, QpAttrMask::empty());

    let init = QpAttr {
        pkey_index: Some(0),
        qp_access_flags: Some(AccessFlags::empty()),
        path_mtu: Some(context.query_port(PORT).unwrap().active_mtu),
        ..init
    };
    let error = qp.modify(&init).unwrap_err();
    assert_eq!(
        (error.missing, error.invalid),
        (QpAttrMask::empty(), QpAttrMask::PATH_MTU)
    );
    qp.modify(&QpAttr {
        path_mtu: None,
        ..init
    })
    .unwrap();

    let error = qp
        .modify(&QpAttr {
            qp_state: Some(QpState::RTS),
            ..QpAttr::default()
        })
        .unwrap_err();
    assert!(
        !error.possible && error.to_string().contains("from INIT to RTS"),
        "{error}"
    );
    assert_eq!(qp.state(), Ok(QpState::INIT));
}

#[test]
fn the_error_state_flushes_everything_in_order() {
    let Pair { a, .. } = &Pair::new();
    a.qp.post_recv(&[1, 2, 3].map(|id| RecvWr::new(id, Sge::new(&a.region, ..))))
        .unwrap();
    a.qp.to_err().unwrap();
    assert_eq!(a.qp.state(), Ok(QpState::ERR));
    let flushed = completions(&a.cq, 3);
    assert_eq!(
        flushed.iter().map(|wc| wc.wr_id()).collect::<Vec<_>>(),
        [1, 2, 3]
    );
    assert!(
        flushed
            .iter()
            .all(|wc| wc.status() == WcStatus::WR_FLUSH_ERR),
        "{flushed:?}"
    );

    // Requests that are posted in the error state are also flushed.
    a.qp.post_send(&[SendWr::send(4, Inline(b"x"))]).unwrap();
    let error = failure(&a.cq);
    assert_eq!((error.wr_id, error.status), (4, WcStatus::WR_FLUSH_ERR));
}

#[test]
fn no_receive_is_an_error_when_retries_are_off() {
    let Pair { a, .. } = &Pair::with(
        Setup {
            rnr_retry: 0,
            ..Setup::default()
        },
        None,
    );
    a.qp.post_send(&[
        SendWr::send(1, Inline(b"x")).signaled(),
        SendWr::send(2, Inline(b"y")),
    ])
    .unwrap();
    let error = failure(&a.cq);
    assert_eq!(
        (error.wr_id, error.status),
        (1, WcStatus::RNR_RETRY_EXC_ERR)
    );
    // The second request is flushed. A request that fails has a completion even if it is not
    // signaled.
    let error = failure(&a.cq);
    assert_eq!((error.wr_id, error.status), (2, WcStatus::WR_FLUSH_ERR));
}

#[test]
fn message_longer_than_receive_fails_both_sides() {
    let Pair { a, b, .. } = &Pair::new();
    b.qp.post_recv(&[RecvWr::new(1, Sge::new(&b.region, ..4))])
        .unwrap();
    a.qp.post_send(&[SendWr::send(2, Inline(b"longer")).signaled()])
        .unwrap();
    standard_or_rxe(
        failure(&b.cq),
        WcStatus::LOC_LEN_ERR,
        WcStatus::LOC_QP_OP_ERR,
    );
    standard_or_rxe(
        failure(&a.cq),
        WcStatus::REM_INV_REQ_ERR,
        WcStatus::REM_OP_ERR,
    );
}

#[test]
fn memory_that_may_not_be_written_takes_no_message() {
    let Pair { a, b, pd, .. } = &Pair::new();
    let read_only = MemoryRegion::new(pd, 4096, AccessFlags::empty()).unwrap();
    b.qp.post_recv(&[RecvWr::new(1, Sge::new(&read_only, ..))])
        .unwrap();
    a.qp.post_send(&[SendWr::send(2, Inline(b"x")).signaled()])
        .unwrap();
    standard_or_rxe(
        failure(&b.cq),
        WcStatus::LOC_PROT_ERR,
        WcStatus::LOC_QP_OP_ERR,
    );
    assert_eq!(failure(&a.cq).status, WcStatus::REM_OP_ERR);
    let mut byte = [1];
    read_only.copy_out(0, &mut byte);
    assert_eq!(byte, [0]);
}

#[test]
fn memory_of_another_protection_domain_cannot_be_sent() {
    let Pair { a, context, .. } = &Pair::new();
    let other = ProtectionDomain::new(context).unwrap();
    let foreign = MemoryRegion::new(&other, 4096, AccessFlags::LOCAL_WRITE).unwrap();
    a.qp.post_send(&[SendWr::send(1, Sge::new(&foreign, ..8)).signaled()])
        .unwrap();
    standard_or_rxe(
        failure(&a.cq),
        WcStatus::LOC_PROT_ERR,
        WcStatus::LOC_QP_OP_ERR,
    );
}

#[test]
fn objects_of_different_contexts_are_not_combined() {
    let (here, there) = (open(), open());
    assert_ne!(here.id(), there.id());
    let pd = ProtectionDomain::new(&here).unwrap();
    let channel = CompletionChannel::new(&there).unwrap();
    let error = CompletionQueue::new(&here, 8, Some((&channel, 0))).unwrap_err();
    assert_eq!((error.call, error.errno), ("ibv_create_cq", EINVAL));

    let ours = CompletionQueue::new(&here, 8, None).unwrap();
    let theirs = CompletionQueue::new(&there, 8, None).unwrap();
    for (send_cq, recv_cq) in [(&ours, &theirs), (&theirs, &ours)] {
        let cap = QpCap::default();
        let attr = QpInitAttr {
            recv_cq,
            ..QpInitAttr::rc(send_cq, cap)
        };
        assert_eq!(QueuePair::new(&pd, &attr).unwrap_err().errno, EINVAL);
    }
}

#[test]
fn impossible_sizes_are_refused() {
    let context = open();
    let pd = ProtectionDomain::new(&context).unwrap();
    let errno = |result: Result<CompletionQueue, rdmsg::status::OsError>| result.unwrap_err().errno;
    assert_eq!(errno(CompletionQueue::new(&context, 0, None)), EINVAL);
    assert_eq!(
        errno(CompletionQueue::new(&context, u32::MAX, None)),
        EINVAL
    );
    let above = context.query_device().unwrap().max_cqe() + 1;
    assert_eq!(errno(CompletionQueue::new(&context, above, None)), EINVAL);
    let vectors = context.num_comp_vectors();
    drop(CompletionQueue::on_vector(&context, 8, None, vectors - 1).unwrap());
    for vector in [vectors, u32::MAX] {
        let queue = CompletionQueue::on_vector(&context, 8, None, vector);
        assert_eq!(errno(queue), EINVAL);
    }

    let error = MemoryRegion::new(&pd, 0, AccessFlags::LOCAL_WRITE).unwrap_err();
    assert_eq!((error.call, error.errno), ("mmap", EINVAL));
    let error = MemoryRegion::new(&pd, 4096, AccessFlags::REMOTE_WRITE).unwrap_err();
    assert_eq!((error.call, error.errno), ("ibv_reg_mr", EINVAL));
    let error = MemoryRegion::new(&pd, 1 << 46, AccessFlags::LOCAL_WRITE).unwrap_err();
    assert_eq!((error.call, error.errno), ("mmap", ENOMEM));
}

#[test]
fn relaxed_ordering_is_accepted_everywhere() {
    let Pair { a, b, pd, .. } = &Pair::new();
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::RELAXED_ORDERING;
    let region = MemoryRegion::new(pd, 100, access).unwrap();
    assert_eq!(region.len(), 100);
    b.qp.post_recv(&[RecvWr::new(1, Sge::new(&region, ..))])
        .unwrap();
    a.qp.post_send(&[SendWr::send(2, Inline(b"relaxed"))])
        .unwrap();
    assert_eq!(success(&b.cq).byte_len, 7);
}

/// Asserts that the error has the status required by the InfiniBand specification, or the status
/// reported by software RoCE, which does not distinguish some errors.
#[track_caller]
fn standard_or_rxe(error: WcError, standard: WcStatus, rxe: WcStatus) {
    assert!(
        [standard, rxe].contains(&error.status),
        "{error}, not {standard} or {rxe}"
    );
}
