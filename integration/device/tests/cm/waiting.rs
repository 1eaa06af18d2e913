//! Tests calls that block, and calls that other threads make during such a call.

use std::{net::SocketAddr, os::fd::AsFd, thread, time::Duration};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rdmsg::{
    cm::{CmId, ConnParam, EventChannel, PortSpace},
    status::CmEventType,
};
use toolbox::{DeviceTest, Lab};

use crate::common::{
    CLIENT, EINVAL, Queues, SERVER, Server, TIME_LIMIT, assert_none, connecting, expect_success,
    resolved,
};

/// `EBUSY` and `ECONNREFUSED` of `errno.h`.
const EBUSY: i32 = 16;
const ECONNREFUSED: i32 = 111;

/// Returns a synchronous listener and the address on which it listens.
fn listen() -> (CmId, SocketAddr) {
    let mut listener = CmId::new_sync(PortSpace::TCP).unwrap();
    listener.bind_addr(Lab::get().at(0)).unwrap();
    listener.listen(4).unwrap();
    let addr = listener.local_addr().unwrap();
    (listener, addr)
}

/// Returns a synchronous id whose route is resolved.
fn routed(addr: SocketAddr) -> CmId {
    let mut id = CmId::new_sync(PortSpace::TCP).unwrap();
    id.resolve_addr(None, addr, TIME_LIMIT).unwrap();
    id.resolve_route(TIME_LIMIT).unwrap();
    id
}

/// Dropping a queue pair must not wait for the peer's answer. In this test, the peer answers only
/// after the drop.
#[test]
fn queue_pair_is_dropped_while_its_id_waits() {
    let lab = DeviceTest::without_credits();
    let server = Server::new(lab.addr);
    let mut client = routed(server.addr);
    let queues = Queues::of(&mut client);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| client.connect(&ConnParam::default()));
        let mut request = server.request().take_request().unwrap();
        drop(queues);
        request.reject(b"").unwrap();
        let error = waiting.join().unwrap().unwrap_err();
        assert_eq!((error.call, error.errno), ("rdma_connect", ECONNREFUSED));
    });
    assert_eq!(client.last_event().unwrap().event(), CmEventType::REJECTED);
}

#[test]
fn a_listener_waits_as_long_as_it_is_told_to() {
    let _test = DeviceTest::without_credits();
    let (mut listener, addr) = listen();
    for timeout in [Duration::ZERO, Duration::from_millis(20)] {
        assert!(listener.get_request_timeout(timeout).unwrap().is_none());
    }
    let channel = EventChannel::new().unwrap();
    let (client, _queues) = connecting(&channel, addr, CLIENT, b"hello");
    let request = listener.get_request_timeout(TIME_LIMIT).unwrap().unwrap();
    let event = request.last_event().unwrap();
    assert_eq!(event.event(), CmEventType::CONNECT_REQUEST);
    assert_eq!(event.private_data()[..6], *b"hello\0");
    assert_eq!(request.peer_addr(), client.local_addr());
    assert!(listener.last_event().is_none());
}

/// `get_request` fails if the id is not a synchronous listener. If it did not fail, the call would
/// wait forever, or would take an event that another thread expects from the channel.
#[test]
fn only_synchronous_listeners_wait_for_requests() {
    let lab = DeviceTest::without_credits();
    let server = Server::new(lab.addr);
    let mut bound = CmId::new_sync(PortSpace::TCP).unwrap();
    bound.bind_addr(lab.at(0)).unwrap();
    let (mut moved, _) = listen();
    moved.migrate(&EventChannel::new().unwrap()).unwrap();
    for mut id in [server.listener, bound, moved] {
        let error = id.get_request().unwrap_err();
        assert_eq!((error.call, error.errno), ("rdma_get_request", EINVAL));
    }
}

/// `disconnect` waits for an event only if there is a connection.
#[test]
fn disconnecting_waits_only_for_a_connection() {
    let _test = DeviceTest::without_credits();
    let (mut listener, addr) = listen();
    let mut client = routed(addr);
    assert!(client.disconnect().is_err());
    let queues = Queues::of(&mut client);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| client.connect(&ConnParam::default()));
        let mut request = listener.get_request().unwrap();
        // Ignore the result: on a request that was not accepted, the call can succeed or fail.
        let _ = request.disconnect();
        drop(request);
        assert_eq!(waiting.join().unwrap().unwrap_err().errno, ECONNREFUSED);
    });
    let _ = client.disconnect();
    drop((client, queues));

    let mut client = routed(addr);
    let queues = Queues::of(&mut client);
    thread::scope(|scope| {
        let accepting = scope.spawn(|| {
            let mut accepted = listener.get_request().unwrap();
            let queues = Queues::of(&mut accepted);
            accepted.accept(&ConnParam::default()).unwrap();
            (accepted, queues)
        });
        client.connect(&ConnParam::default()).unwrap();
        let (mut accepted, accepting) = accepting.join().unwrap();
        queues.exchange(&accepting);
        // The first call of each side waits for the other side's disconnect. The second call
        // returns immediately.
        thread::scope(|scope| {
            for id in [&mut client, &mut accepted] {
                scope.spawn(|| (id.disconnect().unwrap(), id.disconnect().unwrap()));
            }
        });
        for id in [&client, &accepted] {
            let event = id.last_event().unwrap();
            assert_eq!(event.event(), CmEventType::DISCONNECTED);
        }
    });
}

/// `migrate` would lose a listener's pending requests, so it fails until the program has read them.
#[test]
fn a_listener_with_unread_requests_does_not_migrate() {
    let lab = DeviceTest::without_credits();
    let mut server = Server::new(lab.addr);
    let channel = EventChannel::new().unwrap();
    let first = connecting(&channel, server.addr, 1, b"");
    // Wait for the request without reading it.
    let mut arrival = [PollFd::new(server.channel.as_fd(), PollFlags::POLLIN)];
    poll(&mut arrival, PollTimeout::NONE).unwrap();

    let elsewhere = EventChannel::new().unwrap();
    let error = server.listener.migrate(&elsewhere).unwrap_err();
    assert_eq!((error.call, error.errno), ("rdma_migrate_id", EBUSY));
    let mut request = server.request().take_request().unwrap();
    server.listener.migrate(&elsewhere).unwrap();

    // The request stays on the old channel. The next request arrives on the new channel.
    request.set_context(SERVER);
    let accepting = Queues::of(&mut request);
    request.accept(&ConnParam::default()).unwrap();
    expect_success(&channel, CmEventType::ESTABLISHED, 1);
    expect_success(&server.channel, CmEventType::ESTABLISHED, SERVER);
    first.1.exchange(&accepting);
    let _second = connecting(&channel, server.addr, 2, b"");
    expect_success(&elsewhere, CmEventType::CONNECT_REQUEST, Server::CONTEXT);
    assert_none(&server.channel);
}

/// Ids of different channels use the same device context, so objects of this context can be used
/// with all these ids.
#[test]
fn ids_of_different_channels_have_the_same_device() {
    let lab = DeviceTest::without_credits();
    let server = Server::new(lab.addr);
    let ids = [1, 2].map(|context| {
        let channel = EventChannel::new().unwrap();
        resolved(&channel, server.addr, context).verbs().unwrap()
    });
    assert_eq!(ids[0].id(), ids[1].id());
    // At this point the ids and channels are destroyed, but the device is still open.
    assert_eq!(ids[0].device_name(), lab.device);
    assert!(ids[1].query_device().is_ok());
}
