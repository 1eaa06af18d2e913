//! Tests of listening and connecting over TCP on this machine.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    thread,
};

use common::{connector, tcp_config};
use rdmsg::{CloseReason, Connector, Endpoint, Engine, Error, Listener, Transport};

#[test]
fn auto_uses_tcp_if_no_device_serves_address() {
    let engine = Engine::new().unwrap();
    let listener = Listener::builder()
        .config(&tcp_config())
        .engine(&engine)
        .bind("auto://127.0.0.1:0")
        .unwrap();
    assert_eq!(listener.transports(), [Transport::Tcp]);
    let addr = listener.local_addr();
    let server = thread::spawn(move || listener.accept().unwrap());
    let client = connector().connect(format!("auto://{addr}")).unwrap();
    assert_eq!(client.info().transport, Transport::Tcp);
    client.send(b"hello").unwrap();
    let server = server.join().unwrap();
    assert_eq!(server.info().transport, Transport::Tcp);
    assert_eq!(*server.recv().unwrap(), *b"hello");
}

#[test]
fn auto_listens_on_all_addresses_without_device() {
    for address in ["auto://0.0.0.0:0", "auto://[::]:0"] {
        let listener = Listener::bind(address).unwrap();
        assert!(listener.transports().contains(&Transport::Tcp));
        let address = format!("auto://127.0.0.1:{}", listener.local_addr().port());
        let server = thread::spawn(move || listener.accept().unwrap());
        let client = connector().connect(address).unwrap();
        client.send(b"hello").unwrap();
        assert_eq!(*server.join().unwrap().recv().unwrap(), *b"hello");
    }
}

#[test]
fn rdma_scheme_does_not_fall_back_to_tcp() {
    let error = Endpoint::connect("rdma://127.0.0.1:7471").unwrap_err();
    let expected = matches!(
        error,
        Error::NoRdma(_)
            | Error::RdmaNotBuilt
            | Error::Loopback { .. }
            | Error::PermissionDenied { .. }
    );
    assert!(expected, "{error}");
}

#[test]
fn port_in_use_is_reported() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap();
    for scheme in ["auto", "tcp"] {
        let error = Listener::bind(format!("{scheme}://{addr}")).unwrap_err();
        assert!(matches!(error, Error::Bind { .. }), "{error}");
        assert!(
            error.to_string().contains("address in use over TCP"),
            "{error}"
        );
    }
}

#[test]
fn missing_listener_is_reported_at_once() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = free.local_addr().unwrap();
    drop(free);
    let error = Connector::new()
        .config(&tcp_config())
        .connect(addr)
        .unwrap_err();
    assert!(
        matches!(
            error,
            Error::Connect {
                reason: CloseReason::Refused,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn strangers_end_only_their_own_connections() {
    let engine = Engine::new().unwrap();
    let listener = Listener::builder()
        .config(&tcp_config())
        .engine(&engine)
        .bind("127.0.0.1:0")
        .unwrap();
    let addr = listener.local_addr();
    for hello in [
        &b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..],
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"rdmt\x02\x01\x10\x00",
        b"rdmt\x01\x02\x10\x00",
        b"rdmt\x01\x01\x10\xff",
    ] {
        let mut foreign = TcpStream::connect(addr).unwrap();
        foreign.write_all(hello).unwrap();
        let mut answer = Vec::new();
        // Ignore an error: the library closes the socket, and the kernel then resets the connection
        // if the library has not read all bytes.
        let _ = foreign.read_to_end(&mut answer);
        assert!(answer.is_empty(), "{hello:?}: {answer:?}");
    }
    // An engine keeps at most 256 connections on which no request has arrived.
    let _silent: Vec<_> = (0..300)
        .map(|_| TcpStream::connect(addr).unwrap())
        .collect();
    let server = thread::spawn(move || listener.accept().unwrap().recv().unwrap().to_vec());
    let client = Connector::new()
        .config(&tcp_config())
        .engine(&engine)
        .connect(addr)
        .unwrap();
    client.send(b"still here").unwrap();
    assert_eq!(server.join().unwrap(), b"still here");
}

/// Accepts a connection, and closes it without a reply. If `by_reset` is true, the kernel sends a
/// reset.
fn end_one(dying: &TcpListener, by_reset: bool) {
    let (mut peer, _) = dying.accept().unwrap();
    let mut request = [0; 44];
    // When a socket with unread bytes is closed, the kernel sends a reset.
    let read = if by_reset { 8 } else { request.len() };
    peer.read_exact(&mut request[..read]).unwrap();
}

#[test]
fn server_that_dies_before_it_answers_counts_as_gone() {
    let dying = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = dying.local_addr().unwrap();
    for by_reset in [true, false] {
        let client = thread::spawn(move || Connector::new().config(&tcp_config()).connect(addr));
        end_one(&dying, by_reset);
        let error = client.join().unwrap().unwrap_err();
        assert!(
            matches!(
                error,
                Error::Connect {
                    reason: CloseReason::PeerDisconnected,
                    ..
                }
            ),
            "{error}"
        );
        let kind = std::io::Error::from(error).kind();
        assert_eq!(kind, std::io::ErrorKind::ConnectionReset);
    }
}

#[test]
fn retry_refused_outlives_a_server_that_dies() {
    let dying = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = dying.local_addr().unwrap();
    let connector = Connector::new().config(&tcp_config()).retry_refused(true);
    let client = thread::spawn(move || connector.connect(addr).unwrap());
    for by_reset in [true, false, true] {
        end_one(&dying, by_reset);
    }
    drop(dying);
    let listener = Listener::bind(format!("tcp://{addr}")).unwrap();
    let server = listener.accept().unwrap();
    client.join().unwrap().send(b"at last").unwrap();
    assert_eq!(*server.recv().unwrap(), *b"at last");
}

#[test]
fn program_of_another_protocol_is_reported() {
    let web = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = web.local_addr().unwrap();
    let client = thread::spawn(move || Connector::new().config(&tcp_config()).connect(addr));
    let (mut peer, _) = web.accept().unwrap();
    peer.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
    let error = client.join().unwrap().unwrap_err();
    let reason = CloseReason::NotRdmsg;
    assert!(
        matches!(&error, Error::Connect { reason: is, .. } if *is == reason),
        "{error}"
    );
}

#[test]
fn listener_takes_an_inherited_socket() {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let other = SocketAddr::new(address.ip(), address.port() ^ 1);
    let builder = Listener::builder().config(&tcp_config()).inherit(socket);
    match builder.bind(other) {
        Err(Error::Bind { error, .. }) => assert_eq!(error.errno, libc::EINVAL),
        bound => panic!("{bound:?}"),
    }
    let listener = builder.bind(address).unwrap();
    assert_eq!(listener.local_addr(), address);
    let client = Connector::new()
        .config(&tcp_config())
        .connect(address)
        .unwrap();
    client.send(b"over the socket").unwrap();
    let server = listener.accept().unwrap();
    assert_eq!(server.recv().unwrap(), b"over the socket");
    listener.close();
    // The builder still owns the socket, so the port stays in use.
    TcpListener::bind(address).unwrap_err();
    drop(builder);
    TcpListener::bind(address).unwrap();
}

#[test]
fn listeners_share_a_port_by_reuse_port() {
    let builder = Listener::builder().config(&tcp_config()).reuse_port(true);
    let first = builder.bind("127.0.0.1:0").unwrap();
    let address = first.local_addr();
    let exclusive = Listener::builder().config(&tcp_config()).bind(address);
    assert!(matches!(exclusive, Err(Error::Bind { .. })));
    let second = builder.bind(address).unwrap();
    let connects = Connector::new().config(&tcp_config());
    // The kernel selects the listener with a hash that includes the port of the client. The
    // probability that the kernel selects the same listener for all 64 clients is 2^-63.
    let clients: Vec<_> = (0..64)
        .map(|_| connects.connect(address).unwrap())
        .collect();
    let mut accepted = [0, 0];
    for (listener, count) in [&first, &second].into_iter().zip(&mut accepted) {
        while *count < 64 && listener.try_accept().unwrap().is_some() {
            *count += 1;
        }
    }
    assert!(accepted.iter().all(|count| *count > 0), "{accepted:?}");
    drop(clients);
}
