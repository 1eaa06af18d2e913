//! Tests `rdmsg::rsocket` with connections within this process. The interoperability tests connect
//! streams to C programs.

mod by_hand;

use std::{
    io::{ErrorKind, Read, Write},
    net::Shutdown,
    sync::Arc,
    thread,
    time::Duration,
};

use rdmsg::{
    CloseReason,
    rsocket::{Config, Listener, Stream},
};
use toolbox::{DeviceTest, Lab, TIME_LIMIT, connect, read_sequence, reason, write_sequence};

/// Returns both ends of a new connection, the connecting end first.
fn pair(config: &Config) -> (Stream, Stream) {
    let listener = Listener::bind_with(Lab::get().at(0), config).unwrap();
    let address = listener.local_addr().unwrap();
    let accepting = thread::spawn(move || listener.accept().unwrap());
    let client = Stream::connect_with(address, config).unwrap();
    let (server, peer) = accepting.join().unwrap();
    assert_eq!(peer, client.local_addr().unwrap());
    assert_eq!(client.peer_addr().unwrap(), address);
    (client, server)
}

/// Returns the default configuration with a connect timeout that is long enough for a busy machine.
fn patient() -> Config {
    let mut config = Config::default();
    config.connect_timeout = TIME_LIMIT;
    config
}

fn small() -> Config {
    let mut config = patient();
    config.send_buffer = 3000;
    config.receive_buffer = 2000;
    config.receive_queue = 4;
    config.send_queue = 3;
    config
}

/// On each side, one thread reads and another writes. The data is larger than all buffers together.
#[test]
fn both_directions_at_once() {
    let _test = DeviceTest::start();
    for (config, len) in [(patient(), 8 << 20), (small(), 300_000)] {
        let (client, server) = pair(&config);
        thread::scope(|scope| {
            for stream in [&client, &server] {
                scope.spawn(move || write_sequence(stream, len, 70_001));
                scope.spawn(move || read_sequence(stream, len, 9_999));
            }
        });
    }
}

/// Establishes one hundred connections, one after another. A connection can send only after it has
/// received the windows that the peer announces directly after the connect.
#[test]
fn no_connection_misses_a_window() {
    const ROUNDS: u32 = 100;
    let lab = DeviceTest::start();
    let listener = Listener::bind_with(lab.at(0), &small()).unwrap();
    let address = listener.local_addr().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..ROUNDS {
                read_sequence(&listener.accept().unwrap().0, 4000, 500);
            }
        });
        for _ in 0..ROUNDS {
            let client = Stream::connect_with(address, &small()).unwrap();
            write_sequence(&client, 4000, 500);
        }
    });
}

#[test]
fn small_pieces_arrive_in_order() {
    let _test = DeviceTest::start();
    for config in [patient(), small()] {
        let (client, server) = pair(&config);
        thread::scope(|scope| {
            scope.spawn(|| write_sequence(&client, 20_000, 7));
            scope.spawn(|| read_sequence(&server, 20_000, 3));
        });
    }
}

/// The reader receives all bytes that were written before the shutdown, and then the end of file.
/// The other direction remains open.
#[test]
fn one_direction_ends_before_the_other() {
    let _test = DeviceTest::start();
    let (mut client, mut server) = pair(&patient());
    client.write_all(b"a question").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let error = client.write(b"more").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    let mut question = String::new();
    server.read_to_string(&mut question).unwrap();
    assert_eq!(question, "a question");
    server.write_all(b"an answer").unwrap();
    drop(server);
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "an answer");
}

#[test]
fn a_dropped_stream_delivers_first() {
    let _test = DeviceTest::start();
    let mut config = patient();
    config.receive_buffer = 1 << 20;
    config.send_buffer = 1 << 20;
    let (client, mut server) = pair(&config);
    write_sequence(&client, 400_000, 400_000);
    drop(client);
    read_sequence(&server, 400_000, 10_000);
    assert_eq!(server.read(&mut [0; 8]).unwrap(), 0);
    let error = server.write(b"nobody is there").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
}

#[test]
fn waiting_is_bounded_where_it_should_be() {
    let _test = DeviceTest::start();
    let mut config = small();
    config.receive_queue = 384;
    let (mut client, mut server) = pair(&config);
    let mut buffer = [0; 100];
    client.set_read_timeout(Some(Duration::from_millis(20)));
    let error = client.read(&mut buffer).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    client.set_nonblocking(true);
    let error = client.read(&mut buffer).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    // Write until the peer's receive memory is full.
    let error = loop {
        if let Err(error) = client.write(&[7; 100]) {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    let error = client.wait_writable(Some(Duration::from_millis(20)));
    assert_eq!(error.unwrap_err().kind(), ErrorKind::TimedOut);
    server.wait_readable(None).unwrap();
    let mut got = 0;
    server.set_read_timeout(Some(Duration::from_millis(500)));
    while let Ok(count) = server.read(&mut buffer) {
        assert!(buffer[..count].iter().all(|byte| *byte == 7));
        got += count;
    }
    // The server receives at least 1000 bytes: one window, which is half of its receive memory. It
    // receives at most 5000 bytes: its receive memory and the client's send memory together.
    assert!((1000..=2000 + 3000).contains(&got), "{got}");
    client.wait_writable(Some(Duration::from_secs(20))).unwrap();
    client.set_nonblocking(false);
    client.write_all(b"on").unwrap();
    server.read_exact(&mut buffer[..2]).unwrap();
    assert_eq!(&buffer[..2], b"on");
}

/// A shutdown by one thread wakes another thread that is blocked in a read.
#[test]
fn shutdown_wakes_blocked_readers() {
    let _test = DeviceTest::start();
    for how in [Shutdown::Read, Shutdown::Both] {
        let (client, _server) = pair(&patient());
        let client = Arc::new(client);
        let reader = Arc::clone(&client);
        let reading = thread::spawn(move || (&*reader).read(&mut [0; 8]).unwrap());
        client.shutdown(how).unwrap();
        assert_eq!(reading.join().unwrap(), 0);
    }
}

/// Three threads read: one thread sleeps in the kernel, and the other two wait for the first one.
/// Meanwhile the stream sends frequent keepalive probes. When the connection ends, all reads must
/// return.
#[test]
fn end_of_peer_wakes_all_waiting_threads() {
    let _test = DeviceTest::start();
    for _ in 0..20 {
        let (client, server) = pair(&small());
        client
            .set_keepalive(Some(Duration::from_micros(50)))
            .unwrap();
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| assert_eq!((&client).read(&mut [0; 8]).unwrap(), 0));
            }
            drop(server);
        });
    }
}

#[test]
fn keepalive_goes_on_without_calls() {
    let _test = DeviceTest::start();
    let (client, mut server) = pair(&patient());
    client
        .set_keepalive(Some(Duration::from_millis(1)))
        .unwrap();
    // The client sends about 200 keepalive probes before the read below times out. A probe contains
    // no data, so it must not complete the read.
    server.set_read_timeout(Some(Duration::from_millis(200)));
    let error = server.read(&mut [0; 8]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    client.set_keepalive(None).unwrap();
    write_sequence(&client, 1000, 10);
    read_sequence(&server, 1000, 1000);
}

/// An rsocket listener rejects a client that uses another protocol, and remains open.
#[test]
fn foreign_clients_are_rejected() {
    let lab = DeviceTest::start();
    let listener = Listener::bind(lab.at(0)).unwrap();
    let address = listener.local_addr().unwrap();
    assert!(
        listener
            .accept_timeout(Duration::from_millis(1))
            .unwrap()
            .is_none()
    );
    let accepting = thread::spawn(move || listener.accept().unwrap().0);
    assert_eq!(reason(connect(address)), CloseReason::PeerIsRsocket);
    let client = Stream::connect_with(address, &patient()).unwrap();
    let server = accepting.join().unwrap();
    write_sequence(&client, 100, 100);
    read_sequence(&server, 100, 100);
    let error = Stream::connect_with(lab.at(1), &patient()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
}

/// Each side's error names the other side's protocol. The connection manager itself reports only
/// "CONSUMER_DEFINED".
#[test]
fn endpoint_and_rsocket_name_each_other_as_foreign() {
    let lab = DeviceTest::start();
    let rsocket = Listener::bind(lab.at(0)).unwrap();
    let address = rsocket.local_addr().unwrap();
    let connecting = thread::spawn(move || connect(address).unwrap_err());
    // The listener rejects the request during this call.
    while !connecting.is_finished() {
        let accepted = rsocket.accept_timeout(Duration::from_millis(100));
        assert!(accepted.unwrap().is_none());
    }
    let error = connecting.join().unwrap();
    assert!(
        matches!(
            error,
            rdmsg::Error::Connect {
                reason: CloseReason::PeerIsRsocket,
                ..
            }
        ),
        "{error:?}"
    );
    assert!(error.to_string().contains("rdmsg::rsocket"), "{error}");

    let endpoints = rdmsg::Listener::bind(lab.at(0)).unwrap();
    let error = Stream::connect_with(endpoints.local_addr(), &patient()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{error}");
    assert!(error.to_string().contains("rdmsg::Endpoint"), "{error}");
}

/// A listener is bound to an IPv4 address. A client connects to the same port at an IPv6 address of
/// the same host. The host's connection manager rejects the request.
#[test]
fn ipv6_client_of_ipv4_listener_gets_clear_error() {
    let lab = DeviceTest::start();
    let rsocket = Listener::bind(lab.at(0)).unwrap();
    let endpoints = rdmsg::Listener::bind(lab.at(0)).unwrap();
    // iWARP uses the port space of TCP, which is separate for IPv4 and IPv6. The request therefore
    // finds no listener on its port.
    let hint = if lab.is_iwarp() {
        "no program listens on this port"
    } else {
        "the other of IPv4 and IPv6"
    };

    let address = (lab.addr6, rsocket.local_addr().unwrap().port());
    let error = Stream::connect_with(address, &patient()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{error}");
    assert!(error.to_string().contains(hint), "{error}");

    let address = (lab.addr6, endpoints.local_addr().port());
    let error = connect(address).unwrap_err();
    assert!(error.to_string().contains(hint), "{error}");
    let error = std::io::Error::from(error);
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{error}");
}

#[test]
fn a_hundred_connections_leave_nothing() {
    let lab = DeviceTest::start();
    let once = || {
        let (client, server) = pair(&patient());
        write_sequence(&client, 1000, 100);
        read_sequence(&server, 1000, 100);
    };
    once();
    let before = lab.resources();
    for _ in 0..100 {
        once();
    }
    assert_eq!(lab.resources(), before);
}
