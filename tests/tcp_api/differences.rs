//! Tests of methods that differ from std's methods: addresses, linger, and the time to live (TTL).

use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, ToSocketAddrs},
    thread,
    time::Duration,
};

use common::TIME_LIMIT;
use rdmsg::{Stream, StreamListener, ToAddresses, Transport};

use super::free_rdmsg_address;

fn ends() -> (StreamListener, Stream, Stream) {
    ends_at("", free_rdmsg_address())
}

/// Connects two ends over the transport of `scheme`, or over the default transport if `scheme` is
/// empty.
fn ends_at(scheme: &str, address: SocketAddr) -> (StreamListener, Stream, Stream) {
    let listener = StreamListener::bind(format!("{scheme}{address}")).unwrap();
    let addr = format!("{scheme}{}", listener.local_addr().unwrap());
    let client = thread::spawn(move || Stream::connect_timeout(addr, TIME_LIMIT).unwrap());
    let (server, _) = listener.accept().unwrap();
    (listener, client.join().unwrap(), server)
}

/// An example of a program's function that is generic over addresses. The trait bound of such a
/// function must name this crate's trait instead of std's trait.
fn bind<A: ToAddresses>(address: A) -> StreamListener {
    StreamListener::bind(address).unwrap()
}

/// An example of a program's function that resolves addresses itself. The trait bound of such a
/// function can remain std's trait.
fn bind_looked_up<A: ToSocketAddrs>(address: A) -> StreamListener {
    let addresses: Vec<_> = address.to_socket_addrs().unwrap().collect();
    StreamListener::bind(&*addresses).unwrap()
}

#[test]
fn functions_that_are_generic_over_addresses_bind() {
    for listener in [
        bind((free_rdmsg_address().ip(), 0)),
        bind(free_rdmsg_address().to_string()),
        bind_looked_up(free_rdmsg_address().to_string()),
    ] {
        assert_eq!(
            listener.local_addr().unwrap().ip(),
            free_rdmsg_address().ip()
        );
    }
}

#[test]
fn zero_linger_resets_at_drop_of_last_handle() {
    let (_listener, client, mut server) = ends();
    assert_eq!(client.linger().unwrap(), None);
    client.set_linger(Some(Duration::ZERO)).unwrap();
    let mut clone = client.try_clone().unwrap();
    assert_eq!(clone.linger().unwrap(), Some(Duration::ZERO));
    drop(client);
    clone.write_all(b"x").unwrap();
    server.read_exact(&mut [0; 1]).unwrap();
    drop(clone);
    let error = server.read(&mut [0; 1]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    let error = server.take_error().unwrap().expect("the reset is reported");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn drop_without_zero_linger_delivers_all_bytes() {
    for linger in [None, Some(Duration::from_millis(1))] {
        let (_listener, mut client, mut server) = ends();
        client.set_linger(Some(Duration::ZERO)).unwrap();
        client.set_linger(linger).unwrap();
        client.write_all(b"all").unwrap();
        drop(client);
        let mut got = String::new();
        server.read_to_string(&mut got).unwrap();
        assert_eq!(got, "all");
    }
}

#[test]
fn a_time_to_live_is_set_over_each_version_of_ip() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let (listener, client, mut server) = ends_at("tcp://", address.parse().unwrap());
        for hops in [0, 256, u32::MAX] {
            for refused in [client.set_ttl(hops), listener.set_ttl(hops)] {
                assert_eq!(
                    refused.unwrap_err().kind(),
                    ErrorKind::InvalidInput,
                    "{hops}"
                );
            }
        }
        let default = client.ttl().unwrap();
        assert_eq!(listener.ttl().unwrap(), default);
        client.set_ttl(3).unwrap();
        assert_eq!((client.ttl().unwrap(), server.ttl().unwrap()), (3, default));
        (&client).write_all(b"on").unwrap();
        server.read_exact(&mut [0; 2]).unwrap();
        listener.set_ttl(9).unwrap();
        let addr = format!("tcp://{}", listener.local_addr().unwrap());
        let another = thread::spawn(move || Stream::connect_timeout(addr, TIME_LIMIT).unwrap());
        let (accepted, _) = listener.accept().unwrap();
        let another = another.join().unwrap();
        assert_eq!(accepted.ttl().unwrap(), 9);
        drop(another);
    }
}

#[test]
fn a_time_to_live_is_refused_over_rdma() {
    let (_listener, client, mut server) = ends();
    if client.transport() == Transport::Rdma {
        assert_eq!(client.ttl().unwrap_err().kind(), ErrorKind::Unsupported);
        let error = client.set_ttl(64).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("over RDMA"), "{error}");
    } else {
        assert!(
            free_rdmsg_address().ip().is_loopback(),
            "the connection must use the expected transport"
        );
        client.set_ttl(64).unwrap();
    }
    (&client).write_all(b"on").unwrap();
    server.read_exact(&mut [0; 2]).unwrap();
}

#[test]
fn listener_lives_until_last_handle_is_dropped() {
    let listener = StreamListener::bind(free_rdmsg_address()).unwrap();
    let addr = listener.local_addr().unwrap();
    let clone = listener.try_clone().unwrap();
    drop(listener);
    let client = thread::spawn(move || Stream::connect_timeout(addr, TIME_LIMIT).unwrap());
    clone.accept().unwrap();
    client.join().unwrap();
    drop(clone);
    let error = Stream::connect(addr).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{error}");
}
