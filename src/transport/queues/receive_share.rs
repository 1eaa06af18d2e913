use std::sync::Arc;

use super::{poll_side::PollSide, shared_receives::SharedReceives};
use crate::{
    poll::Answers,
    proto::{Account, Connection},
    status::OsError,
};

/// One connection's share of the [`SharedReceives`]. The share outlives the connection if the
/// application still holds messages in the buffers of the share.
#[derive(Debug)]
pub(crate) struct ReceiveShare {
    receives: Arc<SharedReceives>,
    /// The connection's key.
    key: u64,
    /// The number of buffers whose messages the application has received and not released yet.
    lent: u32,
    /// Whether the connection's receives have been returned to the pool, except for the lent
    /// buffers. This happens after the queue pair has been destroyed.
    settled: bool,
}

impl ReceiveShare {
    /// Creates the share. Before the call, the caller reserves the minimum number of receives for
    /// the connection.
    pub(crate) fn new(receives: Arc<SharedReceives>, key: u64) -> Self {
        Self {
            receives,
            key,
            lent: 0,
            settled: false,
        }
    }

    /// Returns the account that counts the pool's buffers.
    pub(crate) fn account(&self) -> &Arc<Account> {
        &self.receives.account
    }

    /// Records that a frame for this connection consumed a buffer.
    pub(crate) fn take(&self, buffer: u32) {
        self.receives.take(buffer, self.key);
    }

    /// Polls the completion queue until it is empty, and records the consumed buffers. The
    /// completions are not handled in any other way.
    pub(crate) fn take_all(&self, side: &mut PollSide) {
        while let Ok(count @ 1..) = side.poll(Answers::AtOnce) {
            for number in 0..count {
                if let Some(buffer) = side.done(number).receive_buffer() {
                    self.take(buffer);
                }
            }
        }
    }

    /// Records that the application has received a message in this buffer.
    pub(crate) fn lend(&mut self, buffer: u32) {
        self.receives.lend(buffer);
        self.lent += 1;
    }

    /// Reposts a buffer that the application has released. Any connection can then use it.
    pub(crate) fn release(&mut self, buffer: u32) -> Result<(), OsError> {
        self.receives.post(buffer)?;
        self.lent -= 1;
        if self.settled {
            self.receives.account.give(1);
        }
        Ok(())
    }

    /// Reposts the receives that a destroyed queue pair has consumed, except for receives whose
    /// messages the application holds. Gives the reserved receives back to the account. After the
    /// first successful call, does nothing.
    pub(crate) fn restore_receives(&mut self, conn: &mut Connection) -> Result<(), OsError> {
        if !self.settled {
            self.receives.post_all_of(self.key)?;
            conn.release_account(self.lent);
            self.settled = true;
        }
        Ok(())
    }
}
