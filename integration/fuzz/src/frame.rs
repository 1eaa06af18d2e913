//! Delivers one frame to a new connection, and checks that the outcome is the one that an
//! independent implementation of PROTOCOL.md predicts.

use std::time::Instant;

use crate::{
    device::Device,
    proto::{CloseReason, Connection, PeerTimeout},
    sizes::{BOTH_WAYS, hello, params},
};

/// The outcome of delivering one frame to a new connection.
#[derive(Debug, PartialEq)]
enum Verdict {
    Violation(&'static str),
    /// The frame contains the given number of messages.
    Messages(usize),
    Large,
    Control,
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
    if !matches!(kind, 1..=14 | 16..=18) {
        return Verdict::Violation("kind");
    }
    if frame[1] != 0 {
        return Verdict::Violation("flags");
    }
    let expected = match kind {
        1 | 17 => payload,
        10 => payload.min(256),
        13 => payload.min(4096),
        14 => payload.min(160),
        16 => 24,
        18 => payload.clamp(1, (word(8) as usize).max(1)),
        _ => 0,
    };
    let is_len = match kind {
        18 => payload <= word(8) as usize,
        _ => payload == word(8) as usize,
    };
    if !is_len || payload != expected {
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
    if !matches!(kind, 6 | 8 | 10 | 11 | 14) && word(12) != 0 {
        return Verdict::Violation("arg");
    }
    match kind {
        1 if payload > ours.eager_size as usize => Verdict::Violation("len"),
        1 => Verdict::Messages(1),
        17 if lens.len() > ours.window.into() => Verdict::Violation("kind"),
        17 if payload > ours.eager_size as usize => Verdict::Violation("len"),
        17 => Verdict::Messages(lens.len()),
        18 if payload > ours.eager_size as usize => Verdict::Violation("len"),
        18 if u64::from(word(8)) > ours.max_message => Verdict::Violation("len"),
        18 => Verdict::Large,
        10 if payload > ours.eager_size as usize => Verdict::Violation("len"),
        10 if word(12) != 0 => Verdict::Violation("control number"),
        10 => Verdict::Control,
        11 => Verdict::Violation("permit"),
        2 => Verdict::Nothing,
        3 | 12 => Verdict::Pong,
        4 | 7 | 13 | 14 => Verdict::Violation("kind"),
        5 => Verdict::Close,
        9 => Verdict::Finish,
        6 => Verdict::Abort(word(12)),
        8 => Verdict::Failure(word(12)),
        _ if long(24) > ours.max_message => Verdict::Violation("descriptor len"),
        _ => Verdict::Large,
    }
}

/// Delivers the bytes to a new connection as one frame, and checks that the outcome is the one that
/// `read` predicts. `Device` checks the positions of the messages and the READs.
pub fn one_frame(frame: &[u8]) {
    let now = Instant::now();
    let conn = Connection::requested(params(), &hello(&params(), false), BOTH_WAYS, now).unwrap();
    let mut device = Device::new(conn, params(), params().window, false, now);
    device.establish(&params());
    assert_eq!(device.sent_kinds, []);
    let receives = device.posted.len();
    device.frames(&[frame.to_vec()]);

    let seen = match device.conn.close_reason() {
        Some(CloseReason::ProtocolViolation(violation)) => Verdict::Violation(violation.field()),
        Some(CloseReason::PeerAborted(code)) => Verdict::Abort(*code),
        Some(CloseReason::PeerOutOfResources) => Verdict::Failure(1),
        Some(CloseReason::PeerBusy) => Verdict::Failure(3),
        Some(CloseReason::PeerGaveUp(PeerTimeout::Keepalive)) => Verdict::Failure(4),
        Some(CloseReason::PeerGaveUp(PeerTimeout::Read)) => Verdict::Failure(5),
        Some(CloseReason::PeerFailed(code)) => Verdict::Failure(*code),
        Some(CloseReason::PeerClosed) => Verdict::Close,
        Some(other) => panic!("{other:?}"),
        None if device.sent_kinds == [4] => Verdict::Pong,
        None if device.peer_finished => Verdict::Finish,
        None if device.inbound.iter().any(|large| large.requested > 0) => Verdict::Large,
        None if !device.large.is_empty() => Verdict::Large,
        None if device.untaken > 0 => Verdict::Control,
        None if device.kept.is_empty() => Verdict::Nothing,
        None => Verdict::Messages(device.kept.len()),
    };
    assert_eq!(seen, read(frame));
    let is_kept = matches!(seen, Verdict::Messages(_));
    assert_eq!(device.kept.is_empty(), !is_kept);
    assert_eq!(device.peer_finished, seen == Verdict::Finish);
    match seen {
        Verdict::Close => assert_eq!(
            device.sent_kinds,
            [5, 7],
            "the connection must answer a Close with Close and CloseAck"
        ),
        Verdict::Pong => assert_eq!(
            device.sent_kinds,
            [4],
            "a Ping must be answered with a Pong"
        ),
        _ => assert_eq!(device.sent_kinds, []),
    }
    // If the frame contains a message, the application still holds the buffer. The connection must
    // repost the buffer of any other frame, unless a violation, an abort or a failure has ended the
    // connection.
    if !matches!(
        seen,
        Verdict::Violation(_) | Verdict::Abort(_) | Verdict::Failure(_)
    ) {
        assert_eq!(device.posted.len(), receives - usize::from(is_kept));
    }
}
