use std::{
    cell::Cell,
    fmt,
    mem::{self, ManuallyDrop},
    ops::Deref,
    sync::Arc,
};

use crate::{
    os::{Process, leak},
    transport::{Charge, InboundBuffer, RecvSlice},
};

/// A received message: a view, without a copy, of the registered buffer into which the device wrote
/// the bytes.
///
/// A message dereferences to its bytes. Until the message is dropped, it occupies its buffer. A
/// message up to the eager size also occupies one credit of the peer. The length of a longer
/// message instead counts towards [`Config::large_memory`](crate::Config::large_memory). Dropping
/// the message, in any thread, releases the buffer and the credit. So holding messages applies
/// backpressure to the sender. [`Message::into_vec`] copies the bytes and releases the buffer and
/// the credit. A [control message](crate::Completion::Control) occupies no credit, but one of the 2
/// slots for control messages. A message stays readable after its connection has ended, and in a
/// child process that inherits it through fork(2).
pub struct Message {
    /// The bytes and the owner; `None` only during the drop.
    inner: Option<Inner>,
}

/// The maximum length in bytes that a copy of stream bytes can reach by appending. The limit is
/// necessary because the memory of a copy is released as a whole, after all its bytes have been
/// read.
pub(super) const LONGEST_COPY: usize = 64 << 10;

struct Copied {
    bytes: Vec<u8>,
    /// The charge to the memory budget. It is released after the bytes.
    _charge: Charge,
    owner: Arc<dyn MessageOwner>,
}

struct Control {
    bytes: Box<[u8]>,
    owner: Arc<dyn MessageOwner>,
}

enum Inner {
    /// A message that is the only one in its receive buffer.
    Eager {
        bytes: RecvSlice,
        owner: Arc<dyn MessageOwner>,
    },
    /// One message of a batch. Its receive buffer also contains the other messages of the batch.
    Part {
        bytes: RecvSlice,
        owner: Arc<dyn MessageOwner>,
    },
    /// A copy of stream bytes. The box keeps this enum small, because the queue has a slot for each
    /// unread message.
    Copied(Box<Copied>),
    /// A copy of a control message.
    Control(Box<Control>),
    /// A large message, in a buffer of its own.
    Large {
        inbound: Box<InboundBuffer>,
        owner: Arc<dyn MessageOwner>,
    },
    /// Bytes that the program supplied, which no connection has received.
    Own(Vec<u8>),
}

impl Message {
    #[inline]
    pub(super) fn eager(owner: Arc<dyn MessageOwner>, bytes: RecvSlice) -> Self {
        Self {
            inner: Some(Inner::Eager { bytes, owner }),
        }
    }

    /// Creates one of several messages in a receive buffer.
    pub(super) fn part(owner: Arc<dyn MessageOwner>, bytes: RecvSlice) -> Self {
        Self {
            inner: Some(Inner::Part { bytes, owner }),
        }
    }

    /// Creates a message with a copy of stream bytes.
    pub(super) fn copied(owner: Arc<dyn MessageOwner>, bytes: &[u8], charge: Charge) -> Self {
        Self {
            inner: Some(Inner::Copied(Box::new(Copied {
                bytes: bytes.to_vec(),
                _charge: charge,
                owner,
            }))),
        }
    }

    /// Creates a control message with a copy of its bytes.
    pub(super) fn control(owner: Arc<dyn MessageOwner>, bytes: &[u8]) -> Self {
        Self {
            inner: Some(Inner::Control(Box::new(Control {
                bytes: bytes.into(),
                owner,
            }))),
        }
    }

    /// Returns the number of bytes of this message that are in a receive buffer.
    pub(super) fn buffered(&self) -> usize {
        match &self.inner {
            Some(Inner::Eager { bytes, .. } | Inner::Part { bytes, .. }) => bytes.len(),
            Some(Inner::Copied(_) | Inner::Control(_) | Inner::Large { .. } | Inner::Own(_))
            | None => 0,
        }
    }

    /// Appends bytes if this message is a copy and its length stays within [`LONGEST_COPY`].
    /// Returns whether the bytes were appended.
    pub(super) fn append(&mut self, more: &[u8]) -> bool {
        let Some(Inner::Copied(copied)) = &mut self.inner else {
            return false;
        };
        let fits = copied.bytes.len() + more.len() <= LONGEST_COPY;
        if fits {
            copied.bytes.extend_from_slice(more);
        }
        fits
    }

    pub(super) fn large(owner: Arc<dyn MessageOwner>, inbound: Box<InboundBuffer>) -> Self {
        Self {
            inner: Some(Inner::Large { inbound, owner }),
        }
    }

    #[cold]
    fn is_inherited(&self) -> bool {
        let owner = self.inner.as_ref().and_then(|inner| match inner {
            Inner::Eager { owner, .. } | Inner::Part { owner, .. } | Inner::Large { owner, .. } => {
                Some(owner)
            }
            Inner::Copied(copied) => Some(&copied.owner),
            Inner::Control(control) => Some(&control.owner),
            Inner::Own(_) => None,
        });
        owner.is_some_and(|owner| owner.is_inherited())
    }

    /// Frees the buffer of a large message, and then releases the message's share of the memory for
    /// large messages. In this order, the next large message can reuse the buffer.
    #[inline(never)]
    fn release_large(&mut self) {
        if let Some(Inner::Large { inbound, owner }) = self.inner.take() {
            let len = inbound.len() as u64;
            drop(inbound);
            owner.reclaim(Storage::Large(len));
        }
    }

    /// Copies the bytes, and releases the buffer and the credit immediately.
    #[must_use]
    pub fn into_vec(mut self) -> Vec<u8> {
        match &mut self.inner {
            Some(Inner::Own(bytes)) => mem::take(bytes),
            _ => self.to_vec(),
        }
    }
}

impl Deref for Message {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.inner {
            Some(Inner::Eager { bytes, .. } | Inner::Part { bytes, .. }) => bytes,
            Some(Inner::Copied(copied)) => &copied.bytes,
            Some(Inner::Control(control)) => &control.bytes,
            Some(Inner::Large { inbound, .. }) => inbound.bytes(),
            Some(Inner::Own(bytes)) => bytes,
            None => &[],
        }
    }
}

impl PartialEq for Message {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Message {}

/// Implements comparisons of messages with byte slices, arrays and vectors.
macro_rules! compare_with {
    ($($(#[$generic:tt])? $bytes:ty),*) => { $(
        impl$(<const $generic: usize>)? PartialEq<$bytes> for Message {
            fn eq(&self, other: &$bytes) -> bool {
                **self == other[..]
            }
        }
    )* };
}

compare_with!(
    [u8],
    &[u8],
    Vec<u8>,
    #[N]
    [u8; N],
    #[N]
    &[u8; N]
);

impl AsRef<[u8]> for Message {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<Message> for Vec<u8> {
    fn from(message: Message) -> Self {
        message.into_vec()
    }
}

impl From<Vec<u8>> for Message {
    /// Creates a message that no connection has received, for tests of functions that take
    /// messages.
    ///
    /// # Examples
    ///
    /// ```
    /// use rdmsg::Message;
    ///
    /// fn is_ping(message: &Message) -> bool {
    ///     *message == b"ping"
    /// }
    ///
    /// assert!(is_ping(&Message::from(b"ping")));
    /// assert!(!is_ping(&Message::from(vec![0; 4])));
    /// ```
    fn from(bytes: Vec<u8>) -> Self {
        Self {
            inner: Some(Inner::Own(bytes)),
        }
    }
}

impl From<&[u8]> for Message {
    /// Copies the bytes into a message that no connection has received.
    fn from(bytes: &[u8]) -> Self {
        bytes.to_vec().into()
    }
}

impl<const N: usize> From<&[u8; N]> for Message {
    /// Copies the bytes into a message that no connection has received.
    fn from(bytes: &[u8; N]) -> Self {
        bytes.to_vec().into()
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        if Process::is_child() && self.is_inherited() {
            // This process inherited the message. Only the parent process may release its buffer.
            leak(self.inner.take());
            return;
        }
        // The fields are dropped after this function. `reclaim` may repost the receive buffer while
        // `bytes` still refers to it. This is sound, because no code reads `bytes` after the call
        // of `reclaim`.
        match &self.inner {
            Some(Inner::Eager { bytes, owner }) => owner.reclaim(Storage::Buffer(bytes.buffer())),
            Some(Inner::Part { bytes, owner }) => owner.reclaim(Storage::Part(bytes.buffer())),
            Some(Inner::Copied(copied)) => {
                copied
                    .owner
                    .reclaim(Storage::Copied(copied.bytes.len() as u64));
            }
            Some(Inner::Control(control)) => control.owner.reclaim(Storage::Control),
            Some(Inner::Large { .. }) => self.release_large(),
            Some(Inner::Own(_)) | None => {}
        }
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

/// The connection that received a message. Dropping the message returns its buffer and credit to
/// the connection.
///
/// A message refers to its connection only through this trait, so that the `message` module does
/// not depend on the `link` module.
pub(crate) trait MessageOwner: fmt::Display + Send + Sync {
    /// Returns whether another process created the connection.
    fn is_inherited(&self) -> bool;

    /// Reclaims the buffer and credit of a dropped message, even if the connection has ended.
    fn reclaim(&self, storage: Storage);
}

/// The resources that a dropped message occupied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Storage {
    /// One credit, and the receive buffer with this index, which contained only this message.
    Buffer(u32),
    /// One credit, and a share of the receive buffer with this index, which also contained the
    /// other messages of the batch.
    Part(u32),
    /// No receive buffer: the message is a copy of stream bytes, with this length in bytes.
    Copied(u64),
    /// This number of bytes of the memory for large messages.
    Large(u64),
    /// One of the slots for control messages, which all connections of a session share.
    Control,
}

/// Passes a message directly to the polling thread. If that thread waits for a message and the
/// queue is empty, the next message goes through the handoff instead of the queue.
#[derive(Default)]
pub(crate) struct Handoff {
    message: Cell<Option<Message>>,
    /// Whether `message` contains a message. A check of `message` itself would have to move the
    /// message.
    is_full: Cell<bool>,
}

impl Handoff {
    #[inline]
    pub(crate) fn take(&self) -> Option<Message> {
        if self.is_full.take() {
            self.message.take()
        } else {
            None
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        !self.is_full.get()
    }

    #[inline(always)]
    pub(super) fn put(&self, message: Message) {
        debug_assert!(self.is_empty(), "the handoff must be empty");
        // `Cell::set` would move the previous value, which is `None`, in order to drop it.
        let _absent = ManuallyDrop::new(self.message.replace(Some(message)));
        self.is_full.set(true);
    }
}

/// The initial capacity of [`Batches`], in buffers. It equals the default window over RDMA.
const INITIAL_CAPACITY: usize = 32;

/// The receive buffers that contain several messages, each with the number of messages that the
/// application has not released.
#[derive(Debug, Default)]
pub(super) struct Batches {
    /// Pairs of a buffer's index and its number of unreleased messages. The window bounds the
    /// number of pairs. The vector keeps its capacity, so that a batch allocates nothing.
    held: Vec<(u32, u32)>,
}

impl Batches {
    /// Records that `buffer` holds `count` messages.
    pub(super) fn put(&mut self, buffer: u32, count: u32) {
        if self.held.capacity() == 0 {
            self.held.reserve(INITIAL_CAPACITY);
        }
        self.held.push((buffer, count));
    }

    /// Records that a message in this buffer was released. Returns true if the application has now
    /// released all messages in the buffer.
    pub(super) fn take(&mut self, buffer: u32) -> bool {
        // Applications usually release the oldest message first, so the search usually finds the
        // first pair.
        let Some(index) = self.held.iter().position(|(held, _)| *held == buffer) else {
            debug_assert!(false, "a released message must belong to a delivered batch");
            return false;
        };
        let left = &mut self.held[index].1;
        *left -= 1;
        let is_last = *left == 0;
        if is_last {
            self.held.remove(index);
        }
        is_last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_free_with_the_last_of_its_messages() {
        let mut batches = Batches::default();
        batches.put(7, 2);
        batches.put(3, 1);
        assert!(!batches.take(7));
        assert!(batches.take(3));
        assert!(batches.take(7));
        batches.put(7, 1);
        assert!(batches.take(7), "the released batch must leave no count");
    }
}
