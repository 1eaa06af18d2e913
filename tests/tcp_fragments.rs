//! Messages in several frames over TCP, from peers whose bytes the tests produce.

use std::{thread, time::Instant};

use rdmsg::{CloseReason, Completion, Config, Endpoint, Engine, EngineLimits, TransportChoice};

use tcp_peer::{Stage, TIME_LIMIT, frame_with, pdu};

#[allow(dead_code)]
mod tcp_peer;

/// The length in bytes of the message, and the length of the payload of each of its frames. The
/// frames are longer than the endpoint stages, so that it can receive them into the message.
const LEN: usize = 100_000;
const LENS: [usize; 4] = [40, 40_000, 40_000, 19_960];

/// The eager size of the endpoint.
const EAGER: u32 = 40_000;

fn config() -> Config {
    let mut config = Config::default();
    config.transport = TransportChoice::Tcp;
    config.receive_window = Some(8);
    config.eager_size = Some(EAGER);
    config.max_message = 1 << 20;
    config
}

fn message() -> Vec<u8> {
    (0..LEN).map(|at| (at * 7 + at / 256) as u8).collect()
}

/// Returns a Fragment. `missing` is the number of bytes from its start to the end of the message.
fn fragment(number: u16, missing: usize, payload: &[u8]) -> Vec<u8> {
    let mut bytes = frame_with(8, number, payload);
    bytes[0] = 18;
    bytes[8..12].copy_from_slice(&(missing as u32).to_be_bytes());
    pdu(1, 0, &bytes)
}

/// Returns the fragments of the message. The first one has the sequence number 0, and each later
/// one has a number that is higher by `step`.
fn fragments(step: u16) -> Vec<Vec<u8>> {
    let (message, mut offset) = (message(), 0);
    let fragments = LENS.iter().zip(0..).map(|(len, number)| {
        let payload = &message[offset..offset + len];
        let missing = LEN - offset;
        offset += len;
        fragment(number * step, missing, payload)
    });
    fragments.collect()
}

fn end_of(endpoint: &Endpoint) -> CloseReason {
    loop {
        let completion = endpoint.next_completion_timeout(TIME_LIMIT).unwrap();
        if let Completion::Disconnected(reason) = completion {
            return reason;
        }
    }
}

#[test]
fn fragments_arrive_however_the_stream_is_cut() {
    let stage = Stage::with(config());
    let bytes = fragments(1).concat();
    for size in [23, 24, 25, 40, 64, 500, 20_000, 40_024, bytes.len()] {
        let (mut peer, endpoint) = stage.connect_with(8);
        for part in bytes.chunks(size) {
            peer.send(part);
        }
        let arrived = endpoint.recv_timeout(TIME_LIMIT).unwrap();
        assert!(*arrived == message()[..], "parts of {size}");
    }
    // The bytes around the headers arrive one at a time.
    let (mut peer, endpoint) = stage.connect_with(8);
    for fragment in fragments(1) {
        let (begin, rest) = fragment.split_at(60);
        for byte in begin {
            peer.send(&[*byte]);
        }
        peer.send(rest);
    }
    let arrived = endpoint.recv_timeout(TIME_LIMIT).unwrap();
    assert!(*arrived == message()[..]);
}

#[test]
fn control_frames_between_fragments_change_no_byte() {
    let stage = Stage::with(config());
    let (mut peer, endpoint) = stage.connect_with(8);
    for (fragment, number) in fragments(2).iter().zip(0..) {
        peer.send(fragment);
        // A Grant, which permits nothing new.
        let mut grant = frame_with(8, 2 * number + 1, b"");
        grant[0] = 2;
        peer.send(&pdu(1, 0, &grant));
    }
    let arrived = endpoint.recv_timeout(TIME_LIMIT).unwrap();
    assert!(*arrived == message()[..]);
    stage.assert_unaffected();
}

#[test]
fn wrong_frame_behind_a_fragment_names_the_field() {
    let stage = Stage::with(config());
    let (payload, rest) = ([7; 40_000], LEN - LENS[0]);
    let mut grant = fragment(1, rest, &payload);
    grant[8 + 4..][..4].copy_from_slice(&99_u32.to_be_bytes());
    let mut taken = fragment(1, rest, &payload);
    taken[8 + 12..][..4].copy_from_slice(&1_u32.to_be_bytes());
    let mut flags = fragment(1, rest, &payload);
    flags[8 + 1] = 1;
    let mut again = fragments(1)[1].clone();
    again.extend(fragment(1, rest, &payload));
    for (field, second) in [
        ("grant", grant),
        ("arg", taken),
        ("flags", flags),
        ("sequence", again),
        ("sequence", fragment(2, rest, &payload)),
        ("len", fragment(1, rest - 1, &payload)),
        ("len", fragment(1, rest, b"")),
        ("len", fragment(1, rest, &[7; EAGER as usize + 1])),
        ("kind", pdu(1, 0, &frame_with(8, 1, &payload))),
    ] {
        let (mut peer, endpoint) = stage.connect_with(8);
        peer.send(&fragments(1)[0]);
        peer.send(&second);
        match end_of(&endpoint) {
            CloseReason::ProtocolViolation(violation) => assert_eq!(violation.field(), field),
            other => panic!("{field}: {other:?}"),
        }
    }
    stage.assert_unaffected();
}

#[test]
fn first_fragment_reserves_one_frame_ahead() {
    let mut limits = EngineLimits::default();
    limits.held = 1 << 20;
    let engine = Engine::with_limits(limits).unwrap();
    let stage = Stage::on(&engine, config());
    let (mut peer, endpoint) = stage.connect_with(8);
    let await_held = |is_awaited: fn(u64) -> bool| {
        let start = Instant::now();
        loop {
            let held = engine.statistics().unwrap().held;
            if is_awaited(held) {
                return held;
            }
            assert!(start.elapsed() < TIME_LIMIT, "{held} bytes");
            thread::yield_now();
        }
    };
    peer.send(&fragments(1)[0]);
    // The arrived bytes take a page. The engine then reserves the memory for the next fragment.
    let held = await_held(|held| held > 4096);
    assert!(held <= 4096 + u64::from(EAGER), "{held} bytes");
    drop(peer);
    end_of(&endpoint);
    drop(endpoint);
    await_held(|held| held == 0);
}

#[test]
fn death_inside_a_fragment_leaks_no_receive() {
    let mut config = config();
    config.shared_receive = Some(100);
    let stage = Stage::with(config);
    let bytes = fragments(1).concat();
    let len = bytes.len();
    for number in 0..120 {
        let (mut peer, endpoint) = stage.connect_with(8);
        peer.send(&bytes[..(number + 1) * len / 121]);
        drop(peer);
        let reason = end_of(&endpoint);
        let ended = matches!(reason, CloseReason::PeerDisconnected);
        assert!(ended, "{number}: {reason:?}");
    }
    for _ in 0..20 {
        stage.assert_unaffected();
    }
}
