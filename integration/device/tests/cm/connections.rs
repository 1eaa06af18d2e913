//! Tests connections, from address resolution to disconnect.

use std::net::IpAddr;

use rdmsg::{
    cm::{CmId, ConnParam, EventChannel, PortSpace},
    status::CmEventType,
    verbs::QpState,
};
use toolbox::DeviceTest;

use crate::common::{
    CLIENT, Queues, SERVER, Server, Side, TIME_LIMIT, assert_none, connected, connecting,
    expect_success, resolved,
};

fn run_lifecycle(ip: IpAddr) {
    let (mut client, mut accepted, server) = connected(ip);
    assert_eq!(client.id.peer_addr(), Some(server.addr));
    assert_eq!(accepted.id.local_addr(), Some(server.addr));
    assert_eq!(client.id.local_addr().unwrap().ip(), ip);
    assert_eq!(client.id.local_addr(), accepted.id.peer_addr());
    assert_eq!((client.id.port_num(), accepted.id.port_num()), (1, 1));
    assert_eq!(client.id.context(), CLIENT);
    assert_eq!(accepted.id.context(), SERVER);
    client.queues.exchange(&accepted.queues);

    client.id.disconnect().unwrap();
    assert_eq!(client.queues.qp.state(), Ok(QpState::ERR));
    expect_success(&accepted.channel, CmEventType::DISCONNECTED, SERVER);
    accepted.id.disconnect().unwrap();
    assert_eq!(accepted.queues.qp.state(), Ok(QpState::ERR));
    expect_success(&client.channel, CmEventType::DISCONNECTED, CLIENT);
    for (Side { channel, .. }, context) in [(&client, CLIENT), (&accepted, SERVER)] {
        expect_success(channel, CmEventType::TIMEWAIT_EXIT, context);
        assert_none(channel);
    }
}

#[test]
fn a_connection_lives_and_ends() {
    let lab = DeviceTest::without_credits();
    run_lifecycle(lab.addr);
}

#[test]
fn a_connection_over_ipv6_lives_and_ends() {
    let lab = DeviceTest::without_credits();
    run_lifecycle(lab.addr6);
}

/// The events of a connection contain the parameters that the peer has requested.
#[test]
fn events_carry_the_parameters_of_the_peer() {
    let lab = DeviceTest::without_credits();
    let server = Server::new(lab.addr);
    let channel = EventChannel::new().unwrap();
    let mut client = resolved(&channel, server.addr, CLIENT);
    let queues = Queues::of(&mut client);
    let asked = ConnParam {
        responder_resources: 3,
        initiator_depth: 2,
        retry_count: 5,
        rnr_retry_count: 4,
        ..ConnParam::default()
    };
    client.connect(&asked).unwrap();
    let mut event = server.request();
    let conn = event.conn().unwrap();
    // The two READ depths are swapped in the event: the number of READs that the peer issues is the
    // number that this side must answer, and vice versa.
    assert_eq!((conn.responder_resources, conn.initiator_depth), (2, 3));
    assert_eq!((conn.retry_count, conn.rnr_retry_count), (5, 4));
    assert_eq!(conn.qp_num, queues.qp.qp_num());
    assert!(!conn.srq);
    assert_eq!(event.ud(), None);

    let mut id = event.take_request().unwrap();
    assert!(
        event.take_request().is_none(),
        "a request must be returned only once"
    );
    assert_eq!(
        id.context(),
        0,
        "the id must not inherit the listener's context"
    );
    let accepting = Queues::of(&mut id);
    let granted = ConnParam {
        responder_resources: 2,
        initiator_depth: 1,
        ..ConnParam::default()
    };
    id.accept(&granted).unwrap();
    let event = expect_success(&channel, CmEventType::ESTABLISHED, CLIENT);
    let conn = event.conn().unwrap();
    assert_eq!((conn.responder_resources, conn.initiator_depth), (1, 2));
    assert_eq!(conn.qp_num, accepting.qp.qp_num());
    assert_eq!(event.listen_context(), None);
    expect_success(&server.channel, CmEventType::ESTABLISHED, 0);
    let (attr, peer) = (queues.qp.query().unwrap(), accepting.qp.query().unwrap());
    assert_eq!((attr.retry_cnt, peer.rnr_retry), (Some(5), Some(4)));
    assert_eq!((attr.max_rd_atomic, peer.max_rd_atomic), (Some(2), Some(1)));
}

/// Events that arrive after `set_context` have the new context.
#[test]
fn context_of_an_id_can_be_changed() {
    let lab = DeviceTest::without_credits();
    let server = Server::new(lab.addr);
    let channel = EventChannel::new().unwrap();
    let mut id = CmId::new(&channel, PortSpace::TCP, u64::MAX).unwrap();
    assert_eq!(id.context(), u64::MAX);
    id.resolve_addr(None, server.addr, TIME_LIMIT).unwrap();
    expect_success(&channel, CmEventType::ADDR_RESOLVED, u64::MAX);
    id.set_context(0x1_2345_6789);
    id.resolve_route(TIME_LIMIT).unwrap();
    expect_success(&channel, CmEventType::ROUTE_RESOLVED, 0x1_2345_6789);
}

/// `resolve_addr` with a source address sets the local address and port of the connection.
#[test]
fn the_source_address_can_be_chosen() {
    let lab = DeviceTest::without_credits();
    let server = Server::new(lab.addr);
    let channel = EventChannel::new().unwrap();
    let mut id = CmId::new(&channel, PortSpace::TCP, CLIENT).unwrap();
    assert_eq!(id.local_addr(), None);
    assert_eq!(id.peer_addr(), None);
    assert!(id.verbs().is_none());
    assert_eq!(id.port_num(), 0);
    id.resolve_addr(Some(lab.at(7811)), server.addr, TIME_LIMIT)
        .unwrap();
    expect_success(&channel, CmEventType::ADDR_RESOLVED, CLIENT);
    assert_eq!(id.local_addr(), Some(lab.at(7811)));
    assert_eq!(id.verbs().unwrap().device_name(), lab.device);
    id.resolve_route(TIME_LIMIT).unwrap();
    expect_success(&channel, CmEventType::ROUTE_RESOLVED, CLIENT);
    let _queues = Queues::of(&mut id);
    id.connect(&ConnParam::default()).unwrap();
    let request = server.request().take_request().unwrap();
    assert_eq!(request.peer_addr(), Some(lab.at(7811)));
}

/// When an id migrates, its pending events move to the new channel, and later events arrive there.
#[test]
fn an_id_migrates_with_its_events() {
    let lab = DeviceTest::without_credits();
    let server = Server::new(lab.addr);
    let [old, new, other] = [(); 3].map(|()| EventChannel::new().unwrap());
    let mut id = CmId::new(&old, PortSpace::TCP, CLIENT).unwrap();
    id.migrate(&old).unwrap();
    id.resolve_addr(None, server.addr, TIME_LIMIT).unwrap();
    // Events arrive in the order of the calls. When `resolved` returns, the event of `id` has
    // therefore arrived.
    drop(resolved(&other, server.addr, 9));
    id.migrate(&new).unwrap();
    assert_none(&old);
    expect_success(&new, CmEventType::ADDR_RESOLVED, CLIENT);
    drop(old);
    id.resolve_route(TIME_LIMIT).unwrap();
    expect_success(&new, CmEventType::ROUTE_RESOLVED, CLIENT);
    let queues = Queues::of(&mut id);
    id.connect(&ConnParam::default()).unwrap();

    let mut accepted = server.request().take_request().unwrap();
    accepted.migrate(&other).unwrap();
    accepted.set_context(SERVER);
    let accepting = Queues::of(&mut accepted);
    accepted.accept(&ConnParam::default()).unwrap();
    expect_success(&new, CmEventType::ESTABLISHED, CLIENT);
    expect_success(&other, CmEventType::ESTABLISHED, SERVER);
    assert_none(&server.channel);
    queues.exchange(&accepting);
}

/// A connection survives when the program drops another client, the unanswered request of that
/// client, or the listener.
#[test]
fn connections_of_one_listener_are_independent() {
    let lab = DeviceTest::without_credits();
    let (client, accepted, server) = connected(lab.addr);
    let (second, _queues) = connecting(&client.channel, server.addr, 3, b"");
    let request = server.request().take_request().unwrap();
    drop(second);
    drop(request);
    client.queues.exchange(&accepted.queues);
    drop(server);
    accepted.queues.exchange(&client.queues);
}
