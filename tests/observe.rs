//! Test of snapshots, which list the connections of a program. The test uses TCP, so it needs no
//! device.

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    thread,
    time::Instant,
};

use common::{TIME_LIMIT, connect_and_accept, tcp_config};
use rdmsg::{
    Connector, Endpoint, Engine, Listener, Transport,
    observe::{self, Export, Snapshot},
};

fn pair() -> (Endpoint, Endpoint) {
    let config = tcp_config();
    let engine = Engine::shared().unwrap();
    let listener = Listener::builder()
        .config(&config)
        .engine(&engine)
        .bind("127.0.0.1:0")
        .unwrap();
    connect_and_accept(&Connector::new().config(&config), &listener)
}

/// Waits for a snapshot that satisfies the condition, and returns it.
fn until(condition: impl Fn(&Snapshot) -> bool) -> Snapshot {
    let start = Instant::now();
    loop {
        let snapshot = observe::snapshot();
        if condition(&snapshot) {
            return snapshot;
        }
        assert!(start.elapsed() < TIME_LIMIT, "{snapshot:#?}");
        thread::yield_now();
    }
}

/// All cases are in one test, because a process has only one registry of connections.
#[test]
fn snapshot_lists_connections_after_export_start() {
    let before = pair();
    assert!(
        observe::snapshot().connections.is_empty(),
        "connections before the start of the export must not be listed"
    );
    let path = std::env::temp_dir().join(format!("rdmsg-observe-{}", std::process::id()));
    let export = Export::start_at(&path).unwrap();
    assert_eq!(export.path(), path);
    assert!(Export::folder().is_absolute());

    let (client, server) = pair();
    client.send(&[1; 100]).unwrap();
    let message = server.recv_timeout(TIME_LIMIT).unwrap();
    let snapshot = until(|snapshot| snapshot.all.messages_received == 1);
    assert_eq!(
        snapshot.connections.len(),
        2,
        "only connections after the start of the export must be listed"
    );
    let of = |endpoint: &Endpoint| {
        let peer = endpoint.peer_addr();
        let mut all = snapshot.connections.iter();
        all.find(|connection| connection.peer == peer).unwrap()
    };
    let (ours, theirs) = (of(&client), of(&server));
    assert_ne!(ours.id, theirs.id);
    assert_eq!(ours.transport, Transport::Tcp);
    assert!(!ours.is_closed && ours.age < TIME_LIMIT);
    assert_eq!(
        (ours.statistics.messages_sent, ours.statistics.bytes_sent),
        (1, 100)
    );
    assert_eq!(
        theirs.statistics.buffers_held, 1,
        "the held message must occupy a buffer"
    );

    let mut stream = UnixStream::connect(&path).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    for line in [
        "rdmsg_connections 2",
        "rdmsg_sent_bytes_total 100",
        "rdmsg_buffers_held 1",
    ] {
        assert!(text.lines().any(|it| it == line), "{line}: {text}");
    }

    drop(message);
    client.close().unwrap();
    drop((client, server));
    let snapshot = until(|snapshot| snapshot.connections.is_empty() && snapshot.ended == 2);
    assert_eq!(
        (snapshot.all.bytes_sent, snapshot.all.buffers_held),
        (100, 0)
    );
    drop(before);
    assert_eq!(
        observe::snapshot().ended,
        2,
        "the ends of the unlisted first pair must not be counted"
    );
}
