use rdmsg::{CloseReason, Completion, Endpoint, Error, RemoteAccess, RemoteRegion, Transport};

use crate::stage::{TIME_LIMIT, pair, pattern, supports_or_report};

/// Sends the descriptor of a region to the peer. Returns the received copy.
fn send_region(from: &Endpoint, to: &Endpoint, region: &rdmsg::Region) -> RemoteRegion {
    let remote = region.remote();
    from.send(&remote.to_bytes()).unwrap();
    let bytes = to.recv_timeout(TIME_LIMIT).unwrap();
    let there = RemoteRegion::from_bytes(&(*bytes).try_into().unwrap());
    assert_eq!(there, remote);
    assert_eq!(there.len(), region.len() as u64);
    there
}

fn next(endpoint: &Endpoint) -> Completion {
    endpoint.next_completion_timeout(TIME_LIMIT).unwrap()
}

#[test]
fn error_names_operation_that_device_lacks() {
    let (near, far) = pair();
    let able = near.info().capabilities.unwrap();
    if near.info().transport == Transport::Tcp {
        assert!(able.atomic && able.write_with_imm);
    }
    let region = far.one_sided().region(64, RemoteAccess::WRITE).unwrap();
    let mut remote = send_region(&far, &near, &region).to_bytes();
    // Set all access rights in the descriptor, so that an operation fails only if the device lacks
    // the capability.
    remote[23] = 7;
    let remote = RemoteRegion::from_bytes(&remote);
    let here = near.one_sided().region(64, RemoteAccess::NONE).unwrap();
    let tries = [
        (able.atomic, "fetch_add"),
        (able.atomic, "compare_swap"),
        (able.write_with_imm, "write_with_imm"),
    ];
    for (_, operation) in tries.into_iter().filter(|(able, _)| !able) {
        let tried = match operation {
            "fetch_add" => near.one_sided().fetch_add(&here, 0, &remote, 0, 1, 1),
            "compare_swap" => near.one_sided().compare_swap(&here, 0, &remote, 0, 1, 2, 1),
            _ => near
                .one_sided()
                .write_with_imm(&here, 0..8, &remote, 0, 1, 1),
        };
        match tried {
            Err(Error::NotSupported { operation: it, .. }) => assert_eq!(it, operation),
            other => panic!("{operation}: {other:?}"),
        }
    }
    near.send(b"goes on").unwrap();
    assert_eq!(*far.recv_timeout(TIME_LIMIT).unwrap(), *b"goes on");
    near.abort(1);
    for (end, reason) in [
        (near, CloseReason::LocallyAborted),
        (far, CloseReason::PeerAborted(1)),
    ] {
        match end.recv_timeout(TIME_LIMIT).unwrap_err() {
            Error::Disconnected(reported) => assert_eq!(reported, reason),
            error => panic!("{error}"),
        }
    }
}

#[test]
fn bytes_are_written_and_read_at_their_offset() {
    let (near, far) = pair();
    let region = far.one_sided().region(100_000, RemoteAccess::ALL).unwrap();
    let remote = send_region(&far, &near, &region);
    assert_eq!(remote.access(), RemoteAccess::ALL);
    let here = near
        .one_sided()
        .region(200_000, RemoteAccess::NONE)
        .unwrap();
    here.copy_in(1, &pattern(70_001));
    near.one_sided()
        .write(&here, 1..70_002, &remote, 7, 1)
        .unwrap();
    assert!(matches!(next(&near), Completion::Written(1)));
    near.one_sided()
        .read(&here, 100_001..170_002, &remote, 7, 2)
        .unwrap();
    assert!(matches!(next(&near), Completion::Read(2)));
    let mut back = vec![0; 70_001];
    here.copy_out(100_001, &mut back);
    assert!(back == pattern(70_001));
    region.copy_out(7, &mut back);
    assert!(back == pattern(70_001));
    let mut before = [1; 7];
    region.copy_out(0, &mut before);
    assert_eq!(
        before, [0; 7],
        "the bytes before the offset must not change"
    );
}

#[test]
fn atomic_operations_return_the_old_value() {
    let (near, far) = pair();
    if !supports_or_report(
        near.info().capabilities.unwrap().atomic,
        "atomic operations",
    ) {
        return;
    }
    let region = far.one_sided().region(64, RemoteAccess::ATOMIC).unwrap();
    let remote = send_region(&far, &near, &region);
    let here = near.one_sided().region(64, RemoteAccess::NONE).unwrap();
    near.one_sided()
        .fetch_add(&here, 0, &remote, 8, 5, 1)
        .unwrap();
    near.one_sided()
        .fetch_add(&here, 8, &remote, 8, 6, 2)
        .unwrap();
    near.one_sided()
        .compare_swap(&here, 16, &remote, 8, 11, 100, 3)
        .unwrap();
    near.one_sided()
        .compare_swap(&here, 24, &remote, 8, 11, 200, 4)
        .unwrap();
    for (expected_id, old) in [(1, 0), (2, 5), (3, 11), (4, 100)] {
        match next(&near) {
            Completion::Fetched { id, value } => assert_eq!((id, value), (expected_id, old)),
            other => panic!("{other:?}"),
        }
    }
    let mut word = [0; 8];
    region.copy_out(8, &mut word);
    assert_eq!(u64::from_ne_bytes(word), 100);
    here.copy_out(24, &mut word);
    assert_eq!(u64::from_ne_bytes(word), 100);
}

#[test]
fn immediate_data_arrives_in_order_with_messages() {
    let (near, far) = pair();
    if !supports_or_report(
        near.info().capabilities.unwrap().write_with_imm,
        "write_with_imm",
    ) {
        return;
    }
    let region = far.one_sided().region(64, RemoteAccess::WRITE).unwrap();
    let remote = send_region(&far, &near, &region);
    let here = near.one_sided().region(64, RemoteAccess::NONE).unwrap();
    here.copy_in(0, b"written");
    near.send(b"before").unwrap();
    near.one_sided()
        .write_with_imm(&here, 0..7, &remote, 0, 0xabcd_ef01, 9)
        .unwrap();
    near.send(b"behind").unwrap();
    assert!(matches!(next(&far), Completion::Received(m) if *m == *b"before"));
    match next(&far) {
        Completion::Immediate(immediate) => {
            assert_eq!((immediate.imm_data(), immediate.len()), (0xabcd_ef01, 7));
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(next(&far), Completion::Received(m) if *m == *b"behind"));
    let mut bytes = [0; 7];
    region.copy_out(0, &mut bytes);
    assert_eq!(bytes, *b"written");
    long_write_with_imm(&near, &far);
    assert!(matches!(next(&near), Completion::Written(9)));
    assert!(matches!(next(&near), Completion::Written(10)));
}

/// Writes 600,000 bytes, which the library splits into several parts. Asserts that the peer
/// receives one completion, which reports the total length.
fn long_write_with_imm(near: &Endpoint, far: &Endpoint) {
    let region = far
        .one_sided()
        .region(600_000, RemoteAccess::WRITE)
        .unwrap();
    let remote = send_region(far, near, &region);
    let here = near
        .one_sided()
        .region(600_000, RemoteAccess::NONE)
        .unwrap();
    here.copy_in(0, &pattern(600_000));
    near.one_sided()
        .write_with_imm(&here, 0..600_000, &remote, 0, 1, 10)
        .unwrap();
    match next(far) {
        Completion::Immediate(immediate) => assert_eq!(immediate.len(), 600_000),
        other => panic!("{other:?}"),
    }
    let mut bytes = vec![0; 600_000];
    region.copy_out(0, &mut bytes);
    assert!(bytes == pattern(600_000));
}

#[test]
fn nonblocking_operation_reports_missing_room() {
    let (near, far) = crate::stage::pair_with(&crate::stage::small());
    let region = far.one_sided().region(64, RemoteAccess::ALL).unwrap();
    let remote = send_region(&far, &near, &region);
    assert_eq!(
        RemoteRegion::try_from(&remote.to_bytes()[..]).unwrap(),
        remote
    );
    let here = near.one_sided().region(64, RemoteAccess::NONE).unwrap();
    near.one_sided()
        .try_write(&here, 0..8, &remote, 0, 1)
        .unwrap();
    near.one_sided()
        .try_read(&here, 0..8, &remote, 0, 2)
        .unwrap();
    assert!(matches!(next(&near), Completion::Written(1)));
    assert!(matches!(next(&near), Completion::Read(2)));
    let mut started = 0;
    while near
        .one_sided()
        .try_write_with_imm(&here, 0..0, &remote, 0, 7, 3)
        .is_ok()
    {
        started += 1;
        assert!(
            started <= 4,
            "a window of 4 must refuse further writes while the peer receives nothing"
        );
    }
    for _ in 0..started {
        assert!(matches!(next(&far), Completion::Immediate(_)));
    }
}

#[test]
fn invalid_operation_is_refused_without_ending() {
    let (near, far) = pair();
    let region = far.one_sided().region(64, RemoteAccess::READ).unwrap();
    let remote = send_region(&far, &near, &region);
    let here = near.one_sided().region(64, RemoteAccess::NONE).unwrap();
    let foreign = far.one_sided().region(64, RemoteAccess::NONE).unwrap();
    for (result, expected) in [
        (
            near.one_sided().write(&here, 0..8, &remote, 0, 1),
            "the peer's region does not allow the operation",
        ),
        (
            near.one_sided().read(&here, 0..65, &remote, 0, 1),
            "do not fit into the region",
        ),
        (
            near.one_sided().read(&here, 0..8, &remote, 60, 1),
            "do not fit into the peer's region",
        ),
        (
            near.one_sided().read(&foreign, 0..8, &remote, 0, 1),
            "belongs to another connection",
        ),
    ] {
        let error: Error = result.unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
    near.send(b"on it goes").unwrap();
    assert_eq!(*far.recv().unwrap(), *b"on it goes");
}

#[test]
fn a_region_that_is_gone_is_refused_by_the_peer() {
    let (near, far) = pair();
    let region = far.one_sided().region(64, RemoteAccess::ALL).unwrap();
    let remote = send_region(&far, &near, &region);
    drop(region);
    let here = near.one_sided().region(64, RemoteAccess::NONE).unwrap();
    near.one_sided().read(&here, 0..64, &remote, 0, 7).unwrap();
    assert!(matches!(next(&near), Completion::Failed { id: 7, .. }));
    assert!(matches!(next(&near), Completion::Disconnected(_)));
}
