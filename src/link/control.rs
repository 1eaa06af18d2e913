//! Control messages of the application, which overtake the messages that wait for credit.

use std::mem;

use super::{
    completion::Completion,
    core::{Core, Recipient, owner_of},
    deferred::DeferredAction,
    message::{Message, MessageOwner},
    outbox::Outbox,
};
use crate::{
    error::Error,
    proto::{CONTROL_WINDOW, CloseReason, ControlRefused, HEADER_LEN},
};

impl Core {
    /// Sends a control message. If the session's connection is lost, the message is stored, and
    /// sent over the next connection.
    pub(super) fn send_control(&mut self, message: &[u8]) -> Result<(), Error> {
        self.check_open()?;
        let sent = if self.is_lost() {
            self.conn.keep_control_message(message)
        } else {
            self.conn.send_control_message(message)
        };
        sent.map_err(|refused| match refused {
            ControlRefused::NotTaken => not_supported("send_control"),
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

    /// Notifies the peer that the application wants to end the connection soon. A session repeats
    /// this notification on each new connection.
    pub(crate) fn ask_to_leave(&mut self) -> Result<(), Error> {
        self.check_open()?;
        if !self.is_lost() {
            self.conn.ask_to_leave().map_err(|refused| match refused {
                ControlRefused::Closed(reason) => Error::Disconnected(reason),
                ControlRefused::NotTaken
                | ControlRefused::TooLong { .. }
                | ControlRefused::Full => not_supported("ask_to_leave"),
            })?;
        }
        if let Some(session) = &mut self.session {
            session.leaving = true;
        }
        Ok(())
    }

    /// Returns an error if the connection has ended or the application has closed it.
    fn check_open(&self) -> Result<(), Error> {
        self.check_not_ended()?;
        if self.is_closing() {
            return Err(Error::Disconnected(CloseReason::LocallyClosed));
        }
        Ok(())
    }

    /// Reports to the application that the peer wants to end the connection soon. Only the first
    /// call in a session has an effect. A stream reports nothing.
    pub(super) fn deliver_leave<H: MessageOwner + 'static>(&mut self, to: &Recipient<'_, H>) {
        if !mem::replace(&mut self.leave_arrived, true) && !self.is_stream() {
            self.hand_over(Completion::PeerLeaving, to);
        }
    }

    /// Returns whether the program uses the connection as a byte stream. A stream reports no
    /// completions.
    fn is_stream(&self) -> bool {
        self.reports
            .outbox
            .as_ref()
            .and_then(Outbox::inflow)
            .is_some()
    }

    /// Copies a control message of `len` bytes out of its receive buffer, and delivers the copy to
    /// the application. A stream drops the copy. The queue contains at most [`CONTROL_WINDOW`]
    /// control messages, because the peer must not send more.
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
        if self.is_stream() {
            self.deferred.later.push(DeferredAction::Drop(completion));
        } else {
            self.hand_over(completion, to);
        }
    }
}

/// Returns the error for an operation that the peer does not support, according to the peer's
/// hello.
fn not_supported(operation: &'static str) -> Error {
    Error::NotSupported {
        operation,
        device: "the peer".into(),
        because: "it is a stream, or its version of rdmsg has no control messages",
    }
}
