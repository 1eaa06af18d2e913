//! Tests the statistics of connections and engines.

use rdmsg::{Config, Connector, DeviceCounters, Engine, Listener};
use toolbox::{DeviceTest, TIME_LIMIT, pair_with, patient};

#[test]
fn a_connection_counts_what_goes_through_it() {
    let lab = DeviceTest::start();
    // Keepalive would send pings, too.
    let (client, server) = pair_with(&Config::default().with(|c| c.keepalive_interval = None));
    for _ in 0..10 {
        client.send(&[1; 100]).unwrap();
    }
    client.send(&[2; 100_000]).unwrap();
    client.flush_timeout(TIME_LIMIT).unwrap();
    let sent = client.statistics();
    // The flush sends a ping. On iWARP, the first frame of the connecting side is a ping, too.
    let pings = if lab.is_iwarp() { 2 } else { 1 };
    assert_eq!(
        (sent.messages_sent, sent.bytes_sent, sent.large_sent),
        (11, 101_000, 1)
    );
    assert_eq!(
        (sent.large_bytes_exposed, sent.stalls, sent.pings_sent),
        (0, 0, pings)
    );
    let received = server.statistics();
    assert_eq!(
        (
            received.messages_received,
            received.bytes_received,
            received.large_received
        ),
        (11, 101_000, 1)
    );
    assert_eq!(
        (received.buffers_held, received.large_bytes_held),
        (10, 100_000)
    );
    for _ in 0..11 {
        drop(server.recv_timeout(TIME_LIMIT).unwrap());
    }
    let received = server.statistics();
    assert_eq!((received.buffers_held, received.large_bytes_held), (0, 0));

    let mut more = 0;
    while client.try_send(b"x").is_ok() {
        more += 1;
    }
    assert!(client.statistics().stalls > 0, "{}", client.statistics());
    for _ in 0..more {
        drop(server.recv_timeout(TIME_LIMIT).unwrap());
    }
    client.send(b"on").unwrap();
    assert!(
        client.statistics().grants_received > 0,
        "{}",
        client.statistics()
    );
    assert!(
        server.statistics().grants_sent > 0,
        "{}",
        server.statistics()
    );
    // iWARP runs over TCP and has no RNR NAK counter, so the value is `None` there.
    let rnr_naks = (!lab.is_iwarp()).then(|| lab.rnr_naks());
    assert_eq!(DeviceCounters::of(&client).rnr_naks, rnr_naks);
    client.close().unwrap();
    assert_eq!(
        client.statistics().messages_sent,
        // The value of `more` varies, because the last grant can arrive before or after the client
        // has used up its credit.
        11 + more + 1,
        "the statistics must remain readable after the close"
    );
}

#[test]
fn an_engine_adds_up_what_was_and_what_is() {
    let lab = DeviceTest::start();
    let (engine, other) = (Engine::new().unwrap(), Engine::new().unwrap());
    let listener = Listener::builder()
        .config(&patient())
        .engine(&other)
        .bind(lab.at(0))
        .unwrap();
    let address = listener.local_addr();
    let connector = Connector::new().config(&patient()).engine(&engine);
    let connect = || {
        let connector = connector.clone();
        let connecting = std::thread::spawn(move || connector.connect(address).unwrap());
        let accepted = listener.accept_timeout(TIME_LIMIT).unwrap();
        (connecting.join().unwrap(), accepted)
    };
    let (first, accepted) = connect();
    first.send(b"one").unwrap();
    drop(accepted.recv_timeout(TIME_LIMIT).unwrap());
    first.close().unwrap();
    drop((first, accepted));
    let (second, accepted) = connect();
    second.send(b"four").unwrap();
    drop(accepted.recv_timeout(TIME_LIMIT).unwrap());
    let statistics = engine.statistics().unwrap();
    assert_eq!(
        (statistics.connections, statistics.ended),
        (1, 1),
        "{statistics:?}"
    );
    assert_eq!(
        (statistics.all.messages_sent, statistics.all.bytes_sent),
        (2, 7)
    );
    let theirs = other.statistics().unwrap();
    assert_eq!(
        (theirs.all.messages_received, theirs.all.bytes_received),
        (2, 7)
    );
    second.close().unwrap();
    drop((second, accepted));
    engine.clone().shutdown();
    assert!(engine.statistics().is_err());
}
