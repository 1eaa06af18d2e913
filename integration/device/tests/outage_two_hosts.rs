//! Tests connections during an outage, in which the network loses all packets. A connection with
//! the default configuration must end, and a connection with `Config::survive` must not. Both hosts
//! run this program: host `a` listens, host `b` connects.

use std::{
    process::Command,
    thread,
    time::{Duration, Instant},
};

use rdmsg::{
    CloseReason, Config, Connector, Endpoint, Engine, Error, Listener, error::PeerTimeout,
    status::WcStatus,
};
use toolbox::{DeviceTest, Lab, TIME_LIMIT};

/// The ports of two connections: the first has the default configuration, the second must survive
/// the outage.
const PORTS: [u16; 2] = [7593, 7594];

/// The duration of the outage. A connection with the default configuration detects the loss of its
/// peer within 5 s.
const OUTAGE: Duration = Duration::from_secs(10);

/// The number of messages sent during the outage. The send ring has a slot for each of them, even
/// while no message is acknowledged.
const MESSAGES: u32 = 10;

/// Runs a shell script, which must succeed.
fn shell(lines: &str) {
    let output = Command::new("sh").args(["-ec", lines]).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{lines}: {error}");
}

/// Firewall rules that drop all incoming RoCE packets, and the incoming iWARP packets on the ports
/// of this test. Dropping this value removes the rules.
struct Outage;

impl Outage {
    fn begin() -> Self {
        let [first, second] = PORTS;
        shell(&format!(
            "nft add table inet outage
             nft add chain inet outage in '{{ type filter hook input priority 0; }}'
             nft add rule inet outage in udp dport 4791 drop
             nft add rule inet outage in tcp dport {{ {first}, {second} }} drop
             nft add rule inet outage in tcp sport {{ {first}, {second} }} drop"
        ));
        Self
    }
}

impl Drop for Outage {
    fn drop(&mut self) {
        shell("nft delete table inet outage");
    }
}

/// Returns the connection with the default configuration, and the connection that must survive.
/// Each uses its own engine. On a shared engine, traffic on one connection would prove to the other
/// connection that the peer is alive.
fn connect(lab: &Lab) -> [Endpoint; 2] {
    let configs = [Config::default(), Config::default().survive(OUTAGE)];
    let configs = configs.map(|config| config.with(|config| config.connect_timeout = TIME_LIMIT));
    let ends = PORTS.into_iter().zip(configs);
    let endpoints: Vec<_> = if lab.host == "a" {
        let listeners: Vec<_> = ends
            .map(|(port, config)| {
                let engine = Engine::new().unwrap();
                let builder = Listener::builder().config(&config).engine(&engine);
                builder.bind(lab.at(port)).unwrap()
            })
            .collect();
        let accept = |listener: &Listener| listener.accept_timeout(TIME_LIMIT).unwrap();
        listeners.iter().map(accept).collect()
    } else {
        ends.map(|(port, config)| {
            let connector = Connector::new().config(&config).retry_refused(true);
            let connector = connector.engine(&Engine::new().unwrap());
            connector.connect(lab.peer_at(port)).unwrap()
        })
        .collect()
    };
    endpoints.try_into().unwrap()
}

/// Sends messages during the outage, and receives the peer's messages after the outage. The outage
/// lasts at least until the connection with the default configuration has ended.
fn exchange(endpoint: &Endpoint, default: &Endpoint) {
    let outage = Outage::begin();
    let begun = Instant::now();
    for number in 0..MESSAGES {
        endpoint.send(&number.to_le_bytes()).unwrap();
    }
    assert_given_up(default);
    thread::sleep(OUTAGE.saturating_sub(begun.elapsed()));
    drop(outage);
    for number in 0..MESSAGES {
        let message = endpoint.recv_timeout(TIME_LIMIT).unwrap();
        assert_eq!(*message, number.to_le_bytes());
    }
}

fn assert_given_up(endpoint: &Endpoint) {
    let end = endpoint.recv_timeout(TIME_LIMIT).unwrap_err();
    assert!(
        matches!(
            end,
            Error::Disconnected(
                CloseReason::KeepaliveTimeout
                    // The peer can be the first to notice its outage.
                    | CloseReason::PeerGaveUp(PeerTimeout::Keepalive)
                    | CloseReason::WorkRequest {
                        status: WcStatus::RETRY_EXC_ERR,
                        ..
                    }
            )
        ),
        "{end:?}"
    );
}

#[test]
fn connection_survives_the_configured_outage() {
    let lab = DeviceTest::start();
    let [default, surviving] = connect(&lab);
    if lab.host == "a" {
        assert_eq!(*surviving.recv_timeout(TIME_LIMIT).unwrap(), *b"now");
        exchange(&surviving, &default);
        let end = surviving.recv_timeout(TIME_LIMIT).unwrap_err();
        assert!(
            matches!(end, Error::Disconnected(CloseReason::PeerClosed)),
            "{end:?}"
        );
    } else {
        surviving.send(b"now").unwrap();
        surviving.flush_timeout(TIME_LIMIT).unwrap();
        exchange(&surviving, &default);
        surviving.close().unwrap();
    }
}
