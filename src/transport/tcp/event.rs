use std::fmt;

use crate::{
    os::failed,
    proto::{CloseReason, CmInput, ReadDepth},
    status::RejectReason,
};

/// Something that concerns the connection with this key.
#[derive(Debug)]
pub(crate) struct Event {
    pub(super) key: u64,
    pub(super) what: What,
}

/// The kind of an event.
#[derive(Debug)]
pub(super) enum What {
    AddrResolved,
    RouteResolved,
    Established {
        private_data: Vec<u8>,
        reads: ReadDepth,
    },
    /// By the peer, with these bytes.
    Rejected {
        private_data: Vec<u8>,
    },
    /// The attempt to connect.
    Failed(CloseReason),
    Disconnected,
}

impl Event {
    pub(crate) fn key(&self) -> u64 {
        self.key
    }

    pub(crate) fn is_disconnect(&self) -> bool {
        matches!(self.what, What::Disconnected)
    }

    /// The state machine's view of it.
    pub(crate) fn input(&self) -> CmInput<'_> {
        match &self.what {
            What::AddrResolved => CmInput::AddrResolved,
            What::RouteResolved => CmInput::RouteResolved,
            What::Established {
                private_data,
                reads,
            } => CmInput::Established {
                private_data,
                reads: *reads,
            },
            What::Rejected { private_data } => CmInput::Rejected {
                reason: RejectReason::CONSUMER_DEFINED,
                private_data,
            },
            What::Failed(reason) => CmInput::Failed(reason),
            What::Disconnected => CmInput::Disconnected,
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.what {
            What::AddrResolved => "ADDR_RESOLVED",
            What::RouteResolved => "ROUTE_RESOLVED",
            What::Established { .. } => "ESTABLISHED",
            What::Rejected { .. } => "REJECTED",
            What::Failed(_) => "FAILED",
            What::Disconnected => "DISCONNECTED",
        })
    }
}

impl What {
    /// Returns the failure of an attempt to connect in which this call failed.
    pub(super) fn failure(call: &'static str, errno: nix::Error) -> Self {
        Self::Failed(match errno {
            nix::Error::ECONNREFUSED => CloseReason::Refused,
            nix::Error::ECONNRESET | nix::Error::EPIPE => CloseReason::PeerDisconnected,
            errno => CloseReason::Os(failed(call)(errno)),
        })
    }
}
