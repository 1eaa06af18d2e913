//! Tests peers that violate the protocol, and peers that vanish.

use std::{
    io::{self, ErrorKind, Read, Write},
    thread,
    time::Duration,
};

use rdmsg::status::CmEventType;
use rdmsg_valkey::{Config, Listener, ProtocolError, Stream};
use toolbox::{Deadline, DeviceTest, TIME_LIMIT, applies, slowness};

use crate::{
    IMMEDIATE,
    by_hand::{BUFFER, Peer, RECEIVES, Received, Server, announcement, command},
    patient, start,
};

/// Names of commands, as they occur in error messages.
const GET: &str = "GetServerFeature";
const SET: &str = "SetClientFeature";

fn violation(error: &io::Error) -> ProtocolError {
    assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    *inner.unwrap_or_else(|| panic!("{error}"))
}

/// Accepts a client, and answers like a correct server until the client has connected.
fn serve(server: Server) -> Peer {
    let mut peer = server.accept();
    assert_eq!(peer.receive(), Received::Command(command(0)));
    peer.send(&command(0));
    assert_eq!(peer.receive(), Received::Command(command(1)));
    let own = peer.announcement();
    peer.send(&own);
    let Received::Command(announced) = peer.receive() else {
        panic!("the client must send a command, not bytes");
    };
    assert_eq!(announced[..16], command(3)[..16]);
    assert_eq!(announced[24..28], (1_u32 << 20).to_be_bytes());
    peer
}

/// Connects a client to a server that behaves correctly until the client has connected.
fn connected(lab: &DeviceTest, config: &Config) -> (Stream, Peer) {
    let server = Server::bind(lab.at(0));
    let address = server.address();
    let serving = thread::spawn(move || serve(server));
    let client = Stream::connect_with(address, config).unwrap();
    (client, serving.join().unwrap())
}

#[test]
fn commands_of_a_hostile_server_end_the_stream() {
    let Some(lab) = start() else { return };
    let memory = |addr, length, key| ProtocolError::Memory { addr, length, key };
    let unexpected = |command, when| ProtocolError::Unexpected { command, when };
    let cases: [(Vec<u8>, ProtocolError); 9] = [
        (vec![0; 31], ProtocolError::Length { len: 31 }),
        (vec![], ProtocolError::Length { len: 0 }),
        (command(4).into(), ProtocolError::Opcode { opcode: 4 }),
        (command(0).into(), unexpected(GET, "unasked")),
        (command(1).into(), unexpected(SET, "as a server")),
        (announcement(4096, 0, 7).into(), memory(4096, 0, 7)),
        (announcement(4096, 1, 0).into(), memory(4096, 1, 0)),
        (announcement(u64::MAX, 1, 7).into(), memory(u64::MAX, 1, 7)),
        (
            announcement(4096, 1, 7).into(),
            ProtocolError::NotFull {
                left: BUFFER as u32,
            },
        ),
    ];
    for (bytes, expected) in cases {
        let (mut client, mut peer) = connected(&lab, &patient());
        peer.send(&bytes);
        let error = client.read(&mut [0]).unwrap_err();
        assert_eq!(violation(&error), expected);
        let error = client.write(&[0]).unwrap_err();
        assert_eq!(violation(&error), expected);
        peer.expect(CmEventType::DISCONNECTED);
    }
}

#[test]
fn claims_of_a_hostile_server_end_the_stream() {
    let Some(lab) = start() else { return };
    for len in [(1 << 20) + 1, u32::MAX] {
        let (mut client, mut peer) = connected(&lab, &patient());
        peer.announce_bytes(len);
        let error = client.read(&mut [0]).unwrap_err();
        let free = 1 << 20;
        assert_eq!(violation(&error), ProtocolError::Overrun { len, free });
    }
    // Announce as many bytes as the buffer can hold, and then one more byte.
    let (mut client, mut peer) = connected(&lab, &patient());
    peer.announce_bytes(1 << 20);
    peer.announce_bytes(1);
    let mut bytes = vec![1; 1 << 20];
    client.read_exact(&mut bytes[1..]).unwrap();
    assert!(
        bytes[1..].iter().all(|byte| *byte == 0),
        "the bytes must be zero, because the peer wrote none"
    );
    let expected = ProtocolError::Overrun { len: 1, free: 0 };
    client.read_exact(&mut bytes[..1]).unwrap();
    let error = client.read(&mut bytes).unwrap_err();
    assert_eq!(violation(&error), expected);
}

#[test]
fn hostile_server_fails_the_connect() {
    let Some(lab) = start() else { return };
    let other_set = {
        let mut bytes = command(0);
        bytes[3] = 5;
        bytes
    };
    type Act = fn(&mut Peer, &[u8]);
    let send: Act = |peer, bytes| peer.send(bytes);
    let announce_one: Act = |peer, _| peer.announce_bytes(1);
    let early = ProtocolError::Overrun { len: 1, free: 0 };
    let cases = [
        (send, &other_set[..], ProtocolError::Select { select: 5 }),
        (send, &[9; 32][..], ProtocolError::Opcode { opcode: 0x0909 }),
        (announce_one, &[], early),
    ];
    for (act, bytes, expected) in cases {
        let server = Server::bind(lab.at(0));
        let address = server.address();
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut peer = server.accept();
                act(&mut peer, bytes);
                peer.expect(CmEventType::DISCONNECTED);
            });
            let error = Stream::connect_with(address, &patient()).unwrap_err();
            assert_eq!(violation(&error), expected);
        });
    }
}

#[test]
fn silent_server_fails_the_connect() {
    let Some(lab) = start() else { return };
    let server = Server::bind(lab.at(0));
    let address = server.address();
    thread::scope(|scope| {
        scope.spawn(|| server.accept().expect(CmEventType::DISCONNECTED));
        let mut config = Config::default();
        config.connect_timeout = Duration::from_secs(5).mul_f64(slowness());
        let error = Stream::connect_with(address, &config).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    });
}

#[test]
fn hostile_client_ends_its_stream() {
    let Some(lab) = start() else { return };
    let listener = Listener::bind_with(lab.at(0), &patient()).unwrap();
    let address = listener.local_addr().unwrap();
    let features = {
        let mut bytes = command(1);
        bytes[31] = 6;
        bytes
    };
    let cases = [
        (&features[..], ProtocolError::Features { features: 6 }),
        (&[7; 32][..], ProtocolError::Opcode { opcode: 0x0707 }),
        (&[0; 5][..], ProtocolError::Length { len: 5 }),
    ];
    for (bytes, expected) in cases {
        thread::scope(|scope| {
            let accepting = scope.spawn(|| listener.accept().unwrap().0);
            let mut peer = Peer::connect(address);
            let mut stream = accepting.join().unwrap();
            peer.send(bytes);
            let error = stream.read(&mut [0]).unwrap_err();
            assert_eq!(violation(&error), expected);
            peer.expect(CmEventType::DISCONNECTED);
        });
    }
}

/// The server announces a key that is not registered with its device, so this device rejects the
/// client's WRITE.
#[test]
fn wrong_key_of_the_peer_fails_the_stream() {
    let Some(lab) = start() else { return };
    let server = Server::bind(lab.at(0));
    let address = server.address();
    let serving = thread::spawn(move || {
        let mut peer = server.accept();
        peer.send(&command(0));
        peer.send(&announcement(4096, 100, 0xdead_0000));
        peer
    });
    let mut client = Stream::connect_with(address, &patient()).unwrap();
    let peer = serving.join().unwrap();
    client.write_all(b"lost").unwrap();
    let error = client.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    assert!(error.to_string().contains("REM_ACCESS_ERR"), "{error}");
    drop(peer);
}

#[test]
fn keepalives_arrive_while_nothing_else_happens() {
    let Some(lab) = start() else { return };
    let mut config = patient();
    config.keepalive = Some(Duration::from_millis(50));
    config.receive_queue = 64;
    let (mut client, mut peer) = connected(&lab, &config);
    let keepalive = command(2);
    // Send more messages than the stream has receives, so that the stream's thread must repost the
    // receives.
    for _ in 0..8 {
        (0..16).for_each(|_| peer.send(&keepalive));
        peer.discard_received();
        // One keepalive may have been on its way during `discard_received`. The second keepalive
        // shows that the stream still sends keepalives.
        assert_eq!(peer.receive(), Received::Command(keepalive));
        assert_eq!(peer.receive(), Received::Command(keepalive));
    }
    client.write_all(b"ping").unwrap();
    while peer.receive() != Received::Bytes(4) {}
}

/// A busy server does not post receives in time. A WRITE that finds no posted receive must not be
/// lost: it must be delivered once the server has posted one.
#[test]
fn writes_wait_for_receives_of_the_server() {
    let lab = DeviceTest::without_credits();
    if !applies(!lab.is_iwarp(), IMMEDIATE) {
        return;
    }
    let mut config = patient();
    config.keepalive = None;
    let (mut client, mut peer) = connected(&lab, &config);
    let before = lab.rnr_naks();
    for _ in 0..RECEIVES + 20 {
        client.write_all(&[7]).unwrap();
    }
    let mut deadline = Deadline::after(TIME_LIMIT);
    while lab.rnr_naks() == before {
        assert!(
            !deadline.is_over(),
            "at least one WRITE must find no posted receive"
        );
        thread::yield_now();
    }
    for _ in 0..RECEIVES + 20 {
        assert_eq!(peer.receive(), Received::Bytes(1));
    }
}

/// The peer's device no longer acknowledges packets, like the device of a host that has lost power.
#[test]
fn keepalive_detects_a_lost_host() {
    let Some(lab) = start() else { return };
    let mut config = patient();
    config.keepalive = Some(Duration::from_millis(50));
    let (mut client, peer) = connected(&lab, &config);
    peer.fail_queue_pair();
    let error = client.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    assert!(error.to_string().contains("RETRY_EXC_ERR"), "{error}");
    drop(peer);
}

#[test]
fn vanished_server_ends_reads() {
    let Some(lab) = start() else { return };
    let (mut client, peer) = connected(&lab, &patient());
    let reader = client.try_clone().unwrap();
    let reading = thread::spawn(move || (&reader).read(&mut [0]).unwrap());
    drop(peer);
    assert_eq!(reading.join().unwrap(), 0);
    let error = client.write(&[0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BrokenPipe, "{error}");
}
