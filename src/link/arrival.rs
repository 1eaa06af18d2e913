//! The fast path for plain messages. The state machine creates no outputs for such a message.

use super::{
    core::{Core, Recipient, owner_of},
    message::{Message, MessageOwner},
};
use crate::proto::{Arrival, HEADER_LEN};

impl Core {
    /// Delivers the message in a received frame of `len` bytes. `buffer` is the index of the
    /// receive buffer. Returns true if the message was delivered; the caller must then count a sign
    /// of life of the peer. Returns false if the frame is not a plain message; the caller must then
    /// call [`handle_done`](Self::handle_done).
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
            (to.handoff, &self.reports.outbox, &self.share)
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
        // If `deliver` copied stream bytes, it released the receive buffer, which can produce
        // outputs.
        self.apply_outputs(to);
    }
}
