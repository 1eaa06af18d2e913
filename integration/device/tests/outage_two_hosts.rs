//! A network that loses everything for longer than the default configuration allows. Both hosts run
//! this program: host `a` listens, host `b` connects.

use std::{process::Command, thread, time::Duration};

use rdmsg::{CloseReason, Config, Connector, Endpoint, Engine, Error, Listener, status::WcStatus};
use toolbox::{DeviceTest, Lab};

const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Ports of the connection with the default configuration, and of the surviving connection.
const PORTS: [u16; 2] = [7593, 7594];

/// With the default configuration a vanished peer is noticed within 5 s.
const OUTAGE: Duration = Duration::from_secs(10);

/// Fewer than the send ring takes without an acknowledgement.
const MESSAGES: u32 = 10;

/// Runs a shell script.
fn shell(lines: &str) {
    let output = Command::new("sh").args(["-ec", lines]).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{lines}: {error}");
}

/// A firewall that drops the incoming packets of RoCE, and of iWARP on the ports of this test.
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

/// Returns the connection with the default configuration, and the surviving connection. Each has an
/// engine of its own, so the signs of life of neither count for the other.
fn connect(lab: &Lab) -> [Endpoint; 2] {
    let configs = [Config::default(), Config::default().survive(OUTAGE)];
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
            let config = config.with(|config| config.connect_timeout = TIME_LIMIT);
            let connector = Connector::new().config(&config).retry_refused(true);
            let connector = connector.engine(&Engine::new().unwrap());
            connector.connect(lab.peer_at(port)).unwrap()
        })
        .collect()
    };
    endpoints.try_into().unwrap()
}

/// Sends messages into the outage, and receives those of the peer after it.
fn exchange(endpoint: &Endpoint, outage: Outage) {
    for number in 0..MESSAGES {
        endpoint.send(&number.to_le_bytes()).unwrap();
    }
    thread::sleep(OUTAGE);
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
        exchange(&surviving, Outage::begin());
        assert_given_up(&default);
        let end = surviving.recv_timeout(TIME_LIMIT).unwrap_err();
        assert!(
            matches!(end, Error::Disconnected(CloseReason::PeerClosed)),
            "{end:?}"
        );
    } else {
        surviving.send(b"now").unwrap();
        surviving.flush_timeout(TIME_LIMIT).unwrap();
        exchange(&surviving, Outage::begin());
        assert_given_up(&default);
        surviving.close().unwrap();
    }
}
