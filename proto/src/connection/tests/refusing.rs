//! Tests of rejections by the peer, and of further attempts to connect.

use std::time::{Duration, Instant};

use rdma_status::{CmStatus, OsError, RejectReason};

use super::{connecting, end, hello, last_event, ops, params, started};
use crate::{
    CloseReason, CmCall, CmInput, CmOp, Connection, Mismatch, Params,
    hello::VERSION,
    reject::{Reject, RejectCode},
    testing::BOTH_WAYS,
};

#[test]
fn rejection_reasons_are_distinguished() {
    let now = Instant::now();
    let reject = |reason: RejectReason, private_data: &[u8]| {
        let mut conn = started(params(), 1, b"", now);
        conn.handle_cm_event(CmInput::AddrResolved, now);
        conn.handle_cm_event(CmInput::RouteResolved, now);
        conn.handle_cm_event(
            CmInput::Rejected {
                reason,
                private_data,
            },
            now,
        );
        end(&mut conn)
    };
    let consumer = RejectReason::CONSUMER_DEFINED;

    // The application's rejection arrives with the connection manager's padding.
    let mut passive =
        Connection::requested(params(), &hello(VERSION, 4).emit(b""), BOTH_WAYS, now).unwrap();
    passive.reject(b"full", now);
    let Some(CmOp::Reject { private_data }) = ops(&mut passive).pop() else {
        panic!("no rejection")
    };
    let mut padded = private_data.to_vec();
    padded.resize(148, 0);
    assert_eq!(
        reject(consumer, &padded),
        CloseReason::Rejected {
            reason: consumer,
            data: b"full"[..].into()
        }
    );

    // A different version, or a receive window of 0, makes the peer incompatible. The error names
    // the values of both sides.
    for (version, window, text) in [
        (
            9,
            4,
            "the two sides are incompatible: version is 9 here and 3 at the peer",
        ),
        (
            VERSION,
            0,
            "the two sides are incompatible: receive_window is 0 here and 4 at the peer",
        ),
    ] {
        let refusal =
            Connection::requested(params(), &hello(version, window).emit(b""), BOTH_WAYS, now)
                .unwrap_err();
        assert!(
            matches!(refusal.reason, CloseReason::PeerIncompatible(_)),
            "{:?}",
            refusal.reason
        );
        assert_eq!(reject(consumer, &refusal.private_data).to_string(), text);
    }

    // These private data do not have the format of rdmsg.
    assert_eq!(
        reject(consumer, b"go away"),
        CloseReason::Rejected {
            reason: consumer,
            data: Box::default()
        }
    );
    assert_eq!(
        reject(RejectReason::INVALID_SERVICE_ID, &[]),
        CloseReason::Refused
    );
}

#[test]
fn foreign_rejection_names_the_likely_protocol() {
    let rejected = |reason, private_data: &[u8]| {
        let now = Instant::now();
        let mut conn = started(params(), 1, b"", now);
        conn.handle_cm_event(CmInput::AddrResolved, now);
        conn.handle_cm_event(CmInput::RouteResolved, now);
        let event = CmInput::Rejected {
            reason,
            private_data,
        };
        conn.handle_cm_event(event, now);
        end(&mut conn)
    };
    let consumer = RejectReason::CONSUMER_DEFINED;
    for nothing in [&[][..], &[0; 148]] {
        let reason = rejected(consumer, nothing);
        assert_eq!(reason, CloseReason::RejectedWithoutCause);
        let text = reason.to_string();
        assert!(text.contains("another protocol"), "{text}");
        assert!(text.contains("the other of IPv4 and IPv6"), "{text}");
        assert!(text.contains("rsocket"), "{text}");
    }
    // A rejection by the application always states a cause, even if the application supplies no
    // bytes.
    let now = Instant::now();
    let mut passive =
        Connection::requested(params(), &hello(VERSION, 4).emit(b""), BOTH_WAYS, now).unwrap();
    passive.reject(b"", now);
    let Some(CmOp::Reject { private_data }) = ops(&mut passive).pop() else {
        panic!("no rejection")
    };
    assert_eq!(
        rejected(consumer, &private_data),
        CloseReason::Rejected {
            reason: consumer,
            data: Box::default()
        }
    );

    let mut rsocket = [0; 56];
    (rsocket[0], rsocket[1], rsocket[23]) = (1, 2, 2);
    assert_eq!(rejected(consumer, &rsocket), CloseReason::PeerIsRsocket);
    let refusal = Connection::requested(params(), &rsocket, BOTH_WAYS, Instant::now()).unwrap_err();
    assert_eq!(refusal.reason, CloseReason::PeerIsRsocket);
}

/// Checks the refusals between version 2 and the current version. The bytes of version 2 are
/// literals, because they never change.
#[test]
fn version_2_and_this_version_refuse_each_other() {
    let now = Instant::now();
    let hello = b"rdms\x02\x24\0\0\0\x20\0\0\0\0\x40\0\0\0\0\0\x40\0\0\0\
        \0\0\x13\x88\x01\x02\x03\x04\x05\x06\x07\x08";
    let mismatch = CloseReason::PeerIncompatible(Mismatch {
        field: "version",
        ours: 3,
        theirs: 2,
    });
    let active = || {
        let mut conn = started(params(), 1, b"", now);
        conn.handle_cm_event(CmInput::AddrResolved, now);
        conn.handle_cm_event(CmInput::RouteResolved, now);
        conn
    };

    // A peer of version 2 connects. The rejection has the layout that the peer expects, and ends
    // with the peer's version.
    let refusal = Connection::requested(params(), hello, BOTH_WAYS, now).unwrap_err();
    assert_eq!(refusal.reason, mismatch);
    let expected = b"rdmR\x03\x18\0\x01\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x02";
    assert_eq!(*refusal.private_data, *expected);

    // In the first case, the peer rejects the request, as the library of version 2 does. In the
    // second case, the peer accepts the request.
    let mut conn = active();
    conn.handle_cm_event(
        CmInput::Rejected {
            reason: RejectReason::CONSUMER_DEFINED,
            private_data: b"rdmR\x02\x18\0\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x03",
        },
        now,
    );
    assert_eq!(end(&mut conn), mismatch);
    let mut conn = active();
    conn.handle_cm_event(
        CmInput::Established {
            private_data: hello,
            reads: BOTH_WAYS,
        },
        now,
    );
    assert_eq!(end(&mut conn), mismatch);
}

#[test]
fn a_reply_without_a_hello_is_not_rdmsg() {
    let now = Instant::now();
    for (private_data, expected) in [
        (&b""[..], CloseReason::NotRdmsg),
        (&[0; 196], CloseReason::NotRdmsg),
        (
            &hello(1, 4).emit(b""),
            CloseReason::PeerIncompatible(Mismatch {
                field: "version",
                ours: VERSION.into(),
                theirs: 1,
            }),
        ),
    ] {
        let mut conn = started(params(), 1, b"", now);
        conn.handle_cm_event(CmInput::AddrResolved, now);
        conn.handle_cm_event(CmInput::RouteResolved, now);
        conn.handle_cm_event(
            CmInput::Established {
                private_data,
                reads: BOTH_WAYS,
            },
            now,
        );
        assert_eq!(end(&mut conn), expected);
    }
}

#[test]
fn iwarp_refusal_differs_from_program_rejection() {
    let refused = RejectReason::from_raw(-libc::ECONNREFUSED);
    for (private_data, expected) in [
        (&b""[..], CloseReason::Refused),
        (&[0; 148], CloseReason::Refused),
        (
            b"go away",
            CloseReason::Rejected {
                reason: refused,
                data: Box::default(),
            },
        ),
    ] {
        let mut conn = connecting(Instant::now());
        let event = CmInput::Rejected {
            reason: refused,
            private_data,
        };
        conn.handle_cm_event(event, Instant::now());
        assert_eq!(end(&mut conn), expected);
    }
}

#[test]
fn iwarp_rejection_cause_has_two_error_numbers() {
    for errno in [libc::ECONNREFUSED, libc::ECONNRESET] {
        let mut conn = connecting(Instant::now());
        let event = CmInput::Rejected {
            reason: RejectReason::from_raw(-errno),
            private_data: &Reject::BUSY.emit(b""),
        };
        conn.handle_cm_event(event, Instant::now());
        assert_eq!(end(&mut conn), CloseReason::PeerBusy);
    }
}

#[test]
fn synchronous_connect_error_equals_event_error() {
    let status = |errno: i32| CmStatus::from_raw(-errno);
    let os = |errno| OsError::new("rdma_connect", errno);
    for (errno, expected) in [
        (libc::ECONNREFUSED, CloseReason::Refused),
        (
            libc::ETIMEDOUT,
            CloseReason::Unreachable(status(libc::ETIMEDOUT)),
        ),
        (
            libc::EHOSTUNREACH,
            CloseReason::Unreachable(status(libc::EHOSTUNREACH)),
        ),
        (libc::ECONNRESET, CloseReason::PeerDisconnected),
        (libc::EINVAL, CloseReason::Os(os(libc::EINVAL))),
    ] {
        let now = Instant::now();
        let mut conn = connecting(now);
        conn.handle_cm_failure(CmCall::Connect, os(errno), now);
        assert_eq!(end(&mut conn), expected);
    }
}

/// Checks that the connection tries again after a local error even without `retry_refused`, because
/// the peer has not refused the connection.
#[test]
fn local_port_in_use_is_retried_with_another() {
    let now = Instant::now();
    for errno in [libc::EADDRINUSE, libc::EADDRNOTAVAIL] {
        let error = OsError::new("rdma_connect", errno);
        let status = CmStatus::from_raw(-errno);
        for is_call in [true, false] {
            let mut conn = connecting(now);
            let cause = if is_call {
                conn.handle_cm_failure(CmCall::Connect, error, now);
                CloseReason::Os(error)
            } else {
                conn.handle_cm_event(CmInput::ConnectError(status), now);
                CloseReason::ConnectFailed(status)
            };
            assert_eq!(conn.close_reason(), None);
            assert!(matches!(ops(&mut conn)[..], [.., CmOp::Discard]));
            conn.handle_timeout(now + Duration::from_secs(1));
            assert!(matches!(ops(&mut conn)[..], [CmOp::AwaitSetupSlot]));
            conn.handle_timeout(now + Duration::from_secs(5));
            assert_eq!(
                conn.close_reason(),
                Some(&cause),
                "the only failure must be the reason"
            );
        }
    }
}

#[test]
fn transient_refusal_is_retried_if_configured() {
    let now = Instant::now();
    let busy = Reject::BUSY.emit(b"");
    let [application, resources] = [RejectCode::Application, RejectCode::Resources].map(|code| {
        let reject = Reject {
            code,
            ..Reject::BUSY
        };
        reject.emit(b"")
    });
    let consumer = RejectReason::CONSUMER_DEFINED;
    for (reason, private_data, cause, passes) in [
        (consumer, &busy[..], CloseReason::PeerBusy, true),
        (consumer, &resources, CloseReason::PeerOutOfResources, true),
        // The listener's process ended before it answered the request.
        (consumer, &[], CloseReason::RejectedWithoutCause, true),
        (
            consumer,
            &application,
            CloseReason::Rejected {
                reason: consumer,
                data: Box::default(),
            },
            false,
        ),
    ] {
        for retry_refused in [false, true] {
            let params = Params {
                retry_refused,
                ..params()
            };
            let mut conn = started(params, 1, b"", now);
            conn.handle_cm_event(CmInput::AddrResolved, now);
            conn.handle_cm_event(CmInput::RouteResolved, now);
            let event = CmInput::Rejected {
                reason,
                private_data,
            };
            conn.handle_cm_event(event, now);
            let again = matches!(ops(&mut conn)[..], [.., CmOp::Discard]);
            assert_eq!(again, passes && retry_refused, "{cause}");
            assert_eq!(conn.close_reason().is_none(), again);
            if again {
                conn.handle_timeout(now + Duration::from_secs(5));
            }
            assert_eq!(conn.close_reason(), Some(&cause));
        }
    }
}

#[test]
fn peer_that_ends_early_is_retried_if_configured() {
    let now = Instant::now();
    let (gone, other) = (CloseReason::PeerDisconnected, CloseReason::NotRdmsg);
    let reset = OsError::new("rdma_connect", libc::ECONNRESET);
    type Feed<'a> = &'a dyn Fn(&mut Connection);
    let cases: [(Feed<'_>, &CloseReason); 4] = [
        (
            &|conn| conn.handle_cm_event(CmInput::Disconnected, now),
            &gone,
        ),
        (
            &|conn| conn.handle_cm_event(CmInput::Failed(&gone), now),
            &gone,
        ),
        (
            &|conn| conn.handle_cm_failure(CmCall::Connect, reset, now),
            &gone,
        ),
        (
            &|conn| conn.handle_cm_event(CmInput::Failed(&other), now),
            &other,
        ),
    ];
    for (feed, cause) in cases {
        for retry_refused in [false, true] {
            let params = Params {
                retry_refused,
                ..params()
            };
            let mut conn = started(params, 1, b"", now);
            conn.handle_cm_event(CmInput::AddrResolved, now);
            conn.handle_cm_event(CmInput::RouteResolved, now);
            feed(&mut conn);
            let again = matches!(ops(&mut conn)[..], [.., CmOp::Discard]);
            assert_eq!(again, retry_refused && *cause == gone, "{cause}");
            if again {
                conn.handle_timeout(now + Duration::from_secs(5));
            }
            assert_eq!(conn.close_reason(), Some(cause));
        }
    }
}

#[test]
fn a_refusal_is_final_unless_retries_are_asked_for() {
    let now = Instant::now();
    let refused = CmInput::Rejected {
        reason: RejectReason::INVALID_SERVICE_ID,
        private_data: &[],
    };
    for retry_refused in [false, true] {
        let mut conn = started(
            Params {
                retry_refused,
                ..params()
            },
            1,
            b"",
            now,
        );
        conn.handle_cm_event(CmInput::AddrResolved, now);
        conn.handle_cm_event(CmInput::RouteResolved, now);
        conn.handle_cm_event(refused, now);
        if retry_refused {
            assert_eq!(last_event(&mut conn), None);
            conn.handle_timeout(now + Duration::from_secs(1));
            conn.begin_setup(now + Duration::from_secs(1));
            assert!(matches!(
                ops(&mut conn)[..],
                [
                    CmOp::AwaitSetupSlot,
                    CmOp::CreateId,
                    CmOp::ResolveAddr { .. }
                ]
            ));
            conn.handle_timeout(now + Duration::from_secs(5));
        }
        assert_eq!(end(&mut conn), CloseReason::Refused);
    }
}
