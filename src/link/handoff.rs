use std::cell::RefCell;

use super::message::Message;

/// A direct handoff: the thread that waits for a message and polls the completion queue itself gets
/// the next message past the channel, if nothing is in there.
#[derive(Debug, Default)]
pub(crate) struct Handoff(RefCell<Option<Message>>);

impl Handoff {
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
