//! The record that each side keeps of a connection, for comparison with the other side's.

use rdmsg::CloseReason;
use serde::{Deserialize, Serialize};

/// One side's record of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) connection: u32,
    /// The number of messages that were passed to `send`, including failed calls.
    pub(crate) begun: u64,
    /// The number of messages for which `send` succeeded.
    pub(crate) accepted: u64,
    /// The number of messages and operations that were accepted with an id.
    pub(crate) ids: u64,
    /// The number of completions with an id that report success.
    pub(crate) succeeded: u64,
    /// The number of completions with an id that report an unknown outcome.
    pub(crate) failed: u64,
    /// The number of the last message whose completion reported success, plus one; 0 if there is
    /// none.
    pub(crate) confirmed: u64,
    /// The number of messages received so far. All were in order and had the right bytes.
    pub(crate) received: u64,
    /// The time at which the connection ended, in milliseconds since 1970 by this host's clock.
    pub(crate) ended: u64,
    /// Whether this side has started to end the connection.
    pub(crate) ends: bool,
    /// The number of times that the session was resumed.
    pub(crate) resumes: u64,
    /// The number of messages that were sent again after a resumption.
    pub(crate) resent: u64,
    /// Whether `close`, called after the end, reported that all messages were delivered.
    pub(crate) delivered: bool,
    pub(crate) end: End,
}

/// The end of a connection, as one side has seen it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum End {
    /// The connection has not ended.
    #[default]
    Open,
    NotEstablished(String),
    /// This side dropped its handles.
    Dropped,
    LocallyClosed,
    PeerClosed,
    /// Any other reason, by the name of its `CloseReason`.
    Broken(String),
}

impl End {
    pub(crate) fn new(reason: &CloseReason) -> Self {
        match reason {
            CloseReason::LocallyClosed => Self::LocallyClosed,
            CloseReason::PeerClosed => Self::PeerClosed,
            other => Self::Broken(format!("{other:?}")),
        }
    }
}
