use crate::{CloseReason, Message};

/// Something that happened on a connection, as [`Endpoint::completions`](crate::Endpoint::completions) gives it.
#[derive(Debug)]
#[non_exhaustive]
pub enum Completion {
    /// A message arrived.
    Received(Message),
    /// The connection has ended. It comes once, after all messages, and nothing comes after it.
    Disconnected(CloseReason),
}
