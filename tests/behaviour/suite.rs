//! Tests of behaviour that programs expect of byte streams.

use std::{
    io::{ErrorKind, IoSlice, Read, Write},
    net::Shutdown,
    sync::mpsc,
    thread,
    time::Duration,
};

use super::{Listener, Stream, bind, connect};

/// A length in bytes that exceeds the total size of all buffers between the two ends of a stream.
const STREAM_LEN: usize = 40 << 20;

fn pair() -> (Stream, Stream) {
    let listener: Listener = bind();
    let addr = listener.local_addr().unwrap();
    let client = thread::spawn(move || connect(addr));
    let (server, peer) = listener.accept().unwrap();
    let client = client.join().unwrap();
    assert_eq!(client.peer_addr().unwrap(), addr);
    assert_eq!(server.peer_addr().unwrap(), peer);
    assert_eq!(client.local_addr().unwrap().ip(), peer.ip());
    (client, server)
}

fn pattern(len: usize) -> Vec<u8> {
    pattern::sequence(0, len)
}

/// Writes until all buffers between the two ends are full and the next write would block. Returns
/// the number of bytes written.
fn fill(mut stream: &Stream) -> usize {
    stream.set_nonblocking(true).unwrap();
    let mut written = 0;
    let chunk = pattern(1 << 16);
    loop {
        let from = written % chunk.len();
        match stream.write(&chunk[from..]) {
            Ok(count) => written += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => panic!("{error}"),
        }
    }
    stream.set_nonblocking(false).unwrap();
    written
}

#[test]
fn bytes_keep_order_for_any_sizes_of_pieces() {
    let (mut client, mut server) = pair();
    let sent = pattern(3_000_000);
    let expected = sent.clone();
    let writer = thread::spawn(move || {
        let mut rest = &sent[..];
        let mut size = 1;
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(size.min(rest.len()));
            client.write_all(piece).unwrap();
            rest = after;
            size = size * 3 % 200_003;
        }
        client
    });
    let mut got = Vec::new();
    let mut size = 1;
    while got.len() < expected.len() {
        let mut buf = vec![0; size];
        let count = server.read(&mut buf).unwrap();
        assert!(count > 0);
        got.extend_from_slice(&buf[..count]);
        size = size * 5 % 70_001;
    }
    assert!(got == expected);
    drop(writer.join().unwrap());
    assert_eq!(server.read(&mut [0; 1]).unwrap(), 0);
}

#[test]
fn read_boundaries_are_independent_of_writes() {
    let (mut client, mut server) = pair();
    client.write_all(b"hello world").unwrap();
    let mut five = [0; 5];
    server.read_exact(&mut five).unwrap();
    assert_eq!(&five, b"hello");
    client.write_all(b"!").unwrap();
    let mut rest = [0; 7];
    server.read_exact(&mut rest).unwrap();
    assert_eq!(&rest, b" world!");
}

#[test]
fn empty_write_sends_nothing() {
    let (mut client, mut server) = pair();
    assert_eq!(client.write(&[]).unwrap(), 0);
    assert_eq!(client.write_vectored(&[]).unwrap(), 0);
    client.write_all(b"x").unwrap();
    let mut one = [0; 4];
    assert_eq!(server.read(&mut one).unwrap(), 1);
}

#[test]
fn parts_are_written_one_after_the_other() {
    let (mut client, mut server) = pair();
    let large = pattern(100_000);
    let parts = [&b""[..], b"one", b"", b"two", &large, b"three"];
    let whole = parts.concat();
    let expected = whole.clone();
    let reader = thread::spawn(move || {
        let mut got = vec![0; expected.len()];
        server.read_exact(&mut got).unwrap();
        assert!(got == expected);
    });
    let slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
    let mut written = client.write_vectored(&slices).unwrap();
    assert!(written > 0);
    while written < whole.len() {
        written += client.write(&whole[written..]).unwrap();
    }
    reader.join().unwrap();
}

#[test]
fn megabytes_flow_both_ways_at_once() {
    let (client, server) = pair();
    let run = |stream: Stream| {
        let mut writing = stream.try_clone().unwrap();
        let writer = thread::spawn(move || {
            let chunk = pattern(1 << 20);
            for _ in 0..STREAM_LEN / chunk.len() {
                writing.write_all(&chunk).unwrap();
            }
            writing.shutdown(Shutdown::Write).unwrap();
        });
        let chunk = pattern(1 << 20);
        let mut reading = stream;
        let mut got = vec![0; chunk.len()];
        for _ in 0..STREAM_LEN / chunk.len() {
            reading.read_exact(&mut got).unwrap();
            assert!(got == chunk);
        }
        assert_eq!(reading.read(&mut got).unwrap(), 0);
        writer.join().unwrap();
    };
    let other = thread::spawn(move || run(server));
    run(client);
    other.join().unwrap();
}

#[test]
fn shutdown_ends_one_direction_only() {
    let (mut client, mut server) = pair();
    client.write_all(b"question").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut question = String::new();
    server.read_to_string(&mut question).unwrap();
    assert_eq!(question, "question");
    assert_eq!(
        server.read(&mut [0; 1]).unwrap(),
        0,
        "each read after the end must return 0 bytes"
    );
    for _ in 0..3 {
        server.write_all(b"answer").unwrap();
        let mut answer = [0; 6];
        client.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"answer");
    }
    let error = client.write(b"more").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    // A second shutdown has no effect.
    client.shutdown(Shutdown::Write).unwrap();
    drop(server);
    assert_eq!(client.read(&mut [0; 1]).unwrap(), 0);
}

#[test]
fn a_shutdown_of_reading_ends_reads_that_wait() {
    let (mut client, server) = pair();
    let mut waiting = server.try_clone().unwrap();
    let (ready, is_ready) = mpsc::channel();
    let reader = thread::spawn(move || {
        ready.send(()).unwrap();
        waiting.read(&mut [0; 8]).unwrap()
    });
    is_ready.recv().unwrap();
    server.shutdown(Shutdown::Read).unwrap();
    assert_eq!(reader.join().unwrap(), 0);
    assert_eq!((&server).read(&mut [0; 8]).unwrap(), 0);
    // The server can still write, because the shutdown ended only its reads.
    (&server).write_all(b"still").unwrap();
    let mut still = [0; 5];
    client.read_exact(&mut still).unwrap();
    assert_eq!(&still, b"still");
}

#[test]
fn dropped_stream_ends_after_all_written_bytes() {
    let (mut client, mut server) = pair();
    let sent = pattern(2_500_000);
    let expected = sent.clone();
    let reader = thread::spawn(move || {
        let mut got = Vec::new();
        server.read_to_end(&mut got).unwrap();
        assert!(
            got == expected,
            "the received {} bytes must equal the {} bytes sent",
            got.len(),
            expected.len()
        );
    });
    client.write_all(&sent).unwrap();
    drop(client);
    reader.join().unwrap();
}

#[test]
fn writes_to_a_peer_that_is_gone_fail() {
    let (mut client, server) = pair();
    drop(server);
    let error = loop {
        if let Err(error) = client.write(&[1; 1024]) {
            break error;
        }
    };
    let kinds = [ErrorKind::BrokenPipe, ErrorKind::ConnectionReset];
    assert!(kinds.contains(&error.kind()), "{error:?}");
}

#[test]
fn a_clone_is_another_handle_of_the_same_stream() {
    let (client, mut server) = pair();
    let mut other = client.try_clone().unwrap();
    drop(client);
    other.write_all(b"x").unwrap();
    server.read_exact(&mut [0; 1]).unwrap();
    other
        .set_read_timeout(Some(Duration::from_secs(5)))
        .unwrap();
    let third = other.try_clone().unwrap();
    assert_eq!(third.read_timeout().unwrap(), Some(Duration::from_secs(5)));
    drop((other, third));
    assert_eq!(server.read(&mut [0; 1]).unwrap(), 0);
}

#[test]
fn a_timeout_ends_a_read_and_takes_nothing() {
    let (mut client, mut server) = pair();
    assert_eq!(server.read_timeout().unwrap(), None);
    let error = server.set_read_timeout(Some(Duration::ZERO)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    server
        .set_read_timeout(Some(Duration::from_millis(20)))
        .unwrap();
    let error = server.read(&mut [0; 8]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    server.set_read_timeout(None).unwrap();
    client.write_all(b"late").unwrap();
    let mut late = [0; 4];
    server.read_exact(&mut late).unwrap();
    assert_eq!(&late, b"late");
}

#[test]
fn a_timeout_ends_a_write_for_which_there_is_no_room() {
    let (mut client, mut server) = pair();
    let error = client.set_write_timeout(Some(Duration::ZERO)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    client
        .set_write_timeout(Some(Duration::from_millis(20)))
        .unwrap();
    let timeout = client.write_timeout().unwrap().unwrap();
    assert!(timeout >= Duration::from_millis(20));
    let mut written = fill(&client);
    let chunk = pattern(1 << 16);
    let error = loop {
        match client.write(&chunk[written % chunk.len()..]) {
            Ok(count) => written += count,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    drop(client);
    let mut got = Vec::new();
    server.read_to_end(&mut got).unwrap();
    assert_eq!(
        got.len(),
        written,
        "exactly the bytes that the writes accepted must arrive"
    );
    let expected = got
        .iter()
        .enumerate()
        .all(|(at, byte)| *byte == chunk[at % chunk.len()]);
    assert!(expected);
}

#[test]
fn nonblocking_read_and_write_report_would_block() {
    let (mut client, mut server) = pair();
    server.set_nonblocking(true).unwrap();
    let error = server.read(&mut [0; 8]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    let written = fill(&client);
    assert!(written > 0);
    server.set_nonblocking(false).unwrap();
    // Read all bytes with one call, because reading single bytes would take too long.
    let mut got = vec![0; written];
    server.read_exact(&mut got).unwrap();
    client.write_all(b"room again").unwrap();
    let mut again = [0; 10];
    server.read_exact(&mut again).unwrap();
    assert_eq!(&again, b"room again");
}

#[test]
fn peek_returns_bytes_without_taking_them() {
    let (mut client, mut server) = pair();
    client.write_all(b"peekaboo").unwrap();
    let mut peeked = [0; 4];
    for _ in 0..2 {
        let count = server.peek(&mut peeked).unwrap();
        assert_eq!(peeked[..count], b"peek"[..count]);
    }
    let mut whole = [0; 8];
    server.read_exact(&mut whole).unwrap();
    assert_eq!(&whole, b"peekaboo");
    server.set_nonblocking(true).unwrap();
    assert_eq!(
        server.peek(&mut peeked).unwrap_err().kind(),
        ErrorKind::WouldBlock
    );
    drop(client);
    server.set_nonblocking(false).unwrap();
    assert_eq!(server.peek(&mut peeked).unwrap(), 0);
}

#[test]
fn nodelay_can_be_set_and_no_error_is_pending() {
    let (client, _server) = pair();
    client.set_nodelay(true).unwrap();
    assert!(client.nodelay().unwrap());
    assert!(client.take_error().unwrap().is_none());
}

#[test]
fn a_reader_and_a_writer_share_a_reference() {
    let (client, server) = pair();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut all = Vec::new();
            (&server).read_to_end(&mut all).unwrap();
            (&server).write_all(&all).unwrap();
            server.shutdown(Shutdown::Write).unwrap();
        });
        (&client).write_all(b"there and back").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut back = String::new();
        (&client).read_to_string(&mut back).unwrap();
        assert_eq!(back, "there and back");
    });
}

#[test]
fn both_may_end_at_once() {
    let (client, server) = pair();
    for stream in [&client, &server] {
        stream.shutdown(Shutdown::Both).unwrap();
    }
    for mut stream in [client, server] {
        assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
        assert_eq!(
            stream.write(b"x").unwrap_err().kind(),
            ErrorKind::BrokenPipe
        );
    }
}

#[test]
fn nonblocking_accept_reports_would_block() {
    let listener = bind();
    listener.set_nonblocking(true).unwrap();
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    let addr = listener.local_addr().unwrap();
    let client = thread::spawn(move || connect(addr));
    let mut server = loop {
        match listener.accept() {
            Ok((server, _)) => break server,
            Err(error) if error.kind() == ErrorKind::WouldBlock => thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    };
    let mut client = client.join().unwrap();
    server.set_nonblocking(false).unwrap();
    client.write_all(b"x").unwrap();
    server.read_exact(&mut [0; 1]).unwrap();
}

#[test]
fn listener_returns_each_connection() {
    let listener = bind();
    let addr = listener.local_addr().unwrap();
    let clients = thread::spawn(move || {
        for number in 0..5_u8 {
            let mut client = connect(addr);
            client.write_all(&[number]).unwrap();
        }
    });
    for (number, stream) in (0..5).zip(listener.incoming()) {
        let mut got = Vec::new();
        stream.unwrap().read_to_end(&mut got).unwrap();
        assert_eq!(got, [number]);
    }
    clients.join().unwrap();
}

#[test]
fn missing_listener_is_reported() {
    let addr = bind().local_addr().unwrap();
    let error = Stream::connect(addr).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
}
