//! Tests RDMA WRITE, RDMA READ and atomic operations.

use rdmsg::{
    status::WcStatus,
    verbs::{
        AccessFlags, Inline, MemoryRegion, QpState, RecvWr, RemoteAddr, SendWr, Sge, WcOpcode,
    },
};

use crate::pair::{EINVAL, End, Pair, Setup, assert_none, bytes, failure, success};

fn at(region: &MemoryRegion, offset: u64) -> RemoteAddr {
    RemoteAddr {
        addr: region.addr() + offset,
        rkey: region.rkey(),
    }
}

#[test]
fn write_completes_no_receive_of_the_peer() {
    let Pair { a, b, .. } = &Pair::new();
    a.region.copy_in(0, b"written");
    a.qp.post_send(&[SendWr::write(1, Sge::new(&a.region, ..7), at(&b.region, 20)).signaled()])
        .unwrap();
    let written = success(&a.cq);
    assert_eq!((written.wr_id, written.opcode), (1, WcOpcode::RDMA_WRITE));
    assert_eq!(bytes(&b.region, 19, 9), b"\0written\0");
    assert_none(&b.cq);
}

#[test]
fn a_write_with_immediate_data_takes_a_receive() {
    let Pair { a, b, .. } = &Pair::new();
    b.qp.post_recv(&[RecvWr::new(5, &[])]).unwrap();
    a.qp.post_send(&[SendWr::write_with_imm(
        1,
        Inline(b"both"),
        at(&b.region, 0),
        77,
    )])
    .unwrap();
    let received = success(&b.cq);
    assert_eq!(
        (received.wr_id, received.opcode),
        (5, WcOpcode::RECV_RDMA_WITH_IMM)
    );
    assert_eq!((received.byte_len, received.imm_data), (4, Some(77)));
    assert_eq!(bytes(&b.region, 0, 5), b"both\0");
}

#[test]
fn a_read_fetches() {
    let Pair { a, b, .. } = &Pair::new();
    b.region.copy_in(4000, b"far away");
    let into = [Sge::new(&a.region, 0..3), Sge::new(&a.region, 10..15)];
    a.qp.post_send(&[SendWr::read(1, &into, at(&b.region, 4000)).signaled()])
        .unwrap();
    assert_eq!(success(&a.cq).opcode, WcOpcode::RDMA_READ);
    assert_eq!(bytes(&a.region, 0, 4), b"far\0");
    assert_eq!(bytes(&a.region, 10, 6), b" away\0");
    assert_none(&b.cq);
}

#[test]
fn a_fence_waits_for_reads() {
    let Pair { a, b, .. } = &Pair::new();
    b.region.copy_in(0, b"old");
    a.region.copy_in(100, b"new");
    // The second request sends the bytes that the first request reads, so it needs a fence.
    a.qp.post_send(&[
        SendWr::read(1, Sge::new(&a.region, ..3), at(&b.region, 0)),
        SendWr::write(2, Sge::new(&a.region, ..3), at(&b.region, 500)).fence(),
        SendWr::write(3, Sge::new(&a.region, 100..103), at(&b.region, 0)).signaled(),
    ])
    .unwrap();
    assert_eq!(success(&a.cq).wr_id, 3);
    assert_eq!(bytes(&b.region, 500, 3), b"old");
    assert_eq!(bytes(&b.region, 0, 3), b"new");
}

#[test]
fn atomic_operations_return_the_old_value() {
    let Pair { a, b, .. } = &Pair::new();
    let here = || u64::from_ne_bytes(bytes(&a.region, 0, 8).try_into().unwrap());
    let there = || u64::from_ne_bytes(bytes(&b.region, 64, 8).try_into().unwrap());
    let (into, remote) = (Sge::new(&a.region, ..8), at(&b.region, 64));
    b.region.copy_in(64, &40_u64.to_ne_bytes());

    a.qp.post_send(&[SendWr::fetch_add(1, into, remote, 2).signaled()])
        .unwrap();
    assert_eq!(success(&a.cq).opcode, WcOpcode::FETCH_ADD);
    assert_eq!((here(), there()), (40, 42));

    a.qp.post_send(&[SendWr::compare_swap(2, into, remote, 42, 7).signaled()])
        .unwrap();
    assert_eq!(success(&a.cq).opcode, WcOpcode::COMP_SWAP);
    assert_eq!((here(), there()), (42, 7));

    a.qp.post_send(&[SendWr::compare_swap(3, into, remote, 42, 8).signaled()])
        .unwrap();
    assert_eq!(success(&a.cq).wr_id, 3);
    assert_eq!((here(), there()), (7, 7));

    let short = SendWr::fetch_add(4, Sge::new(&a.region, ..4), remote, 1);
    assert_eq!(a.qp.post_send(&[short]).unwrap_err().error.errno, EINVAL);
}

/// Asserts that the peer's device rejects the request. The request must fail on this side, and this
/// side's queue pair must enter the error state.
fn refused(pair: &Pair, wr: SendWr<'_>) {
    let Pair { a, b, .. } = pair;
    a.qp.post_send(&[wr.signaled()]).unwrap();
    let error = failure(&a.cq);
    assert_eq!(
        (error.status, error.qp_num),
        (WcStatus::REM_ACCESS_ERR, a.qp.qp_num())
    );
    assert_eq!(a.qp.state(), Ok(QpState::ERR));
    assert_eq!(bytes(&b.region, 0, 8), [0; 8]);
}

#[test]
fn a_wrong_key_is_refused() {
    let pair = Pair::new();
    let RemoteAddr { addr, rkey } = at(&pair.b.region, 0);
    refused(
        &pair,
        SendWr::write(
            1,
            Inline(b"x"),
            RemoteAddr {
                addr,
                rkey: rkey ^ 0xff,
            },
        ),
    );
}

#[test]
fn memory_beyond_the_end_is_refused() {
    let pair = Pair::new();
    let End { region, .. } = &pair.b;
    refused(
        &pair,
        SendWr::write(1, Inline(b"xx"), at(region, region.len() as u64 - 1)),
    );
}

#[test]
fn the_key_of_a_region_that_is_gone_is_refused() {
    let pair = Pair::new();
    let remote = {
        let gone = crate::pair::region(&pair.pd, 4096);
        at(&gone, 0)
    };
    refused(&pair, SendWr::write(1, Inline(b"x"), remote));
}

#[test]
fn a_region_without_the_right_is_refused() {
    let pair = Pair::new();
    let local = MemoryRegion::new(&pair.pd, 4096, AccessFlags::LOCAL_WRITE).unwrap();
    refused(
        &pair,
        SendWr::read(1, Sge::new(&pair.a.region, ..8), at(&local, 0)),
    );
}

#[test]
fn a_queue_pair_without_the_right_refuses() {
    let pair = Pair::with(
        Setup {
            peer_access: AccessFlags::REMOTE_READ,
            ..Setup::default()
        },
        None,
    );
    let Pair { a, b, .. } = &pair;
    a.qp.post_send(&[SendWr::write(1, Inline(b"x"), at(&b.region, 0)).signaled()])
        .unwrap();
    let status = failure(&a.cq).status;
    assert!(
        matches!(status, WcStatus::REM_ACCESS_ERR | WcStatus::REM_INV_REQ_ERR),
        "the status must be an access error, or an invalid request on software RoCE: {status}"
    );
    assert_eq!(bytes(&b.region, 0, 1), [0]);
}
