//! Tests of hellos whose values a side cannot use.

use std::time::Instant;

use rdma_status::RejectReason;

use super::{connecting, end, hello, params};
use crate::{
    CloseReason, CmInput, Connection, Mismatch, ReadDepth,
    hello::{Hello, VERSION},
    testing::BOTH_WAYS,
};

#[test]
fn hello_of_zeros_is_refused_with_field_name() {
    let usable = hello(VERSION, 4);
    for (unusable, field, ours) in [
        (
            Hello {
                window: 0,
                credits: 0,
                ..usable
            },
            "receive_window",
            4,
        ),
        (
            Hello {
                eager_size: 0,
                ..usable
            },
            "eager_size",
            64,
        ),
        (
            Hello {
                max_message: 0,
                ..usable
            },
            "max_message",
            8 << 20,
        ),
    ] {
        let expected = CloseReason::PeerIncompatible(Mismatch {
            field,
            ours,
            theirs: 0,
        });
        let now = Instant::now();
        let refusal =
            Connection::requested(params(), &unusable.emit(b""), BOTH_WAYS, now).unwrap_err();
        assert_eq!(refusal.reason, expected);
        let mut conn = connecting(now);
        let private_data = &unusable.emit(b"");
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
fn peer_without_reads_both_ways_is_refused() {
    let good = hello(VERSION, 4).emit(b"");
    for (reads, field) in [
        (
            ReadDepth {
                outgoing: 0,
                incoming: 1,
            },
            "responder_resources",
        ),
        (
            ReadDepth {
                outgoing: 1,
                incoming: 0,
            },
            "initiator_depth",
        ),
    ] {
        let expected = CloseReason::PeerIncompatible(Mismatch {
            field,
            ours: 1,
            theirs: 0,
        });
        let now = Instant::now();
        let refusal = Connection::requested(params(), &good, reads, now).unwrap_err();
        assert_eq!(refusal.reason, expected);
        // The rejected side reports the same error, with `ours` and `theirs` swapped.
        let mut conn = connecting(now);
        conn.handle_cm_event(
            CmInput::Rejected {
                reason: RejectReason::CONSUMER_DEFINED,
                private_data: &refusal.private_data,
            },
            now,
        );
        assert_eq!(
            end(&mut conn),
            CloseReason::PeerIncompatible(Mismatch {
                field,
                ours: 0,
                theirs: 1,
            })
        );
        let mut conn = connecting(now);
        let private_data = &good;
        conn.handle_cm_event(
            CmInput::Established {
                private_data,
                reads,
            },
            now,
        );
        assert_eq!(end(&mut conn), expected);
    }
}
