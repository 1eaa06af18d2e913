use crate::proto::CloseReason;

/// How a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    /// The first cause.
    pub(crate) reason: CloseReason,
    /// Whether everything that was sent is known to be with the peer's library.
    pub(crate) delivered: bool,
}
