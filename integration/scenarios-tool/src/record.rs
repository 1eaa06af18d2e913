//! The record that each side keeps of a connection.

use rdmsg::CloseReason;
use serde::{Deserialize, Serialize};

/// One side's record of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) connection: u32,
    /// Messages that were given to `send`.
    pub(crate) begun: u64,
    /// Messages that `send` accepted.
    pub(crate) accepted: u64,
    /// Messages and operations that were accepted with an id.
    pub(crate) ids: u64,
    /// Completions with an id that report success.
    pub(crate) succeeded: u64,
    /// Completions with an id that report that the outcome is unknown.
    pub(crate) failed: u64,
    /// The number of the last message whose completion reports success, plus one.
    pub(crate) confirmed: u64,
    /// Messages received, in order, each with the right bytes.
    pub(crate) received: u64,
    /// The time of the end in milliseconds of this host's clock.
    pub(crate) ended: u64,
    /// Whether this side has begun to end the connection.
    pub(crate) ends: bool,
    /// The number of connections of the session after the first.
    pub(crate) resumes: u64,
    /// Messages that were sent again after a resumption.
    pub(crate) resent: u64,
    /// Whether `close` reports after the end that everything was delivered.
    pub(crate) delivered: bool,
    pub(crate) end: End,
}

/// The end of a connection, from the view of one side.
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
    /// All other reasons, by their names.
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
