//! Tests the log lines about sends that wait for at least 5 s. The test uses TCP, so it needs no
//! device.

use std::{thread, time::Duration};

use common::{TIME_LIMIT, connect_and_accept, log_lines::Lines, patient, tcp_config};
use rdmsg::{Connector, Endpoint, Engine, Listener};

/// Returns both ends of a connection with a window of two messages.
fn pair(label: &str, keepalive: Option<Duration>) -> (Endpoint, Endpoint) {
    let config = patient(&tcp_config()).with(|config| {
        config.keepalive_interval = keepalive;
        config.receive_window = Some(2);
    });
    let engine = Engine::new().unwrap();
    let listener = Listener::builder().config(&config).engine(&engine);
    let listener = listener.bind("127.0.0.1:0").unwrap();
    let connector = Connector::new().config(&config).engine(&engine);
    connect_and_accept(&connector.label(label), &listener)
}

/// Fills the peer's window with two messages. Then sends a third message, which waits until the
/// first two are dropped. Asserts that the library logs this wait once.
fn stall(client: &Endpoint, server: &Endpoint, lines: &Lines) {
    let (name, peer) = (client.info().id, client.peer_addr());
    let label = client.info().label.unwrap();
    let line = format!("conn {name} {label:?} to {peer}: the peer holds all 2 messages of");
    let count = lines.count(&line);
    let held = [1, 2].map(|number| {
        client.send(&[number]).unwrap();
        server.recv_timeout(TIME_LIMIT).unwrap()
    });
    thread::scope(|scope| {
        let third = scope.spawn(|| client.send(&[3]));
        lines.wait_for_count(&line, count + 1);
        assert!(!third.is_finished(), "the third send must still wait");
        drop(held);
        third.join().unwrap().unwrap();
    });
    assert_eq!(*server.recv_timeout(TIME_LIMIT).unwrap(), [3]);
    assert_eq!(lines.count(&line), count + 1, "a stall must be logged once");
}

/// The library logs at most one line per second about waiting sends, and only counts further lines.
/// So all cases are in one test, and do not run concurrently.
#[test]
fn send_that_waits_for_5_s_is_logged_once_per_stall() {
    let lines = Lines::collect();
    // With keepalive, the engine's thread detects the stall when it checks the peer.
    let (client, server) = pair("engine", Some(Duration::from_millis(100)));
    stall(&client, &server, lines);
    stall(&client, &server, lines);
    // Without keepalive, the waiting thread detects the stall.
    let (client, server) = pair("thread", None);
    stall(&client, &server, lines);
}
