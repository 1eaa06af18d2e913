//! Tests of acknowledgements over TCP: the library sends few acknowledgements, and needs few from
//! its peer.

use std::io::Read;

use common::{
    TIME_LIMIT,
    tcp_peer::{Peer, Stage, frame_with, pdu},
};
use rdmsg::{Config, Endpoint, TransportChoice, TrySendError};

/// The window of the endpoint, in messages.
const WINDOW: u32 = 4;

/// The kinds of the PDUs Send and Ack.
const SEND: u8 = 1;
const ACK: u8 = 16;

fn stage(send_depth: Option<u16>) -> Stage {
    let mut config = Config::default();
    config.transport = TransportChoice::Tcp;
    config.receive_window = Some(WINDOW as u16);
    config.eager_size = Some(1000);
    config.send_depth = send_depth;
    Stage::with(config)
}

/// Reads a PDU. Returns its kind and the bytes that follow its header.
fn read_pdu(peer: &mut Peer) -> (u8, Vec<u8>) {
    let mut header = [0; 8];
    peer.stream.read_exact(&mut header).unwrap();
    let [kind, _, _, _, length @ ..] = header;
    let mut rest = vec![0; u32::from_be_bytes(length) as usize];
    peer.stream.read_exact(&mut rest).unwrap();
    (kind, rest)
}

fn number(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[..4].try_into().unwrap())
}

/// Sends messages until the endpoint refuses one. Returns the number of sent messages.
fn fill(endpoint: &Endpoint) -> u32 {
    let mut count = 0;
    loop {
        match endpoint.try_send(b"message") {
            Ok(()) => count += 1,
            Err(TrySendError::Full) => return count,
            Err(error) => panic!("{error:?}"),
        }
    }
}

/// The peer requests an Ack for none of its frames. The endpoint sends the Acks together with
/// grants.
#[test]
fn acks_of_unsignalled_frames_travel_with_grants() {
    const FRAMES: u32 = 64;
    let stage = stage(None);
    let (mut peer, endpoint) = stage.connect();
    let (mut granted, mut kinds, mut acknowledged) = (WINDOW, Vec::new(), 0);
    for sent in 0..FRAMES {
        while granted <= sent {
            let (kind, bytes) = read_pdu(&mut peer);
            kinds.push(kind);
            match kind {
                ACK => acknowledged = number(&bytes),
                SEND => {
                    assert_eq!(bytes[0], 2, "the frame must be a Grant");
                    granted = number(&bytes[4..]);
                }
                other => panic!("unexpected PDU of kind {other}"),
            }
        }
        peer.send(&pdu(SEND, 0, &frame_with(4, sent as u16, b"message")));
        endpoint.recv_timeout(TIME_LIMIT).unwrap();
    }
    assert!(!kinds.ends_with(&[ACK]) && !kinds.windows(2).any(|two| two == [ACK, ACK]));
    let acks = kinds.iter().filter(|kind| **kind == ACK).count();
    assert!(
        (6..=8).contains(&acks),
        "{acks} Acks of {FRAMES} frames: {kinds:?}"
    );
    assert!(acknowledged >= FRAMES - 12, "{acknowledged}");
    stage.assert_unaffected();
}

#[test]
fn peer_without_acks_gets_as_many_frames_as_slots() {
    for (depth, slots) in [(None, 32), (Some(4), 4), (Some(100), 100)] {
        let stage = stage(depth);
        let (mut peer, endpoint) = stage.connect_with(200);
        assert_eq!(fill(&endpoint), slots, "{depth:?}");
        // An Ack completes frames even if the endpoint requested an Ack for none of them.
        peer.send(&pdu(ACK, 0, &1_u32.to_be_bytes()));
        endpoint
            .send_timeout(b"in the place of the first", TIME_LIMIT)
            .unwrap();
        assert_eq!(fill(&endpoint), 0, "{depth:?}");
        peer.send(&pdu(ACK, 0, &slots.to_be_bytes()));
        endpoint
            .send_timeout(b"in the next place", TIME_LIMIT)
            .unwrap();
        assert_eq!(fill(&endpoint), slots - 2, "{depth:?}");
        stage.assert_unaffected();
    }
}
