//! Memory for the peer's large messages.

use std::time::Instant;

use super::core::{Core, SystemClock};
use crate::{proto::FragmentCopy, status::OsError};

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
