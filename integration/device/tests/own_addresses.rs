//! Addresses over RDMA: this host's own, and those with a network interface.

use std::{
    net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6},
    thread,
    time::Duration,
};

use nix::ifaddrs::getifaddrs;
use rdmsg::{Endpoint, Listener, Stream, StreamListener, Transport};
use toolbox::{DeviceTest, applies};

const PATIENCE: Duration = Duration::from_secs(20);

/// Connects to `text`, and returns both ends, the connecting one first.
fn pair(listener: &Listener, text: &str) -> (Endpoint, Endpoint) {
    let text = text.to_owned();
    let client = thread::spawn(move || Endpoint::connect(text).unwrap());
    let server = listener.accept_timeout(PATIENCE).unwrap();
    (client.join().unwrap(), server)
}

#[test]
fn all_addresses_to_connect_to_mean_a_device_of_this_host() {
    let lab = DeviceTest::start();
    for (all, host) in [("0.0.0.0", lab.addr), ("[::]", lab.addr6)] {
        let listener = Listener::bind(format!("rdma://{all}:0")).unwrap();
        let port = listener.local_addr().port();
        for scheme in ["rdma", "RDMA", "auto"] {
            let (client, server) = pair(&listener, &format!("{scheme}://{all}:{port}"));
            assert_eq!(client.transport(), Transport::Rdma);
            assert_eq!(client.peer_addr(), SocketAddr::new(host, port));
            client.send(b"hello").unwrap();
            assert_eq!(*server.recv_timeout(PATIENCE).unwrap(), *b"hello");
        }
    }
}

#[test]
fn auto_reaches_a_listener_of_tcp_on_this_host() {
    let _lab = DeviceTest::start();
    let listener = Listener::bind("tcp://0.0.0.0:0").unwrap();
    let port = listener.local_addr().port();
    let (client, _server) = pair(&listener, &format!("auto://0.0.0.0:{port}"));
    assert_eq!(client.transport(), Transport::Tcp);
    assert_eq!(client.peer_addr(), SocketAddr::from(([127, 0, 0, 1], port)));
}

/// Returns the link-local address of the interface with this address.
fn link_local_beside(address: IpAddr) -> SocketAddrV6 {
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
    // The driver binds to the address without its interface.
    if !applies(!lab.is_iwarp(), "link-local addresses") {
        return;
    }
    let local = link_local_beside(lab.addr);
    let place = |port| format!("rdma://[{}%{}]:{port}", local.ip(), local.scope_id());
    let listener = StreamListener::bind(place(0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let text = place(port);
    let client = thread::spawn(move || Stream::connect(text).unwrap());
    let (server, from) = listener.accept().unwrap();
    let client = client.join().unwrap();
    let to = SocketAddr::from(SocketAddrV6::new(*local.ip(), port, 0, local.scope_id()));
    assert_eq!(client.peer_addr().unwrap(), to);
    assert_eq!(server.peer_addr().unwrap(), from);
    assert_eq!(from, client.local_addr().unwrap());
    let SocketAddr::V6(from) = from else {
        panic!("{from} is none of IPv6")
    };
    assert_eq!((from.ip(), from.scope_id()), (local.ip(), local.scope_id()));
}
