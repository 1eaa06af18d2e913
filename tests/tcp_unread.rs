//! Measures the memory of unread streams over TCP. By itself: it measures its process.

use std::io::Write;

use rdmsg::{Config, Connector, Engine, EngineLimits, Listener, Stream, Transport};

const STREAMS: usize = 100;
/// The limit of the engine. Copies of unread bytes take up to half of it.
const HELD: usize = 16 << 20;
/// The most memory of both ends of a stream without copies: six frames of 64 KiB.
const EACH: usize = 6 * (64 << 10);
/// All streams take this many bytes at least.
const LEAST: usize = STREAMS * 4 * 60_000;

#[test]
fn unread_streams_fit_a_small_memory() {
    let mut limits = EngineLimits::default();
    limits.held = HELD as u64;
    let engine = Engine::with_limits(limits).unwrap();
    let config = Config::default().with_transport(Transport::Tcp);
    let builder = Listener::builder().config(config.clone()).engine(&engine);
    let listener = builder.bind_stream("127.0.0.1:0").unwrap();
    let connector = Connector::new().config(config).engine(&engine);
    let open = || {
        let addr = listener.local_addr().unwrap();
        let client = connector.connect_stream(addr).unwrap();
        client.set_nonblocking(true).unwrap();
        (client, listener.accept().unwrap().0)
    };
    let mut streams: Vec<_> = (0..STREAMS).map(|_| open()).collect();
    let before = resident();
    let (mut written, mut idle) = (0, 0);
    while written < LEAST || idle < 1000 {
        let taken: usize = streams.iter_mut().map(|(client, _)| fill(client)).sum();
        written += taken;
        idle = if taken == 0 { idle + 1 } else { 0 };
        std::thread::yield_now();
    }
    let used = resident() - before;
    assert!(used <= HELD / 2 + STREAMS * EACH, "{used} B");
}

/// Fills the stream, and returns the number of bytes that it took.
fn fill(stream: &mut Stream) -> usize {
    let piece = [7; 60_000];
    std::iter::from_fn(|| stream.write(&piece).ok()).sum()
}

/// Returns the memory of this process in bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}
