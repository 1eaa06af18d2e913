//! Tests failures of calls and connections, and the errors that report these failures.

use std::{net::SocketAddr, process::Command};

use rdmsg::{
    cm::{CmId, ConnParam, Devices, EventChannel, PortSpace},
    status::{CmEventType, OsError, RejectReason},
    verbs::{CompletionQueue, ProtectionDomain, QpState},
};
use toolbox::DeviceTest;

use crate::common::{
    CLIENT, EINVAL, Queues, Server, TIME_LIMIT, assert_none, attr, connecting, expect, resolved,
};

/// `ENODEV`, `EADDRINUSE` and `ENETUNREACH` of `errno.h`.
const ENODEV: i32 = 19;
const EADDRINUSE: i32 = 98;
const ENETUNREACH: i32 = 101;

fn assert_einval<T: std::fmt::Debug>(result: Result<T, OsError>, call: &str) {
    let error = result.unwrap_err();
    assert_eq!((error.call, error.errno), (call, EINVAL));
}

#[test]
fn missing_listener_is_a_rejection() {
    let lab = DeviceTest::without_credits();
    let channel = EventChannel::new().unwrap();
    let (_client, queues) = connecting(&channel, lab.at(7812), CLIENT, b"");
    let event = expect(&channel, CmEventType::REJECTED, CLIENT);
    assert_eq!(event.status(), 8);
    assert_eq!(event.reject_reason(), RejectReason::INVALID_SERVICE_ID);
    assert_eq!(queues.qp.state(), Ok(QpState::ERR));
    assert_none(&channel);
}

/// A network interface without an RDMA device. Dropping this value deletes the interface.
struct PlainInterface;

impl PlainInterface {
    fn new() -> Self {
        ip("link add plain1 type dummy");
        let this = Self;
        ip("address add 10.98.0.1/24 dev plain1");
        ip("link set plain1 up");
        this
    }
}

impl Drop for PlainInterface {
    fn drop(&mut self) {
        ip("link delete plain1");
    }
}

fn ip(args: &str) {
    let status = Command::new("ip").args(args.split(' ')).status().unwrap();
    assert!(status.success(), "ip {args}");
}

#[test]
fn an_address_without_a_device_is_an_error() {
    let _test = DeviceTest::without_credits();
    let _plain = PlainInterface::new();
    let channel = EventChannel::new().unwrap();
    let mut id = CmId::new(&channel, PortSpace::TCP, CLIENT).unwrap();
    let addr = "10.98.0.2:7813".parse().unwrap();
    id.resolve_addr(None, addr, TIME_LIMIT).unwrap();
    let event = expect(&channel, CmEventType::ADDR_ERROR, CLIENT);
    assert_eq!(event.status(), -ENODEV);
    assert!(id.verbs().is_none());
    assert_eq!(id.port_num(), 0);

    let mut id = CmId::new(&channel, PortSpace::TCP, CLIENT).unwrap();
    let addr = "10.98.0.1:7813".parse().unwrap();
    let error = id.bind_addr(addr).unwrap_err();
    assert_eq!((error.call, error.errno), ("rdma_bind_addr", ENODEV));

    let mut id = CmId::new_sync(PortSpace::TCP).unwrap();
    let addr = "10.98.0.2:7813".parse().unwrap();
    let error = id.resolve_addr(None, addr, TIME_LIMIT).unwrap_err();
    assert_eq!((error.call, error.errno), ("rdma_resolve_addr", ENODEV));
}

#[test]
fn an_address_without_a_route_is_an_error() {
    let _test = DeviceTest::without_credits();
    let channel = EventChannel::new().unwrap();
    let mut id = CmId::new(&channel, PortSpace::TCP, CLIENT).unwrap();
    let addr = "198.51.100.1:1".parse().unwrap();
    let error = id.resolve_addr(None, addr, TIME_LIMIT).unwrap_err();
    assert_eq!(
        (error.call, error.errno),
        ("rdma_resolve_addr", ENETUNREACH)
    );
    assert_none(&channel);
}

#[test]
fn addresses_that_cannot_be_bound_are_refused() {
    let lab = DeviceTest::without_credits();
    let server = Server::new(lab.addr);
    let channel = EventChannel::new().unwrap();
    let mut id = CmId::new(&channel, PortSpace::TCP, CLIENT).unwrap();
    let error = id.bind_addr(server.addr).unwrap_err();
    assert_eq!((error.call, error.errno), ("rdma_bind_addr", EADDRINUSE));
    let error = id.bind_addr("198.51.100.1:0".parse().unwrap()).unwrap_err();
    assert_eq!((error.call, error.errno), ("rdma_bind_addr", ENODEV));
    // After the error, the id can be bound to another address.
    id.bind_addr(lab.at(0)).unwrap();
    assert_einval(id.bind_addr(lab.at(0)), "rdma_bind_addr");
}

/// An id can have one queue pair at a time. This queue pair must use the id's device context.
#[test]
fn queue_pair_is_created_once_on_device_of_id() {
    let lab = DeviceTest::without_credits();
    let server = Server::new(lab.addr);
    let channel = EventChannel::new().unwrap();
    let mut id = CmId::new(&channel, PortSpace::TCP, CLIENT).unwrap();
    let context = Devices::get().unwrap().contexts().remove(0);
    let pd = ProtectionDomain::new(&context).unwrap();
    let cq = CompletionQueue::new(&context, 4, None).unwrap();
    assert_einval(id.create_qp(&pd, &attr(&cq)), "rdma_create_qp");
    // An id that is bound to the unspecified address has no device.
    let any = SocketAddr::new([0, 0, 0, 0].into(), 0);
    id.bind_addr(any).unwrap();
    assert_einval(id.create_qp(&pd, &attr(&cq)), "rdma_create_qp");

    let mut id = resolved(&channel, server.addr, CLIENT);
    let first = id.create_qp(&pd, &attr(&cq)).unwrap();
    assert_einval(id.create_qp(&pd, &attr(&cq)), "rdma_create_qp");
    assert_eq!(first.state(), Ok(QpState::INIT));
    drop(first);
    let second = id.create_qp(&pd, &attr(&cq)).unwrap();
    assert_eq!(second.state(), Ok(QpState::INIT));

    // This context belongs to the same device, but differs from the context of the id.
    let list = rdmsg::verbs::DeviceList::new().unwrap();
    let other = list.find(&lab.device).unwrap().open().unwrap();
    let other_pd = ProtectionDomain::new(&other).unwrap();
    let other_cq = CompletionQueue::new(&other, 4, None).unwrap();
    let mut id = resolved(&channel, server.addr, CLIENT);
    let result = id.create_qp(&other_pd, &attr(&other_cq));
    assert_einval(result, "rdma_create_qp");
    let result = id.create_qp(&pd, &attr(&other_cq));
    assert_einval(result, "rdma_create_qp");
}

/// If an id has no device, calls that need a device fail. rdmsg checks this condition, because
/// librdmacm would dereference a null pointer in some of these calls.
#[test]
fn steps_without_a_device_are_refused() {
    let lab = DeviceTest::without_credits();
    let addr = lab.at(7814);
    let some = ConnParam {
        responder_resources: 1,
        initiator_depth: 1,
        ..ConnParam::default()
    };
    let channel = EventChannel::new().unwrap();
    let make = || CmId::new(&channel, PortSpace::TCP, CLIENT).unwrap();
    let mut any = make();
    any.bind_addr(SocketAddr::new([0, 0, 0, 0].into(), 0))
        .unwrap();
    let mut listener = make();
    listener
        .bind_addr(SocketAddr::new([0, 0, 0, 0].into(), 0))
        .unwrap();
    listener.listen(1).unwrap();
    let synchronous = CmId::new_sync(PortSpace::TCP).unwrap();
    let datagrams = CmId::new(&channel, PortSpace::UDP, CLIENT).unwrap();
    for mut id in [make(), any, listener, synchronous, datagrams] {
        assert_einval(id.resolve_route(TIME_LIMIT), "rdma_resolve_route");
        for param in [&ConnParam::default(), &some] {
            assert_einval(id.connect(param), "rdma_connect");
            assert_einval(id.accept(param), "rdma_accept");
        }
        assert_einval(id.disconnect(), "rdma_disconnect");
        assert!(id.establish().is_err());
        assert!(id.reject(b"").is_err());
        assert!(id.notify_comm_est().is_err());
        assert!(id.init_qp_attr(QpState::INIT).is_err());
        assert!(id.join_multicast(addr).is_err());
        assert!(id.leave_multicast(addr).is_err());
        assert!(id.last_event().is_none());
    }
    assert_none(&channel);
}

/// Calls in the wrong order fail, and do not change the id.
#[test]
fn steps_out_of_order_are_refused() {
    let lab = DeviceTest::without_credits();
    let server = Server::new(lab.addr);
    let channel = EventChannel::new().unwrap();
    let mut id = resolved(&channel, server.addr, CLIENT);
    assert_einval(id.accept(&ConnParam::default()), "rdma_accept");
    assert!(id.listen(1).is_err());
    assert!(id.get_request().is_err());
    let _queues = Queues::of(&mut id);
    id.connect(&ConnParam::default()).unwrap();
    assert_einval(id.connect(&ConnParam::default()), "rdma_connect");
    drop(server.request());
    expect(&channel, CmEventType::REJECTED, CLIENT);
    let mut listener = server.listener;
    assert_einval(listener.connect(&ConnParam::default()), "rdma_connect");
    assert_einval(
        listener.resolve_addr(None, lab.at(1), TIME_LIMIT),
        "rdma_resolve_addr",
    );
    assert_none(&server.channel);
}
