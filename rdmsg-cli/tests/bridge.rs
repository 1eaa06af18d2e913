//! Tests of pairs of bridges. Each bridge is a process that runs `rdmsg bridge`.
//!
//! If the environment variable `LAB_ADDR` is set to the address of an RDMA device, the bridges
//! connect to each other over RDMA. If the variable is not set, they connect over TCP.

#[path = "bridge/early.rs"]
mod early;
#[path = "bridge/resume.rs"]
mod resume;
mod stage;

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    thread,
    time::Duration,
};

use nix::sys::signal::Signal;
use rdmsg::{Engine, Listener, Statistics};
use stage::{Service, connect, far, far_at, is_reset, near, raise_open_files, random, reset};
use toolbox::{Bridge, TIME_LIMIT, network::reserved_address};

/// Two bridges: the clients connect to `near`, and `far` connects to the service.
struct BridgePair {
    near: Bridge,
    far: Bridge,
}

impl BridgePair {
    fn to(service: SocketAddr) -> Self {
        Self::with(service, &[], &[])
    }

    fn with(service: SocketAddr, more_near: &[&str], more_far: &[&str]) -> Self {
        let far = far(service, more_far);
        let near = near(&far, more_near);
        Self { near, far }
    }

    fn connect(&self) -> TcpStream {
        connect(self.near.address)
    }

    /// Returns the memory in use by both bridges, in bytes.
    fn memory(&self) -> usize {
        self.near.memory().unwrap() + self.far.memory().unwrap()
    }

    /// Waits until both bridges report this text about their connections.
    fn both_report(&mut self, connections: &str) {
        self.near.reports(connections).unwrap();
        self.far.reports(connections).unwrap();
    }
}

/// Sends one byte, and asserts that the service echoes it.
fn echoes(client: &mut TcpStream, byte: u8) {
    client.write_all(&[byte]).unwrap();
    let mut answer = [0];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(answer, [byte]);
}

#[test]
fn many_bytes_go_both_ways_at_once() {
    const LEN: usize = 10_000_000;
    let service = Service::echo();
    let mut bridges = BridgePair::to(service.address);
    let mut client = bridges.connect();
    let sent = random(7, LEN);
    let mut writer = client.try_clone().unwrap();
    let received = thread::scope(|scope| {
        scope.spawn(|| {
            writer.write_all(&sent).unwrap();
            writer.shutdown(Shutdown::Write).unwrap();
        });
        let mut received = Vec::new();
        client.read_to_end(&mut received).unwrap();
        received
    });
    assert!(
        received == sent,
        "the client must receive the bytes that it sent, but received {} bytes",
        received.len()
    );
    bridges.both_report("0 open, 1 total, 0 refused, 0 failed");
    bridges.both_report("bytes: 10000000 to the target, 10000000 back");
}

#[test]
fn pieces_over_tcp_travel_without_a_read_by_the_peer() {
    const LEN: usize = 10_000_000;
    // A listener of this test replaces the far bridge, so that the test can read the statistics of
    // the receiving side.
    let engine = Engine::new().unwrap();
    let far = Listener::builder()
        .engine(&engine)
        .bind_stream("tcp://127.0.0.1:0")
        .unwrap();
    let to = format!("rdmsg+tcp://{}", far.local_addr().unwrap());
    let near = stage::start("tcp://127.0.0.1:0", &to, &[]);
    let mut client = connect(near.address);
    let sent = random(10, LEN);
    let (mut stream, _) = far.accept().unwrap();
    let received = thread::scope(|scope| {
        scope.spawn(|| {
            client.write_all(&sent).unwrap();
            client.shutdown(Shutdown::Write).unwrap();
        });
        let mut received = Vec::new();
        stream.read_to_end(&mut received).unwrap();
        received
    });
    assert!(
        received == sent,
        "the far side must receive the client's bytes, but received {} bytes",
        received.len()
    );
    let Statistics {
        bytes_received,
        large_received,
        ..
    } = engine.statistics().unwrap().all;
    assert_eq!((bytes_received, large_received), (LEN as u64, 0));
}

#[test]
fn a_client_that_finished_sending_still_receives() {
    let service = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut bridges = BridgePair::to(service.local_addr().unwrap());
    let mut client = bridges.connect();
    client.write_all(b"question").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let (mut server, _) = service.accept().unwrap();
    let mut question = String::new();
    server.read_to_string(&mut question).unwrap();
    assert_eq!(question, "question");
    server.write_all(b"answer").unwrap();
    drop(server);
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "answer");
    bridges.both_report("0 open, 1 total, 0 refused, 0 failed");
}

#[test]
fn a_server_that_finished_sending_still_receives() {
    let service = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut bridges = BridgePair::to(service.local_addr().unwrap());
    let mut client = bridges.connect();
    let (mut server, _) = service.accept().unwrap();
    server.write_all(b"that is all").unwrap();
    server.shutdown(Shutdown::Write).unwrap();
    let mut all = String::new();
    client.read_to_string(&mut all).unwrap();
    assert_eq!(all, "that is all");
    client.write_all(b"and now this").unwrap();
    drop(client);
    let mut this = String::new();
    server.read_to_string(&mut this).unwrap();
    assert_eq!(this, "and now this");
    drop(server);
    bridges.both_report("0 open, 1 total, 0 refused, 0 failed");
}

/// Writes until a write blocks for 1 s. Returns the number of bytes written.
fn fill(client: &mut TcpStream, bytes: &[u8]) -> usize {
    let stalled = Duration::from_secs(1);
    client.set_write_timeout(Some(stalled)).unwrap();
    let mut accepted = 0;
    loop {
        match client.write(&bytes[accepted % bytes.len()..]) {
            Ok(count) => accepted += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return accepted,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_slow_reader_stops_the_writer() {
    let service = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut bridges = BridgePair::to(service.local_addr().unwrap());
    let mut client = bridges.connect();
    let (mut server, _) = service.accept().unwrap();
    // When these bytes have arrived, the bridges have allocated all memory that an idle connection
    // uses.
    client.write_all(b"begin").unwrap();
    server.read_exact(&mut [0; 5]).unwrap();
    let before = bridges.memory();

    let bytes = random(8, 1 << 20);
    let accepted = fill(&mut client, &bytes);
    let kernel = 3 * stage::socket_buffers();
    assert!(
        accepted < kernel + (4 << 20),
        "the writer must stop, but wrote {accepted} bytes; the kernel buffers at most {kernel}"
    );
    let grown = bridges.memory().saturating_sub(before);
    assert!(
        grown < 4 << 20,
        "the memory of the bridges must not grow with the sent bytes, but grew by {grown} bytes"
    );

    // The transfer continues when the server reads.
    client.shutdown(Shutdown::Write).unwrap();
    let mut received = Vec::new();
    server.read_to_end(&mut received).unwrap();
    assert_eq!(received.len(), accepted);
    let as_sent = received
        .chunks(bytes.len())
        .all(|chunk| bytes.starts_with(chunk));
    assert!(as_sent);
    drop((client, server));
    bridges.both_report("0 open, 1 total, 0 refused, 0 failed");
}

/// Sends a different number from each client, and asserts that each client receives its own number.
fn exchange(clients: &mut [TcpStream]) -> io::Result<()> {
    for (number, client) in clients.iter_mut().enumerate() {
        client.write_all(&number.to_be_bytes())?;
    }
    for (number, client) in clients.iter_mut().enumerate() {
        // Wait without a time limit, because with thousands of clients the last reply can arrive
        // later than `TIME_LIMIT`.
        client.set_read_timeout(None)?;
        let mut answer = [0; 8];
        client.read_exact(&mut answer)?;
        assert_eq!(answer, number.to_be_bytes());
    }
    Ok(())
}

fn at_once(count: usize) {
    raise_open_files();
    let service = Service::echo();
    let patient = ["--connect-timeout", "600"];
    let mut bridges = BridgePair::with(service.address, &patient, &patient);
    let mut clients: Vec<_> = (0..count).map(|_| bridges.connect()).collect();
    if let Err(error) = exchange(&mut clients) {
        let BridgePair { mut near, mut far } = bridges;
        panic!(
            "{error}; near bridge: {}; far bridge: {}",
            near.process.kill().unwrap(),
            far.process.kill().unwrap()
        );
    }
    bridges.both_report(&format!("{count} open, {count} total, 0 refused, 0 failed"));
    drop(clients);
    bridges.both_report(&format!("0 open, {count} total, 0 refused, 0 failed"));
}

#[test]
fn five_hundred_connections_at_once() {
    at_once(500);
}

#[test]
#[ignore = "needs a gigabyte of locked memory over RDMA"]
fn two_thousand_connections_at_once() {
    at_once(2000);
}

#[test]
fn a_connection_beyond_the_limit_is_reset_and_counted() {
    let service = Service::echo();
    let mut bridges = BridgePair::with(service.address, &["--max-connections", "2"], &[]);
    let mut clients = [bridges.connect(), bridges.connect()];
    for client in &mut clients {
        echoes(client, 1);
    }
    assert!(is_reset(&mut bridges.connect()));
    bridges
        .near
        .reports("2 open, 2 total, 1 refused, 0 failed")
        .unwrap();
    assert!(
        bridges
            .near
            .says("the limit of 2 open connections (--max-connections) is reached")
    );
    for client in &mut clients {
        echoes(client, 2);
    }
    let [first, _second] = clients;
    drop(first);
    bridges
        .near
        .reports("1 open, 2 total, 1 refused, 0 failed")
        .unwrap();
    echoes(&mut bridges.connect(), 3);
}

#[test]
fn bridge_reports_connection_limit_of_the_other() {
    let service = Service::echo();
    let mut bridges = BridgePair::with(service.address, &[], &["--max-connections", "1"]);
    let mut client = bridges.connect();
    echoes(&mut client, 1);
    assert!(is_reset(&mut bridges.connect()));
    bridges
        .far
        .reports("1 open, 1 total, 1 refused, 0 failed")
        .unwrap();
    bridges
        .near
        .reports("1 open, 2 total, 0 refused, 1 failed")
        .unwrap();
    assert!(
        bridges
            .near
            .says("it has reached its limit --max-connections")
    );
    echoes(&mut client, 2);
}

#[test]
fn a_reset_goes_to_the_other_end() {
    let service = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut bridges = BridgePair::to(service.local_addr().unwrap());
    let client = bridges.connect();
    let (mut server, _) = service.accept().unwrap();
    reset(client);
    assert!(is_reset(&mut server));

    let mut client = bridges.connect();
    let (server, _) = service.accept().unwrap();
    reset(server);
    assert!(is_reset(&mut client));
    bridges.both_report("0 open, 2 total, 0 refused, 2 failed");
}

#[test]
fn reset_overtakes_blocked_bytes() {
    let service = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut bridges = BridgePair::to(service.local_addr().unwrap());
    let mut client = bridges.connect();
    let (mut server, _) = service.accept().unwrap();
    fill(&mut client, &random(9, 1 << 20));
    reset(client);
    bridges.both_report("0 open, 1 total, 0 refused, 1 failed");
    let mut rest = Vec::new();
    let error = server.read_to_end(&mut rest).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn a_reset_of_one_that_finished_sending_is_noticed() {
    let service = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut bridges = BridgePair::to(service.local_addr().unwrap());
    let client = bridges.connect();
    let (mut server, _) = service.accept().unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(server.read(&mut [0]).unwrap(), 0);
    reset(client);
    bridges.both_report("0 open, 1 total, 0 refused, 1 failed");
    server.set_read_timeout(Some(TIME_LIMIT)).unwrap();
    // The service received the end of file before the client reset the connection. A write by the
    // service must still fail.
    let error = loop {
        if let Err(error) = server.write(&[0]) {
            break error;
        }
    };
    assert!(
        matches!(
            error.kind(),
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
        ),
        "{error}"
    );
}

#[test]
fn killed_bridge_ends_connections_not_other_bridge() {
    let service = Service::echo();
    let BridgePair {
        near: mut first,
        mut far,
    } = BridgePair::to(service.address);
    let mut client = connect(first.address);
    echoes(&mut client, 1);
    let address = far.address;
    far.process.kill().unwrap();
    assert!(is_reset(&mut client));
    first
        .reports("0 open, 1 total, 0 refused, 1 failed")
        .unwrap();
    // The far bridge has exited, so the near bridge resets a new client immediately.
    assert!(is_reset(&mut connect(first.address)));
    first
        .reports("0 open, 2 total, 0 refused, 2 failed")
        .unwrap();

    let mut far = far_at(address, service.address, &[]);
    let mut client = connect(first.address);
    echoes(&mut client, 2);
    first.process.kill().unwrap();
    // The kernel reports the end of file or an error, depending on the socket's state.
    assert!(!matches!(client.read(&mut [0]), Ok(1..)));
    far.reports("0 open, 1 total, 0 refused, 1 failed").unwrap();
    echoes(&mut connect(near(&far, &[]).address), 3);
}

/// Waits until no socket listens on the port.
fn wait_until_closed(address: SocketAddr) {
    while TcpStream::connect(address).is_ok() {
        thread::yield_now();
    }
}

#[test]
fn connections_may_go_on_after_the_first_signal() {
    let service = Service::echo();
    let BridgePair {
        mut near,
        far: _far,
    } = BridgePair::with(service.address, &["--drain", "600"], &[]);
    let mut client = connect(near.address);
    echoes(&mut client, 1);
    near.process.signal(Signal::SIGTERM).unwrap();
    wait_until_closed(near.address);
    echoes(&mut client, 2);
    drop(client);
    let ended = near.end().unwrap();
    assert_eq!(ended.status, Some(0), "{ended}");
    let counters = "connections: 0 open, ";
    assert!(ended.output.contains(counters), "{ended}");
}

#[test]
fn connections_open_at_the_limit_are_reset() {
    let service = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = service.local_addr().unwrap();
    let BridgePair { mut near, mut far } = BridgePair::with(address, &[], &["--drain", "0.1"]);
    let mut client = connect(near.address);
    let (mut server, _) = service.accept().unwrap();
    far.process.signal(Signal::SIGINT).unwrap();
    let ended = far.end().unwrap();
    assert_eq!(ended.status, Some(0), "{ended}");
    assert!(
        ended.output.contains(
            "resetting all open connections (1), because 100ms (--drain) have passed since the signal"
        ),
        "{ended}"
    );
    assert!(is_reset(&mut client));
    assert!(is_reset(&mut server));
    assert!(near.says("the other bridge ended the connection: it was stopped"));
}

#[test]
fn a_second_signal_ends_at_once() {
    let service = Service::echo();
    let BridgePair {
        mut near,
        far: _far,
    } = BridgePair::with(service.address, &["--drain", "600"], &[]);
    let mut client = connect(near.address);
    echoes(&mut client, 1);
    near.process.signal(Signal::SIGTERM).unwrap();
    wait_until_closed(near.address);
    near.process.signal(Signal::SIGTERM).unwrap();
    let ended = near.end().unwrap();
    assert_eq!(ended.status, Some(128 + Signal::SIGTERM as i32), "{ended}");
    assert!(is_reset(&mut client));
}

#[test]
fn missing_service_is_reported_to_client() {
    let unused = reserved_address();
    let mut bridges = BridgePair::to(unused);
    assert!(is_reset(&mut bridges.connect()));
    bridges.both_report("0 open, 1 total, 0 refused, 1 failed");
    assert!(
        bridges
            .near
            .says("the other bridge ended the connection: it cannot connect to its target")
    );
    assert!(
        bridges
            .far
            .says(&format!("cannot connect to tcp://{unused}: "))
    );
}

#[test]
fn counters_are_reported_by_themselves() {
    let service = Service::echo();
    let mut bridges = BridgePair::with(service.address, &["--report", "0.1"], &[]);
    let mut client = bridges.connect();
    echoes(&mut client, 1);
    let line = "connections: 1 open, 1 total, 0 refused, 0 failed; bytes: 1 to the target, 1 back";
    assert!(bridges.near.says(line));
}

#[test]
fn one_thread_is_enough() {
    let service = Service::echo();
    let bridges = BridgePair::with(service.address, &["--threads", "1"], &["--threads", "1"]);
    let mut clients: Vec<_> = (0..8).map(|_| bridges.connect()).collect();
    for round in 0..8 {
        for client in &mut clients {
            echoes(client, round);
        }
    }
}

#[test]
fn invalid_option_is_reported() {
    let in_use = TcpListener::bind("127.0.0.1:0").unwrap();
    let in_use = format!("tcp://{}", in_use.local_addr().unwrap());
    for (listen, to, status, why) in [
        ("127.0.0.1:1", "rdma://a:1", 2, "the address has no scheme"),
        (
            "http://127.0.0.1:1",
            "rdma://a:1",
            2,
            "the scheme http:// does not exist",
        ),
        ("tcp://a:1", "tcp://a:2", 2, "both are plain TCP sockets"),
        ("rdma://a:1", "rdmsg://a:2", 2, "both are streams of rdmsg"),
        (
            &in_use,
            "rdmsg+tcp://127.0.0.1:1",
            1,
            "another program listens on this port",
        ),
        (
            "tcp://192.0.2.1:1",
            "rdmsg+tcp://127.0.0.1:1",
            1,
            "this host does not have the address",
        ),
        (
            "rdmsg+tcp://192.0.2.1:1",
            "tcp://127.0.0.1:1",
            1,
            "cannot listen on rdmsg+tcp://",
        ),
    ] {
        let ended = stage::refused(listen, to);
        assert_eq!(ended.status, Some(status), "{listen} {to}: {ended}");
        assert!(ended.output.contains(why), "{listen} {to}: {ended}");
    }
}

#[test]
fn bridge_without_rdma_fails_at_start() {
    if stage::device().is_some() || std::path::Path::new("/dev/infiniband/rdma_cm").exists() {
        return;
    }
    for (listen, to) in [
        ("tcp://127.0.0.1:0", "rdma://10.8.0.1:7471"),
        ("rdma://0.0.0.0:0", "tcp://127.0.0.1:1"),
    ] {
        let ended = stage::refused(listen, to);
        assert_eq!(ended.status, Some(1), "{ended}");
        assert!(
            ended.output.contains("this machine offers no RDMA"),
            "{ended}"
        );
    }
}
