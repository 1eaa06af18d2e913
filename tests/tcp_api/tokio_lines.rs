//! Tests each method of `tokio::net::TcpListener`, of `TcpStream` and of the halves of a stream
//! with one line of code.

use std::{
    future::{Future, poll_fn},
    io::{ErrorKind, IoSlice, IoSliceMut},
    net::SocketAddr,
    pin::Pin,
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, Interest, ReadBuf},
    runtime::{Builder, Runtime},
};

use super::{Listener, Stream, connect, free_address};
use crate::has_ttl;

/// Returns a runtime with `threads` threads.
pub(super) fn runtime(threads: usize) -> Runtime {
    let mut builder = match threads {
        1 => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    builder
        .worker_threads(threads)
        .enable_all()
        .build()
        .unwrap()
}

/// Runs a test on a runtime with `threads` threads. The box gives all tests the same type. Without
/// it, the compiler would instantiate both runtimes for each test.
pub(super) fn run_on(threads: usize, test: Pin<Box<dyn Future<Output = ()> + '_>>) {
    runtime(threads).block_on(test);
}

/// Returns a listener and both ends of a stream. One read of the accepted end has already failed
/// with `WouldBlock`.
pub(super) async fn ends() -> (Listener, Stream, Stream) {
    let (listener, client, server) = fresh_ends().await;
    let refused = server.try_read(&mut [0; 1]).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::WouldBlock);
    (listener, client, server)
}

/// Returns a listener and both ends of a stream. The accepted end has not been read.
pub(super) async fn fresh_ends() -> (Listener, Stream, Stream) {
    let listener = Listener::bind(free_address()).await.unwrap();
    let addr = listener.local_addr().unwrap();
    let (client, accepted) = tokio::join!(connect(addr), listener.accept());
    (listener, client.unwrap(), accepted.unwrap().0)
}

fn at(listener: &Listener) -> SocketAddr {
    listener.local_addr().unwrap()
}

/// Connects while the listener accepts. Returns true if both results belong to the same connection.
async fn connects_to(
    listener: &Listener,
    connecting: impl Future<Output = std::io::Result<Stream>>,
) -> bool {
    let (connected, accepted) = tokio::join!(connecting, listener.accept());
    accepted.unwrap().1 == connected.unwrap().local_addr().unwrap()
}

/// Defines one test for each line. The test asserts the result of the expression in that line.
macro_rules! lines {
    (($listener:ident, $client:ident, $server:ident); $($name:ident: $line:expr => $result:expr;)*)
    => { $(
        #[test]
        #[allow(unused_mut, unused_variables, reason = "a line uses some of them")]
        fn $name() {
            let test = async {
                let ($listener, mut $client, mut $server) = ends().await;
                assert_eq!($line, $result);
            };
            run_on(2, Box::pin(test));
        }
    )* };
}

const SECOND: Duration = Duration::from_secs(1);
const BOTH: Interest = Interest::READABLE.add(Interest::WRITABLE);

lines! { (listener, client, server);
    bind_text: Listener::bind(&*format!("{}:0", free_address().ip())).await.is_ok() => true;
    bind_string: Listener::bind(format!("{}:0", free_address().ip())).await.is_ok() => true;
    bind_host_and_port: Listener::bind((free_address().ip(), 0)).await.is_ok() => true;
    bind_addresses: Listener::bind(&[free_address()][..]).await.is_ok() => true;
    accept: connects_to(&listener, Stream::connect(at(&listener))).await => true;
    poll_accept: {
        let addr = listener.local_addr().unwrap();
        let accepting = poll_fn(|cx| listener.poll_accept(cx));
        tokio::join!(Stream::connect(addr), accepting).1.is_ok()
    } => true;
    listener_local_addr: listener.local_addr().unwrap() => client.peer_addr().unwrap();
    listener_ttl: match has_ttl(free_address()) {
        true => {
            listener.set_ttl(17).unwrap();
            let addr = listener.local_addr().unwrap();
            let (_another, accepted) = tokio::join!(Stream::connect(addr), listener.accept());
            (listener.ttl().unwrap(), accepted.unwrap().0.ttl().unwrap())
        }
        false => (17, 17),
    } => (17, 17);
    connect_text: {
        connects_to(&listener, Stream::connect(&*at(&listener).to_string())).await
    } => true;
    connect_string: {
        connects_to(&listener, Stream::connect(at(&listener).to_string())).await
    } => true;
    connect_host_and_port: {
        connects_to(&listener, Stream::connect((free_address().ip(), at(&listener).port()))).await
    } => true;
    connect_addresses: connects_to(&listener, Stream::connect(&[at(&listener)][..])).await => true;
    local_addr: client.local_addr().unwrap().ip() => free_address().ip();
    peer_addr: client.peer_addr().unwrap() => server.local_addr().unwrap();
    take_error: client.take_error().unwrap().is_none() => true;
    peek: {
        client.write_all(b"abc").await.unwrap();
        (server.peek(&mut [0; 8]).await.unwrap(), server.read(&mut [0; 8]).await.unwrap())
    } => (3, 3);
    poll_peek: {
        client.write_all(b"abc").await.unwrap();
        let mut bytes = [0; 8];
        let mut buffer = ReadBuf::new(&mut bytes);
        let count = poll_fn(|cx| server.poll_peek(cx, &mut buffer)).await.unwrap();
        (count, buffer.filled().to_vec())
    } => (3, b"abc".to_vec());
    readable: {
        client.write_all(b"abc").await.unwrap();
        server.readable().await.is_ok()
    } => true;
    writable: server.writable().await.is_ok() => true;
    ready: server.ready(BOTH).await.unwrap().is_writable() => true;
    poll_read_ready: {
        client.write_all(b"abc").await.unwrap();
        poll_fn(|cx| server.poll_read_ready(cx)).await.is_ok()
    } => true;
    poll_write_ready: poll_fn(|cx| server.poll_write_ready(cx)).await.is_ok() => true;
    try_read_of_nothing: server.try_read(&mut [0; 1]).unwrap_err().kind() => ErrorKind::WouldBlock;
    try_read: {
        client.write_all(b"abc").await.unwrap();
        server.readable().await.unwrap();
        server.try_read(&mut [0; 8]).unwrap()
    } => 3;
    try_read_vectored: {
        client.write_all(b"abc").await.unwrap();
        server.readable().await.unwrap();
        let (mut one, mut rest) = ([0; 1], [0; 4]);
        let mut parts = [IoSliceMut::new(&mut one), IoSliceMut::new(&mut rest)];
        (server.try_read_vectored(&mut parts).unwrap(), one, rest)
    } => (3, *b"a", *b"bc\0\0");
    try_read_buf: {
        client.write_all(b"abc").await.unwrap();
        server.readable().await.unwrap();
        let mut bytes = b"before ".to_vec();
        (server.try_read_buf(&mut bytes).unwrap(), bytes)
    } => (3, b"before abc".to_vec());
    try_read_buf_of_a_slice: {
        client.write_all(b"abc").await.unwrap();
        server.readable().await.unwrap();
        server.try_read_buf(&mut &mut [0; 2][..]).unwrap()
    } => 2;
    try_write: {
        client.writable().await.unwrap();
        client.try_write(b"four").unwrap()
    } => 4;
    try_write_vectored: {
        client.writable().await.unwrap();
        client.try_write_vectored(&[IoSlice::new(b"a"), IoSlice::new(b"bc")]).unwrap()
    } => 3;
    nodelay_is_off: client.nodelay().unwrap() => false;
    set_nodelay: [true, false].map(|nodelay| {
        client.set_nodelay(nodelay).unwrap();
        client.nodelay().unwrap()
    }) => [true, false];
    linger_is_off: client.linger().unwrap() => None;
    set_linger: {
        #[allow(deprecated, reason = "tokio's method can block the thread")]
        client.set_linger(Some(SECOND)).unwrap();
        client.linger().unwrap()
    } => Some(SECOND);
    set_zero_linger: {
        client.set_zero_linger().unwrap();
        client.linger().unwrap()
    } => Some(Duration::ZERO);
    ttl: match has_ttl(free_address()) {
        true => {
            client.set_ttl(42).unwrap();
            client.ttl().unwrap()
        }
        false => 42,
    } => 42;
    ttl_of_zero: client.set_ttl(0).is_err() => true;
    split: {
        let (read, mut write) = client.split();
        write.write_all(b"abc").await.unwrap();
        (read.peer_addr().unwrap(), write.local_addr().unwrap().ip())
    } => (server.local_addr().unwrap(), free_address().ip());
    split_read_half: {
        server.write_all(b"abc").await.unwrap();
        let (mut read, _) = client.split();
        read.readable().await.unwrap();
        let ready = read.ready(Interest::READABLE).await.unwrap().is_readable();
        (ready, read.peek(&mut [0; 8]).await.unwrap(), read.try_read(&mut [0; 8]).unwrap())
    } => (true, 3, 3);
    split_write_half: {
        let (_, write) = client.split();
        write.writable().await.unwrap();
        let ready = write.ready(Interest::WRITABLE).await.unwrap().is_writable();
        (ready, write.try_write(b"four").unwrap())
    } => (true, 4);
    owned_read_half: {
        server.write_all(b"abcdef").await.unwrap();
        let (mut read, _write) = client.into_split();
        read.readable().await.unwrap();
        let ready = read.ready(Interest::READABLE).await.unwrap().is_readable();
        let mut two = Vec::with_capacity(2);
        let mut one = [0];
        (
            ready,
            read.peek(&mut [0; 8]).await.unwrap(),
            read.try_read(&mut [0; 1]).unwrap(),
            read.try_read_buf(&mut two).unwrap(),
            read.try_read_vectored(&mut [IoSliceMut::new(&mut one)]).unwrap(),
            read.peer_addr().unwrap(),
            read.local_addr().unwrap().ip(),
        )
    } => (true, 6, 1, 2, 1, server.local_addr().unwrap(), free_address().ip());
    owned_read_half_poll_peek: {
        server.write_all(b"abc").await.unwrap();
        let (mut read, _write) = client.into_split();
        let mut bytes = [0; 2];
        let mut buffer = ReadBuf::new(&mut bytes);
        poll_fn(|cx| read.poll_peek(cx, &mut buffer)).await.unwrap()
    } => 2;
    owned_write_half: {
        let (_read, write) = client.into_split();
        write.writable().await.unwrap();
        (
            write.ready(Interest::WRITABLE).await.unwrap().is_writable(),
            write.try_write(b"four").unwrap(),
            write.try_write_vectored(&[IoSlice::new(b"a"), IoSlice::new(b"bc")]).unwrap(),
            write.peer_addr().unwrap(),
            write.local_addr().unwrap().ip(),
        )
    } => (true, 4, 3, server.local_addr().unwrap(), free_address().ip());
    reunite_by_the_read_half: {
        let (read, write) = client.into_split();
        read.reunite(write).is_ok()
    } => true;
    reunite_by_the_write_half: {
        let (read, write) = client.into_split();
        write.reunite(read).is_ok()
    } => true;
    forget: {
        let (mut read, write) = client.into_split();
        write.forget();
        server.write_all(b"abc").await.unwrap();
        read.read(&mut [0; 8]).await.unwrap()
    } => 3;
    shutdown: {
        client.shutdown().await.unwrap();
        server.read(&mut [0; 1]).await.unwrap()
    } => 0;
}
