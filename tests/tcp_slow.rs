//! Tests of connections over TCP on a slow path. Each byte that arrives is a sign of life, even if
//! its frame is still incomplete.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use common::{TIME_LIMIT, tcp_config};
use nix::sys::socket::{setsockopt, sockopt};
use rdmsg::{Config, Connector, Endpoint, Engine, Error, Listener};

/// The time without data from the peer after which the connection probes the peer.
const INTERVAL: Duration = Duration::from_millis(200);
/// The time within which the peer must reply to a probe.
const TIMEOUT: Duration = Duration::from_secs(2);

fn config() -> Config {
    let mut config = tcp_config();
    config.receive_window = Some(4);
    config.max_message = 4 << 20;
    config.keepalive_interval = Some(INTERVAL);
    config.keepalive_timeout = TIMEOUT;
    config
}

/// Starts a relay that forwards `bytes_per_second` bytes per second to `to`. Returns the address of
/// the relay.
fn slow_path(to: SocketAddr, bytes_per_second: usize) -> SocketAddr {
    const STEPS: usize = 25;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // Make segments shorter than the relay's receive window. With longer segments, the sender would
    // wait for its timer.
    setsockopt(&listener, sockopt::TcpMaxSeg, &1400).unwrap();
    let addr = listener.local_addr().unwrap();
    thread::spawn(move || {
        let (mut near, _) = listener.accept().unwrap();
        // Use a small receive buffer, so that the relay holds few bytes and the sender has to wait.
        setsockopt(&near, sockopt::RcvBuf, &(16 << 10)).unwrap();
        let mut far = TcpStream::connect(to).unwrap();
        let (mut back_from, mut back_to) = (far.try_clone().unwrap(), near.try_clone().unwrap());
        thread::spawn(move || std::io::copy(&mut back_from, &mut back_to));
        let mut bytes = vec![0; bytes_per_second / STEPS];
        while let Ok(count @ 1..) = near.read(&mut bytes) {
            if far.write_all(&bytes[..count]).is_err() {
                break;
            }
            thread::sleep(Duration::from_secs(1) / STEPS as u32);
        }
    });
    addr
}

/// Returns both ends of a connection. The connecting end sends over a slow path.
fn slow_pair(config: &Config, bytes_per_second: usize) -> (Endpoint, Endpoint) {
    let engine = Engine::new().unwrap();
    let listener = Listener::builder()
        .config(config)
        .engine(&engine)
        .bind("127.0.0.1:0")
        .unwrap();
    let addr = slow_path(listener.local_addr(), bytes_per_second);
    let connector = Connector::new().config(config).engine(&engine);
    let connecting = thread::spawn(move || connector.connect(addr).unwrap());
    let accepted = listener.accept_timeout(TIME_LIMIT).unwrap();
    (connecting.join().unwrap(), accepted)
}

#[test]
fn slow_frame_is_a_sign_of_life_of_both_sides() {
    let mut config = config();
    config.eager_size = Some(1 << 20);
    let (client, server) = slow_pair(&config, 150_000);
    let message = vec![7; 1 << 20];
    let start = Instant::now();
    client.send(&message).unwrap();
    let received = server.recv_timeout(TIME_LIMIT).unwrap();
    assert!(*received == message[..]);
    assert!(
        start.elapsed() > 2 * TIMEOUT,
        "the transfer must outlast the keepalive timeout"
    );
    client.flush().unwrap();
}

#[test]
fn read_with_progress_does_not_stall() {
    let mut config = config();
    config.keepalive_interval = None;
    config.read_timeout = TIMEOUT;
    config.eager_size = Some(1000);
    let (client, server) = slow_pair(&config, 20_000);
    let message = vec![7; 80_000];
    client.send(&message).unwrap();
    let received = server.recv_timeout(TIME_LIMIT).unwrap();
    assert!(*received == message[..]);
}

#[test]
fn wait_ends_in_time_while_a_large_message_trickles() {
    let mut config = config();
    config.keepalive_interval = None;
    config.eager_size = Some(1000);
    let (client, server) = slow_pair(&config, 2000);
    client.send(&vec![7; 1 << 20]).unwrap();
    let (start, timeout) = (Instant::now(), Duration::from_secs(6));
    let result = server.recv_timeout(timeout);
    assert!(matches!(result, Err(Error::TimedOut)), "{result:?}");
    let late = start.elapsed() - timeout;
    assert!(late < TIME_LIMIT, "{late:?}");
}
