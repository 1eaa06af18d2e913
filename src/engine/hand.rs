use std::cell::RefCell;

use crate::message::Message;

/// The hand of a thread that waits for a message and polls the completion queue itself. It gets the next message right from the
/// completion, past the channel, if nothing is in there.
#[derive(Debug, Default)]
pub(crate) struct Hand(RefCell<Option<Message>>);

impl Hand {
    pub(crate) fn take(&self) -> Option<Message> {
        self.0.take()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.borrow().is_none()
    }

    pub(super) fn put(&self, message: Message) {
        self.0.replace(Some(message));
    }
}
