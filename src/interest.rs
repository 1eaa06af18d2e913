/// The event of an [`Endpoint`](crate::Endpoint) that an event loop waits for.
///
/// See [`Endpoint::event_fd`](crate::Endpoint::event_fd).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Interest {
    /// There is a result to take: a message, another completion, or the end of the connection.
    Readable,
    /// The window probably has room for a send, or the connection has ended.
    Writable,
}
