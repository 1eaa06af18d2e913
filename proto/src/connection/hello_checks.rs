//! Pure functions that examine hellos and rejections. They tell why two sides cannot connect, and
//! whether a later attempt can succeed.

use rdma_status::RejectReason;

use crate::{
    CloseReason, Mismatch, Params, ReadDepth,
    hello::{Hello, HelloError, STREAM, VERSION, is_rsocket},
    reason::Violation,
    reject::{Reject, RejectCode},
};

/// Returns the reason for the end after the peer has sent an invalid hello.
pub(super) fn unreadable(error: HelloError) -> CloseReason {
    match error {
        HelloError::NotRdmsg => CloseReason::NotRdmsg,
        HelloError::Rsocket => CloseReason::PeerIsRsocket,
        HelloError::Version(theirs) => CloseReason::PeerIncompatible(Mismatch {
            field: "version",
            ours: VERSION.into(),
            theirs: theirs.into(),
        }),
    }
}

/// Returns the reason for the end if the peer's request to resume a session has the wrong length.
/// `len` is this length in bytes.
pub(super) fn malformed_resume(len: usize) -> CloseReason {
    let field = RejectCode::Session.field();
    let violation = Violation::new(
        field,
        len as u64,
        "the 20 bytes of a request to resume a session",
    );
    CloseReason::ProtocolViolation(violation)
}

/// Checks that the parameters of the two sides are compatible. READs must be possible in both
/// directions: a large message that can never be read would also block all messages behind it.
pub(super) fn compatible(
    params: &Params,
    hello: &Hello,
    reads: ReadDepth,
) -> Result<(), (RejectCode, Mismatch)> {
    for (code, ours, theirs) in [
        (
            RejectCode::Window,
            u64::from(params.window),
            u64::from(hello.window),
        ),
        (
            RejectCode::EagerSize,
            params.eager_size.into(),
            hello.eager_size.into(),
        ),
        (
            RejectCode::MaxMessage,
            params.max_message,
            hello.max_message,
        ),
        //= PROTOCOL.md#transport
        //# `responder_resources` and `initiator_depth` of the request and of the reply must not be
        //# 0.
        (RejectCode::ResponderResources, 1, reads.outgoing.into()),
        (RejectCode::InitiatorDepth, 1, reads.incoming.into()),
    ] {
        if theirs == 0 {
            return Err((
                code,
                Mismatch {
                    field: code.field(),
                    ours,
                    theirs,
                },
            ));
        }
    }
    //= PROTOCOL.md#streams
    //# A side whose application uses the connection as a stream of bytes sets bit 0 of `features`
    //# in its hello, and refuses a peer that does not: the passive side rejects with code 9, the
    //# active one disconnects.
    let (ours, theirs) = (params.stream, hello.features & STREAM != 0);
    if ours != theirs {
        let mismatch = Mismatch {
            field: RejectCode::Stream.field(),
            ours: ours.into(),
            theirs: theirs.into(),
        };
        return Err((RejectCode::Stream, mismatch));
    }
    Ok(())
}

/// Returns the reason for the end after a REJECTED event.
pub(super) fn rejection(reason: RejectReason, private_data: &[u8]) -> CloseReason {
    match Reject::parse(private_data).filter(|_| reason.is_consumer()) {
        Some((
            Reject {
                code: RejectCode::Application,
                ..
            },
            data,
        )) => CloseReason::Rejected {
            reason,
            data: data.into(),
        },
        Some((
            Reject {
                code: RejectCode::Resources,
                ..
            },
            _,
        )) => CloseReason::PeerOutOfResources,
        Some((
            Reject {
                code: RejectCode::Busy,
                ..
            },
            _,
        )) => CloseReason::PeerBusy,
        Some((
            Reject {
                code: RejectCode::Session | RejectCode::Over,
                ..
            },
            _,
        )) => CloseReason::SessionLost,
        // `own` is the value of the rejecting side, which is the peer.
        Some((Reject { code, own, theirs }, _)) => CloseReason::PeerIncompatible(Mismatch {
            field: code.field(),
            ours: theirs,
            theirs: own,
        }),
        None if has_no_listener(reason, private_data) => CloseReason::Refused,
        None if is_rsocket(private_data) => CloseReason::PeerIsRsocket,
        None if reason.is_consumer() && is_blank(private_data) => CloseReason::RejectedWithoutCause,
        None => CloseReason::Rejected {
            reason,
            data: Box::default(),
        },
    }
}

/// Returns whether the peer might accept the same request later.
pub(super) fn is_transient(cause: &CloseReason, reason: RejectReason) -> bool {
    is_refusal(cause) || reason == RejectReason::STALE_CONN
}

/// Returns whether the cause is a refusal: no program accepted the request, or the peer lacked
/// resources for another connection. If a listener's process ends, the kernel of its host refuses
/// the requests that are waiting for the listener. Over RDMA, the kernel rejects these requests
/// without private data. Over TCP, the kernel closes the TCP connections of these requests.
pub(super) fn is_refusal(cause: &CloseReason) -> bool {
    matches!(
        cause,
        CloseReason::Refused
            | CloseReason::PeerBusy
            | CloseReason::PeerOutOfResources
            | CloseReason::RejectedWithoutCause
            | CloseReason::PeerDisconnected
    )
}

/// Returns whether this error usually persists for more than a few seconds. Examples are the errors
/// for a missing route and for a missing permission.
pub(super) fn is_permanent(errno: i32) -> bool {
    matches!(
        errno,
        libc::ENODEV
            | libc::ENETUNREACH
            | libc::EINVAL
            | libc::EAFNOSUPPORT
            | libc::EACCES
            | libc::EPERM
    )
}

/// Returns whether the peer has no listener on the port. InfiniBand and RoCE have a reject reason
/// for this case. On iWARP, the status is that of a refused TCP connection. A rejection by a
/// program has the same status on iWARP, but contains private data.
fn has_no_listener(reason: RejectReason, private_data: &[u8]) -> bool {
    reason == RejectReason::INVALID_SERVICE_ID
        || (reason.raw() == -libc::ECONNREFUSED && is_blank(private_data))
}

/// Returns whether private data are empty or consist only of the connection manager's padding.
fn is_blank(private_data: &[u8]) -> bool {
    private_data.iter().all(|byte| *byte == 0)
}
