//! Tests each method of `std::net::TcpListener` and `TcpStream` with one line of code.

#![allow(
    clippy::needless_borrows_for_generic_args,
    reason = "std's signatures take these references"
)]

use std::{
    io::{ErrorKind, IoSlice, IoSliceMut, Read, Write, copy},
    net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4},
    thread,
    time::Duration,
};

use common::TIME_LIMIT;

use super::{Listener, Stream, free_address};
use crate::has_ttl;

fn ends() -> (Listener, Stream, Stream) {
    let listener = Listener::bind(free_address()).unwrap();
    let addr = listener.local_addr().unwrap();
    let client = thread::spawn(move || Stream::connect_timeout(&addr, TIME_LIMIT).unwrap());
    let (server, _) = listener.accept().unwrap();
    (listener, client.join().unwrap(), server)
}

/// Calls `connect` while a thread accepts. Returns the number of bytes that the accepted stream
/// receives.
fn connect_and_count(connect: impl FnOnce(SocketAddr) -> Stream) -> usize {
    let listener = Listener::bind(free_address()).unwrap();
    let addr = listener.local_addr().unwrap();
    let accepting = thread::spawn(move || {
        let mut got = Vec::new();
        let mut stream = listener.accept().unwrap().0;
        stream.read_to_end(&mut got).unwrap()
    });
    connect(addr).write_all(b"here").unwrap();
    accepting.join().unwrap()
}

fn ip() -> IpAddr {
    free_address().ip()
}

fn v4() -> Ipv4Addr {
    match ip() {
        IpAddr::V4(ip) => ip,
        IpAddr::V6(ip) => panic!("{ip}"),
    }
}

/// Returns the IP address to which a listener is bound.
fn host(listener: std::io::Result<Listener>) -> IpAddr {
    let bound = listener.unwrap().local_addr().unwrap();
    assert_ne!(bound.port(), 0);
    bound.ip()
}

/// Defines one test for each line. The test asserts the result of the expression in that line.
macro_rules! lines {
    (($listener:ident, $client:ident, $server:ident); $($name:ident: $line:expr => $result:expr;)*)
    => { $(
        #[test]
        #[allow(unused_mut, unused_variables, reason = "a line uses some of them")]
        fn $name() {
            let ($listener, mut $client, mut $server) = ends();
            assert_eq!($line, $result);
        }
    )* };
}

const SECOND: Duration = Duration::from_secs(1);

lines! { (listener, client, server);
    bind_text: host(Listener::bind(&*format!("{}:0", ip()))) => ip();
    bind_string: host(Listener::bind(format!("{}:0", ip()))) => ip();
    bind_text_and_port: host(Listener::bind((&*ip().to_string(), 0))) => ip();
    bind_string_and_port: host(Listener::bind((ip().to_string(), 0))) => ip();
    bind_ip_and_port: host(Listener::bind((ip(), 0))) => ip();
    bind_ipv4_and_port: host(Listener::bind((v4(), 0))) => ip();
    bind_by_type: host(Listener::bind::<SocketAddr>(free_address())) => ip();
    bind_address: host(Listener::bind(free_address())) => ip();
    bind_address_v4: host(Listener::bind(SocketAddrV4::new(v4(), 0))) => ip();
    bind_reference: host(Listener::bind(&free_address())) => ip();
    bind_addresses: host(Listener::bind(&[free_address(), free_address()][..])) => ip();
    bind_in_use: Listener::bind(listener.local_addr().unwrap()).unwrap_err().kind()
        => ErrorKind::AddrInUse;
    listener_local_addr: listener.local_addr().unwrap() => client.peer_addr().unwrap();
    listener_try_clone: listener.try_clone().unwrap().local_addr().unwrap()
        => listener.local_addr().unwrap();
    listener_set_nonblocking: {
        listener.try_clone().unwrap().set_nonblocking(true).unwrap();
        listener.accept().unwrap_err().kind()
    } => ErrorKind::WouldBlock;
    listener_incoming: {
        listener.set_nonblocking(true).unwrap();
        listener.incoming().next().unwrap().unwrap_err().kind()
    } => ErrorKind::WouldBlock;
    listener_take_error: listener.take_error().unwrap().is_none() => true;
    listener_ttl: match has_ttl(free_address()) {
        true => {
            listener.set_ttl(17).unwrap();
            let addr = listener.local_addr().unwrap();
            let another = thread::spawn(move || Stream::connect(addr).unwrap());
            let (accepted, _) = listener.accept().unwrap();
            let _another = another.join().unwrap();
            (listener.ttl().unwrap(), accepted.ttl().unwrap())
        }
        false => (17, 17),
    } => (17, 17);
    listener_ttl_of_zero: listener.set_ttl(0).is_err() => true;
    connect_text: connect_and_count(|addr| Stream::connect(&*addr.to_string()).unwrap()) => 4;
    connect_string: connect_and_count(|addr| Stream::connect(addr.to_string()).unwrap()) => 4;
    connect_text_and_port: connect_and_count(|addr| {
        Stream::connect((&*addr.ip().to_string(), addr.port())).unwrap()
    }) => 4;
    connect_ip_and_port: connect_and_count(|addr| {
        Stream::connect((addr.ip(), addr.port())).unwrap()
    }) => 4;
    connect_address: connect_and_count(|addr| Stream::connect(addr).unwrap()) => 4;
    connect_by_type: connect_and_count(|addr| Stream::connect::<SocketAddr>(addr).unwrap()) => 4;
    connect_reference: connect_and_count(|addr| Stream::connect(&addr).unwrap()) => 4;
    connect_addresses: connect_and_count(|addr| Stream::connect(&[addr][..]).unwrap()) => 4;
    connect_timeout: connect_and_count(|addr| {
        Stream::connect_timeout(&addr, SECOND * 60).unwrap()
    }) => 4;
    connect_timeout_of_an_hour: connect_and_count(|addr| {
        Stream::connect_timeout(&addr, SECOND * 3600).unwrap()
    }) => 4;
    connect_timeout_of_zero: {
        Stream::connect_timeout(&free_address(), Duration::ZERO).unwrap_err().kind()
    } => ErrorKind::InvalidInput;
    peer_addr: client.peer_addr().unwrap() => server.local_addr().unwrap();
    local_addr: client.local_addr().unwrap().ip() => ip();
    shutdown: {
        client.shutdown(Shutdown::Write).unwrap();
        server.read(&mut [0; 1]).unwrap()
    } => 0;
    try_clone: {
        client.try_clone().unwrap().write_all(b"by a clone").unwrap();
        drop(client);
        server.read_to_end(&mut Vec::new()).unwrap()
    } => 10;
    read_timeout: {
        client.set_read_timeout(Some(SECOND)).unwrap();
        client.read_timeout().unwrap()
    } => Some(SECOND);
    write_timeout: {
        client.set_write_timeout(Some(SECOND)).unwrap();
        client.write_timeout().unwrap()
    } => Some(SECOND);
    read_timeout_of_zero: client.set_read_timeout(Some(Duration::ZERO)).unwrap_err().kind()
        => ErrorKind::InvalidInput;
    peek: {
        client.write_all(b"abc").unwrap();
        (server.peek(&mut [0; 8]).unwrap(), server.read(&mut [0; 8]).unwrap())
    } => (3, 3);
    set_nodelay_of_a_clone: {
        client.try_clone().unwrap().set_nodelay(true).unwrap();
        client.nodelay().unwrap()
    } => true;
    nodelay_is_off: client.nodelay().unwrap() => false;
    set_nodelay: [true, false].map(|nodelay| {
        client.set_nodelay(nodelay).unwrap();
        client.nodelay().unwrap()
    }) => [true, false];
    ttl: match has_ttl(free_address()) {
        true => {
            client.set_ttl(42).unwrap();
            client.try_clone().unwrap().ttl().unwrap()
        }
        false => 42,
    } => 42;
    ttl_of_zero: client.set_ttl(0).is_err() => true;
    ttl_of_256: client.set_ttl(256).is_err() => true;
    take_error: client.take_error().unwrap().is_none() => true;
    set_nonblocking: {
        client.set_nonblocking(true).unwrap();
        client.read(&mut [0; 1]).unwrap_err().kind()
    } => ErrorKind::WouldBlock;
    write: client.write(b"four").unwrap() => 4;
    write_vectored: client.write_vectored(&[IoSlice::new(b"a"), IoSlice::new(b"bc")]).unwrap() => 3;
    flush: client.flush().unwrap() => ();
    read_vectored: {
        client.write_all(b"a").unwrap();
        let (mut one, mut other) = ([0; 1], [0; 1]);
        server.read_vectored(&mut [IoSliceMut::new(&mut one), IoSliceMut::new(&mut other)]).unwrap()
    } => 1;
    by_reference: {
        (&client).write_all(b"xy").unwrap();
        let mut both = [0; 2];
        (&server).read_exact(&mut both).unwrap();
        both
    } => *b"xy";
    copied: {
        client.write_all(b"copied").unwrap();
        drop(client);
        copy(&mut server, &mut Vec::new()).unwrap()
    } => 6;
}
