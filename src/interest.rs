/// The event of an [`Endpoint`](crate::Endpoint) that an event loop waits for.
///
/// See [`Endpoint::event_fd`](crate::Endpoint::event_fd).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Interest {
    /// There is something to take: a message, another completion, or the connection's end.
    Readable,
    /// There is room to send, as far as is known, or the connection has ended.
    Writable,
}
