//! The names of close reasons, which metrics use as labels.

use crate::{CloseReason, PeerTimeout};

/// Defines [`CloseReason::NAMES`] and [`CloseReason::name`].
macro_rules! names {
    ($($reason:pat => $name:literal,)*) => {
        impl CloseReason {
            /// All names that [`name`](Self::name) returns.
            pub const NAMES: &'static [&'static str] = &[$($name),*];

            /// Returns the name of the reason without its values, such as `peer_closed`.
            ///
            /// The name consists of lower-case letters and underscores. The number of names is
            /// bounded, so metrics can use the name as a label.
            #[must_use]
            pub const fn name(&self) -> &'static str {
                match self {
                    $($reason => $name,)*
                }
            }
        }
    };
}

names! {
    Self::AddrResolution(_) => "addr_resolution",
    Self::RouteResolution(_) => "route_resolution",
    Self::Unreachable(_) => "unreachable",
    Self::ConnectFailed(_) => "connect_failed",
    Self::Refused => "refused",
    Self::Rejected { .. } => "rejected",
    Self::RejectedWithoutCause => "rejected_without_cause",
    Self::NotRdmsg => "not_rdmsg",
    Self::PeerIsRsocket => "peer_is_rsocket",
    Self::PeerOutOfResources => "peer_out_of_resources",
    Self::PeerGaveUp(PeerTimeout::Keepalive) => "peer_keepalive_timeout",
    Self::PeerGaveUp(PeerTimeout::Read) => "peer_read_timeout",
    Self::PeerFailed(_) => "peer_failed",
    Self::PeerBusy => "peer_busy",
    Self::PeerIncompatible(_) => "peer_incompatible",
    Self::ProtocolViolation(_) => "protocol_violation",
    Self::WorkRequest { .. } => "work_request",
    Self::DeviceRemoved => "device_removed",
    Self::DeviceFault(_) => "device_fault",
    Self::AddressChanged => "address_changed",
    Self::TimedOut(_) => "timed_out",
    Self::KeepaliveTimeout => "keepalive_timeout",
    Self::ReadTimeout => "read_timeout",
    Self::PeerClosed => "peer_closed",
    Self::Truncated { .. } => "truncated",
    Self::PeerAborted(_) => "peer_aborted",
    Self::PeerDisconnected => "peer_disconnected",
    Self::SessionLost => "session_lost",
    Self::LocallyClosed => "locally_closed",
    Self::LocallyAborted => "locally_aborted",
    Self::WakerPanicked => "waker_panicked",
    Self::Forked => "forked",
    Self::OutOfMemory(_) => "out_of_memory",
    Self::Os(_) => "os",
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_distinct_and_values_of_labels() {
        let distinct: BTreeSet<_> = CloseReason::NAMES.iter().collect();
        assert_eq!(distinct.len(), CloseReason::NAMES.len());
        for name in CloseReason::NAMES {
            assert!(
                name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'),
                "{name}"
            );
        }
        assert_eq!(CloseReason::PeerAborted(7).name(), "peer_aborted");
        assert_eq!(CloseReason::PeerAborted(8).name(), "peer_aborted");
    }
}
