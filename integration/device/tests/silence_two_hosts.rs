//! Tests a host that answers over TCP but not over RDMA, because a firewall drops RDMA packets.
//! Both hosts run this program: host `a` listens, host `b` connects.

use std::{process::Command, time::Duration};

use rdmsg::{Config, Connector, Endpoint, Engine, Listener, Transport};
use toolbox::{DeviceTest, TIME_LIMIT};

const PORT: u16 = 7591;

/// Runs a shell script, which must succeed. Returns its stdout.
fn shell(lines: &str) -> String {
    let output = Command::new("sh").args(["-ec", lines]).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{lines}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

/// A firewall that drops incoming RDMA packets and counts outgoing ones. Dropping this value
/// removes the firewall.
struct Firewall;

impl Firewall {
    fn new() -> Self {
        shell(
            "nft add table inet silent
             nft add chain inet silent out '{ type filter hook output priority 0; }'
             nft add rule inet silent out udp dport 4791 counter
             nft add chain inet silent in '{ type filter hook input priority 0; }'
             nft add rule inet silent in udp dport 4791 drop",
        );
        Self
    }

    /// Returns the number of outgoing RDMA packets since the firewall was created.
    fn sent(&self) -> u64 {
        let table = shell("nft list table inet silent");
        let (_, count) = table
            .split_once("counter packets ")
            .expect("the rule must have a counter");
        let (count, _) = count.split_once(' ').unwrap();
        count.parse().unwrap()
    }
}

impl Drop for Firewall {
    fn drop(&mut self) {
        shell("nft delete table inet silent");
    }
}

/// Connects to the address. An attempt over RDMA gets half of the timeout. On a busy machine, the
/// other half can be too short for TCP, so double the timeout until the connect succeeds.
fn connect(address: &str) -> Endpoint {
    let mut config = Config::default();
    config.connect_timeout = Duration::from_secs(8);
    config.keepalive_timeout = TIME_LIMIT;
    loop {
        let connector = Connector::new().config(&config).retry_refused(true);
        match connector.connect(address) {
            Err(_) if config.connect_timeout < TIME_LIMIT => config.connect_timeout *= 2,
            end => break end.unwrap(),
        }
    }
}

#[test]
fn host_silent_over_rdma_is_tried_over_tcp_next() {
    let lab = DeviceTest::start();
    match lab.host.as_str() {
        "a" => {
            let config = Config::default().with(|config| {
                config.keepalive_timeout = TIME_LIMIT;
                config.close_timeout = TIME_LIMIT;
            });
            let listener = Listener::builder()
                .config(&config)
                .bind(format!("auto://{}", lab.at(PORT)))
                .unwrap();
            let mut exchanges = 0;
            while exchanges < 3 {
                let endpoint = listener.accept_timeout(3 * TIME_LIMIT).unwrap();
                // If the client's timeout was too short, this connection ends without a message.
                let Ok(message) = endpoint.recv_timeout(TIME_LIMIT) else {
                    continue;
                };
                endpoint.send(&message).unwrap();
                drop(message);
                endpoint.close().unwrap();
                exchanges += 1;
            }
        }
        "b" => {
            let address = format!("{}", lab.peer_at(PORT));
            let exchange = |endpoint: Endpoint| {
                endpoint.send(b"hello").unwrap();
                assert_eq!(*endpoint.recv_timeout(TIME_LIMIT).unwrap(), *b"hello");
                let _ = endpoint.close();
            };
            let engine = Engine::shared().unwrap();
            // After this exchange over TCP, the listener is bound and no RDMA packet is in flight.
            exchange(connect(&format!("tcp://{address}")));
            let firewall = Firewall::new();
            let address = format!("auto://{address}");
            let first = connect(&address);
            assert_eq!(first.info().transport, Transport::Tcp);
            exchange(first);
            // The end of the attempt over RDMA can send a packet. Wait until it has been sent.
            assert_eq!(engine.drain(TIME_LIMIT).unwrap(), 0);
            let tried = firewall.sent();
            assert!(tried > 0, "the connector must try RDMA first");
            let second = connect(&address);
            assert_eq!(second.info().transport, Transport::Tcp);
            assert_eq!(
                firewall.sent(),
                tried,
                "the connector must not try RDMA again"
            );
            exchange(second);
        }
        other => panic!("{other} is neither host a nor host b"),
    }
}
