use std::sync::Arc;

use super::{poll_side::PollSide, receive_share::ReceiveShare, work_queues::WorkQueues};
use crate::{error::Error, status::OsError, transport::memory::Allocator};

/// What a connection has of its transport, made before anything is sent, with all receives posted.
/// The parts are for different locks: a thread that polls holds up none that asks for memory.
#[derive(Debug)]
pub(crate) struct TransportParts {
    /// Where work is posted.
    pub(crate) queues: WorkQueues,
    /// Where receives are shared: what the connection has of them. The least that it needs is
    /// reserved.
    pub(crate) share: Option<ReceiveShare>,
    /// Where completions are polled.
    pub(crate) poll_side: PollSide,
    /// Where memory for the application is made.
    pub(crate) allocator: Arc<Allocator>,
}

/// Why [`TransportParts`] could not be made: the error for the state machine, and what there is to
/// say to the application beyond it.
#[derive(Debug)]
pub(crate) struct NoTransport {
    pub(crate) error: OsError,
    pub(crate) problem: Option<Error>,
}

impl From<OsError> for NoTransport {
    fn from(error: OsError) -> Self {
        Self {
            error,
            problem: None,
        }
    }
}
