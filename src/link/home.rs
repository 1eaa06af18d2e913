use std::{fmt, sync::Arc};

/// Where a message's place in the peer's window goes back to: the connection that received it.
///
/// A message knows its connection only as this, and so the module of messages does not depend on
/// the one of connections, which makes them.
pub(crate) trait Home: fmt::Display + Send + Sync {
    /// Takes back the place of a message that was dropped, whatever has become of the connection.
    fn give_back(self: Arc<Self>, place: Place);
}

/// What a message occupied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// This receive buffer, and a credit with it.
    Buffer(u32),
    /// A credit, and with other messages this receive buffer.
    Part(u32),
    /// This many bytes of the memory for large messages.
    Large(u64),
}
