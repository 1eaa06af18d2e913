//! Tests the extended verbs, which have one function for each part of a request and of a
//! completion. Also tests optional features of devices.

use std::time::Instant;

use rdmsg::{
    status::WcStatus,
    verbs::{
        AccessFlags, Advice, CompletionQueue, DeviceMemory, ExtendedCompletion, Inline,
        MemoryRegion, OdpCaps, ProtectionDomain, RecvWr, RemoteAddr, SendWr, Sge, Success,
        WcOpcode,
    },
};

use crate::pair::{EINVAL, End, Pair, Setup, TIME_LIMIT, bytes, open};

const EOPNOTSUPP: i32 = 95;

fn pair() -> Pair {
    let setup = Setup {
        extended: true,
        ..Setup::default()
    };
    Pair::with(setup, None)
}

fn next(end: &End) -> ExtendedCompletion {
    let deadline = Instant::now() + TIME_LIMIT;
    let mut completions = [ExtendedCompletion::default()];
    while end.cq.poll_extended(&mut completions).unwrap() == 0 {
        assert!(Instant::now() < deadline, "no completion arrived in time");
    }
    completions[0]
}

fn success(end: &End) -> Success {
    let next = next(end);
    assert_eq!(next.timestamp, None);
    next.completion.result().unwrap()
}

fn remote(region: &MemoryRegion) -> RemoteAddr {
    RemoteAddr {
        addr: region.addr(),
        rkey: region.rkey(),
    }
}

#[test]
fn messages_arrive() {
    let Pair { a, b, .. } = &pair();
    a.region.copy_in(100, b"in two piece");
    for number in 0..3 {
        let recv = RecvWr::new(number, Sge::new(&b.region, ..));
        b.qp.post_recv(&[recv]).unwrap();
    }
    // Both pieces have the same length, because the driver of software RoCE in rdma-core 44 uses
    // the length of the first piece for all pieces of a request.
    let pieces = [Sge::new(&a.region, 100..106), Sge::new(&a.region, 106..112)];
    let requests = [
        SendWr::send(10, &pieces).signaled(),
        SendWr::send_with_imm(11, Inline(b"inline"), 0x0102_0304).signaled(),
        SendWr::send(12, &[]).signaled(),
    ];
    a.qp.post_send(&requests).unwrap();
    for number in 10..13 {
        let sent = success(a);
        assert_eq!((sent.wr_id, sent.opcode), (number, WcOpcode::SEND));
        assert_eq!(sent.qp_num, a.qp.qp_num());
    }
    let received = [(); 3].map(|()| success(b));
    assert_eq!(received.map(|one| one.wr_id), [0, 1, 2]);
    assert_eq!(received.map(|one| one.byte_len), [12, 6, 0]);
    let imm_data = received.map(|one| one.imm_data);
    assert_eq!(imm_data, [None, Some(0x0102_0304), None]);
    assert_eq!(bytes(&b.region, 0, 12), b"inline piece");
}

#[test]
fn several_completions_are_read_at_once() {
    let Pair { a, b, .. } = &pair();
    for number in 0..4 {
        b.qp.post_recv(&[RecvWr::new(number, &[])]).unwrap();
    }
    a.qp.post_send(&[0, 1, 2, 3].map(|number| SendWr::send(number, &[]).signaled()))
        .unwrap();
    let mut seen = Vec::new();
    let deadline = Instant::now() + TIME_LIMIT;
    while seen.len() < 4 {
        let mut completions = [ExtendedCompletion::default(); 3];
        let count = a.cq.poll_extended(&mut completions).unwrap();
        seen.extend(
            completions[..count]
                .iter()
                .map(|one| one.completion.wr_id()),
        );
        assert!(Instant::now() < deadline, "{seen:?}");
    }
    assert_eq!(seen, [0, 1, 2, 3]);
    assert_eq!(a.cq.poll_extended(&mut []).unwrap(), 0);
}

#[test]
fn memory_of_the_peer_is_read_and_written() {
    let Pair { a, b, .. } = &pair();
    b.region.copy_in(0, b"what is there");
    a.region.copy_in(200, b"written");
    b.region.copy_in(800, &40_u64.to_ne_bytes());
    b.qp.post_recv(&[RecvWr::new(1, &[])]).unwrap();
    let to = remote(&b.region);
    let at = |offset: u64| RemoteAddr {
        addr: to.addr + offset,
        ..to
    };
    let requests = [
        SendWr::read(1, Sge::new(&a.region, 0..13), to).signaled(),
        SendWr::write(2, Sge::new(&a.region, 200..207), at(100)).signaled(),
        SendWr::write_with_imm(3, Inline(b"with more"), at(300), 77).signaled(),
        SendWr::fetch_add(4, Sge::new(&a.region, 400..408), at(800), 2).signaled(),
        SendWr::compare_swap(5, Sge::new(&a.region, 408..416), at(800), 42, 7).signaled(),
    ];
    a.qp.post_send(&requests).unwrap();
    let done = [(); 5].map(|()| success(a));
    assert_eq!(done.map(|one| one.wr_id), [1, 2, 3, 4, 5]);
    assert_eq!(
        done.map(|one| one.opcode),
        [
            WcOpcode::RDMA_READ,
            WcOpcode::RDMA_WRITE,
            WcOpcode::RDMA_WRITE,
            WcOpcode::FETCH_ADD,
            WcOpcode::COMP_SWAP
        ]
    );
    assert_eq!(success(b).imm_data, Some(77));
    assert_eq!(bytes(&a.region, 0, 13), b"what is there");
    assert_eq!(bytes(&b.region, 100, 7), b"written");
    assert_eq!(bytes(&b.region, 300, 9), b"with more");
    assert_eq!(bytes(&a.region, 400, 8), 40_u64.to_ne_bytes());
    assert_eq!(bytes(&a.region, 408, 8), 42_u64.to_ne_bytes());
    assert_eq!(bytes(&b.region, 800, 8), 7_u64.to_ne_bytes());
}

#[test]
fn failures_say_why() {
    let Pair { a, b, .. } = &pair();
    let mut wrong = remote(&b.region);
    wrong.rkey ^= 0xff00;
    a.qp.post_send(&[SendWr::write(1, Inline(b"x"), wrong)])
        .unwrap();
    let error = next(a).completion.result().unwrap_err();
    assert_eq!((error.wr_id, error.status), (1, WcStatus::REM_ACCESS_ERR));
    assert_eq!(error.qp_num, a.qp.qp_num());
}

#[test]
fn a_plain_queue_is_not_read_this_way() {
    let Pair { a, .. } = &Pair::new();
    let error = a.cq.poll_extended(&mut [ExtendedCompletion::default()]);
    assert_eq!(error.unwrap_err().errno, EINVAL);
}

/// Objects that need an optional feature can be created only if the device reports the feature.
/// Software RoCE has none of these features.
#[test]
fn unsupported_features_are_refused() {
    let context = open();
    let pd = ProtectionDomain::new(&context).unwrap();
    let can = context.query_device_ex().unwrap();
    let plain = context.query_device().unwrap();
    assert_eq!(can.device_attr().max_qp(), plain.max_qp());
    assert_eq!(can.device_attr().node_guid(), plain.node_guid());

    let queue = CompletionQueue::new_extended(&context, 8, None, 0, true);
    assert_eq!(queue.is_ok(), can.completion_timestamp_mask() != 0);
    let memory = DeviceMemory::new(&context, 4096);
    assert_eq!(memory.is_ok(), can.max_dm_size() >= 4096);
    if let Err(error) = memory {
        assert_eq!((error.call, error.errno), ("ibv_alloc_dm", EOPNOTSUPP));
    }
    let local = AccessFlags::LOCAL_WRITE;
    let paged = MemoryRegion::new(&pd, 4096, local | AccessFlags::ON_DEMAND);
    assert_eq!(paged.is_ok(), can.odp_caps().contains(OdpCaps::SUPPORT));
    let all = MemoryRegion::new_implicit(&pd, 4096, local);
    let implicit = can.odp_caps().contains(OdpCaps::SUPPORT_IMPLICIT);
    assert_eq!(all.is_ok(), implicit);
    // Implicit regions never permit access by peers.
    let error = MemoryRegion::new_implicit(&pd, 4096, AccessFlags::REMOTE_READ);
    assert_eq!(error.unwrap_err().errno, EINVAL);
    let pinned = MemoryRegion::new(&pd, 4096, local).unwrap();
    let error = pinned.advise(Advice::PrefetchWrite).unwrap_err();
    assert_eq!(error.call, "ibv_advise_mr");
}
