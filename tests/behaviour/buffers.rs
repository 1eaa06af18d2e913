//! Tests of the buffers of a stream. Most tests count the bytes that a stream accepts while its
//! peer does not read. A piece consists of the bytes that a test passes to one write.

use std::{
    io::{BufRead, ErrorKind, IoSlice, Read, Write},
    net::Shutdown,
    ops::RangeInclusive,
    thread,
    time::{Duration, Instant},
};

use common::{TIME_LIMIT, local_ip, with_time_to_connect};
use rdmsg::{Config, Connector, Engine, EngineLimits, Listener, Stream};

const MIB: usize = 1 << 20;

/// The permitted range for the number of bytes that a stream accepts with the default
/// `Config::stream_buffer` of 4 MiB. The sender and the receiver can each use half of this buffer.
/// If the pieces are longer than 16 KiB but shorter than the eager size, the sender uses little of
/// its half, so the stream accepts less than 4 MiB. If the final piece is large, the stream accepts
/// more than 4 MiB.
const ACCEPTED: RangeInclusive<usize> = 2 * MIB..=6 * MIB;

/// If a write blocks for this long, the test considers the stream full. On a slow machine, the
/// stream may not be full yet. The test then counts too few bytes.
const FULL_AFTER: Duration = Duration::from_millis(200);

fn pair() -> (Stream, Stream) {
    pair_with(&Config::default())
}

fn pair_with(config: &Config) -> (Stream, Stream) {
    pair_of(&Engine::shared().unwrap(), config)
}

/// Returns both ends of a connection, the connecting end first. The accepting end uses `engine`.
fn pair_of(engine: &Engine, config: &Config) -> (Stream, Stream) {
    let config = &with_time_to_connect(config);
    let builder = Listener::builder().engine(engine).config(config);
    let listener = builder.bind_stream((local_ip(), 0)).unwrap();
    let addr = listener.local_addr().unwrap();
    let connector = Connector::new().config(config);
    let client = thread::spawn(move || connector.connect_stream(addr).unwrap());
    let (server, _) = listener.accept().unwrap();
    (client.join().unwrap(), server)
}

/// The period of the test bytes, a prime number. A missing piece therefore changes the pattern,
/// unless its length is a multiple of the period.
const PERIOD: usize = 251;

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % PERIOD) as u8).collect()
}

/// Writes pieces until the stream has accepted at least `least` bytes and is full. Returns the
/// number of accepted bytes.
fn fill(mut stream: &Stream, piece: usize, least: usize) -> usize {
    let bytes = pattern(piece + PERIOD);
    let mut accepted = 0;
    loop {
        let time_limit = if accepted < least {
            TIME_LIMIT
        } else {
            FULL_AFTER
        };
        stream.set_write_timeout(Some(time_limit)).unwrap();
        let from = accepted % PERIOD;
        match stream.write(&bytes[from..from + piece]) {
            Ok(count) => accepted += count,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                return accepted;
            }
        }
    }
}

/// Reads to the end of the stream, and checks each byte. Returns the number of bytes read.
fn read_all(stream: &mut Stream) -> usize {
    let mut got = Vec::new();
    stream.read_to_end(&mut got).unwrap();
    let expected = pattern(PERIOD);
    assert!(
        got.chunks(PERIOD)
            .all(|bytes| *bytes == expected[..bytes.len()])
    );
    got.len()
}

fn unread_stream_takes_its_buffer(piece: usize) {
    unread_stream_takes(ACCEPTED, piece, &Config::default());
}

fn unread_stream_takes(bounds: RangeInclusive<usize>, piece: usize, config: &Config) {
    let (client, mut server) = pair_with(config);
    let accepted = fill(&client, piece, *bounds.start());
    assert!(
        bounds.contains(&accepted),
        "the stream accepted {accepted} B in pieces of {piece} B, expected {bounds:?}"
    );
    drop(client);
    assert_eq!(
        read_all(&mut server),
        accepted,
        "all bytes that the stream accepted must arrive"
    );
}

#[test]
fn unread_stream_takes_its_buffer_in_short_pieces() {
    unread_stream_takes_its_buffer(64);
    unread_stream_takes_its_buffer(1000);
}

#[test]
fn unread_stream_takes_its_buffer_in_long_pieces() {
    // The length 20,000 lies between the default eager sizes of RDMA and TCP.
    unread_stream_takes_its_buffer(20_000);
    unread_stream_takes_its_buffer(64 << 10);
    unread_stream_takes_its_buffer(MIB);
}

#[test]
fn unread_stream_takes_its_buffer_whatever_the_window() {
    // All configurations have the default eager size of RDMA. `narrow` and `single` have small
    // windows. `shared` uses receives of a pool.
    let eager = Config::default().with(|c| c.eager_size = Some(16 << 10));
    let narrow = eager.clone().with(|c| {
        c.receive_window = Some(3);
        c.send_depth = Some(2);
    });
    let single = eager.clone().with(|c| {
        c.receive_window = Some(1);
        c.send_depth = Some(1);
    });
    let shared = eager.clone().with(|c| c.shared_receive = Some(280));
    for config in [eager, narrow, single, shared] {
        for piece in [1000, 20_000, 64 << 10, MIB] {
            unread_stream_takes(ACCEPTED, piece, &config);
        }
    }
}

#[test]
fn stream_accepts_buffer_size_after_reader_stops() {
    for piece in [100, 20_000] {
        let (mut client, mut server) = pair();
        let bytes = pattern(200 * PERIOD);
        let reading = thread::spawn(move || {
            let mut got = vec![0; 100 * PERIOD];
            server.read_exact(&mut got).unwrap();
            server
        });
        // The server reads only half of these bytes. While the server reads, its library also
        // receives later pieces, which stay unread.
        for piece in bytes.chunks(PERIOD) {
            client.write_all(piece).unwrap();
        }
        let mut server = reading.join().unwrap();
        let accepted = fill(&client, piece, *ACCEPTED.start());
        assert!(
            ACCEPTED.contains(&accepted),
            "the stream accepted {accepted} B in pieces of {piece} B"
        );
        drop(client);
        assert_eq!(read_all(&mut server), 100 * PERIOD + accepted);
    }
}

#[test]
fn unread_stream_takes_as_much_as_configured() {
    // `stream_buffer` does not limit the bytes in receive buffers. Use a small eager size, so that
    // the receive buffers hold few bytes.
    let config = Config::default().with(|c| c.stream_buffer = 256 << 10);
    let config = config.with(|c| c.eager_size = Some(4096));
    let bounds = 128 << 10..=384 << 10;
    for piece in [1, 1000, 4096, 10_000, 64 << 10] {
        unread_stream_takes(bounds.clone(), piece, &config);
    }
}

#[test]
fn unread_bytes_of_streams_use_half_of_the_budget() {
    const HELD: u64 = 3 << 20;
    let mut limits = EngineLimits::default();
    limits.held = HELD;
    let engine = Engine::with_limits(limits).unwrap();
    let held = || engine.statistics().unwrap().held;
    let mut streams: Vec<_> = (0..3)
        .map(|_| {
            let (client, server) = pair_of(&engine, &Config::default());
            let accepted = fill(&client, 1000, *ACCEPTED.start());
            // All streams share the engine's budget for unread bytes. In addition, each sender can
            // fill the half of its stream buffer that holds written bytes.
            assert!(ACCEPTED.contains(&accepted), "{accepted}");
            drop(client);
            (server, accepted)
        })
        .collect();
    let start = Instant::now();
    while held() < HELD / 4 {
        assert!(
            start.elapsed() < TIME_LIMIT,
            "the engine holds only {} bytes",
            held()
        );
        thread::yield_now();
    }
    assert!(
        held() <= HELD / 2,
        "the engine holds {} bytes, more than half of its budget",
        held()
    );
    for (server, accepted) in &mut streams {
        assert_eq!(read_all(server), *accepted);
    }
    assert_eq!(
        held(),
        0,
        "the engine must release the memory of read bytes"
    );
}

#[test]
fn fill_buf_lends_each_piece_if_few_are_unread() {
    // All pieces fit into the send slots and into half of the receives, so neither side joins them.
    const PIECES: usize = 10;
    let (mut client, mut server) = pair();
    for number in 0..PIECES {
        client.write_all(&[number as u8; 10]).unwrap();
    }
    for number in 0..PIECES {
        assert_eq!(server.fill_buf().unwrap(), [number as u8; 10]);
        server.consume(10);
    }
}

#[test]
fn read_takes_what_peek_has_seen() {
    let (mut client, mut server) = pair();
    let bytes = pattern(300_000);
    for piece in bytes.chunks(30_000) {
        client.write_all(piece).unwrap();
    }
    let mut got = vec![0; bytes.len()];
    while server.peek(&mut got).unwrap() < bytes.len() {}
    got.fill(0);
    assert_eq!(server.read(&mut got).unwrap(), bytes.len());
    assert!(got == bytes);
}

#[test]
fn unread_stream_takes_its_buffer_in_mixed_pieces() {
    let (client, mut server) = pair();
    let mut accepted = 0;
    let bytes = pattern(300_000 + PERIOD);
    let full = |size: usize, accepted: &mut usize| {
        let least = *ACCEPTED.start();
        let time_limit = if *accepted < least {
            TIME_LIMIT
        } else {
            FULL_AFTER
        };
        client.set_write_timeout(Some(time_limit)).unwrap();
        let from = *accepted % PERIOD;
        let written = (&client).write(&bytes[from..from + size]);
        written.map(|count| *accepted += count).is_err()
    };
    while !(full(100, &mut accepted) || full(300_000, &mut accepted)) {}
    assert!(ACCEPTED.contains(&accepted), "{accepted}");
    drop(client);
    assert_eq!(read_all(&mut server), accepted);
}

#[test]
fn pipeline_that_writes_before_reading_completes() {
    const REQUESTS: usize = 10_000;
    let (mut client, mut server) = pair();
    let answering = thread::spawn(move || {
        let mut request = [0; 100];
        for _ in 0..REQUESTS {
            server.read_exact(&mut request).unwrap();
            server.write_all(&request).unwrap();
        }
    });
    for number in 0..REQUESTS {
        client.write_all(&[number as u8; 100]).unwrap();
    }
    let mut answer = [0; 100];
    for number in 0..REQUESTS {
        client.read_exact(&mut answer).unwrap();
        assert_eq!(answer, [number as u8; 100]);
    }
    answering.join().unwrap();
}

#[test]
fn blocking_write_takes_all_bytes() {
    let (mut client, mut server) = pair();
    // The test writes these bytes twice: first with `write`, and then with `write_vectored`.
    let bytes = pattern(8 * MIB / PERIOD * PERIOD);
    let reading = thread::spawn(move || read_all(&mut server));
    assert_eq!(client.write(&bytes).unwrap(), bytes.len());
    let parts: Vec<_> = bytes.chunks(3 * MIB / 2).map(IoSlice::new).collect();
    assert_eq!(client.write_vectored(&parts).unwrap(), bytes.len());
    drop(client);
    assert_eq!(reading.join().unwrap(), 2 * bytes.len());
}

#[test]
fn write_that_times_out_counts_what_it_took() {
    let (mut client, mut server) = pair();
    client.set_write_timeout(Some(FULL_AFTER)).unwrap();
    let bytes = pattern(32 * MIB);
    // On a busy machine, the timeout can expire before the buffers are full.
    let mut accepted = 0;
    let error = loop {
        match client.write(&bytes[accepted..]) {
            Ok(count) => accepted += count,
            Err(error) => break error,
        }
    };
    assert!((1..=*ACCEPTED.end()).contains(&accepted), "{accepted}");
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    drop(client);
    assert_eq!(read_all(&mut server), accepted);
}

#[test]
fn nonblocking_write_takes_the_bytes_that_fit() {
    let (mut client, mut server) = pair();
    client.set_nonblocking(true).unwrap();
    let bytes = pattern(32 * MIB);
    let mut accepted = 0;
    while let Ok(count) = client.write(&bytes[accepted..]) {
        accepted += count;
    }
    assert!((1..=*ACCEPTED.end()).contains(&accepted), "{accepted}");
    drop(client);
    assert_eq!(read_all(&mut server), accepted);
}

#[test]
fn peek_sees_all_that_has_arrived() {
    let (mut client, mut server) = pair();
    let header = pattern(1000);
    for piece in header.chunks(10) {
        client.write_all(piece).unwrap();
    }
    let mut peeked = [0; 2000];
    // Call `peek` repeatedly, like a program that waits for a complete header.
    while server.peek(&mut peeked[..1000]).unwrap() < header.len() {}
    assert_eq!(peeked[..1000], header);
    assert_eq!(
        server.peek(&mut peeked).unwrap(),
        1000,
        "peek must return only the bytes that have arrived"
    );
    assert_eq!(server.peek(&mut peeked[..15]).unwrap(), 15);
    let mut got = vec![0; 995];
    server.read_exact(&mut got).unwrap();
    assert_eq!(got, header[..995]);
    assert_eq!(server.peek(&mut peeked).unwrap(), 5);
    assert_eq!(peeked[..5], header[995..]);
}

#[test]
fn peek_returns_bytes_of_several_large_pieces() {
    let (mut client, mut server) = pair();
    let bytes = pattern(500_000);
    client.write_all(&bytes[..100]).unwrap();
    client.write_all(&bytes[100..300_000]).unwrap();
    client.write_all(&bytes[300_000..]).unwrap();
    let mut peeked = vec![0; bytes.len()];
    while server.peek(&mut peeked).unwrap() < bytes.len() {}
    assert!(peeked == bytes);
    drop(client);
    assert_eq!(read_all(&mut server), bytes.len());
}

#[test]
fn peer_writes_after_reading_is_shut_down() {
    let (mut client, mut server) = pair();
    server.shutdown(Shutdown::Read).unwrap();
    assert_eq!(server.read(&mut [0; 8]).unwrap(), 0);
    client.write_all(b"late").unwrap();
    let accepted = 4 + fill(&client, 1000, *ACCEPTED.start());
    assert!(ACCEPTED.contains(&accepted), "{accepted}");
    let mut got = [0; 4];
    server.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"late");
}
