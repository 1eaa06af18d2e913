use std::fmt;

use crate::{
    os::failed,
    proto::{CloseReason, CmInput, ReadDepth},
    status::RejectReason,
};

/// An event of the connection whose key it contains.
#[derive(Debug)]
pub(crate) struct Event {
    pub(in crate::transport) key: u64,
    pub(in crate::transport) what: EventKind,
}

/// The kind of an event.
#[derive(Debug)]
pub(in crate::transport) enum EventKind {
    AddrResolved,
    RouteResolved,
    Established {
        private_data: Vec<u8>,
        reads: ReadDepth,
    },
    /// The peer rejected the request, and sent this private data.
    Rejected {
        private_data: Vec<u8>,
    },
    /// The attempt to connect failed.
    Failed(CloseReason),
    Disconnected,
}

impl Event {
    pub(crate) fn key(&self) -> u64 {
        self.key
    }

    pub(crate) fn is_disconnect(&self) -> bool {
        matches!(self.what, EventKind::Disconnected)
    }

    /// Converts the event to an input of the state machine.
    pub(crate) fn input(&self) -> CmInput<'_> {
        match &self.what {
            EventKind::AddrResolved => CmInput::AddrResolved,
            EventKind::RouteResolved => CmInput::RouteResolved,
            EventKind::Established {
                private_data,
                reads,
            } => CmInput::Established {
                private_data,
                reads: *reads,
            },
            EventKind::Rejected { private_data } => CmInput::Rejected {
                reason: RejectReason::CONSUMER_DEFINED,
                private_data,
            },
            EventKind::Failed(reason) => CmInput::Failed(reason),
            EventKind::Disconnected => CmInput::Disconnected,
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.what {
            EventKind::AddrResolved => "ADDR_RESOLVED",
            EventKind::RouteResolved => "ROUTE_RESOLVED",
            EventKind::Established { .. } => "ESTABLISHED",
            EventKind::Rejected { .. } => "REJECTED",
            EventKind::Failed(_) => "FAILED",
            EventKind::Disconnected => "DISCONNECTED",
        })
    }
}

impl EventKind {
    /// Creates the event for an attempt to connect that ended because `call` failed with `errno`.
    pub(super) fn failure(call: &'static str, errno: nix::Error) -> Self {
        Self::Failed(match errno {
            nix::Error::ECONNREFUSED => CloseReason::Refused,
            nix::Error::ECONNRESET | nix::Error::EPIPE => CloseReason::PeerDisconnected,
            errno => CloseReason::Os(failed(call)(errno)),
        })
    }
}
