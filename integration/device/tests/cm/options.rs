//! Tests the options of connection manager ids.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use rdmsg::{
    cm::{CmId, ConnParam, EventChannel, PortSpace},
    status::CmEventType,
};
use toolbox::DeviceTest;

use crate::common::{
    CLIENT, EINVAL, Queues, Server, TIME_LIMIT, connecting, expect_success, resolved,
};

/// `EADDRINUSE` and `EADDRNOTAVAIL` of `errno.h`.
const EADDRINUSE: i32 = 98;
const EADDRNOTAVAIL: i32 = 99;

fn id(channel: &EventChannel) -> CmId {
    CmId::new(channel, PortSpace::TCP, CLIENT).unwrap()
}

/// The type of service becomes the traffic class of the packets.
#[test]
fn the_type_of_service_reaches_the_queue_pair() {
    let lab = DeviceTest::without_credits();
    let server = Server::new(lab.addr);
    let channel = EventChannel::new().unwrap();
    let mut client = id(&channel);
    client.set_tos(0x68).unwrap();
    client.resolve_addr(None, server.addr, TIME_LIMIT).unwrap();
    expect_success(&channel, CmEventType::ADDR_RESOLVED, CLIENT);
    client.resolve_route(TIME_LIMIT).unwrap();
    expect_success(&channel, CmEventType::ROUTE_RESOLVED, CLIENT);
    let queues = Queues::of(&mut client);
    client.connect(&ConnParam::default()).unwrap();
    let mut accepted = server.request().take_request().unwrap();
    let accepting = Queues::of(&mut accepted);
    accepted.accept(&ConnParam::default()).unwrap();
    expect_success(&channel, CmEventType::ESTABLISHED, CLIENT);
    let grh = queues.qp.query().unwrap().ah_attr.unwrap().grh.unwrap();
    assert_eq!(grh.traffic_class, 0x68);
    queues.exchange(&accepting);
}

#[test]
fn the_acknowledgement_timeout_reaches_the_queue_pair() {
    let lab = DeviceTest::without_credits();
    let server = Server::new(lab.addr);
    let channel = EventChannel::new().unwrap();
    let mut client = resolved(&channel, server.addr, CLIENT);
    client.set_ack_timeout(11).unwrap();
    let queues = Queues::of(&mut client);
    client.connect(&ConnParam::default()).unwrap();
    let mut accepted = server.request().take_request().unwrap();
    let _accepting = Queues::of(&mut accepted);
    accepted.accept(&ConnParam::default()).unwrap();
    expect_success(&channel, CmEventType::ESTABLISHED, CLIENT);
    assert_eq!(queues.qp.query().unwrap().timeout, Some(11));
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let lab = DeviceTest::without_credits();
    let channel = EventChannel::new().unwrap();
    let mut client = id(&channel);
    client.set_ack_timeout(0).unwrap();
    client.set_ack_timeout(31).unwrap();
    let mut bound = id(&channel);
    bound.bind_addr(lab.at(0)).unwrap();
    let mut datagrams = CmId::new(&channel, PortSpace::UDP, CLIENT).unwrap();
    let mut server = Server::new(lab.addr);
    for result in [
        client.set_ack_timeout(32),
        datagrams.set_ack_timeout(11),
        bound.set_reuseaddr(false),
        server.listener.set_afonly(true),
    ] {
        let error = result.unwrap_err();
        assert_eq!((error.call, error.errno), ("rdma_set_option", EINVAL));
    }
}

/// Two ids can bind the same address only if both set `reuseaddr`. An id can listen only if no
/// other id is bound to its address. While an id listens, no other id can bind the address.
#[test]
fn address_is_reused_if_both_ids_allow_it() {
    let lab = DeviceTest::without_credits();
    let channel = EventChannel::new().unwrap();
    let mut first = id(&channel);
    first.set_reuseaddr(true).unwrap();
    first.bind_addr(lab.at(0)).unwrap();
    let addr = first.local_addr().unwrap();
    let mut second = id(&channel);
    let error = second.bind_addr(addr).unwrap_err();
    assert_eq!((error.call, error.errno), ("rdma_bind_addr", EADDRINUSE));
    second.set_reuseaddr(true).unwrap();
    second.bind_addr(addr).unwrap();
    let error = first.listen(1).unwrap_err();
    assert_eq!((error.call, error.errno), ("rdma_listen", EADDRINUSE));
    drop(second);
    first.listen(1).unwrap();
    let mut third = id(&channel);
    third.set_reuseaddr(true).unwrap();
    let error = third.bind_addr(addr).unwrap_err();
    assert_eq!((error.call, error.errno), ("rdma_bind_addr", EADDRINUSE));
}

/// With `afonly`, a listener on the unspecified IPv6 address leaves its port free for IPv4. Without
/// `afonly`, this listener accepts both IPv6 and IPv4 connections.
#[test]
fn afonly_listener_accepts_only_its_family() {
    let lab = DeviceTest::without_credits();
    let any6 = |port| SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port);
    let any4 = |port| SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port);
    let channel = EventChannel::new().unwrap();
    for only in [true, false] {
        let mut six = id(&channel);
        six.set_afonly(only).unwrap();
        six.bind_addr(any6(0)).unwrap();
        six.listen(1).unwrap();
        let port = six.local_addr().unwrap().port();
        let mut four = id(&channel);
        let bound = four.bind_addr(any4(port)).and_then(|()| four.listen(1));
        if only {
            bound.unwrap();
            continue;
        }
        assert_eq!(bound.unwrap_err().errno, EADDRNOTAVAIL);
        drop(four);
        let clients = EventChannel::new().unwrap();
        let _client = connecting(&clients, lab.at(port), CLIENT, b"");
        let mut event = expect_success(&channel, CmEventType::CONNECT_REQUEST, CLIENT);
        let request = event.take_request().unwrap();
        assert_eq!(request.local_addr().unwrap().port(), port);
    }
}
