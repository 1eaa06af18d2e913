//! Tests of conversions between the types for tokio and the types for blocking threads.

use std::{
    io::{ErrorKind, Read, Write},
    net::Shutdown,
    thread,
};

use common::TIME_LIMIT;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{
    Listener, StdListener, StdStream, Stream, connect, free_address,
    lines::{ends, runtime},
};

/// Returns both ends of a stream as types for blocking threads, the connecting end first.
#[allow(
    clippy::needless_borrows_for_generic_args,
    reason = "std's signature takes this reference"
)]
fn std_ends() -> (StdStream, StdStream) {
    let listener = StdListener::bind(free_address()).unwrap();
    let addr = listener.local_addr().unwrap();
    let client = thread::spawn(move || StdStream::connect_timeout(&addr, TIME_LIMIT).unwrap());
    let (server, _) = listener.accept().unwrap();
    (client.join().unwrap(), server)
}

#[test]
fn stream_converts_to_std_and_back_with_its_bytes() {
    for threads in [1, 2] {
        runtime(threads).block_on(async {
            let (_listener, mut client, mut server) = ends().await;
            client.write_all(b"one").await.unwrap();
            assert_eq!(server.read_u8().await.unwrap(), b'o');
            server.set_nodelay(true).unwrap();

            let mut std = server.into_std().unwrap();
            assert!(std.nodelay().unwrap());
            let mut got = [0; 3];
            std.read_exact(&mut got[..2]).unwrap();
            assert_eq!(got[..2], *b"ne");
            let refused = std.read(&mut got).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::WouldBlock);
            std.set_nonblocking(false).unwrap();
            client.write_all(b"two").await.unwrap();
            std.read_exact(&mut got).unwrap();
            assert_eq!(got, *b"two");
            client.write_all(b"six").await.unwrap();
            std.read_exact(&mut got[..1]).unwrap();
            std.set_nonblocking(true).unwrap();

            let mut server = Stream::from_std(std).unwrap();
            assert!(server.nodelay().unwrap());
            let mut rest = [0; 2];
            server.read_exact(&mut rest).await.unwrap();
            assert_eq!(rest, *b"ix");
            let (wrote, read) = tokio::join!(client.write_u8(7), server.read_u8());
            wrote.unwrap();
            assert_eq!(read.unwrap(), 7);
            server.write_u8(8).await.unwrap();
            assert_eq!(client.read_u8().await.unwrap(), 8);
            drop(client);
            assert_eq!(server.read(&mut got).await.unwrap(), 0);
        });
    }
}

#[test]
fn std_stream_converts_after_the_peer_has_closed() {
    runtime(1).block_on(async {
        let (mut client, server) = std_ends();
        client.write_all(b"last").unwrap();
        drop(client);
        server.set_nonblocking(true).unwrap();
        let mut server: Stream = server.try_into().unwrap();
        let mut got = String::new();
        server.read_to_string(&mut got).await.unwrap();
        assert_eq!(got, "last");
    });
}

#[test]
fn conversion_keeps_shut_down_read_direction() {
    runtime(1).block_on(async {
        let (_client, server) = std_ends();
        server.shutdown(Shutdown::Read).unwrap();
        server.set_nonblocking(true).unwrap();
        let mut server = Stream::from_std(server).unwrap();
        server.readable().await.unwrap();
        assert_eq!(server.try_read(&mut [0; 1]).unwrap(), 0);
        assert_eq!(server.peek(&mut [0; 1]).await.unwrap(), 0);
        assert_eq!(server.read(&mut [0; 1]).await.unwrap(), 0);
    });
}

#[test]
fn stream_moves_to_another_runtime() {
    let (mut client, server) = std_ends();
    server.set_nonblocking(true).unwrap();
    let first = runtime(1);
    let server = first.block_on(async { Stream::from_std(server).unwrap().into_std().unwrap() });
    drop(first);
    runtime(2).block_on(async {
        let mut server = Stream::from_std(server).unwrap();
        client.write_all(b"x").unwrap();
        assert_eq!(server.read_u8().await.unwrap(), b'x');
    });
}

#[test]
fn listener_converts_to_std_and_back() {
    runtime(1).block_on(async {
        let listener = Listener::bind(free_address()).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let std = listener.into_std().unwrap();
        assert_eq!(std.local_addr().unwrap(), addr);
        assert_eq!(std.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
        let listener = Listener::from_std(std).unwrap();
        let (client, accepted) = tokio::join!(connect(addr), listener.accept());
        assert_eq!(accepted.unwrap().1, client.unwrap().local_addr().unwrap());
        let std = StdListener::bind(free_address()).unwrap();
        std.set_nonblocking(true).unwrap();
        let addr = std.local_addr().unwrap();
        let listener: Listener = std.try_into().unwrap();
        let (client, accepted) = tokio::join!(connect(addr), listener.accept());
        assert_eq!(accepted.unwrap().1, client.unwrap().local_addr().unwrap());
    });
}
