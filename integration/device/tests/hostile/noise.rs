//! Tests of random frames. The connection must end with a reason that matches the frames, and must
//! deliver only the frames that are valid messages.

use std::{
    collections::BTreeMap,
    env, mem, thread,
    time::{SystemTime, UNIX_EPOCH},
};

use rdmsg::{CloseReason, Endpoint};

use crate::{
    peer::Peer,
    scene::{ROLES, Scene, end},
    wire::{self, CONTROL_RECEIVES, EAGER_SIZE, Frame, HEADER_LEN, WINDOW},
};

/// The number of connections in the whole test.
const CONNECTIONS: usize = 120;
/// The number of concurrent connections.
const BATCH: usize = 8;

/// A pseudo-random number generator (SplitMix64). The same seed yields the same numbers.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }

    /// Returns random bytes, or a frame with a random kind and payload. In some of these frames,
    /// one byte of the header is replaced by a random byte, or the frame is truncated.
    fn frame(&mut self) -> Vec<u8> {
        let longest = HEADER_LEN + EAGER_SIZE as usize;
        if self.below(4) == 0 {
            let len = self.below(longest + 1);
            return self.bytes(len);
        }
        let kind = 1 + self.below(7) as u8;
        let len = if self.below(3) > 0 && kind > 1 {
            0
        } else {
            self.below(40)
        };
        let payload = self.bytes(len);
        let mut bytes = Frame {
            payload: &payload,
            ..Frame::control(kind)
        }
        .bytes();
        match self.below(4) {
            0 => {
                let at = self.below(HEADER_LEN);
                bytes[at] = self.next() as u8;
            }
            1 => bytes.truncate(self.below(longest)),
            _ => {}
        }
        bytes
    }
}

/// Sends all frames, and waits until the library's device has acknowledged them or the library has
/// disconnected. Then disconnects.
fn send_all_frames(mut peer: Peer, frames: &[Vec<u8>]) {
    for frame in frames {
        peer.send(frame);
    }
    peer.flush();
    peer.disconnect();
}

/// Returns the messages that the receiver would deliver if all frames were valid. A changed byte
/// can turn a frame with one message into a batch or into a fragment.
fn messages_in(frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let (mut messages, mut fragments) = (Vec::new(), Vec::new());
    for (header, payload) in frames
        .iter()
        .filter_map(|frame| frame.split_at_checked(HEADER_LEN))
    {
        match header[0] {
            wire::DATA => messages.push(payload.to_vec()),
            wire::BATCH => {
                let mut rest = payload;
                while let Some((len, after)) = rest.split_first_chunk() {
                    let len = u32::from_be_bytes(*len) as usize;
                    let Some((message, after)) = after.split_at_checked(len) else {
                        break;
                    };
                    messages.push(message.to_vec());
                    rest = after;
                }
            }
            wire::FRAGMENT => {
                fragments.extend(payload);
                if header[8..12] == (payload.len() as u32).to_be_bytes() {
                    messages.push(mem::take(&mut fragments));
                }
            }
            _ => {}
        }
    }
    messages
}

/// Checks that the connection has ended for a reason that `frames` can cause. Also checks that the
/// delivered messages are the first messages in `frames`. Returns a word for the reason. For a
/// protocol violation, this word is the name of the invalid field.
fn check(endpoint: &Endpoint, frames: &[Vec<u8>]) -> &'static str {
    let (reason, messages) = end(endpoint);
    let kind = match reason {
        CloseReason::ProtocolViolation(violation) => violation.field(),
        CloseReason::PeerAborted(_) => "aborted",
        CloseReason::PeerFailed(_)
        | CloseReason::PeerOutOfResources
        | CloseReason::PeerBusy
        | CloseReason::PeerGaveUp(_) => "failed",
        CloseReason::PeerClosed => "closed",
        CloseReason::PeerDisconnected => "disconnected",
        other => panic!("{other:?} after {frames:?}"),
    };
    let sent = messages_in(frames);
    assert!(messages.len() <= sent.len().min(WINDOW.into()));
    for (message, sent) in messages.iter().zip(sent) {
        assert!(
            **message == *sent,
            "a delivered message must equal the sent message"
        );
    }
    kind
}

fn seed() -> u64 {
    let seed = env::var("HOSTILE_SEED").ok().map_or_else(
        || {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            now.as_nanos() as u64
        },
        |seed| seed.parse().expect("HOSTILE_SEED must be a number"),
    );
    println!("to repeat this run: HOSTILE_SEED={seed}");
    seed
}

#[test]
fn random_frames_harm_no_other_connection() {
    let scene = Scene::new();
    let mut random = Random(seed());
    let mut ends = BTreeMap::<&str, u32>::new();
    for batch in 0..CONNECTIONS / BATCH {
        let role = ROLES[batch % 2];
        let connections: Vec<_> = (0..BATCH)
            .map(|_| {
                let (peer, endpoint) = scene.connect(role);
                // Send at most one frame per posted receive.
                let count = 1 + random.below(usize::from(WINDOW) + CONTROL_RECEIVES);
                let frames: Vec<_> = (0..count).map(|_| random.frame()).collect();
                (peer, endpoint, frames)
            })
            .collect();
        let shouters: Vec<_> = connections
            .into_iter()
            .map(|(peer, endpoint, frames)| {
                thread::spawn(move || {
                    send_all_frames(peer, &frames);
                    check(&endpoint, &frames)
                })
            })
            .collect();
        for shouter in shouters {
            *ends.entry(shouter.join().unwrap()).or_default() += 1;
        }
        scene.stage.bystander.assert_unaffected();
    }
    println!("{ends:?}");
    scene.finish();
}
