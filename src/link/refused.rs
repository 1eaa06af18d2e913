use crate::{
    error::{Error, TrySendError},
    proto::SendRefused,
};

/// The error of a message of `len` bytes that the state machine does not send.
pub(super) fn refused_send(refused: SendRefused, len: usize) -> TrySendError {
    TrySendError::Failed(match refused {
        SendRefused::Blocked => return TrySendError::Full,
        SendRefused::TooLong { limit } => Error::MessageTooLong { len, limit },
        SendRefused::Finished => Error::Finished,
        SendRefused::Closed(reason) => Error::Disconnected(reason),
    })
}
