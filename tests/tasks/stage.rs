//! What both have in common.

use std::{
    env,
    net::{IpAddr, SocketAddr},
    thread,
};

use rdmsg::{Config, Connector, Endpoint, Engine, Listener, Transport};

/// The address for this machine's connections to itself, and what carries them.
pub(crate) fn place() -> (IpAddr, Transport) {
    match env::var("LAB_ADDR") {
        Ok(addr) => (addr.parse().unwrap(), Transport::Rdma),
        Err(_) => ([127, 0, 0, 1].into(), Transport::Tcp),
    }
}

/// The address with its host as one number, which `getaddrinfo` takes and Rust does not.
pub(crate) fn as_number(addr: SocketAddr) -> String {
    let IpAddr::V4(host) = addr.ip() else {
        panic!("{addr}")
    };
    format!("{}:{}", u32::from(host), addr.port())
}

/// The end that connects and the end that accepts, for threads.
pub(crate) fn pair_with(config: &Config) -> (Endpoint, Endpoint) {
    let engine = Engine::shared().unwrap();
    let listener = Listener::builder()
        .config(config)
        .engine(&engine)
        .bind((place().0, 0))
        .unwrap();
    let addr = listener.local_addr();
    let connector = Connector::new().config(config);
    let connecting = thread::spawn(move || connector.connect(addr).unwrap());
    let accepted = listener.accept().unwrap();
    let connected = connecting.join().unwrap();
    assert_eq!(connected.transport(), place().1, "nothing stands in for it");
    (connected, accepted)
}

/// Few places, so that they are soon taken.
pub(crate) fn small() -> Config {
    let mut config = Config::default();
    config.receive_window = 2;
    config.send_depth = 2;
    config
}

/// The bytes of a stream from here on.
pub(crate) use pattern::sequence as bytes;

/// The message with this number: long ones are read by the peer.
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

/// How often the long tests run, and with how many bytes: with 10 MB where `RDMSG_ROUNDS` says how
/// often, and otherwise once, with fewer where each costs much.
pub(crate) fn long_run() -> (u32, usize) {
    match (env::var("RDMSG_ROUNDS"), place().1) {
        (Ok(rounds), _) => (rounds.parse().unwrap(), 10 << 20),
        (Err(_), Transport::Tcp) => (1, 10 << 20),
        (Err(_), _) => (1, 1 << 20),
    }
}
