//! Tests with stopped processes and stopped threads.

use std::{
    future::poll_fn,
    io::Read,
    net::SocketAddr,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use rdmsg::{CloseReason, Connector, Endpoint, Engine, Error, Stream};

use crate::{
    lateness::Lateness,
    matrix::{self, Peers, assert_in_time},
    process::{Process, Role},
    stage::{PROMPT, TIME_LIMIT, flush_promptly, ip_and_transport, receive_all, runtime, unprobed},
};

/// A process that accepts connections. The test stops the process after all connections are
/// established.
struct Silent {
    process: Process,
    messages: SocketAddr,
    bytes: SocketAddr,
    connector: Connector,
    engine: Engine,
}

impl Silent {
    fn new(connector: Connector) -> Self {
        let mut process = Process::start(Role::AcceptsOnly);
        let engine = Engine::new().unwrap();
        Self {
            messages: process.addr(),
            bytes: process.addr(),
            connector: connector.engine(&engine),
            engine,
            process,
        }
    }
}

impl Peers for Silent {
    fn name(&self) -> &str {
        "Stopped"
    }

    fn endpoint(&self) -> Endpoint {
        let endpoint = self.connector.connect(self.messages).unwrap();
        assert_eq!(
            endpoint.info().transport,
            ip_and_transport().1,
            "the connection must use the expected transport"
        );
        endpoint
    }

    fn stream(&self) -> Stream {
        let stream = self.connector.connect_stream(self.bytes).unwrap();
        assert_eq!(
            stream.transport(),
            ip_and_transport().1,
            "the connection must use the expected transport"
        );
        stream
    }

    fn engine(&self) -> &Engine {
        &self.engine
    }

    fn silent_address(&self) -> SocketAddr {
        self.messages
    }

    fn begin(&mut self) {
        self.process.stop();
    }
}

#[test]
fn returns_in_time_while_the_peer_is_stopped() {
    let connector = Connector::new().config(&matrix::config());
    assert_in_time(vec![Box::new(Silent::new(connector))]);
}

#[test]
fn reports_a_stopped_process_in_time() {
    const ROUNDS: usize = 10;
    const INTERVAL: Duration = Duration::from_millis(400);
    const TIMEOUT: Duration = Duration::from_millis(600);
    let config = unprobed().with(|c| {
        c.keepalive_interval = Some(INTERVAL);
        c.keepalive_timeout = TIMEOUT;
    });
    let mut silent = Silent::new(Connector::new().config(&config));
    let (ended, ends) = mpsc::channel();
    let mut held = Vec::new();
    for _ in 0..ROUNDS {
        let ended = || ended.clone();
        let (endpoint, done) = (silent.endpoint(), ended());
        thread::spawn(move || {
            let end = endpoint.recv().unwrap_err();
            done.send(("a thread", end, Instant::now())).unwrap();
        });
        let (endpoint, done) = (silent.endpoint(), ended());
        thread::spawn(move || {
            let (_, end) =
                runtime(false).block_on(async { receive_all(endpoint).await.await.unwrap() });
            done.send(("a task", end, Instant::now())).unwrap();
        });
        let (mut stream, done) = (silent.stream(), ended());
        thread::spawn(move || {
            let error = stream.read(&mut [0]).unwrap_err();
            let end = error
                .into_inner()
                .and_then(|error| error.downcast::<Error>().ok());
            done.send(("a stream", *end.unwrap(), Instant::now()))
                .unwrap();
        });
        let (stream, done) = (silent.stream(), ended());
        thread::spawn(move || {
            let read = smol::block_on(poll_fn(|cx| stream.poll_read(cx, &mut [0])));
            let end = read
                .unwrap_err()
                .into_inner()
                .and_then(|error| error.downcast().ok());
            done.send(("a task of a stream", *end.unwrap(), Instant::now()))
                .unwrap();
        });
        held.push(silent.endpoint());
    }
    drop(ended);
    let lateness = Lateness::of(INTERVAL + TIMEOUT);
    let stopped = Instant::now();
    silent.begin();
    let ends: Vec<_> = ends.iter().collect();
    let allowed = lateness.permitted(Duration::from_millis(500));
    for (what, end, at) in &ends {
        let dead = matches!(end, Error::Disconnected(CloseReason::KeepaliveTimeout));
        assert!(dead, "{what} must report a keepalive timeout, not: {end}");
        let time = at.duration_since(stopped);
        assert!(
            time < INTERVAL + TIMEOUT + allowed,
            "{what} reported the timeout after {time:.1?}, more than {allowed:.1?} too late"
        );
    }
    assert_eq!(ends.len(), 4 * ROUNDS);
    // The engine has ended these connections, or will end them soon.
    for endpoint in held {
        let end = endpoint.recv_timeout(TIME_LIMIT).unwrap_err();
        let dead = matches!(end, Error::Disconnected(CloseReason::KeepaliveTimeout));
        assert!(
            dead,
            "an idle connection must report a keepalive timeout, not: {end}"
        );
    }
}

/// Connects twice to a process whose receiving thread receives on the first connection.
fn receiver_and_other(role: Role) -> (Process, Connector, SocketAddr, [Endpoint; 2]) {
    let mut process = Process::start(role);
    let addr = process.addr();
    let connector = Connector::new().config(&unprobed());
    // Use a separate engine for the first connection. If both connections shared an engine, the
    // messages on the other connection would prove to the process that this engine is alive. Then
    // the process would rarely probe the first connection.
    let engine = Engine::new().unwrap();
    let first = connector.clone().engine(&engine).connect(addr).unwrap();
    flush_promptly(&first, 1);
    let other = connector.connect(addr).unwrap();
    flush_promptly(&other, 1);
    (process, connector, addr, [first, other])
}

#[test]
fn serves_others_while_a_thread_in_recv_is_stopped() {
    let (mut process, connector, addr, [first, other]) = receiver_and_other(Role::Receives);
    let stopped = process.stop_sleeping_receiver();
    // The stopped thread cannot receive this message.
    first.send(b"for the stopped one").unwrap();
    for _ in 0..10 {
        flush_promptly(&other, 1);
        // During this pause, the engine's thread in the child process polls the connections.
        thread::sleep(Duration::from_millis(50));
    }
    let late = connector.connect(addr).unwrap();
    flush_promptly(&late, 10);
    late.close().unwrap();
    other.close().unwrap();
    drop(stopped);
    first.flush_timeout(TIME_LIMIT).unwrap();
    first.close().unwrap();
    assert_eq!(process.line(), "2", "the process must receive all messages");
}

#[test]
fn serves_others_while_a_busy_thread_is_stopped() {
    const ROUNDS: usize = 20;
    let (mut process, connector, addr, [first, other]) = receiver_and_other(Role::ReceivesBusily);
    let mut blocked = 0;
    for _ in 0..ROUNDS {
        // During this pause, the receiving thread of the child process polls an empty queue. The
        // thread holds the poll lock during each poll, so it may be stopped with the lock held.
        thread::sleep(Duration::from_millis(5));
        let stopped = process.stop_receiver();
        first.send(b"for the stopped one").unwrap();
        // During this pause, the engine's thread starts to poll, because the stopped thread
        // cannot do so.
        thread::sleep(Duration::from_millis(30));
        other.send(b"for the engine").unwrap();
        blocked += usize::from(other.flush_timeout(PROMPT).is_err());
        drop(stopped);
        other.flush_timeout(TIME_LIMIT).unwrap();
        first.flush_timeout(TIME_LIMIT).unwrap();
    }
    // Besides the poll lock, the receiving thread holds locks of its connection, but only briefly.
    // If the thread is stopped while it holds such a lock, the engine's thread may wait for the
    // lock, and the flush may time out. Therefore a few flushes may fail.
    assert!(
        blocked <= ROUNDS / 4,
        "the flush failed in {blocked} of {ROUNDS} rounds"
    );
    connector.connect(addr).unwrap().close().unwrap();
    first.close().unwrap();
    assert_eq!(
        process.line(),
        (1 + ROUNDS).to_string(),
        "the process must receive all messages"
    );
}
