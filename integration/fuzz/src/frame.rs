//! Delivers one frame to a new connection, and checks that the outcome is the one that an
//! independent implementation of PROTOCOL.md predicts.

use std::time::Instant;

use crate::{
    device::Device,
    proto::{
        CloseReason, Connection, PeerTimeout,
        testing::{BOTH_WAYS, params},
    },
    wire::{hello, long, word},
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
    if frame.len() < 16 {
        return Verdict::Violation("frame length");
    }
    let (kind, payload) = (frame[0], frame.len() - 16);
    let (len, arg) = (word(frame, 8), word(frame, 12));
    let expected = match kind {
        1 | 17 => payload,
        10 => payload.min(256),
        13 => payload.min(4096),
        14 => payload.min(160),
        16 => 24,
        18 => payload.clamp(1, (len as usize).max(1)),
        _ => 0,
    };
    let is_len = match kind {
        18 => payload <= len as usize,
        _ => payload == len as usize,
    };
    let messages = match kind {
        17 => messages_in(&frame[16..]).unwrap_or(0),
        _ => 1,
    };
    let (addr, large_len, reserved) = match (kind, payload) {
        (16, 24) => (long(frame, 16), long(frame, 24), word(frame, 36)),
        _ => (0, 1, 0),
    };
    // The connection reports the first of these conditions that is violated.
    let conditions = [
        ("kind", matches!(kind, 1..=14 | 16..=18)),
        ("flags", frame[1] == 0),
        ("len", is_len && payload == expected),
        ("descriptor reserved", reserved == 0),
        (
            "descriptor len",
            large_len > 0 && addr.checked_add(large_len).is_some(),
        ),
        ("batch", messages > 0),
        ("sequence", frame[2..4] == [0, 0]),
        ("grant", word(frame, 4) == ours.window.into()),
        ("arg", matches!(kind, 6 | 8 | 10 | 11 | 14) || arg == 0),
        ("kind", !matches!(kind, 4 | 7 | 13 | 14)),
        ("kind", messages <= ours.window.into()),
        ("len", payload <= ours.eager_size as usize),
        ("len", kind != 18 || u64::from(len) <= ours.max_message),
        ("control number", kind != 10 || arg == 0),
        ("permit", kind != 11),
        ("descriptor len", large_len <= ours.max_message),
    ];
    if let Some((field, _)) = conditions.into_iter().find(|(_, holds)| !holds) {
        return Verdict::Violation(field);
    }
    match kind {
        1 | 17 => Verdict::Messages(messages),
        3 | 12 => Verdict::Pong,
        5 => Verdict::Close,
        6 => Verdict::Abort(arg),
        8 => Verdict::Failure(arg),
        9 => Verdict::Finish,
        10 => Verdict::Control,
        16 | 18 => Verdict::Large,
        _ => Verdict::Nothing,
    }
}

/// Returns the number of messages in the payload of a batch, or `None` if a message is truncated.
fn messages_in(mut payload: &[u8]) -> Option<usize> {
    let mut count = 0;
    while !payload.is_empty() {
        let (len, rest) = payload.split_first_chunk()?;
        payload = rest.get(u32::from_be_bytes(*len) as usize..)?;
        count += 1;
    }
    Some(count)
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

    let has_begun = device.inbound.iter().any(|large| large.requested > 0);
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
        None if !device.large.is_empty() || has_begun => Verdict::Large,
        None if device.untaken > 0 => Verdict::Control,
        None if device.kept.is_empty() => Verdict::Nothing,
        None => Verdict::Messages(device.kept.len()),
    };
    assert_eq!(seen, read(frame));
    let is_kept = matches!(seen, Verdict::Messages(_));
    assert_eq!(device.kept.is_empty(), !is_kept);
    assert_eq!(device.peer_finished, seen == Verdict::Finish);
    match seen {
        // A Close and a CloseAck.
        Verdict::Close => assert_eq!(device.sent_kinds, [5, 7]),
        Verdict::Pong => assert_eq!(device.sent_kinds, [4]),
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
