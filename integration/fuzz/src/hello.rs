//! Delivers bytes as a peer's private data in a request, an acceptance and a rejection. Checks that
//! the outcome is the one that an independent implementation of PROTOCOL.md predicts.

use std::time::Instant;

use crate::{
    proto::{
        CloseReason, CmInput, CmOp, Connection, Event, Mismatch, Output, TransportTraits,
        testing::{BOTH_WAYS, params},
    },
    status::RejectReason,
};

/// The values of a valid hello.
#[derive(Debug, PartialEq)]
struct GoodHello<'a> {
    window: u16,
    max_message: u64,
    data: &'a [u8],
}

/// Parses the hello in a request or in a reply, and checks that it is compatible with this side's
/// parameters.
fn read(bytes: &[u8], is_request: bool) -> Result<GoodHello<'_>, CloseReason> {
    if is_rsocket(bytes) {
        return Err(CloseReason::PeerIsRsocket);
    }
    if bytes.len() < 6 || bytes[..4] != *b"rdms" {
        return Err(CloseReason::NotRdmsg);
    }
    if bytes[4] != 3 {
        return Err(mismatch("version", 3, bytes[4].into()));
    }
    let len = usize::from(bytes[5]);
    if len < 36 || len > bytes.len() {
        return Err(CloseReason::NotRdmsg);
    }
    let number = |at: usize, len: usize| {
        bytes[at..at + len]
            .iter()
            .fold(0, |number: u64, byte| number << 8 | u64::from(*byte))
    };
    let (window, max_message, ours) = (number(8, 2), number(16, 8), params());
    for (field, ours, theirs) in [
        ("receive_window", ours.window.into(), window),
        ("eager_size", ours.eager_size.into(), number(12, 4)),
        ("max_message", ours.max_message, max_message),
    ] {
        if theirs == 0 {
            return Err(mismatch(field, ours, 0));
        }
    }
    if bytes[7] & 1 == 1 {
        return Err(mismatch("stream", 0, 1));
    }
    if is_request && bytes[6] & 1 == 1 && bytes[7] >> 5 & 1 == 0 {
        // The request announces private data in a separate frame. The answer to such a request can
        // need an eager size of 160 bytes, but the eager size of this side is 64 bytes.
        return Err(mismatch(
            "eager_size",
            ours.eager_size.into(),
            number(12, 4),
        ));
    }
    Ok(GoodHello {
        window: window as u16,
        max_message,
        data: &bytes[36..len],
    })
}

fn is_rsocket(bytes: &[u8]) -> bool {
    bytes.len() >= 40
        && bytes[0] == 1
        && (2..=3).contains(&bytes[1])
        && bytes[4..7] == [0; 3]
        && bytes[20..24] == [0, 0, 0, 2]
}

/// Returns true if the hello requests to resume a session (bit 5), but has other fields that are
/// invalid in such a request.
fn is_malformed_resume(bytes: &[u8]) -> bool {
    let has = |bit: u8| bytes[7] >> bit & 1 == 1;
    has(5) && !(has(4) && bytes[5] == 56 && bytes[6] & 1 == 0)
}

fn mismatch(field: &'static str, ours: u64, theirs: u64) -> CloseReason {
    CloseReason::PeerIncompatible(Mismatch {
        field,
        ours,
        theirs,
    })
}

/// Delivers the bytes to three new connections: as the private data of a request, of an acceptance
/// and of a rejection.
pub fn one_hello(bytes: &[u8]) {
    let now = Instant::now();
    let verdict = read(bytes, true);
    match Connection::requested(params(), bytes, BOTH_WAYS, now) {
        Ok(mut conn) => {
            check(&conn, &verdict);
            assert!(!is_malformed_resume(bytes));
            assert!(conn.next_timeout().is_some());
            conn.accept(b"data", now);
            conn.begin_setup(now);
            conn.handle_transport(TransportTraits::UNRESTRICTED);
            let is_accept = |output: &Output| match output {
                Output::Cm(CmOp::Accept { private_data }) => {
                    read(private_data, false).is_ok_and(|hello| hello.data == b"data")
                }
                _ => false,
            };
            let accepts = std::iter::from_fn(|| conn.poll_output()).filter(is_accept);
            assert_eq!(accepts.count(), 1);
        }
        Err(refusal) => {
            match refusal.reason {
                CloseReason::ProtocolViolation(violation) => {
                    assert_eq!(violation.field(), "session");
                    assert!(verdict.is_ok() && is_malformed_resume(bytes));
                }
                reason => assert_eq!(Err(reason), verdict),
            }
            assert_eq!(refusal.private_data.len(), 24);
            assert_eq!(refusal.private_data[..6], *b"rdmR\x03\x18");
        }
    }

    let verdict = read(bytes, false);
    let mut conn = connecting(now);
    let private_data = bytes;
    conn.handle_cm_event(
        CmInput::Established {
            private_data,
            reads: BOTH_WAYS,
        },
        now,
    );
    match &verdict {
        Ok(_) => {
            assert_eq!(conn.close_reason(), None);
            check(&conn, &verdict);
        }
        Err(reason) => assert_eq!(&ended(&mut conn), reason),
    }

    for reason in [
        RejectReason::CONSUMER_DEFINED,
        RejectReason::INVALID_SERVICE_ID,
    ] {
        let mut conn = connecting(now);
        conn.handle_cm_event(
            CmInput::Rejected {
                reason,
                private_data,
            },
            now,
        );
        match ended(&mut conn) {
            CloseReason::PeerIsRsocket => assert!(is_rsocket(bytes)),
            CloseReason::RejectedWithoutCause => assert!(bytes.iter().all(|byte| *byte == 0)),
            CloseReason::PeerOutOfResources => assert_eq!(bytes[6..8], [0, 5]),
            CloseReason::PeerBusy => assert_eq!(bytes[6..8], [0, 8]),
            CloseReason::Rejected { data, .. } if data.is_empty() => {}
            CloseReason::Rejected { data, .. } => {
                assert_eq!(*data, bytes[24..usize::from(bytes[5])]);
            }
            CloseReason::PeerIncompatible(_) => assert_eq!(bytes[..4], *b"rdmR"),
            CloseReason::Refused => assert_eq!(reason, RejectReason::INVALID_SERVICE_ID),
            other => panic!("{other:?}"),
        }
    }
}

fn check(conn: &Connection, verdict: &Result<GoodHello<'_>, CloseReason>) {
    let negotiated = conn
        .negotiated()
        .expect("the connection must have the peer's hello");
    let seen = GoodHello {
        window: negotiated.send_window,
        max_message: negotiated.send_limit,
        data: conn.peer_data(),
    };
    assert_eq!(Ok(&seen), verdict.as_ref());
}

/// Returns a connection that has sent its request and waits for the answer.
fn connecting(now: Instant) -> Connection {
    let mut conn = Connection::connect(params(), 7, b"", now);
    conn.begin_setup(now);
    conn.handle_cm_event(CmInput::AddrResolved, now);
    conn.handle_cm_event(CmInput::RouteResolved, now);
    conn
}

/// Fetches all outputs of the connection, and returns the reason why the connection has ended. The
/// event that reports this reason must be the final output.
fn ended(conn: &mut Connection) -> CloseReason {
    let mut reason = None;
    while let Some(output) = conn.poll_output() {
        assert_eq!(
            reason, None,
            "no output may follow the end of the connection"
        );
        if let Output::Event(Event::Disconnected {
            reason: end,
            delivered,
        }) = output
        {
            assert!(!delivered);
            reason = Some(end);
        }
    }
    assert_eq!(reason.as_ref(), conn.close_reason());
    reason.expect("the connection must have ended")
}
