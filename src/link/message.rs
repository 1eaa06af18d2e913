use std::{fmt, ops::Deref, sync::Arc};

use super::home::{Home, Place};
use crate::transport::rdma::{InboundBuffer, RecvSlice};

/// A received message: a view of the registered buffer into which the device wrote it, without a
/// copy.
///
/// It dereferences to its bytes. While it is held it occupies its buffer, and with it one place of
/// the window that the peer may fill, or, if it is above the eager size, its part of
/// [`Config::large_memory`](crate::Config::large_memory); dropping it gives both back, from any
/// thread. Holding messages is how a receiver slows its peer down. To keep the bytes and release
/// the place use [`Message::into_vec`]. A message stays readable after its connection ended.
pub struct Message {
    /// `None` only while being taken apart.
    inner: Option<Inner>,
}

enum Inner {
    /// In a receive buffer of the connection's.
    Eager {
        bytes: RecvSlice,
        home: Arc<dyn Home>,
        buffer: u32,
    },
    /// In a buffer of its own.
    Large {
        inbound: Box<InboundBuffer>,
        home: Arc<dyn Home>,
    },
}

impl Message {
    pub(super) fn eager(home: Arc<dyn Home>, buffer: u32, bytes: RecvSlice) -> Self {
        Self {
            inner: Some(Inner::Eager {
                bytes,
                home,
                buffer,
            }),
        }
    }

    pub(super) fn large(home: Arc<dyn Home>, inbound: Box<InboundBuffer>) -> Self {
        Self {
            inner: Some(Inner::Large { inbound, home }),
        }
    }

    /// Copies the bytes out and releases the buffer at once.
    #[must_use]
    pub fn into_vec(self) -> Vec<u8> {
        self.to_vec()
    }
}

impl Deref for Message {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.inner {
            Some(Inner::Eager { bytes, .. }) => bytes,
            Some(Inner::Large { inbound, .. }) => inbound.bytes(),
            None => &[],
        }
    }
}

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

impl Drop for Message {
    fn drop(&mut self) {
        match self.inner.take() {
            Some(Inner::Eager {
                bytes,
                home,
                buffer,
            }) => {
                // The view first: from the release on the buffer is the device's.
                drop(bytes);
                home.give_back(Place::Buffer(buffer));
            }
            Some(Inner::Large { inbound, home }) => {
                let len = inbound.len() as u64;
                // First, so that the next one finds it.
                drop(inbound);
                home.give_back(Place::Large(len));
            }
            None => {}
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
