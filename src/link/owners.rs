//! The references to a connection: of its handles, and of its messages.

use std::{fmt, ops::Deref, sync::Arc};

use super::{
    link::Link,
    message::{MessageOwner, Storage},
};

/// The application's reference to an established connection. Dropping it closes the connection in
/// the background.
pub(crate) struct Owner(Arc<Link>);

impl Owner {
    pub(crate) fn new(link: Arc<Link>) -> Self {
        Self(link)
    }
}

impl Deref for Owner {
    type Target = Arc<Link>;

    fn deref(&self) -> &Arc<Link> {
        &self.0
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if !self.0.is_inherited() {
            self.0.abandon();
        }
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl MessageOwner for Link {
    fn is_inherited(&self) -> bool {
        !self.process.is_this()
    }

    #[inline(always)]
    fn reclaim(&self, storage: Storage) {
        self.reclaim_from(storage, 0);
    }
}

/// The owner of the messages that arrive over a session's connection after the session has resumed.
/// A message returns its buffer to the device only while the connection with this generation is the
/// current connection.
pub(super) struct Ring {
    pub(super) link: Arc<Link>,
    pub(super) generation: u32,
}

impl MessageOwner for Ring {
    fn is_inherited(&self) -> bool {
        self.link.is_inherited()
    }

    fn reclaim(&self, storage: Storage) {
        self.link.reclaim_from(storage, self.generation);
    }
}

impl fmt::Display for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.link.fmt(f)
    }
}
