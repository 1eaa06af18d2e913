//! Tests of connection options that TCP sockets also have: the source address of a connector, and
//! the traffic class.
#![allow(unsafe_code)]

use std::{
    io,
    net::{SocketAddr, TcpListener},
    os::fd::{BorrowedFd, RawFd},
    thread,
};

use common::{connect_and_accept, tcp_config};
use nix::sys::socket::{AddressFamily, SockaddrLike, SockaddrStorage};
use nix::sys::socket::{getpeername, getsockname, getsockopt, sockopt};
use rdmsg::{Config, Connector, Endpoint, Error, Listener};

/// Connects to a listener at the address `at`, and returns both ends.
fn pair(at: &str, listening: &Config, connector: &Connector) -> (Endpoint, Endpoint) {
    let listener = Listener::builder().config(listening).bind(at).unwrap();
    connect_and_accept(connector, &listener)
}

#[test]
fn source_is_the_address_that_the_peer_sees() {
    let free = TcpListener::bind("127.0.0.2:0").unwrap();
    let fixed = free.local_addr().unwrap();
    drop(free);
    for source in [SocketAddr::from(([127, 0, 0, 2], 0)), fixed] {
        let connector = Connector::new().source(source).config(&tcp_config());
        let (client, server) = pair("127.0.0.1:0", &tcp_config(), &connector);
        assert_eq!(server.peer_addr().ip(), source.ip());
        assert_eq!(server.peer_addr(), client.info().local_addr);
        if source.port() != 0 {
            assert_eq!(server.peer_addr(), source);
        }
        client.send(b"hello").unwrap();
        assert_eq!(*server.recv().unwrap(), *b"hello");
    }
}

#[test]
fn source_of_another_host_is_refused_by_name() {
    let listener = Listener::builder()
        .config(&tcp_config())
        .bind("127.0.0.1:0")
        .unwrap();
    let connector = Connector::new().config(&tcp_config());
    for (source, errno, word) in [
        ("192.0.2.1:0", libc::EADDRNOTAVAIL, "`ip address` shows"),
        ("[::1]:0", libc::EAFNOSUPPORT, "Address family"),
    ] {
        let address: SocketAddr = source.parse().unwrap();
        let connector = connector.clone().source(address);
        let error = connector.connect(listener.local_addr()).unwrap_err();
        let Error::Source {
            address: of,
            error: call,
        } = &error
        else {
            panic!("{error}");
        };
        assert_eq!((*of, call.call, call.errno), (address, "bind", errno));
        let text = error.to_string();
        assert!(text.starts_with(&format!("cannot connect from {source}, the source")));
        assert!(text.contains(word), "{text}");
        let kind = io::Error::from_raw_os_error(errno).kind();
        assert_eq!(io::Error::from(error).kind(), kind);
    }
}

/// Returns the traffic class of this process's socket with the local address `local` and the peer
/// address `peer`.
fn class_of(local: SocketAddr, peer: SocketAddr) -> i32 {
    let has = |address: nix::Result<SockaddrStorage>, expected: SocketAddr| {
        let Ok(address) = address else { return false };
        let ip = match address.as_sockaddr_in() {
            Some(v4) => SocketAddr::from(std::net::SocketAddrV4::from(*v4)),
            None => match address.as_sockaddr_in6() {
                Some(v6) => SocketAddr::new(v6.ip().to_canonical(), v6.port()),
                None => return false,
            },
        };
        ip == expected
    };
    let is_it = |fd: &RawFd| has(getsockname(*fd), local) && has(getpeername(*fd), peer);
    let fd = (0..1024).find(is_it).expect("the socket must be open");
    // SAFETY: the connection owns the socket, and outlives this call.
    let socket = unsafe { BorrowedFd::borrow_raw(fd) };
    let family = getsockname::<SockaddrStorage>(fd).unwrap().family();
    if family == Some(AddressFamily::Inet6) && peer.is_ipv6() {
        getsockopt(&socket, sockopt::Ipv6TClass).unwrap()
    } else {
        getsockopt(&socket, sockopt::Ipv4Tos).unwrap()
    }
}

#[test]
fn each_side_has_its_traffic_class() {
    let of = |class| tcp_config().with(|config| config.traffic_class = class);
    for (at, to) in [
        ("127.0.0.1:0", "127.0.0.1"),
        ("[::1]:0", "::1"),
        ("[::]:0", "127.0.0.1"),
    ] {
        for (connecting, listening) in [(Some(26 << 2), Some(40 << 2)), (None, Some(252))] {
            let builder = Listener::builder().config(&of(listening));
            let listener = builder.bind(at).unwrap();
            let addr = SocketAddr::new(to.parse().unwrap(), listener.local_addr().port());
            let server = thread::spawn(move || listener.accept().unwrap());
            let connector = Connector::new().config(&of(connecting));
            let client = connector.connect(addr).unwrap();
            let server = server.join().unwrap();
            let class = |end: &Endpoint| class_of(end.info().local_addr, end.peer_addr());
            let expected = [connecting, listening].map(|class| i32::from(class.unwrap_or(0)));
            assert_eq!([class(&client), class(&server)], expected, "{at}");
        }
    }
}
