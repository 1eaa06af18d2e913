//! Helpers that several test programs use: a long timeout, the transport of the tests, connections
//! within one process, raw peers, collected log lines, and tests in separate processes.

pub mod apart;
pub mod log_lines;
pub mod raw_session;
pub mod same_errors;
pub mod tcp_peer;

use std::{
    env,
    net::{IpAddr, Ipv4Addr},
    thread,
    time::Duration,
};

use rdmsg::{Config, Connector, Endpoint, Listener, Transport, TransportChoice};

/// A time limit that expires only if a test fails, even on a busy machine.
pub const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Returns an address of this machine, and the transport of connections to this address. In the
/// lab, the variable `LAB_ADDR` contains the address of an RDMA device.
pub fn ip_and_transport() -> (IpAddr, Transport) {
    match env::var("LAB_ADDR") {
        Ok(address) => (address.parse().unwrap(), Transport::Rdma),
        Err(_) => (Ipv4Addr::LOCALHOST.into(), Transport::Tcp),
    }
}

/// Returns the address of [`ip_and_transport`].
pub fn local_ip() -> IpAddr {
    ip_and_transport().0
}

/// Returns whether connections to [`local_ip`] use RDMA.
pub fn is_rdma() -> bool {
    ip_and_transport().1 == Transport::Rdma
}

/// Returns `config`, with a longer connect timeout if it has the default one. On a busy machine, a
/// connect may take longer than the default.
pub fn with_time_to_connect(config: &Config) -> Config {
    config.clone().with(|config| {
        if config.connect_timeout == Config::default().connect_timeout {
            config.connect_timeout = TIME_LIMIT;
        }
    })
}

/// Returns `config`, with longer connect and keepalive timeouts if it has the default ones. On a
/// busy machine, a living peer may need more than the default time to answer, and concurrent
/// connects may take longer than the default.
pub fn patient(config: &Config) -> Config {
    with_time_to_connect(config).with(|config| {
        if config.keepalive_timeout == Config::default().keepalive_timeout {
            config.keepalive_timeout = TIME_LIMIT;
        }
    })
}

/// Returns a configuration for connections over TCP, with a connect timeout that suffices on a busy
/// machine.
pub fn tcp_config() -> Config {
    Config::default().with(|config| {
        config.transport = TransportChoice::Tcp;
        config.connect_timeout = TIME_LIMIT;
    })
}

/// Returns a connector with the default configuration, except for a connect timeout that suffices
/// on a busy machine.
pub fn connector() -> Connector {
    Connector::new().config(&with_time_to_connect(&Config::default()))
}

/// Connects to the listener in another thread, and accepts the connection. Returns both ends, the
/// connecting end first. The caller guarantees that no other program or thread connects to the
/// listener at the same time.
#[track_caller]
pub fn connect_and_accept(connector: &Connector, listener: &Listener) -> (Endpoint, Endpoint) {
    let (connector, address) = (connector.clone(), listener.local_addr());
    let connecting = thread::spawn(move || connector.connect(address).unwrap());
    let accepted = listener.accept_timeout(TIME_LIMIT).unwrap();
    (connecting.join().unwrap(), accepted)
}
