use super::message::Message;
use crate::proto::CloseReason;

/// Something that happened on a connection, as
/// [`Endpoint::completions`](crate::Endpoint::completions) gives it.
///
/// Each message that arrives is told of once. Each operation that was given an id, and was
/// accepted, ends in exactly one completion with that id: the one for its success or
/// [`Failed`](Self::Failed). Ids are the application's; nothing requires them to differ.
#[derive(Debug)]
#[non_exhaustive]
pub enum Completion {
    /// A message arrived.
    Received(Message),
    /// A message sent with this id has arrived: the peer's device acknowledged it, or, if it was
    /// above the eager size, the peer's library has read it; and the peer's library has read every
    /// message above the eager size that was sent before it, behind which it would have to wait
    /// there. They come in the order of sending. Whether the peer's application looks at the
    /// message is another matter.
    Sent(u64),
    /// A one-sided [`read`](crate::Endpoint::read) is done: the bytes are in the region.
    Read(u64),
    /// A one-sided [`write`](crate::Endpoint::write) is done: the peer's device acknowledged the
    /// bytes.
    Written(u64),
    /// A [`fetch_add`](crate::Endpoint::fetch_add) or
    /// [`compare_swap`](crate::Endpoint::compare_swap) is done.
    Fetched {
        /// The operation's id.
        id: u64,
        /// What the peer's memory held before.
        value: u64,
    },
    /// The peer wrote to this side's memory and says so:
    /// [`write_with_imm`](crate::Endpoint::write_with_imm).
    Immediate(Immediate),
    /// An operation with an id failed, or its end is not known because the connection ended before
    /// it.
    Failed {
        /// The operation's id.
        id: u64,
        /// Why. An operation that the device failed names its status; the connection ends with it.
        reason: CloseReason,
    },
    /// The connection has ended. It comes once, after everything else, and nothing comes after it.
    Disconnected(CloseReason),
}

/// The word that came with a [`write_with_imm`](crate::Endpoint::write_with_imm) of the peer's. The
/// bytes that it wrote are in the region.
///
/// As a [`Message`] does, it occupies one place of the window until it is dropped.
#[derive(Debug)]
pub struct Immediate {
    imm_data: u32,
    len: u32,
    /// Held for its drop.
    _place: Message,
}

impl Immediate {
    pub(super) fn new(imm_data: u32, len: u32, place: Message) -> Self {
        Self {
            imm_data,
            len,
            _place: place,
        }
    }

    /// Returns the immediate data: the word that the peer gave.
    #[must_use]
    pub fn imm_data(&self) -> u32 {
        self.imm_data
    }

    /// How many bytes the peer wrote.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "it is not a collection")]
    pub fn len(&self) -> u32 {
        self.len
    }
}
