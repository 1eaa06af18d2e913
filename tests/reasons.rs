//! Tests the counters of round trips. Also tests the counters of ended connections, of failed
//! connects and of refused requests. Each of these three groups has one counter per reason. All
//! cases are in one test, because a process has only one set of counters. The test uses TCP, so it
//! needs no device.

use std::{
    collections::BTreeMap,
    net::{TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use common::{TIME_LIMIT, connect_and_accept, tcp_config};
use rdmsg::{
    CloseReason, Config, Connector, Endpoint, Error, Listener, ListenerBuilder,
    observe::{self, Snapshot},
};

/// Returns a configuration without keepalive, so that only flushes send Pings.
fn config() -> Config {
    tcp_config().with(|config| {
        config.close_timeout = TIME_LIMIT;
        config.keepalive_interval = None;
    })
}

fn builder() -> ListenerBuilder {
    Listener::builder().config(&config())
}

fn connector() -> Connector {
    Connector::new().config(&config())
}

fn pair(config: &Config) -> (Endpoint, Endpoint) {
    let listener = builder().config(config).bind("127.0.0.1:0").unwrap();
    connect_and_accept(&connector().config(config), &listener)
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

/// Returns the nonzero counts.
fn counted(counts: &BTreeMap<&'static str, u64>) -> Vec<(&'static str, u64)> {
    let counts = counts.iter().filter(|(_, count)| **count > 0);
    counts.map(|(name, count)| (*name, *count)).collect()
}

#[test]
fn reasons_and_round_trips_are_counted() {
    let before = pair(&config());
    let refused = |result: Result<Endpoint, Error>| match result.unwrap_err() {
        Error::Connect { reason, .. } => reason,
        error => panic!("{error}"),
    };
    // This client has taken the port, so no program can listen on it.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = TcpStream::connect(taken.local_addr().unwrap()).unwrap();
    let unused = taken.local_addr().unwrap();
    assert_eq!(refused(connector().connect(unused)), CloseReason::Refused);
    assert_eq!(
        observe::snapshot().connects_failed["refused"],
        0,
        "a connect before `observe::enable` must not be counted"
    );
    observe::enable();

    // These connects fail.
    connector().connect(unused).unwrap_err();
    connector()
        .label(&"x".repeat(65))
        .connect(unused)
        .unwrap_err();
    connector().connect("no port").unwrap_err();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let connecting = connector().start(silent.local_addr().unwrap()).unwrap();
    drop(connecting);
    let failed = || counted(&observe::snapshot().connects_failed);
    let mut expected = vec![
        ("address_lookup", 1),
        ("given_up", 1),
        ("invalid_config", 1),
        ("refused", 1),
    ];
    assert_eq!(failed(), expected);

    // Two of these requests are refused: one by the program, and one because the backlog is full.
    let requests = builder().bind_requests("127.0.0.1:0").unwrap();
    let address = requests.local_addr();
    let rejected = thread::spawn(move || connector().connect(address));
    let request = requests.requests().recv_timeout(TIME_LIMIT).unwrap();
    request.reject(b"no").unwrap();
    let reason = refused(rejected.join().unwrap());
    assert!(matches!(reason, CloseReason::Rejected { .. }), "{reason}");
    let full = builder().backlog(1).bind("127.0.0.1:0").unwrap();
    let address = full.local_addr();
    let waiting = connector().connect(address).unwrap();
    until(|_| !full.accepted().is_empty());
    assert_eq!(refused(connector().connect(address)), CloseReason::PeerBusy);
    expected.insert(3, ("peer_busy", 1));
    expected.push(("rejected", 1));
    assert_eq!(failed(), expected);
    let snapshot = observe::snapshot();
    let refusals = [("backlog", 1), ("program", 1)];
    assert_eq!(counted(&snapshot.requests_refused), refusals);
    assert_eq!((snapshot.ended, snapshot.round_trips.count), (0, 0));

    // These connections are established before they end.
    let (client, server) = pair(&config());
    client.abort(7);
    until(|now| now.ended == 2);
    drop((client, server));
    let (client, server) = pair(&config());
    let (taken, pinged) = (full.accept().unwrap(), Instant::now());
    waiting.flush().unwrap();
    let trips = observe::snapshot().round_trips;
    assert_eq!(trips.count, 1, "a flush must measure one round trip");
    assert!(trips.sum > Duration::ZERO && trips.sum <= pinged.elapsed());
    client.close().unwrap();
    drop((client, server, before));
    let snapshot = until(|now| now.ended == 4);
    let ends = [
        ("locally_aborted", 1),
        ("locally_closed", 1),
        ("peer_aborted", 1),
        ("peer_closed", 1),
    ];
    assert_eq!(counted(&snapshot.ended_by_reason), ends);
    let text = snapshot.to_prometheus();
    for line in [
        "rdmsg_connections_ended_total{reason=\"peer_aborted\"} 1",
        "rdmsg_connections_ended_total{reason=\"keepalive_timeout\"} 0",
        "rdmsg_connects_failed_total{reason=\"peer_busy\"} 1",
        "rdmsg_connects_failed_total{reason=\"no_rdma\"} 0",
        "rdmsg_requests_refused_total{reason=\"backlog\"} 1",
        "rdmsg_requests_refused_total{reason=\"half_open\"} 0",
        "rdmsg_keepalive_round_trip_seconds_bucket{le=\"+Inf\"} 1",
        "rdmsg_keepalive_round_trip_seconds_count 1",
    ] {
        assert!(text.lines().any(|other| other == line), "{line}: {text}");
    }

    // The keepalive of this connection sends Pings.
    let frequent = config().with(|config| {
        config.keepalive_interval = Some(Duration::from_millis(10));
        config.keepalive_timeout = TIME_LIMIT;
    });
    let idle = pair(&frequent);
    until(|now| now.round_trips.count > 10);
    drop((idle, waiting, taken));
}
