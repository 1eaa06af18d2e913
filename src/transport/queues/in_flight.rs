use std::{collections::VecDeque, sync::Arc};

use super::send_slots::SendSlots;
use crate::{
    status::OsError,
    transport::{
        budget::Charge,
        memory::{InboundBuffer, InboundPool},
    },
};

/// The memory of work requests in flight, except for the send and receive buffers. The memory is
/// kept until the requests have completed.
#[derive(Debug)]
pub(crate) struct InFlight {
    /// The work requests, by slot of the send ring.
    pub(crate) slots: SendSlots,
    /// The pool that allocates the memory for the peer's large messages.
    inbound_pool: Arc<InboundPool>,
    /// The ids and the memory of the peer's large messages that are being received, oldest first.
    inbound: VecDeque<(u32, Box<InboundBuffer>)>,
}

impl InFlight {
    pub(super) fn new(slots: u32, inbound_pool: Arc<InboundPool>) -> Self {
        Self {
            slots: SendSlots::new(slots),
            inbound_pool,
            inbound: VecDeque::new(),
        }
    }

    /// Reserves memory for the peer's large message with this id.
    pub(crate) fn begin(&mut self, id: u32, len: u64) -> Result<(), OsError> {
        // A length that exceeds `usize` is replaced by `usize::MAX`. The allocation of `usize::MAX`
        // bytes always fails, so the caller gets an error.
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let buffer = self.inbound_pool.allocate(len)?;
        self.inbound.push_back((id, buffer));
        Ok(())
    }

    /// Charges the budget for a copy of `len` stream bytes that the application has not read.
    /// Returns `None` if the budget does not grant the charge immediately.
    pub(crate) fn place_copy(&self, len: u64) -> Option<Charge> {
        self.inbound_pool.place_copy(len)
    }

    /// Returns the memory into which the large message with this id is read.
    pub(crate) fn inbound(&mut self, id: u32) -> Option<&mut InboundBuffer> {
        let mut inbound = self.inbound.iter_mut();
        inbound
            .find(|(of, _)| *of == id)
            .map(|(_, buffer)| &mut **buffer)
    }

    /// Removes and returns the oldest large message of the peer, which has been read completely.
    /// Messages complete in the order in which they began.
    pub(crate) fn take_inbound(&mut self) -> Option<(u32, Box<InboundBuffer>)> {
        self.inbound.pop_front()
    }

    /// Requests a notice that is sent when another connection releases memory. Called after the
    /// operating system has refused memory for a large message.
    pub(crate) fn await_memory(&self) {
        self.inbound_pool.await_memory();
    }

    /// Returns true if a claim for message memory is waiting, and might be granted as soon as the
    /// peer's host releases memory. The claim may be that of another connection.
    pub(crate) fn is_contended(&self) -> bool {
        self.inbound_pool.is_contended()
    }

    /// Cancels the connection's pending claims on the budget. Called when the connection posts no
    /// further reads.
    pub(super) fn stop_reading(&self) {
        self.inbound_pool.leave();
    }

    pub(super) fn inbound_pool(&self) -> &Arc<InboundPool> {
        &self.inbound_pool
    }
}
