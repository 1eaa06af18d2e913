//! Tests synchronous ids. The program needs no event channel for them, because each call waits for
//! the event that it needs.

use std::thread;

use rdmsg::{
    cm::{AddrInfo, AddrInfoHints, CmId, ConnParam, EventChannel, PortSpace, PrivateData},
    status::{CmEventType, RejectReason},
};
use toolbox::DeviceTest;

use crate::common::{Queues, TIME_LIMIT, param};

/// `ECONNREFUSED` of `errno.h`.
const ECONNREFUSED: i32 = 111;

fn last(id: &CmId) -> CmEventType {
    id.last_event().unwrap().event()
}

fn listen(host: &str) -> CmId {
    let mut hints = AddrInfoHints::default();
    hints.passive = true;
    hints.numeric_host = true;
    hints.port_space = Some(PortSpace::TCP);
    let info = AddrInfo::new(Some(host), "0", hints).unwrap();
    assert_eq!(info.src_addr().unwrap().ip().to_string(), host);
    assert_eq!(info.dst_addr(), None);
    let mut listener = CmId::create_ep(&info).unwrap();
    listener.listen(4).unwrap();
    assert!(listener.last_event().is_none());
    listener
}

fn find(listener: &CmId) -> CmId {
    let addr = listener.local_addr().unwrap();
    let mut hints = AddrInfoHints::default();
    hints.port_space = Some(PortSpace::TCP);
    let (host, port) = (addr.ip().to_string(), addr.port().to_string());
    let info = AddrInfo::new(Some(&host), &port, hints).unwrap();
    assert_eq!(info.dst_addr(), Some(addr));
    let id = CmId::create_ep(&info).unwrap();
    assert_eq!(id.peer_addr(), Some(addr));
    id
}

fn run_lifecycle(host: &str) {
    let mut listener = listen(host);
    let mut client = find(&listener);
    let queues = Queues::of(&mut client);
    thread::scope(|scope| {
        let server = scope.spawn(|| {
            let mut id = listener.get_request().unwrap();
            assert_eq!(id.context(), 0);
            assert_eq!(last(&id), CmEventType::CONNECT_REQUEST);
            let data = id.last_event().unwrap().private_data();
            assert_eq!((&data[..5], data.len()), (&b"hello"[..], 56));
            let queues = Queues::of(&mut id);
            id.accept(&param(b"welcome")).unwrap();
            assert_eq!(last(&id), CmEventType::ESTABLISHED);
            (id, queues)
        });
        client.connect(&param(b"hello")).unwrap();
        assert_eq!(last(&client), CmEventType::ESTABLISHED);
        let data = client.last_event().unwrap().private_data();
        assert_eq!(
            (&data[..7], data.len()),
            (&b"welcome"[..], PrivateData::ACCEPT_MAX)
        );
        let (mut accepted, accepting) = server.join().unwrap();
        assert_eq!(client.local_addr(), accepted.peer_addr());
        queues.exchange(&accepting);

        let server = scope.spawn(move || {
            accepted.disconnect().unwrap();
            assert_eq!(last(&accepted), CmEventType::DISCONNECTED);
        });
        client.disconnect().unwrap();
        assert_eq!(last(&client), CmEventType::DISCONNECTED);
        server.join().unwrap();
    });
}

#[test]
fn a_synchronous_connection_lives_and_ends() {
    let lab = DeviceTest::without_credits();
    run_lifecycle(&lab.addr.to_string());
}

#[test]
fn a_synchronous_connection_over_ipv6_lives_and_ends() {
    let lab = DeviceTest::without_credits();
    run_lifecycle(&lab.addr6.to_string());
}

/// The program makes each call of the connection setup itself instead of calling `create_ep`.
#[test]
fn synchronous_steps_leave_their_events() {
    let lab = DeviceTest::without_credits();
    let mut listener = CmId::new_sync(PortSpace::TCP).unwrap();
    listener.bind_addr(lab.at(0)).unwrap();
    listener.listen(1).unwrap();
    let addr = listener.local_addr().unwrap();
    let mut client = CmId::new_sync(PortSpace::TCP).unwrap();
    assert!(client.last_event().is_none());
    client.resolve_addr(None, addr, TIME_LIMIT).unwrap();
    assert_eq!(last(&client), CmEventType::ADDR_RESOLVED);
    client.resolve_route(TIME_LIMIT).unwrap();
    assert_eq!(last(&client), CmEventType::ROUTE_RESOLVED);
    let _queues = Queues::of(&mut client);
    thread::scope(|scope| {
        scope.spawn(|| listener.get_request().unwrap().reject(b"no").unwrap());
        let error = client.connect(&ConnParam::default()).unwrap_err();
        assert_eq!((error.call, error.errno), ("rdma_connect", ECONNREFUSED));
    });
    let event = client.last_event().unwrap();
    assert_eq!(event.event(), CmEventType::REJECTED);
    assert_eq!(event.reject_reason(), RejectReason::CONSUMER_DEFINED);
    assert_eq!(event.private_data()[..3], *b"no\0");
}

#[test]
fn synchronous_failures_say_why() {
    let lab = DeviceTest::without_credits();
    let mut client = CmId::new_sync(PortSpace::TCP).unwrap();
    client.resolve_addr(None, lab.at(7815), TIME_LIMIT).unwrap();
    client.resolve_route(TIME_LIMIT).unwrap();
    let _queues = Queues::of(&mut client);
    let error = client.connect(&ConnParam::default()).unwrap_err();
    assert_eq!((error.call, error.errno), ("rdma_connect", ECONNREFUSED));
    let event = client.last_event().unwrap();
    assert_eq!(event.reject_reason(), RejectReason::INVALID_SERVICE_ID);
}

/// A synchronous id that migrates to a channel becomes an asynchronous id.
#[test]
fn a_synchronous_id_moves_to_a_channel() {
    let lab = DeviceTest::without_credits();
    let mut listener = listen(&lab.addr.to_string());
    let mut client = find(&listener);
    let channel = EventChannel::new().unwrap();
    client.migrate(&channel).unwrap();
    client.set_context(5);
    let queues = Queues::of(&mut client);
    client.connect(&ConnParam::default()).unwrap();
    let mut accepted = listener.get_request().unwrap();
    accepted.migrate(&channel).unwrap();
    accepted.set_context(6);
    let accepting = Queues::of(&mut accepted);
    accepted.accept(&ConnParam::default()).unwrap();
    crate::common::expect_success(&channel, CmEventType::ESTABLISHED, 5);
    crate::common::expect_success(&channel, CmEventType::ESTABLISHED, 6);
    queues.exchange(&accepting);
}

#[test]
fn failed_lookup_is_an_error() {
    let _test = DeviceTest::without_credits();
    let mut hints = AddrInfoHints::default();
    hints.numeric_host = true;
    for (node, service) in [(Some("a.name"), "1"), (Some("\0"), "1"), (None, "\0")] {
        let error = AddrInfo::new(node, service, hints).unwrap_err();
        assert_eq!(error.call, "rdma_getaddrinfo");
        assert!(error.errno > 0);
    }
}
