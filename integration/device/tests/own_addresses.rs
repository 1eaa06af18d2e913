//! Tests connections over RDMA to this host's own addresses, to addresses with a scope ID, and from
//! a chosen source address. Also tests the traffic class.

use std::{
    net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6, TcpListener},
    thread,
};

use nix::{errno::Errno, ifaddrs::getifaddrs};
use rdmsg::{
    CloseReason, Config, Connector, Endpoint, Error, Listener, Stream, ToAddresses, Transport,
    cm::{CmId, EventChannel, PortSpace},
    status::CmEventType,
    verbs::QpState,
};
use toolbox::{DeviceTest, TIME_LIMIT, applies, patient};

fn bind(text: impl ToAddresses) -> Listener {
    let builder = Listener::builder().config(&patient());
    builder.bind(text).unwrap()
}

/// Connects to `text`. Returns both ends of the connection, the connecting end first.
fn pair(listener: &Listener, text: &str) -> (Endpoint, Endpoint) {
    let text = text.to_owned();
    let connector = Connector::new().config(&patient());
    let client = thread::spawn(move || connector.connect(text).unwrap());
    let server = listener.accept_timeout(TIME_LIMIT).unwrap();
    (client.join().unwrap(), server)
}

#[test]
fn unspecified_address_connects_to_local_device() {
    let lab = DeviceTest::start();
    for (all, host) in [("0.0.0.0", lab.addr), ("[::]", lab.addr6)] {
        let listener = bind(format!("rdma://{all}:0"));
        let port = listener.local_addr().port();
        for scheme in ["rdma", "RDMA", "auto"] {
            let (client, server) = pair(&listener, &format!("{scheme}://{all}:{port}"));
            assert_eq!(client.info().transport, Transport::Rdma);
            assert_eq!(client.peer_addr(), SocketAddr::new(host, port));
            client.send(b"hello").unwrap();
            assert_eq!(*server.recv_timeout(TIME_LIMIT).unwrap(), *b"hello");
        }
    }
}

#[test]
fn auto_reaches_a_listener_of_tcp_on_this_host() {
    let _lab = DeviceTest::start();
    let listener = bind("tcp://0.0.0.0:0");
    let port = listener.local_addr().port();
    let (client, _server) = pair(&listener, &format!("auto://0.0.0.0:{port}"));
    assert_eq!(client.info().transport, Transport::Tcp);
    assert_eq!(client.peer_addr(), SocketAddr::from(([127, 0, 0, 1], port)));
}

/// Returns the link-local address of the network interface that also has `address`.
fn link_local_of_interface(address: IpAddr) -> SocketAddrV6 {
    let all: Vec<_> = getifaddrs().unwrap().collect();
    let name = all.iter().find_map(|interface| {
        let v4 = interface.address?;
        let v4 = v4.as_sockaddr_in()?;
        (IpAddr::V4(v4.ip()) == address).then(|| interface.interface_name.clone())
    });
    let name = name.expect("no interface has the lab's address");
    let of_interface = all
        .iter()
        .filter(|interface| interface.interface_name == name);
    let link_local = of_interface
        .filter_map(|interface| Some(*interface.address.as_ref()?.as_sockaddr_in6()?))
        .map(SocketAddrV6::from)
        .find(|v6| Ipv6Addr::is_unicast_link_local(v6.ip()));
    link_local.expect("the interface has no link-local address")
}

#[test]
fn link_local_addresses_keep_their_interface() {
    let lab = DeviceTest::start();
    // The driver of software iWARP ignores the scope ID of an address that it binds, so link-local
    // addresses do not work.
    if !applies(!lab.is_iwarp(), "link-local addresses") {
        return;
    }
    let local = link_local_of_interface(lab.addr);
    let place = |port| format!("rdma://[{}%{}]:{port}", local.ip(), local.scope_id());
    let listener = Listener::builder().config(&patient());
    let listener = listener.bind_stream(place(0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let text = place(port);
    let client = thread::spawn(move || Stream::connect_timeout(text, TIME_LIMIT).unwrap());
    let (server, from) = listener.accept().unwrap();
    let client = client.join().unwrap();
    let to = SocketAddr::from(SocketAddrV6::new(*local.ip(), port, 0, local.scope_id()));
    assert_eq!(client.peer_addr().unwrap(), to);
    assert_eq!(server.peer_addr().unwrap(), from);
    assert_eq!(from, client.local_addr().unwrap());
    let SocketAddr::V6(from) = from else {
        panic!("{from} is not an IPv6 address")
    };
    assert_eq!((from.ip(), from.scope_id()), (local.ip(), local.scope_id()));
}

/// Returns an address of this host with a port that no TCP socket uses.
fn free(lab: &DeviceTest) -> SocketAddr {
    let free = TcpListener::bind(lab.at(0)).unwrap();
    free.local_addr().unwrap()
}

#[test]
fn source_is_the_address_that_the_peer_sees() {
    let lab = DeviceTest::start();
    let listener = bind(format!("rdma://{}:0", lab.addr));
    let address = listener.local_addr();
    for source in [lab.at(0), free(&lab)] {
        let connector = Connector::new().config(&patient()).source(source);
        let client = thread::spawn(move || connector.connect(address).unwrap());
        let server = listener.accept_timeout(TIME_LIMIT).unwrap();
        let client = client.join().unwrap();
        assert_eq!(client.info().transport, Transport::Rdma);
        assert_eq!(server.peer_addr(), client.info().local_addr);
        assert_eq!(server.peer_addr().ip(), source.ip());
        if source.port() != 0 {
            assert_eq!(server.peer_addr(), source);
        }
    }
}

#[test]
fn source_without_a_device_is_refused_by_name() {
    let lab = DeviceTest::start();
    let listener = Listener::bind(format!("rdma://{}:0", lab.addr)).unwrap();
    for (source, call, errno) in [
        ("192.0.2.1:0", "rdma_bind_addr", Errno::EADDRNOTAVAIL),
        ("127.0.0.2:0", "rdma_bind_addr", Errno::ENODEV),
        ("[::1]:0", "bind", Errno::EAFNOSUPPORT),
    ] {
        let connector = Connector::new().source(source.parse::<SocketAddr>().unwrap());
        let address = format!("rdma://{}", listener.local_addr());
        let error = connector.connect(address).unwrap_err();
        let text = error.to_string();
        assert!(
            matches!(error, Error::Source { error, .. }
                if (error.call, error.errno) == (call, errno as i32)),
            "{text}"
        );
        assert!(text.starts_with(&format!("cannot connect from {source}, the source of")));
    }
}

#[test]
fn auto_uses_tcp_from_source_without_device() {
    let _lab = DeviceTest::start();
    let listener = bind("tcp://127.0.0.1:0");
    let address = format!("auto://{}", listener.local_addr());
    let connector = Connector::new().config(&patient());
    let connector = connector.source(([127, 0, 0, 2], 0));
    let client = thread::spawn(move || connector.connect(address).unwrap());
    let server = listener.accept_timeout(TIME_LIMIT).unwrap();
    assert_eq!(server.peer_addr().ip(), IpAddr::from([127, 0, 0, 2]));
    assert_eq!(client.join().unwrap().info().transport, Transport::Tcp);
}

/// The accepting side copies the traffic class from the connection request to its queue pair.
#[test]
fn request_has_the_traffic_class_of_the_connector() {
    let lab = DeviceTest::start();
    // On iWARP, a connection request contains no traffic class.
    if !applies(!lab.is_iwarp(), "requests with a traffic class") {
        return;
    }
    let channel = EventChannel::new().unwrap();
    let mut listener = CmId::new(&channel, PortSpace::TCP, 1).unwrap();
    listener.bind_addr(lab.at(0)).unwrap();
    listener.listen(1).unwrap();
    let address = format!("rdma://{}", listener.local_addr().unwrap());
    for class in [None, Some(26 << 2), Some(106)] {
        let config = Config::default().with(|config| config.traffic_class = class);
        let connector = Connector::new().config(&config);
        let address = address.clone();
        let client = thread::spawn(move || connector.connect(address).unwrap_err());
        let mut event = channel.wait_event(TIME_LIMIT).unwrap().unwrap();
        assert_eq!(event.event(), CmEventType::CONNECT_REQUEST);
        let mut request = event.take_request().unwrap();
        let attributes = request.init_qp_attr(QpState::RTR).unwrap();
        let grh = attributes.ah_attr.unwrap().grh.unwrap();
        assert_eq!(grh.traffic_class, class.unwrap_or(0));
        request.reject(b"").unwrap();
        let error = client.join().unwrap();
        let reason = CloseReason::RejectedWithoutCause;
        assert!(
            matches!(&error, Error::Connect { reason: is, .. } if *is == reason),
            "{error}"
        );
    }
}
