//! Tests with raw peers over TCP that send messages in fragments. The library receives all
//! fragments after the first directly into the memory of their message.

use std::io::Read;

use common::{
    TIME_LIMIT,
    tcp_peer::{Peer, Stage, frame, pdu},
};
use rdmsg::{
    CloseReason, Completion, Config, Endpoint, Engine, EngineLimits, Error, Message,
    TransportChoice,
};

/// The lengths in bytes of the fragments of a message. The second one does not fit into the buffer
/// in which the library stages received bytes.
const LENS: [usize; 3] = [5, 40_000, 3000];

fn config() -> Config {
    let mut config = Config::default();
    config.transport = TransportChoice::Tcp;
    config.receive_window = Some(32);
    config
}

/// Returns `len` bytes that differ between messages with different numbers.
fn content(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (number + at * at / 251) as u8).collect()
}

/// Returns the PDU of a Fragment frame. `rest` is the number of bytes from the start of the
/// fragment to the end of its message.
fn fragment(sequence: u16, rest: usize, payload: &[u8]) -> Vec<u8> {
    let mut bytes = frame(sequence, payload);
    bytes[0] = 18;
    bytes[8..12].copy_from_slice(&(rest as u32).to_be_bytes());
    pdu(1, 0, &bytes)
}

/// Returns the PDU of a Ping.
fn ping(sequence: u16) -> Vec<u8> {
    let mut bytes = frame(sequence, b"");
    bytes[0] = 3;
    pdu(1, 0, &bytes)
}

/// Returns the PDUs of a message in three fragments, with a Ping before the second one. The first
/// frame has the sequence number `sequence`, and the last frame `sequence` + 3.
fn message(sequence: u16, content: &[u8]) -> Vec<u8> {
    let (first, rest) = content.split_at(LENS[0]);
    let (second, third) = rest.split_at(LENS[1]);
    [
        fragment(sequence, content.len(), first),
        ping(sequence + 1),
        fragment(sequence + 2, rest.len(), second),
        fragment(sequence + 3, third.len(), third),
    ]
    .concat()
}

/// Reads the next frame of the library and acknowledges it. `number` is the number of frames that
/// were read before. Returns the number of data frames that the frame grants.
fn read_grant(peer: &mut Peer, number: u32) -> u32 {
    loop {
        let mut prefix = [0; 8];
        peer.stream.read_exact(&mut prefix).unwrap();
        let len = u32::from_be_bytes(prefix[4..].try_into().unwrap());
        let mut payload = vec![0; len as usize];
        peer.stream.read_exact(&mut payload).unwrap();
        if prefix[0] == 1 {
            peer.send(&pdu(16, 0, &(number + 1).to_be_bytes()));
            return u32::from_be_bytes(payload[4..8].try_into().unwrap());
        }
    }
}

/// Makes the library process all bytes that the peer has sent. No message is complete.
fn process(endpoint: &Endpoint) {
    let nothing = endpoint.try_recv().unwrap();
    assert!(nothing.is_none(), "{nothing:?}");
}

fn receive(endpoint: &Endpoint) -> Message {
    endpoint.recv_timeout(TIME_LIMIT).unwrap()
}

#[test]
fn message_arrives_whole_wherever_its_bytes_are_cut() {
    let stage = Stage::with(config());
    let (mut peer, endpoint) = stage.connect();
    peer.stream.set_nodelay(true).unwrap();
    let len = LENS.iter().sum();
    let whole = message(0, &content(0, len)).len();
    let last = whole - LENS[2];
    // All cuts near the beginning, and near the headers of the last fragment.
    let cuts = (0..120).chain(last - 30..last + 10).chain([whole - 1]);
    for (number, cut) in (0..).zip(cuts) {
        let content = content(number, len);
        let bytes = message(4 * number as u16, &content);
        let (before, after) = bytes.split_at(cut);
        peer.send(before);
        process(&endpoint);
        peer.send(after);
        let message = receive(&endpoint);
        assert!(*message == content[..], "cut after {cut} bytes");
        // The library answers each Ping with a Pong, which also contains a grant.
        let granted = read_grant(&mut peer, number as u32);
        assert!(granted >= 3 * (number as u32 + 2), "{granted}");
    }
}

#[test]
fn message_of_the_application_does_not_change() {
    let stage = Stage::with(config());
    let (mut peer, endpoint) = stage.connect();
    let content = content(1, 50_000);
    peer.send(&fragment(0, 50_000, &content[..1000]));
    process(&endpoint);
    peer.send(&fragment(1, 49_000, &content[1000..]));
    let held = receive(&endpoint);
    // The peer sends the last fragment again. It begins a new message, so the library must not
    // receive it into the memory of the first message.
    peer.send(&fragment(2, 49_000, &[0xff; 40_000]));
    process(&endpoint);
    peer.send(&fragment(3, 9000, &[0xff; 9000]));
    assert!(*receive(&endpoint) == [0xff; 49_000]);
    assert!(*held == content[..]);
}

#[test]
fn announced_length_alone_occupies_little_memory() {
    // An engine with limits does not share its budget with the engines of the other tests.
    let engine = Engine::with_limits(EngineLimits::default()).unwrap();
    let stage = Stage::on(&engine, config());
    let mut ends = Vec::new();
    for rest in [1_000_000, (1 << 20) + 1, 1 << 30] {
        let (mut peer, endpoint) = stage.connect();
        peer.send(&fragment(0, rest, b"x"));
        process(&endpoint);
        ends.push((peer, endpoint));
    }
    let held = engine.statistics().unwrap().held;
    assert!(held <= 1 << 20, "{held} bytes are charged");
}

#[test]
fn wrong_rest_of_a_message_is_named() {
    let stage = Stage::with(config());
    let wrong = [
        (48_999, 40_000),
        (49_001, 40_000),
        (100_000, 40_000),
        (40_000, 40_000),
        (9000, 40_000),
        (0, 40_000),
        (u32::MAX as usize, 40_000),
        (49_000, 49_001),
    ];
    for (rest, len) in wrong {
        let (mut peer, endpoint) = stage.connect();
        peer.send(&fragment(0, 50_000, &[1; 1000]));
        process(&endpoint);
        peer.send(&fragment(1, rest, &vec![2; len]));
        match endpoint.recv_timeout(TIME_LIMIT).unwrap_err() {
            Error::Disconnected(CloseReason::ProtocolViolation(violation)) => {
                assert_eq!(
                    (violation.field(), violation.value()),
                    ("len", rest as u64),
                    "{rest} {len}"
                );
            }
            other => panic!("{rest} {len}: {other:?}"),
        }
    }
    stage.assert_unaffected();
}

#[test]
fn peer_that_leaves_within_a_fragment_is_reported() {
    let stage = Stage::with(config());
    let (mut peer, endpoint) = stage.connect();
    peer.send(&fragment(0, 50_000, &[1; 1000]));
    process(&endpoint);
    let last = fragment(1, 49_000, &[2; 49_000]);
    peer.send(&last[..20_000]);
    process(&endpoint);
    drop(peer);
    let end = endpoint.next_completion_timeout(TIME_LIMIT).unwrap();
    assert!(matches!(end, Completion::Disconnected(_)), "{end:?}");
    stage.assert_unaffected();
}

#[test]
fn endpoint_dropped_within_a_fragment_leaves_others_alone() {
    let stage = Stage::with(config());
    for cut in [8, 24, 25, 20_000] {
        let (mut peer, endpoint) = stage.connect();
        peer.send(&fragment(0, 50_000, &[1; 1000]));
        process(&endpoint);
        let last = fragment(1, 49_000, &[2; 49_000]);
        peer.send(&last[..cut]);
        process(&endpoint);
        drop(endpoint);
        peer.send(&last[cut..]);
    }
    stage.assert_unaffected();
}
