//! What only this crate's types have, beside the methods of std's.

use std::{
    io::{ErrorKind, Read, Write},
    net::ToSocketAddrs,
    thread,
    time::Duration,
};

use rdmsg::{Stream, StreamListener, ToAddresses};

use super::{any_rdmsg, has_ttl};

fn ends() -> (StreamListener, Stream, Stream) {
    let listener = StreamListener::bind(any_rdmsg()).unwrap();
    let addr = listener.local_addr().unwrap();
    let client = thread::spawn(move || Stream::connect(addr).unwrap());
    let (server, _) = listener.accept().unwrap();
    (listener, client.join().unwrap(), server)
}

/// A program's function that is generic over addresses exchanges the trait with the types.
fn bind<A: ToAddresses>(address: A) -> StreamListener {
    StreamListener::bind(address).unwrap()
}

/// A function that looks addresses up itself stays as it is.
fn bind_looked_up<A: ToSocketAddrs>(address: A) -> StreamListener {
    let addresses: Vec<_> = address.to_socket_addrs().unwrap().collect();
    StreamListener::bind(&*addresses).unwrap()
}

#[test]
fn functions_that_are_generic_over_addresses_bind() {
    for listener in [
        bind((any_rdmsg().ip(), 0)),
        bind(any_rdmsg().to_string()),
        bind_looked_up(any_rdmsg().to_string()),
    ] {
        assert_eq!(listener.local_addr().unwrap().ip(), any_rdmsg().ip());
    }
}

#[test]
fn zero_linger_resets_the_connection_with_the_last_handle() {
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
    let error = server
        .take_error()
        .unwrap()
        .expect("an end that is not clean");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn any_other_linger_ends_the_stream() {
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
fn a_time_to_live_is_set_over_tcp_and_refused_over_rdma() {
    let (_listener, client, mut server) = ends();
    if has_ttl(any_rdmsg()) {
        for (refused, kind) in [
            (0, ErrorKind::InvalidInput),
            (u32::MAX, ErrorKind::InvalidInput),
        ] {
            assert_eq!(client.set_ttl(refused).unwrap_err().kind(), kind);
        }
        client.set_ttl(255).unwrap();
        assert_eq!(client.ttl().unwrap(), 255);
    } else {
        assert_eq!(client.ttl().unwrap_err().kind(), ErrorKind::Unsupported);
        let error = client.set_ttl(64).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("over RDMA"), "{error}");
    }
    (&client).write_all(b"on").unwrap();
    server.read_exact(&mut [0; 2]).unwrap();
}

#[test]
fn a_time_to_live_over_ipv6_is_a_hop_limit() {
    if !has_ttl(any_rdmsg()) {
        return;
    }
    let listener = StreamListener::bind("[::1]:0").unwrap();
    listener.set_ttl(9).unwrap();
    let addr = listener.local_addr().unwrap();
    let client = thread::spawn(move || Stream::connect(addr).unwrap());
    let (server, _) = listener.accept().unwrap();
    let client = client.join().unwrap();
    assert_eq!(server.ttl().unwrap(), 9);
    client.set_ttl(3).unwrap();
    assert_eq!(client.ttl().unwrap(), 3);
    assert_eq!(
        client.set_ttl(0).unwrap_err().kind(),
        ErrorKind::InvalidInput
    );
}

#[test]
fn a_listener_goes_on_until_its_last_handle_is_dropped() {
    let listener = StreamListener::bind(any_rdmsg()).unwrap();
    let addr = listener.local_addr().unwrap();
    let clone = listener.try_clone().unwrap();
    drop(listener);
    let client = thread::spawn(move || Stream::connect(addr).unwrap());
    clone.accept().unwrap();
    client.join().unwrap();
    drop(clone);
    let error = Stream::connect(addr).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{error}");
}
