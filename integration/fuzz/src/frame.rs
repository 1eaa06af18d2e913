//! One frame on a fresh connection, against a second reading of the protocol.

use std::time::Instant;

use crate::{
    proto::{
        Arrival, CloseReason, CmInput, Connection, Event, Output, PeerTimeout, TransportTraits,
    },
    sizes::{BOTH_WAYS, hello, params},
};

/// What a frame is worth to a connection on which nothing was said.
#[derive(Debug, PartialEq)]
enum Verdict {
    Violation(&'static str),
    Message(u32),
    Batch { len: u32, count: u32 },
    Large { addr: u64, len: u64, rkey: u32 },
    Nothing,
    Pong,
    Finish,
    Close,
    Abort(u32),
    Failure(u32),
}

fn read(frame: &[u8]) -> Verdict {
    let ours = params();
    let word = |at: usize| u32::from_be_bytes(frame[at..at + 4].try_into().unwrap());
    let long = |at: usize| u64::from_be_bytes(frame[at..at + 8].try_into().unwrap());
    if frame.len() < 16 {
        return Verdict::Violation("frame length");
    }
    let (kind, payload) = (frame[0], frame.len() - 16);
    if !matches!(kind, 1..=9 | 16 | 17) {
        return Verdict::Violation("kind");
    }
    if frame[1] != 0 {
        return Verdict::Violation("flags");
    }
    let expected = match kind {
        1 | 17 => payload,
        16 => 24,
        _ => 0,
    };
    if word(8) as usize != payload || payload != expected {
        return Verdict::Violation("len");
    }
    if kind == 16 {
        if word(36) != 0 {
            return Verdict::Violation("descriptor reserved");
        }
        if long(24) == 0 || long(16).checked_add(long(24)).is_none() {
            return Verdict::Violation("descriptor len");
        }
    }
    let mut lens = Vec::new();
    if kind == 17 {
        let mut at = 16;
        while at < frame.len() {
            if frame.len() - at < 4 || frame.len() - at - 4 < word(at) as usize {
                return Verdict::Violation("batch");
            }
            lens.push(word(at));
            at += 4 + word(at) as usize;
        }
        if lens.is_empty() {
            return Verdict::Violation("batch");
        }
    }
    if frame[2..4] != [0, 0] {
        return Verdict::Violation("sequence");
    }
    if word(4) != ours.window.into() {
        return Verdict::Violation("grant");
    }
    if !matches!(kind, 6 | 8) && word(12) != 0 {
        return Verdict::Violation("arg");
    }
    match kind {
        1 if payload > ours.eager_size as usize => Verdict::Violation("len"),
        1 => Verdict::Message(payload as u32),
        17 if lens.len() > ours.window.into() => Verdict::Violation("kind"),
        17 if payload > ours.eager_size as usize => Verdict::Violation("len"),
        17 => Verdict::Batch {
            len: payload as u32,
            count: lens.len() as u32,
        },
        2 => Verdict::Nothing,
        3 => Verdict::Pong,
        4 | 7 => Verdict::Violation("kind"),
        5 => Verdict::Close,
        9 => Verdict::Finish,
        6 => Verdict::Abort(word(12)),
        8 => Verdict::Failure(word(12)),
        _ if long(24) > ours.max_message => Verdict::Violation("descriptor len"),
        _ => Verdict::Large {
            addr: long(16),
            len: long(24),
            rkey: word(32),
        },
    }
}

/// Has a connection receive the bytes.
pub fn one_frame(frame: &[u8]) {
    let now = Instant::now();
    let mut conn = Connection::requested(params(), &hello(&params()), BOTH_WAYS, now).unwrap();
    conn.accept(b"", now);
    conn.take_turn(now);
    conn.handle_transport(TransportTraits::UNRESTRICTED);
    conn.handle_cm_event(
        CmInput::Established {
            private_data: &[],
            reads: BOTH_WAYS,
        },
        now,
    );
    while conn.poll_output().is_some() {}

    conn.handle_recv(3, frame, now);
    let mut seen = Vec::new();
    let (mut reposted, mut said) = (0, Vec::new());
    let (mut announced, mut asked) = (0, 0);
    while let Some(output) = conn.poll_output() {
        match output {
            Output::Event(Event::Arrived(Arrival::Message {
                buffer,
                offset,
                len,
            })) => {
                assert_eq!((buffer, offset), (3, 16));
                seen.push(Verdict::Message(len));
            }
            Output::Event(Event::Arrived(Arrival::Batch { buffer, len, count })) => {
                assert_eq!(buffer, 3);
                seen.push(Verdict::Batch { len, count });
            }
            Output::Event(Event::Arrived(Arrival::Finish)) => seen.push(Verdict::Finish),
            Output::Read(read) => {
                // Chunk by chunk, and no byte that was not announced.
                assert_eq!(read.offset, asked);
                asked += read.len;
                assert!(read.len > 0 && asked <= announced);
                if read.offset == 0 {
                    seen.push(Verdict::Large {
                        addr: read.remote_addr,
                        len: announced,
                        rkey: read.rkey,
                    });
                }
            }
            Output::Repost(buffer) => {
                assert_eq!(buffer, 3);
                reposted += 1;
            }
            Output::Release(buffer) => {
                assert_eq!(buffer, 3);
                reposted += 1;
                conn.release(now);
            }
            Output::Begin { id, len } => {
                announced = len;
                conn.handle_memory(id, now);
            }
            Output::Prepare { len, .. } => conn.handle_prepared(len, now),
            Output::Post(transmit) => said.push(transmit.header[0]),
            Output::Nudge { .. } => unreachable!("on iWARP only"),
            Output::Cm(_) | Output::PostDrainMarkers | Output::Timer | Output::Note(_) => {}
            Output::Event(event) => panic!("{event:?}"),
        }
    }
    seen.extend(match conn.close_reason() {
        Some(CloseReason::ProtocolViolation(violation)) => {
            Some(Verdict::Violation(violation.field()))
        }
        Some(CloseReason::PeerAborted(code)) => Some(Verdict::Abort(*code)),
        Some(CloseReason::PeerOutOfResources) => Some(Verdict::Failure(1)),
        Some(CloseReason::PeerBusy) => Some(Verdict::Failure(3)),
        Some(CloseReason::PeerGaveUp(PeerTimeout::Keepalive)) => Some(Verdict::Failure(4)),
        Some(CloseReason::PeerGaveUp(PeerTimeout::Read)) => Some(Verdict::Failure(5)),
        Some(CloseReason::PeerFailed(code)) => Some(Verdict::Failure(*code)),
        Some(CloseReason::PeerClosed) => Some(Verdict::Close),
        Some(other) => panic!("{other:?}"),
        None if said == [4] => Some(Verdict::Pong),
        None if seen.is_empty() => Some(Verdict::Nothing),
        None => None,
    });
    let expected = read(frame);
    match &expected {
        Verdict::Close => assert_eq!(said, [5, 7], "a close is answered and acknowledged"),
        Verdict::Pong => assert_eq!(said, [4], "a ping is answered"),
        _ => assert_eq!(said, []),
    }
    // A buffer is out as long as a message lies in it, and comes back at once otherwise, where the
    // connection goes on.
    match &expected {
        Verdict::Message(_) | Verdict::Batch { .. } => assert_eq!(reposted, 0),
        Verdict::Large { .. }
        | Verdict::Nothing
        | Verdict::Pong
        | Verdict::Finish
        | Verdict::Close => assert_eq!(reposted, 1),
        Verdict::Violation(_) | Verdict::Abort(_) | Verdict::Failure(_) => assert!(reposted <= 1),
    }
    assert_eq!(seen, [expected]);
}
