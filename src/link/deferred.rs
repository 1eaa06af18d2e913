use super::{completion::Completion, outbox::Outbox};

/// What is done after the locks are released.
#[derive(Debug, Default)]
pub(super) struct Deferred {
    /// The engine's thread has to drive the connection.
    pub(super) drive: bool,
    /// What a waiting thread waits for may have come.
    pub(super) wake: bool,
    /// Something was put into the channel.
    pub(super) arrived: bool,
    /// The peer sends no more messages.
    pub(super) finished: bool,
    /// A send that was refused may be tried again.
    pub(super) room: bool,
    /// Nothing more is sent here. Dropping it may drop messages, whose release takes the lock.
    pub(super) closed: Option<Outbox>,
    /// What nobody is left to read. Dropping it releases its place, which takes the lock.
    pub(super) unread: Vec<Completion>,
}

impl Deferred {
    pub(super) fn is_nothing(&self) -> bool {
        // `arrived`, `finished` and `room` come with a wake.
        !self.drive && !self.wake && self.closed.is_none() && self.unread.is_empty()
    }
}
