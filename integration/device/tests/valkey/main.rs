//! Tests streams of Valkey over RDMA. Both ends of each stream are in this process.
//! `integration/interop` tests the streams with the program Valkey.

mod by_hand;
mod hostile;
mod tasks;

use std::{
    io::{ErrorKind, Read, Write},
    sync::mpsc::channel,
    thread,
    time::Duration,
};

use rdmsg_valkey::{Config, Listener, Stream};
use toolbox::{DeviceTest, Lab, TIME_LIMIT, applies, connect, read_sequence, write_sequence};

/// The device capability that the protocol needs.
const IMMEDIATE: &str = "RDMA WRITE with immediate data";

/// Starts a test. Returns `None` if the device does not support WRITEs with immediate data.
fn start() -> Option<DeviceTest> {
    let test = DeviceTest::start();
    applies(!test.is_iwarp(), IMMEDIATE).then_some(test)
}

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
    config.receive_queue = 64;
    config.send_queue = 3;
    // Without keepalive, a stream makes progress only while the application calls its methods.
    config.keepalive = None;
    config
}

/// Each side reads in one thread and writes in another thread. The data is larger than all buffers
/// together.
#[test]
fn both_directions_at_once() {
    let Some(_test) = start() else { return };
    for (config, len) in [(patient(), 3 << 20), (small(), 100_000)] {
        let (client, server) = pair(&config);
        thread::scope(|scope| {
            for stream in [&client, &server] {
                scope.spawn(move || write_sequence(stream, len, 70_001));
                scope.spawn(move || read_sequence(stream, len, 9_999));
            }
        });
    }
}

/// The reader receives all bytes that were written before the close, and then the end of file.
#[test]
fn closed_stream_delivers_and_ends() {
    let Some(_test) = start() else { return };
    let (client, mut server) = pair(&small());
    write_sequence(&client, 1500, 100);
    drop(client);
    read_sequence(&server, 1500, 1500);
    assert_eq!(server.read(&mut [0; 9]).unwrap(), 0);
    let error = server.write(b"more").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BrokenPipe, "{error}");
}

#[test]
fn shutdown_ends_a_read_of_another_thread() {
    let Some(_test) = start() else { return };
    let (client, mut server) = pair(&small());
    let mut reader = client.try_clone().unwrap();
    thread::scope(|scope| {
        let (reading, reads) = channel();
        let reading = scope.spawn(move || {
            let mut first = [0];
            reader.read_exact(&mut first).unwrap();
            reading.send(()).unwrap();
            reader.read(&mut first).unwrap()
        });
        server.write_all(b"1").unwrap();
        reads.recv().unwrap();
        client.shutdown().unwrap();
        assert_eq!(reading.join().unwrap(), 0);
    });
    assert_eq!(server.read(&mut [0; 9]).unwrap(), 0);
}

#[test]
fn timeouts_end_reads_and_writes() {
    let Some(_test) = start() else { return };
    let (mut client, mut server) = pair(&small());
    let short = Some(Duration::from_millis(30));
    client.set_read_timeout(short).unwrap();
    client.set_write_timeout(short).unwrap();
    let error = client.read(&mut [0; 9]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    // The server does not read, so only 2000 bytes fit into its buffer.
    assert_eq!(client.write(&[7; 2500]).unwrap(), 2000);
    let error = client.write(&[8]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    let error = client.set_read_timeout(Some(Duration::ZERO)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    let mut bytes = [0; 2000];
    server.read_exact(&mut bytes).unwrap();
    assert_eq!(bytes, [7; 2000]);
    client.set_write_timeout(None).unwrap();
    client.write_all(&[9]).unwrap();
    server.read_exact(&mut bytes[..1]).unwrap();
    assert_eq!(bytes[0], 9);
}

#[test]
fn connects_fail_with_their_reason() {
    let Some(lab) = start() else { return };
    let port = {
        let listener = Listener::bind(lab.at(0)).unwrap();
        listener.local_addr().unwrap().port()
    };
    let error = Stream::connect_with(lab.at(port), &patient()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{error}");
    // This listener accepts no connection.
    let mut config = Config::default();
    config.connect_timeout = Duration::from_millis(1500);
    let listener = Listener::bind(lab.at(0)).unwrap();
    let address = listener.local_addr().unwrap();
    let error = Stream::connect_with(address, &config).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    drop(listener);
    // A listener for endpoints rejects requests that contain no hello of rdmsg.
    let listener = rdmsg::Listener::bind(lab.at(0)).unwrap();
    let error = Stream::connect_with(listener.local_addr(), &patient()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{error}");
}

#[test]
fn devices_without_immediate_data_are_refused() {
    let lab = DeviceTest::start();
    if !applies(!lab.is_iwarp(), IMMEDIATE) {
        let listener = rdmsg::Listener::bind(lab.at(0)).unwrap();
        let error = Stream::connect_with(listener.local_addr(), &patient()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    }
}

/// A Valkey listener accepts the request of an endpoint. The acceptance contains no private data.
/// The endpoint therefore detects that the listener uses another protocol.
#[test]
fn endpoint_notices_another_protocol() {
    let Some(lab) = start() else { return };
    let listener = Listener::bind(lab.at(0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::scope(|scope| {
        let accepting = scope.spawn(|| listener.accept().unwrap());
        let error = connect(address).unwrap_err();
        assert!(error.to_string().contains("does not speak"), "{error}");
        let (mut stream, _) = accepting.join().unwrap();
        let read = stream.read(&mut [0]);
        assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
    });
}
