//! The fast path for an arriving message, which needs no outputs of the state machine.

use super::{
    core::{Core, Recipient},
    message::{Message, MessageOwner},
    successor::owner_of,
};
use crate::proto::{Arrival, HEADER_LEN};

impl Core {
    /// Delivers the message in a frame of `len` bytes that has arrived in this receive buffer. If
    /// the frame is not a plain message, returns false, and the caller has to call
    /// [`handle_done`](Self::handle_done). The caller also counts the sign of life.
    #[inline]
    pub(super) fn take_message<H: MessageOwner + 'static>(
        &mut self,
        (buffer, len): (u32, u32),
        to: &Recipient<'_, H>,
    ) -> bool {
        let Some(queues) = &self.queues else {
            return false;
        };
        let frame = queues.received(buffer, len);
        let Some(len) = self.conn.take_message(&frame) else {
            return false;
        };
        if let (Some(handoff), Some(completions), None) =
            (to.handoff, &self.completions, &self.share)
            && handoff.is_empty()
            && completions.hands_over()
        {
            let bytes = frame.part(HEADER_LEN as u32, len);
            handoff.put(Message::eager(owner_of(&self.ring, to), bytes));
        } else {
            drop(frame);
            self.deliver_message(buffer, len, to);
        }
        true
    }

    #[inline(never)]
    fn deliver_message<H: MessageOwner + 'static>(
        &mut self,
        buffer: u32,
        len: u32,
        to: &Recipient<'_, H>,
    ) {
        if let Some(share) = &self.share {
            share.take(buffer);
        }
        let message = Arrival::Message {
            buffer,
            offset: HEADER_LEN as u32,
            len,
        };
        self.deliver(message, to);
        // If `deliver` copied stream bytes, the release of the receive may have outputs.
        self.apply_outputs(to);
    }
}
