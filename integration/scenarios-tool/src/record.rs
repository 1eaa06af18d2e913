//! One side's record of a connection, which is compared with the record of the other side.

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
    /// The number of messages and operations that have an id and that the library has accepted.
    pub(crate) ids: u64,
    /// The number of successful completions that have an id.
    pub(crate) succeeded: u64,
    /// The number of completions that have an id and report a failure or an unknown outcome.
    pub(crate) failed: u64,
    /// One plus the highest number of a message whose completion reported success, or 0 if there is
    /// no such message.
    pub(crate) confirmed: u64,
    /// The number of messages received so far, all in order and with the right bytes.
    pub(crate) received: u64,
    /// The time at which the connection ended, in milliseconds since 1970 by this host's clock.
    pub(crate) ended: u64,
    /// Whether the final message of the peer has arrived.
    pub(crate) has_last: bool,
    /// Whether this side has started to end the connection.
    pub(crate) ends: bool,
    /// The number of times that the session was resumed.
    pub(crate) resumes: u64,
    /// The number of messages that were sent again after a resumption.
    pub(crate) resent: u64,
    /// Whether `close` reported that all messages were delivered. To get this result, this side
    /// calls `close` even if the connection has already ended. A side that has dropped its handles
    /// does not call `close`.
    pub(crate) delivered: bool,
    pub(crate) end: End,
}

impl Record {
    /// Returns whether the connection ended for the reason whose `Debug` text is `reason`.
    pub(crate) fn is_broken_by(&self, reason: &str) -> bool {
        matches!(&self.end, End::Broken(other) if other == reason)
    }
}

/// How a connection ended, as observed by one side.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum End {
    /// No end has been recorded: the connection is still open, or the server's process exits
    /// without closing the connection.
    #[default]
    Open,
    NotEstablished(String),
    /// This side dropped its handles.
    Dropped,
    LocallyClosed,
    PeerClosed,
    /// Any other end. The string is the `Debug` text of the `CloseReason`, or describes another
    /// error.
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
