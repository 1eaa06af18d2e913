//! Tests of behaviour in which the streams of `rdmsg` differ from std's streams.

use std::{
    io::{BufRead, ErrorKind, Read, Write},
    thread,
    time::Duration,
};

use common::{TIME_LIMIT, connect_and_accept, connector, local_ip, with_time_to_connect};
use rdmsg::{
    CloseReason, Config, Connector, Endpoint, Error, Interest, Listener, Stream, StreamListener,
    ToAddresses,
};

fn pair() -> (Stream, Stream) {
    pair_with(&Config::default())
}

/// Returns both ends of a connection with the smallest permitted buffer. The tests fill this buffer
/// with single bytes. Filling the default buffer would take too long.
fn small_pair() -> (Stream, Stream) {
    pair_with(&Config::default().with(|c| c.stream_buffer = 64 << 10))
}

fn pair_with(config: &Config) -> (Stream, Stream) {
    let config = &with_time_to_connect(config);
    let builder = Listener::builder().config(config);
    let listener = builder.bind_stream((local_ip(), 0)).unwrap();
    let addr = listener.local_addr().unwrap();
    let connector = Connector::new().config(config);
    let client = thread::spawn(move || connector.connect_stream(addr).unwrap());
    let (server, _) = listener.accept().unwrap();
    (client.join().unwrap(), server)
}

fn endpoints() -> (Endpoint, Endpoint) {
    let listener = Listener::bind((local_ip(), 0)).unwrap();
    connect_and_accept(&connector(), &listener)
}

#[test]
fn lines_are_read_across_writes_and_with_a_clone() {
    let (mut client, mut server) = pair();
    client.write_all(b"one\ntwo\nthr").unwrap();
    client.write_all(b"ee\n").unwrap();
    drop(client);
    for shared in [false, true] {
        let clone = shared.then(|| server.try_clone().unwrap());
        let mut line = String::new();
        server.read_line(&mut line).unwrap();
        assert_eq!(line, if shared { "two\n" } else { "one\n" });
        drop(clone);
    }
    let lines: Vec<String> = server.lines().map(Result::unwrap).collect();
    assert_eq!(lines, ["three"]);
}

#[test]
fn the_halves_of_a_stream_serve_two_threads() {
    let (client, mut server) = pair();
    let (mut reading, mut writing) = client.split();
    assert_eq!(
        reading.stream().peer_addr().unwrap(),
        writing.stream().peer_addr().unwrap()
    );
    let writer = thread::spawn(move || writing.write_all(b"to the server").unwrap());
    let mut got = String::new();
    server.read_to_string(&mut got).unwrap();
    writer.join().unwrap();
    assert_eq!(
        got, "to the server",
        "dropping the writing half must end the stream to the server"
    );
    server.write_all(b"and back\n").unwrap();
    let mut line = String::new();
    reading.read_line(&mut line).unwrap();
    assert_eq!(line, "and back\n");
}

#[test]
fn end_without_finish_is_an_error_not_eof() {
    for closes in [false, true] {
        let (client, server) = endpoints();
        client.send(b"half a rec").unwrap();
        let mut stream = Stream::from(server);
        let mut got = [0; 10];
        stream.read_exact(&mut got).unwrap();
        if closes {
            thread::spawn(move || client.close());
        } else {
            client.abort(7);
        }
        let error = stream.read(&mut got).unwrap_err();
        let expected = if closes {
            ErrorKind::UnexpectedEof
        } else {
            ErrorKind::ConnectionReset
        };
        assert_eq!(error.kind(), expected, "{error}");
        assert_eq!(stream.take_error().unwrap().is_none(), closes);
    }
}

#[test]
fn stream_and_endpoint_refuse_each_other_with_reason() {
    let refused = |reason: &CloseReason, side: &str| {
        let CloseReason::PeerIncompatible(mismatch) = reason else {
            panic!("{reason}");
        };
        assert_eq!(mismatch.field, "stream");
        assert!(mismatch.to_string().starts_with(side), "{mismatch}");
    };
    let listener = StreamListener::bind((local_ip(), 0)).unwrap();
    let addr = listener.local_addr().unwrap();
    let error = connector().connect(addr).unwrap_err();
    let Error::Connect { reason, .. } = &error else {
        panic!("{error}");
    };
    refused(reason, "this side sends messages");

    let listener = Listener::bind((local_ip(), 0)).unwrap();
    let error = Stream::connect_timeout(listener.local_addr(), TIME_LIMIT).unwrap_err();
    let error = error.into_inner().unwrap().downcast::<Error>().unwrap();
    let Error::Connect { reason, .. } = &*error else {
        panic!("{error}");
    };
    refused(reason, "this side sends a byte stream");
}

#[test]
fn streams_of_endpoints_skip_empty_messages() {
    let (client, server) = endpoints();
    for message in [&b""[..], b"a", b"", b"b"] {
        client.send(message).unwrap();
    }
    client.finish().unwrap();
    let mut got = String::new();
    Stream::from(server).read_to_string(&mut got).unwrap();
    assert_eq!(got, "ab");
}

#[test]
fn empty_messages_do_not_extend_read_timeout() {
    let (client, server) = endpoints();
    let flood = thread::spawn(move || while client.send(b"").is_ok() {});
    let mut stream = Stream::from(server);
    stream
        .set_read_timeout(Some(Duration::from_millis(50)))
        .unwrap();
    let error = stream.read(&mut [0; 1]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    stream.set_nonblocking(true).unwrap();
    let error = stream.read(&mut [0; 1]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    drop(stream);
    flood.join().unwrap();
}

#[test]
fn single_byte_writes_are_collected_and_arrive() {
    let (client, mut server) = small_pair();
    client.set_nonblocking(true).unwrap();
    let mut written = 0;
    while (&client).write(&[written as u8]).is_ok() {
        written += 1;
    }
    // Each byte was sent as a message until the window was full. The client's library has collected
    // the later bytes, to send them together.
    assert!(written > 16 << 10, "{written}");
    // The server receives all bytes although the client makes no further call.
    let mut got = vec![0; written];
    server.read_exact(&mut got).unwrap();
    assert!(got.iter().enumerate().all(|(at, byte)| *byte == at as u8));
    assert!((&client).write(b"x").is_ok());
}

#[test]
fn bytes_waiting_for_room_precede_the_end() {
    let (client, mut server) = small_pair();
    client.set_nonblocking(true).unwrap();
    let mut written = 0;
    while (&client).write(&[7]).is_ok() {
        written += 1;
    }
    drop(client);
    let mut got = Vec::new();
    server.read_to_end(&mut got).unwrap();
    assert_eq!(got.len(), written);
}

#[test]
fn fd_stays_readable_for_partial_message_and_at_end() {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    let (mut client, mut server) = pair();
    let readable = |stream: &Stream, timeout: PollTimeout| {
        let fd = stream.event_fd(Interest::Readable).unwrap();
        let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
        poll(&mut fds, timeout).unwrap() == 1
    };
    assert!(!readable(&server, PollTimeout::ZERO));
    client.write_all(b"ab").unwrap();
    assert!(readable(&server, PollTimeout::NONE));
    server.set_nonblocking(true).unwrap();
    assert_eq!(server.read(&mut [0; 1]).unwrap(), 1);
    assert!(
        readable(&server, PollTimeout::ZERO),
        "the fd must stay readable while a byte is unread"
    );
    assert_eq!(server.read(&mut [0; 1]).unwrap(), 1);
    assert!(!readable(&server, PollTimeout::ZERO));
    drop(client);
    assert!(readable(&server, PollTimeout::NONE));
    server.set_nonblocking(false).unwrap();
    for _ in 0..2 {
        assert_eq!(server.read(&mut [0; 1]).unwrap(), 0);
        assert!(
            readable(&server, PollTimeout::ZERO),
            "the fd must stay readable at the end of the stream"
        );
    }
}

#[test]
fn both_builders_make_streams() {
    let config = with_time_to_connect(&Config::default());
    let connector = Connector::new().config(&config);
    let builder = Listener::builder().config(&config.with(|c| c.eager_size = Some(1024)));
    let listener = builder.bind_stream((local_ip(), 0)).unwrap();
    let addr = listener.local_addr().unwrap();
    assert!(!listener.transports().is_empty());
    let client = thread::spawn(move || connector.connect_stream(addr).unwrap());
    let (server, _) = listener.accept().unwrap();
    let client = client.join().unwrap();
    assert_eq!(client.transport(), server.transport());
    assert!(addr.to_addresses().is_ok());
}
