//! Helpers shared by all modules of this program.

use std::{
    env,
    net::{IpAddr, SocketAddr},
};

use common::connect_and_accept;
pub(crate) use common::{TIME_LIMIT, connector, ip_and_transport, with_time_to_connect};
use rdmsg::{Config, Connector, Endpoint, Engine, Listener, Transport};

/// Returns the address as text, with the host as one decimal number. `getaddrinfo` accepts this
/// form, but Rust's parser does not.
pub(crate) fn as_number(addr: SocketAddr) -> String {
    let IpAddr::V4(host) = addr.ip() else {
        panic!("{addr}")
    };
    format!("{}:{}", u32::from(host), addr.port())
}

/// Returns both ends of a connection as types for blocking threads, the connecting end first.
pub(crate) fn pair_with(config: &Config) -> (Endpoint, Endpoint) {
    let engine = Engine::shared().unwrap();
    let config = &with_time_to_connect(config);
    let listener = Listener::builder()
        .config(config)
        .engine(&engine)
        .bind((ip_and_transport().0, 0))
        .unwrap();
    let connector = Connector::new().config(config);
    let (connected, accepted) = connect_and_accept(&connector, &listener);
    assert_eq!(
        connected.info().transport,
        ip_and_transport().1,
        "the connection must use the expected transport"
    );
    (connected, accepted)
}

/// Returns a configuration with a small window, which tests fill quickly.
pub(crate) fn small() -> Config {
    let mut config = with_time_to_connect(&Config::default());
    config.receive_window = Some(2);
    config.send_depth = Some(2);
    config
}

/// Returns bytes of a test stream, starting at a position.
pub(crate) use pattern::sequence as bytes;

/// Returns message `number`. The receiver reads long messages from the sender's memory.
pub(crate) fn message(number: usize) -> Vec<u8> {
    let len = match number % 4 {
        0 => 8,
        1 => 1000,
        2 => 100_000,
        _ => 16,
    };
    let mut message = bytes(number * 31, len);
    message[..8].copy_from_slice(&(number as u64).to_le_bytes());
    message
}

/// Returns the number of rounds of the long tests, and the length of a round in bytes.
/// `RDMSG_ROUNDS` sets the number of rounds. If this variable is not set, there is one round, which
/// has 10 MiB over TCP and 1 MiB over RDMA. If the variable is set, each round has 10 MiB.
pub(crate) fn long_run() -> (u32, usize) {
    match (env::var("RDMSG_ROUNDS"), ip_and_transport().1) {
        (Ok(rounds), _) => (rounds.parse().unwrap(), 10 << 20),
        (Err(_), Transport::Tcp) => (1, 10 << 20),
        (Err(_), _) => (1, 1 << 20),
    }
}
