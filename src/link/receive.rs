//! Delivers arrivals to the application, provides memory for large messages, and releases the
//! messages that the application has dropped. All of this runs under the lock of `core`.

use std::{mem, sync::Arc, time::Instant};

use super::{
    completion::{Completion, Immediate},
    core::{Core, SystemClock},
    deferred::DeferredAction,
    destination::Destination,
    message::{Handoff, Message, MessageOwner, Storage},
};
use crate::{
    proto::{Arrival, FragmentCopy, HEADER_LEN, parts},
    status::OsError,
};

/// The destination of arriving messages.
pub(super) struct Recipient<'a, H> {
    /// The object to which dropped messages return their credit.
    pub(super) owner: &'a Arc<H>,
    /// The direct handoff to the polling thread, if that thread waits for a message.
    pub(super) handoff: Option<&'a Handoff>,
}

/// The fast path for plain messages. The state machine creates no outputs for such a message.
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
            (to.handoff, &self.reports.destination, &self.share)
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

/// Delivers arrivals to the application.
impl Core {
    /// Delivers an arrival to the application: messages, immediate data, or the peer's Finish.
    pub(super) fn deliver<H: MessageOwner + 'static>(
        &mut self,
        arrival: Arrival,
        to: &Recipient<'_, H>,
    ) {
        let Some(queues) = &mut self.queues else {
            return;
        };
        if let (
            Arrival::Message { buffer, .. }
            | Arrival::Batch { buffer, .. }
            | Arrival::Immediate { buffer, .. },
            Some(share),
        ) = (&arrival, &mut self.share)
        {
            share.lend(*buffer);
        }
        let ring = &self.ring;
        let owner = || owner_of(ring, to);
        let inflow = self
            .reports
            .destination
            .as_ref()
            .and_then(Destination::inflow);
        let completion = match arrival {
            Arrival::Message {
                buffer,
                offset,
                len,
            } => {
                let bytes = queues.received(buffer, offset + len).part(offset, len);
                if let Some(inflow) = inflow
                    && self
                        .conn
                        .may_copy(len, inflow.buffered() as u64, to.handoff.is_some())
                    && inflow.put_copy(&bytes, |len| queues.in_flight.place_copy(len), owner)
                {
                    drop(bytes);
                    self.conn.copied(len);
                    self.deferred.wake = true;
                    self.deferred.arrived = true;
                    self.release(buffer);
                    return;
                }
                Completion::Received(Message::eager(owner(), bytes))
            }
            Arrival::Batch { buffer, len, count } => {
                return self.deliver_batch(buffer, len, count, to);
            }
            Arrival::Large { id, len } => {
                let Some((next, inbound)) = queues.in_flight.take_inbound() else {
                    return;
                };
                debug_assert_eq!(
                    next, id,
                    "large messages must complete in the order in which they began"
                );
                if let (Some(inflow), None) = (inflow, to.handoff)
                    && self.conn.may_copy_large()
                    && inflow.put_copy(
                        inbound.bytes(),
                        |len| queues.in_flight.place_copy(len),
                        owner,
                    )
                {
                    drop(inbound);
                    self.conn.copied_large(len, SystemClock);
                    self.deferred.wake = true;
                    self.deferred.arrived = true;
                    return;
                }
                Completion::Received(Message::large(owner(), inbound))
            }
            Arrival::Immediate {
                buffer,
                imm_data,
                len,
            } => {
                let credit = Message::eager(owner(), queues.received(buffer, 0));
                Completion::Immediate(Immediate::new(imm_data, len, credit))
            }
            Arrival::Finish => {
                if !mem::replace(&mut self.finish_arrived, true) {
                    self.deferred.finished = true;
                    self.deferred.wake = true;
                }
                return;
            }
        };
        self.hand_over(completion, to);
    }

    /// Delivers the messages of a batch to the application.
    fn deliver_batch<H: MessageOwner + 'static>(
        &mut self,
        buffer: u32,
        len: u32,
        count: u32,
        to: &Recipient<'_, H>,
    ) {
        let Some(queues) = &self.queues else { return };
        self.batches.put(buffer, count);
        let frame = queues.received(buffer, HEADER_LEN as u32 + len);
        let owner = owner_of(&self.ring, to);
        // The state machine has checked the offsets.
        let mut messages = parts(&frame[HEADER_LEN..]).map(|(start, len)| {
            let bytes = frame.clone().part(HEADER_LEN as u32 + start, len);
            Message::part(Arc::clone(&owner), bytes)
        });
        let Some(completions) = &mut self.reports.destination else {
            // The receiver has been dropped. Each message is dropped after the lock is released,
            // because its drop takes the lock to return the credit.
            let messages =
                messages.map(|message| DeferredAction::Drop(Completion::Received(message)));
            return self.deferred.later.extend(messages);
        };
        if let Some(handoff) = to.handoff
            && handoff.is_empty()
            && completions.may_hand_over()
            && let Some(first) = messages.next()
        {
            handoff.put(first);
        }
        let refused = completions.put_messages(messages);
        self.deferred
            .later
            .extend(refused.into_iter().map(DeferredAction::Drop));
        self.deferred.wake = true;
        self.deferred.arrived = true;
    }

    /// Hands the completion directly to the thread that waits for a message, or puts it into the
    /// queue.
    pub(super) fn hand_over<H: MessageOwner + 'static>(
        &mut self,
        completion: Completion,
        to: &Recipient<'_, H>,
    ) {
        let Some(completions) = &mut self.reports.destination else {
            // The receiver has been dropped. The message is dropped after the lock is released,
            // because its drop takes the lock to return the credit.
            return self.deferred.later.push(DeferredAction::Drop(completion));
        };
        let completion = match (completion, to.handoff) {
            // The queue is empty, and the waiting thread is this thread, so no other thread needs
            // to be woken.
            (Completion::Received(message), Some(handoff))
                if handoff.is_empty() && completions.may_hand_over() =>
            {
                return handoff.put(message);
            }
            (completion, _) => completion,
        };
        match completions.put(completion) {
            Ok(()) => {
                self.deferred.wake = true;
                self.deferred.arrived = true;
            }
            Err(refused) => self.deferred.later.push(DeferredAction::Drop(refused)),
        }
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
            .destination
            .as_ref()
            .and_then(Destination::inflow)
            .is_some()
    }

    /// Copies a control message of `len` bytes out of its receive buffer, and delivers the copy to
    /// the application. A stream drops the copy. The queue contains at most `CONTROL_WINDOW`
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

/// Memory for the peer's large messages.
impl Core {
    /// Reserves memory for a large message.
    pub(super) fn begin(&mut self, id: u32, len: u64) {
        let Some(queues) = &mut self.queues else {
            return;
        };
        match queues.in_flight.begin(id, len) {
            Ok(()) => self.conn.handle_memory(id, SystemClock),
            Err(error) => self.handle_allocation_error(error),
        }
    }

    /// Allocates memory for a chunk of a large message.
    pub(super) fn prepare(&mut self, id: u32, offset: u64, len: u64) {
        let queues = self.queues.as_mut();
        let Some(inbound) = queues.and_then(|queues| queues.in_flight.inbound(id)) else {
            return;
        };
        match inbound.prepare(offset as usize, len as usize) {
            Ok(Some(ready)) => self.conn.handle_prepared(ready as u64, SystemClock),
            Ok(None) => {}
            Err(error) => self.handle_allocation_error(error),
        }
    }

    /// Copies a fragment to its position in a large message.
    pub(super) fn copy(&mut self, fragment: &FragmentCopy) {
        let Some(queues) = &mut self.queues else {
            return;
        };
        match queues.copy_fragment(fragment) {
            Ok(true) => self.conn.handle_copied(SystemClock),
            // No memory is available now. The budget notifies the connection when memory is
            // released.
            Ok(false) => {}
            Err(error) => self.handle_allocation_error(error),
        }
    }

    /// Handles a failed allocation or registration. If memory is short, the connection stays open,
    /// because the shortage may be temporary.
    fn handle_allocation_error(&mut self, error: OsError) {
        match (error.call, error.errno) {
            // ibv_reg_mr returns EPERM if the process is not allowed to lock any memory
            // (RLIMIT_MEMLOCK is 0).
            (_, libc::ENOMEM) | ("ibv_reg_mr", libc::EPERM) => {}
            _ => return self.conn.handle_post_failure(error, Instant::now()),
        }
        if let Some(queues) = &self.queues {
            queues.in_flight.await_memory();
        }
        self.conn.handle_out_of_memory(error, Instant::now());
    }
}

/// Releases messages that the application has dropped: returns their receive buffers to the device,
/// and their credits to the peer.
impl Core {
    /// Reclaims the buffer and credit of a message: see
    /// [`Link::reclaim_from`](super::link::Link::reclaim_from). Returns true only if the state
    /// machine has no output.
    #[inline(always)]
    pub(crate) fn reclaim(&mut self, storage: Storage, generation: u32) -> bool {
        match storage {
            Storage::Buffer(buffer) if generation == self.generation => self.release(buffer),
            Storage::Part(buffer) if generation == self.generation => self.release_part(buffer),
            storage => {
                self.reclaim_other(storage, generation);
                false
            }
        }
    }

    #[inline(never)]
    fn reclaim_other(&mut self, storage: Storage, generation: u32) {
        if generation != self.generation && storage != Storage::Control {
            return self.recovery().release_from_earlier_connection(storage);
        }
        match storage {
            Storage::Buffer(buffer) => _ = self.release(buffer),
            Storage::Part(buffer) => _ = self.release_part(buffer),
            Storage::Copied(len) => self.conn.release_copied(len, SystemClock),
            Storage::Large(len) => self.conn.release_large(len, SystemClock),
            Storage::Control => self.conn.take_control_message(),
        }
    }

    /// Releases one message of a batch. The receive is reposted when all messages of the batch have
    /// been released. Until then, each released message returns only its credit. Returns true only
    /// if the state machine has no output.
    #[inline]
    fn release_part(&mut self, buffer: u32) -> bool {
        if self.batches.take(buffer) {
            return self.release(buffer);
        }
        match self.conn.releasing() {
            Some(releasing) => releasing.release(SystemClock),
            None => {
                self.conn.give_up_receive();
                false
            }
        }
    }

    /// Posts a buffer that the application has released, and then notifies the state machine. This
    /// order ensures that no grant is sent before the receive is posted. Returns true only if the
    /// state machine has no output.
    #[inline(always)]
    pub(super) fn release(&mut self, buffer: u32) -> bool {
        // The usual case: the connection is open and does not use a shared receive queue.
        if let (None, Some(queues), Some(releasing)) =
            (&self.share, &mut self.queues, self.conn.releasing())
        {
            let posted = queues.post_recv(buffer);
            return match posted {
                Ok(()) => releasing.release(SystemClock),
                Err(error) => self.post_recv_failed(error),
            };
        }
        self.release_other(buffer)
    }

    /// Does the same as [`release`](Self::release) for a connection that uses a shared receive
    /// queue or is not open.
    #[inline(never)]
    fn release_other(&mut self, buffer: u32) -> bool {
        let posted = match (&mut self.share, &mut self.queues) {
            // Other connections can use the buffer, even if this connection has ended.
            (Some(share), _) => share.release(buffer),
            (None, Some(queues)) if self.conn.accepts_receives() => queues.post_recv(buffer),
            (None, _) => {
                self.conn.give_up_receive();
                return false;
            }
        };
        match posted {
            Ok(()) => self.conn.accepts_receives() && self.conn.release(SystemClock),
            Err(error) => self.post_recv_failed(error),
        }
    }

    /// Ends the connection because a receive could not be posted. Returns false, because the state
    /// machine has outputs.
    #[cold]
    fn post_recv_failed(&mut self, error: OsError) -> bool {
        self.conn.handle_post_failure(error, Instant::now());
        false
    }
}

/// Returns the object to which messages of the current connection return their buffers and credits.
pub(super) fn owner_of<H: MessageOwner + 'static>(
    ring: &Option<Arc<dyn MessageOwner>>,
    to: &Recipient<'_, H>,
) -> Arc<dyn MessageOwner> {
    match ring {
        None => Arc::clone(to.owner) as Arc<dyn MessageOwner>,
        Some(ring) => Arc::clone(ring),
    }
}
