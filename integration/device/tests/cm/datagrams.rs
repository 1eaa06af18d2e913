//! Tests datagram ids and multicast groups.

use std::net::SocketAddr;

use rdmsg::{
    cm::{CmId, ConnParam, EventChannel, PortSpace, PrivateData},
    status::{CmEventType, RejectReason},
    verbs::{AddressHandle, Inline, QpInitAttr, QpState, QpType, RecvWr, SendWr, Sge},
};
use toolbox::{DeviceTest, Lab};

use crate::common::{
    CLIENT, Queues, SERVER, Server, TIME_LIMIT, assert_none, expect_success, param,
};

/// `EMSGSIZE` and `EADDRNOTAVAIL` of `errno.h`.
const EMSGSIZE: i32 = 90;
const EADDRNOTAVAIL: i32 = 99;

fn queues(id: &mut CmId) -> Queues {
    let context = id.verbs().unwrap();
    Queues::new(&context, |pd, attr| {
        let attr = QpInitAttr {
            qp_type: QpType::UD,
            ..*attr
        };
        id.create_qp(pd, &attr).unwrap()
    })
}

fn listen() -> Server {
    let channel = EventChannel::new().unwrap();
    let mut listener = CmId::new(&channel, PortSpace::UDP, Server::CONTEXT).unwrap();
    listener.bind_addr(Lab::get().at(0)).unwrap();
    listener.listen(4).unwrap();
    let addr = listener.local_addr().unwrap();
    Server {
        listener,
        channel,
        addr,
    }
}

fn resolved(channel: &EventChannel, addr: SocketAddr) -> CmId {
    let mut id = CmId::new(channel, PortSpace::UDP, CLIENT).unwrap();
    id.resolve_addr(None, addr, TIME_LIMIT).unwrap();
    expect_success(channel, CmEventType::ADDR_RESOLVED, CLIENT);
    id.resolve_route(TIME_LIMIT).unwrap();
    expect_success(channel, CmEventType::ROUTE_RESOLVED, CLIENT);
    id
}

/// The ESTABLISHED event contains the parameters of an address handle. With this handle, the
/// connecting side sends a datagram to the accepting side.
#[test]
fn a_datagram_peer_is_found() {
    let _test = DeviceTest::without_credits();
    let request = [0xa5; PrivateData::UD_CONNECT_MAX];
    let answer = [0x5a; PrivateData::UD_ACCEPT_MAX];
    let server = listen();
    let channel = EventChannel::new().unwrap();
    let mut client = resolved(&channel, server.addr);
    let asking = queues(&mut client);
    client.connect(&param(&request)).unwrap();

    let mut event = server.request();
    assert_eq!(event.private_data(), request);
    assert!(event.conn().is_none() && event.ud().is_some());
    let mut accepted = event.take_request().unwrap();
    let answering = queues(&mut accepted);
    assert_eq!(answering.qp.state(), Ok(QpState::RTS));
    let recv = RecvWr::new(1, Sge::new(&answering.region, ..));
    answering.qp.post_recv(&[recv]).unwrap();
    accepted.accept(&param(&answer)).unwrap();

    let event = expect_success(&channel, CmEventType::ESTABLISHED, CLIENT);
    assert_eq!(event.private_data(), answer);
    assert!(event.conn().is_none());
    let peer = event.ud().unwrap();
    assert_eq!(peer.qp_num, answering.qp.qp_num());
    let handle = AddressHandle::new(&asking.pd, &peer.ah_attr).unwrap();
    let send = SendWr::send(2, Inline(b"found")).to(&handle, peer.qp_num, peer.qkey);
    asking.qp.post_send(&[send]).unwrap();
    let received = answering.success();
    assert_eq!(received.src_qp, asking.qp.qp_num());
    let mut bytes = [0; 5];
    answering
        .region
        .copy_out(AddressHandle::GRH_LEN, &mut bytes);
    assert_eq!(&bytes, b"found");
    assert_none(&server.channel);
}

#[test]
fn a_datagram_peer_can_refuse() {
    let _test = DeviceTest::without_credits();
    let server = listen();
    let channel = EventChannel::new().unwrap();
    let mut client = resolved(&channel, server.addr);
    let _queues = queues(&mut client);
    client.connect(&ConnParam::default()).unwrap();
    let mut request = server.request().take_request().unwrap();
    let too_much = [0; PrivateData::UD_ACCEPT_MAX + 1];
    let error = request.reject(&too_much).unwrap_err();
    assert_eq!((error.call, error.errno), ("rdma_reject", EMSGSIZE));
    let error = request.accept(&param(&too_much)).unwrap_err();
    assert_eq!((error.call, error.errno), ("rdma_accept", EMSGSIZE));
    request.reject(b"no").unwrap();
    // The reject reasons of datagram ids differ from those of connected ids, and librdmacm does not
    // translate them.
    let event = channel.wait_event(TIME_LIMIT).unwrap().unwrap();
    assert_eq!(event.context(), CLIENT);
    assert_ne!(event.event(), CmEventType::ESTABLISHED);
    assert_ne!(event.reject_reason(), RejectReason::CONSUMER_DEFINED);
    assert_eq!(event.private_data()[..3], *b"no\0");

    let mut other = resolved(&channel, server.addr);
    let too_much = param(&[0; PrivateData::UD_CONNECT_MAX + 1]);
    let error = other.connect(&too_much).unwrap_err();
    assert_eq!((error.call, error.errno), ("rdma_connect", EMSGSIZE));
}

/// The order in which a program ends an id that has a queue pair and has joined groups.
#[derive(Debug, Clone, Copy)]
enum Order {
    /// The program leaves the groups, and then drops the id and the queue pair.
    GroupsFirst,
    /// The program drops the queue pair, and then the id.
    QueuePairFirst,
    /// The program drops the id, and then the queue pair.
    IdFirst,
    /// Like `IdFirst`, but the program does not read the events of the joins.
    IdFirstUnread,
    /// The program drops the queue pair, then the event channel, and then the id.
    IdLast,
}

/// The kernel does not destroy a queue pair that is attached to a group. rdmsg must therefore
/// detach a queue pair before it destroys the queue pair.
#[test]
fn id_that_ends_leaves_its_groups() {
    let lab = DeviceTest::without_credits();
    let groups = ["239.1.2.3:0", "239.1.2.4:0"].map(|group| group.parse().unwrap());
    let run = |order: Order| {
        let channel = EventChannel::new().unwrap();
        let mut id = CmId::new(&channel, PortSpace::UDP, SERVER).unwrap();
        id.bind_addr(lab.at(0)).unwrap();
        let error = id.leave_multicast(groups[0]).unwrap_err();
        let expected = ("rdma_leave_multicast", EADDRNOTAVAIL);
        assert_eq!((error.call, error.errno), expected);
        let queues = queues(&mut id);
        for group in groups {
            id.join_multicast(group).unwrap();
            if matches!(order, Order::IdFirstUnread) {
                continue;
            }
            let event = expect_success(&channel, CmEventType::MULTICAST_JOIN, SERVER);
            let ud = event.ud().unwrap();
            assert_eq!(ud.qp_num, 0xff_ffff);
            assert!(event.private_data().is_empty() && event.conn().is_none());
            AddressHandle::new(&queues.pd, &ud.ah_attr).unwrap();
        }
        match order {
            Order::GroupsFirst => {
                for group in groups {
                    id.leave_multicast(group).unwrap();
                }
                let error = id.leave_multicast(groups[1]).unwrap_err();
                assert_eq!((error.call, error.errno), expected);
                drop((id, queues));
            }
            Order::QueuePairFirst => {
                drop(queues);
                let error = id.leave_multicast(groups[0]).unwrap_err();
                assert_eq!((error.call, error.errno), expected);
                drop(id);
            }
            Order::IdFirst | Order::IdFirstUnread => drop((id, queues)),
            Order::IdLast => drop((queues, channel, id)),
        }
    };
    run(Order::GroupsFirst);
    let before = lab.resources();
    for order in [
        Order::GroupsFirst,
        Order::QueuePairFirst,
        Order::IdFirst,
        Order::IdFirstUnread,
        Order::IdLast,
    ] {
        run(order);
        // When no id uses the device any longer, librdmacm frees its own protection domain, unless
        // a device list exists. Run the case `First` before each count, so that the domain is in
        // the same state at every count.
        run(Order::GroupsFirst);
        assert_eq!(lab.resources(), before, "{order:?}");
    }
}

/// A synchronous id can join a group before it has a queue pair, and can leave the group after its
/// queue pair was created.
#[test]
fn a_synchronous_id_joins_a_group() {
    let lab = DeviceTest::without_credits();
    let group = "239.1.2.5:0".parse().unwrap();
    let mut id = CmId::new_sync(PortSpace::UDP).unwrap();
    id.bind_addr(lab.at(0)).unwrap();
    id.join_multicast(group).unwrap();
    let event = id.last_event().unwrap();
    assert_eq!(event.event(), CmEventType::MULTICAST_JOIN);
    assert!(event.ud().is_some());
    let _queues = queues(&mut id);
    id.leave_multicast(group).unwrap();
    let error = id.leave_multicast(group).unwrap_err();
    assert_eq!(error.errno, EADDRNOTAVAIL);
}

/// An id of the port space TCP cannot join a group.
#[test]
fn a_connections_id_joins_nothing() {
    let lab = DeviceTest::without_credits();
    let channel = EventChannel::new().unwrap();
    let mut id = CmId::new(&channel, PortSpace::TCP, CLIENT).unwrap();
    id.bind_addr(lab.at(0)).unwrap();
    let error = id.join_multicast("239.1.2.6:0".parse().unwrap());
    assert_eq!(error.unwrap_err().call, "rdma_join_multicast");
    assert_none(&channel);
}
