use std::fmt;

use crate::{
    proto::{CmInput, ReadDepth},
    status::{CmStatus, RejectReason},
};

/// Something that concerns the connection with this key.
#[derive(Debug)]
pub(crate) struct Event {
    pub(super) key: u64,
    pub(super) what: What,
}

/// What it says.
#[derive(Debug)]
pub(super) enum What {
    AddrResolved,
    RouteResolved,
    Established {
        private_data: Vec<u8>,
        reads: ReadDepth,
    },
    Rejected {
        reason: RejectReason,
        private_data: Vec<u8>,
    },
    Unreachable(CmStatus),
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
            What::Rejected {
                reason,
                private_data,
            } => CmInput::Rejected {
                reason: *reason,
                private_data,
            },
            What::Unreachable(status) => CmInput::Unreachable(*status),
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
            What::Unreachable(_) => "UNREACHABLE",
            What::Disconnected => "DISCONNECTED",
        })
    }
}

impl What {
    /// What an error of connecting is. A refusal says that nobody listens, as on iWARP.
    pub(super) fn failure(errno: nix::Error) -> Self {
        match errno {
            nix::Error::ECONNREFUSED => Self::Rejected {
                reason: RejectReason::from_raw(-libc::ECONNREFUSED),
                private_data: Vec::new(),
            },
            errno => Self::Unreachable(CmStatus::from_raw(-(errno as i32))),
        }
    }
}
