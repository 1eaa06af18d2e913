//! Tests with peers over TCP that announce large messages, but send their bytes slowly or not at
//! all.

use std::{
    io::{Read, Write},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use common::{
    TIME_LIMIT,
    tcp_peer::{Peer, Stage, pdu},
};
use rdmsg::{CloseReason, Completion, Config, Endpoint, Engine, EngineLimits, TransportChoice};

const MIB: usize = 1 << 20;

/// The length of a hostile peer's large message, in bytes.
const LONG: usize = 16 * MIB;

const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// The maximum memory in bytes that a large message uses before its first byte arrives: two chunks.
const TWO_CHUNKS: u64 = 2 * (64 << 10);

fn config() -> Config {
    let mut config = Config::default();
    config.transport = TransportChoice::Tcp;
    config.max_message = LONG as u64;
    config.large_memory = 8 * LONG as u64;
    config.read_timeout = READ_TIMEOUT;
    config
}

fn engine() -> Engine {
    let mut limits = EngineLimits::default();
    limits.held = 3 * LONG as u64;
    Engine::with_limits(limits).unwrap()
}

/// Sends the announcement of a large message.
fn announce(peer: &mut Peer) {
    let mut frame = b"\x10\0\0\0\0\0\0\x04\0\0\0\x18\0\0\0\0".to_vec();
    frame.extend(0x1000_u64.to_be_bytes());
    frame.extend((LONG as u64).to_be_bytes());
    frame.extend([0, 0, 0, 7, 0, 0, 0, 0]);
    peer.send(&pdu(1, 0, &frame));
}

/// Reads PDUs until a READ request arrives, and returns its length. Returns `None` at the end of
/// the stream.
fn next_read(peer: &mut Peer) -> Option<usize> {
    loop {
        let mut prefix = [0; 8];
        peer.stream.read_exact(&mut prefix).ok()?;
        let len = u32::from_be_bytes(prefix[4..].try_into().unwrap());
        let mut arguments = vec![0; len as usize];
        peer.stream.read_exact(&mut arguments).ok()?;
        if prefix[0] == 4 {
            let len = u32::from_be_bytes(arguments[12..].try_into().unwrap());
            return Some(len as usize);
        }
    }
}

fn send_and_receive(from: &Endpoint, to: &Endpoint, len: usize) {
    let bytes: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
    from.send(&bytes).unwrap();
    assert!(*to.recv_timeout(TIME_LIMIT).unwrap() == *bytes);
}

#[test]
fn announcements_beyond_memory_delay_no_transfer() {
    let mut config = config();
    config.read_timeout = 10 * TIME_LIMIT;
    let engine = engine();
    let stage = Stage::on(&engine, config);
    let silent: Vec<_> = (0..20)
        .map(|_| {
            let (mut peer, endpoint) = stage.connect();
            announce(&mut peer);
            // Wait until the endpoint has started to read the message.
            next_read(&mut peer).unwrap();
            (peer, endpoint)
        })
        .collect();
    assert!(engine.statistics().unwrap().held <= 20 * TWO_CHUNKS);
    for len in [MIB, LONG, 5000] {
        send_and_receive(&stage.near, &stage.far, len);
        send_and_receive(&stage.far, &stage.near, len);
    }
    for (_, endpoint) in &silent {
        assert_eq!(endpoint.info().close_reason, None);
    }
}

#[test]
fn slow_peer_returns_memory_that_others_need() {
    let engine = engine();
    let stage = Stage::on(&engine, config());
    let (mut peer, endpoint) = stage.connect();
    let is_slow = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            announce(&mut peer);
            let mut sent = 0;
            while let Some(len) = next_read(&mut peer) {
                let mut left = len;
                while left > 0 {
                    let mut part = left.min(256 << 10);
                    if sent >= LONG / 2 {
                        is_slow.store(true, Ordering::Release);
                        // Send at 32 KiB/s.
                        thread::sleep(Duration::from_millis(500));
                        part = left.min(16 << 10);
                    }
                    left -= part;
                    sent += part;
                    let last = if left == 0 { 2 } else { 0 };
                    let part = pdu(17, last, &vec![7; part]);
                    if peer.stream.write_all(&part).is_err() {
                        return;
                    }
                }
            }
        });
        while !is_slow.load(Ordering::Acquire) {
            assert_eq!(endpoint.info().close_reason, None);
            thread::yield_now();
        }
        // The test does not receive these messages yet, so they fill the engine's memory for
        // messages.
        const UNREAD: usize = 4;
        let sender = scope.spawn(|| {
            for _ in 0..UNREAD {
                stage.near.send(&vec![7; LONG / 2]).unwrap();
            }
        });
        let reason = loop {
            let completion = endpoint.next_completion_timeout(TIME_LIMIT).unwrap();
            if let Completion::Disconnected(reason) = completion {
                break reason;
            }
        };
        assert_eq!(reason, CloseReason::ReadTimeout);
        for _ in 0..UNREAD {
            assert_eq!(stage.far.recv_timeout(TIME_LIMIT).unwrap().len(), LONG / 2);
        }
        sender.join().unwrap();
    });
}
