use super::error::Error;

/// The error of a send that does not wait.
///
/// It converts into [`Error`], where [`Full`](Self::Full) is [`Error::WindowFull`], and into
/// [`io::Error`](std::io::Error), where that is [`WouldBlock`](std::io::ErrorKind::WouldBlock).
#[derive(Debug, Clone, thiserror::Error)]
#[expect(clippy::exhaustive_enums, reason = "there is no third")]
pub enum TrySendError {
    /// The peer's window or the send ring is full. A retry later may succeed.
    #[error("the peer's receive window is full")]
    Full,
    /// Sending failed; a retry would fail as well.
    #[error(transparent)]
    Failed(#[from] Error),
}

impl TrySendError {
    /// Returns whether there is merely no room now.
    #[must_use]
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Full)
    }
}

impl From<TrySendError> for Error {
    fn from(error: TrySendError) -> Self {
        match error {
            TrySendError::Full => Self::WindowFull,
            TrySendError::Failed(error) => error,
        }
    }
}
