//! Tests that the troubleshooting page contains the text of every error.

use std::net::SocketAddr;

use super::{Error, TrySendError};
use crate::{
    machine::Denied,
    proto::{CloseReason, DeviceFault, Mismatch, PeerTimeout, Phase, Violation},
    remote_access::RemoteAccess,
    status::{CmStatus, OsError, RejectReason, WcStatus},
};

const PAGE: &str = include_str!("../../docs/guide/troubleshooting.md");

/// Returns one value of each reason. If the text of a reason depends on the value, returns several
/// values.
fn reasons() -> Vec<CloseReason> {
    let status = CmStatus::from_raw(-libc::ETIMEDOUT);
    let error = OsError::new("ibv_reg_mr", libc::ENOMEM);
    let rejected = |data: &[u8]| CloseReason::Rejected {
        reason: RejectReason::CONSUMER_DEFINED,
        data: data.into(),
    };
    let failed = |status| CloseReason::WorkRequest {
        status,
        vendor_err: 0,
    };
    vec![
        CloseReason::AddrResolution(CmStatus::from_raw(-libc::ENODEV)),
        CloseReason::AddrResolution(status),
        CloseReason::RouteResolution(status),
        CloseReason::Unreachable(status),
        CloseReason::ConnectFailed(status),
        CloseReason::Refused,
        rejected(b""),
        rejected(b"why"),
        CloseReason::RejectedWithoutCause,
        CloseReason::NotRdmsg,
        CloseReason::PeerIsRsocket,
        CloseReason::PeerOutOfResources,
        CloseReason::PeerFailed(9),
        CloseReason::PeerGaveUp(PeerTimeout::Keepalive),
        CloseReason::PeerGaveUp(PeerTimeout::Read),
        CloseReason::PeerBusy,
        CloseReason::PeerIncompatible(Mismatch {
            field: "version",
            ours: 3,
            theirs: 2,
        }),
        CloseReason::ProtocolViolation(Violation::new("kind", 9, "a kind")),
        failed(WcStatus::RETRY_EXC_ERR),
        failed(WcStatus::REM_ACCESS_ERR),
        CloseReason::DeviceRemoved,
        CloseReason::DeviceFault(DeviceFault::QueuePair),
        CloseReason::DeviceFault(DeviceFault::Access),
        CloseReason::AddressChanged,
        CloseReason::TimedOut(Phase::Connecting),
        CloseReason::KeepaliveTimeout,
        CloseReason::ReadTimeout,
        CloseReason::PeerClosed,
        CloseReason::Truncated { missing: 2 },
        CloseReason::PeerAborted(9),
        CloseReason::PeerDisconnected,
        CloseReason::SessionLost,
        CloseReason::LocallyClosed,
        CloseReason::LocallyAborted,
        CloseReason::Forked,
        CloseReason::Os(OsError::new("rdma_get_cm_event", libc::EACCES)),
        CloseReason::WakerPanicked,
        CloseReason::OutOfMemory(error),
        CloseReason::Os(error),
    ]
}

/// Returns a value of each error. Omits the errors whose text consists mainly of the text of a
/// reason or of a system call.
fn errors() -> Vec<Error> {
    let error = OsError::new("ibv_reg_mr", libc::ENOMEM);
    let address = SocketAddr::from(([127, 0, 0, 1], 7471));
    let text = || String::from("text");
    vec![
        Error::InvalidConfig {
            field: "eager_size",
            value: text(),
            allowed: text(),
        },
        Error::AddressLookup {
            address: text(),
            problem: text(),
        },
        Error::NoRdma(error),
        Error::NoRdma(OsError::new("librdmacm.so.1", libc::ELIBACC)),
        Error::RdmaNotBuilt,
        Error::WindowFull,
        Error::Finished,
        Error::PeerFinished,
        Error::PermissionDenied {
            error,
            denied: Denied {
                file: "/dev/infiniband/rdma_cm".into(),
                group: None,
                mode: 0,
            },
        },
        Error::loopback(address),
        Error::loopback(SocketAddr::from(([0, 0, 0, 0], 7471))),
        Error::Bind { address, error },
        Error::Source { address, error },
        Error::MessageTooLong { len: 5, limit: 4 },
        Error::PrivateDataTooLong {
            len: 5,
            limit: 4,
            place: "a place",
        },
        Error::NotConnected,
        Error::CompletionsNotTaken,
        Error::ControlMessagesNotTaken { untaken: 4 },
        Error::ControlMessageTooLong { len: 5, limit: 4 },
        Error::Grouped,
        Error::OutOfBounds {
            what: "the region",
            start: 1,
            len: 4,
            limit: 4,
        },
        Error::NotAllowed {
            allowed: RemoteAccess::READ,
            needed: RemoteAccess::WRITE,
        },
        Error::Misaligned { offset: 4 },
        Error::NotSupported {
            operation: "fetch_add",
            device: "siw0".into(),
            because: "its driver reports no atomic operations",
        },
        Error::ForeignMemory,
        Error::StaleRegion,
        Error::TimedOut,
        Error::SharedReceivesExhausted {
            total: 26,
            free: 1,
            needed: 13,
        },
        Error::LockedMemory { error, limit: 1 },
        Error::ListenerEnded {
            address,
            reason: CloseReason::DeviceRemoved,
        },
        Error::ListenerClosed,
        Error::EngineShutDown,
        Error::Forked,
    ]
}

/// Returns whether a text matches an entry. Each `…` in the entry matches any text.
fn is_entry(entry: &str, text: &str) -> bool {
    let parts: Vec<&str> = entry.split('…').collect();
    let (Some(first), Some(last)) = (parts.first(), parts.last()) else {
        return false;
    };
    let mut rest = text;
    let in_order = parts.iter().all(|part| {
        let found = rest.split_once(part);
        rest = found.map_or(rest, |(_, after)| after);
        found.is_some()
    });
    in_order && text.starts_with(first) && text.ends_with(last)
}

#[test]
fn troubleshooting_page_lists_exactly_all_texts() {
    let page = PAGE.split_whitespace().collect::<Vec<_>>().join(" ");
    let entries: Vec<&str> = page
        .split("* **`")
        .skip(1)
        .filter_map(|entry| entry.split_once("`**"))
        .map(|(text, _)| text)
        .collect();
    let mut texts: Vec<String> = reasons().iter().map(ToString::to_string).collect();
    texts.extend(errors().iter().map(ToString::to_string));
    texts.push(TrySendError::Full.to_string());
    for text in &texts {
        let has = entries.iter().any(|entry| is_entry(entry, text));
        assert!(has, "no entry for: {text}");
    }
    for entry in &entries {
        let used = texts.iter().any(|text| is_entry(entry, text));
        assert!(used, "no error has the text of this entry: {entry}");
    }
    let (peer, reason) = (
        SocketAddr::from(([10, 8, 0, 1], 7471)),
        CloseReason::PeerClosed,
    );
    for error in [
        Error::Connect {
            peer,
            reason: reason.clone(),
        },
        Error::Disconnected(reason.clone()),
        Error::Undelivered(reason),
    ] {
        let text = error.to_string().replace(&peer.to_string(), "…");
        let form = text.replace("closed by the peer", "…");
        assert!(
            page.contains(&format!("`{form}`")),
            "the page does not contain: {form}"
        );
    }
}
