//! Control messages of the application, which pass the messages that wait for credit.

use super::{
    completion::Completion,
    core::{Core, Recipient},
    deferred::DeferredAction,
    message::{Message, MessageOwner},
    outbox::Outbox,
    successor::owner_of,
};
use crate::{
    error::Error,
    proto::{CONTROL_WINDOW, CloseReason, ControlRefused, HEADER_LEN},
};

impl Core {
    /// Sends a control message. A session whose connection is lost keeps it for the next one.
    pub(super) fn send_control(&mut self, message: &[u8]) -> Result<(), Error> {
        self.check_not_ended()?;
        if self.is_closing() {
            return Err(Error::Disconnected(CloseReason::LocallyClosed));
        }
        let sent = if self.is_lost() {
            self.conn.keep_control_message(message)
        } else {
            self.conn.send_control_message(message)
        };
        sent.map_err(|refused| match refused {
            ControlRefused::NotTaken => Error::NotSupported {
                operation: "send_control",
                device: "the peer".into(),
                because: "it is a stream, or its version of rdmsg has no control messages",
            },
            ControlRefused::TooLong { limit } => Error::ControlMessageTooLong {
                len: message.len(),
                limit,
            },
            ControlRefused::Full => Error::ControlMessagesNotTaken {
                untaken: CONTROL_WINDOW,
            },
            ControlRefused::Closed(reason) => Error::Disconnected(reason),
        })
    }

    /// Copies a control message of `len` bytes out of its receive buffer, and hands it to the
    /// application. The channel has a place for each that the peer may send.
    pub(super) fn deliver_control<H: MessageOwner + 'static>(
        &mut self,
        buffer: u32,
        len: u32,
        to: &Recipient<'_, H>,
    ) {
        let Some(queues) = &self.queues else { return };
        let frame = queues.frame(buffer, HEADER_LEN as u32 + len);
        let message = Message::control(owner_of(&self.ring, to), &frame[HEADER_LEN..]);
        let completion = Completion::Control(message);
        if self.completions.as_ref().and_then(Outbox::inflow).is_some() {
            // The program has made a stream of the connection, so no call takes the message.
            self.deferred.later.push(DeferredAction::Drop(completion));
        } else {
            self.hand_over(completion, to);
        }
    }
}
