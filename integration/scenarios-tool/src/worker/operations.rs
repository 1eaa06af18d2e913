use std::sync::{
    OnceLock,
    atomic::{AtomicBool, Ordering},
};

use rdmsg::{Endpoint, Error, Message, Region, RemoteAccess, RemoteRegion};
use toolbox::pattern;

/// The number of bytes that a round writes to the peer's memory. In `own`, these bytes are followed
/// by the same number of bytes, which a READ fetches back.
const LEN: usize = 5000;

/// The first id of operations. Ids of messages are lower.
const FIRST_ID: u64 = 1 << 63;

/// One-sided operations on one connection, in rounds. A round writes bytes to the peer's memory,
/// and reads them back.
///
/// Atomic operations are not used: with many connections and retransmitted packets, atomics of
/// software RoCE sometimes complete with success although no answer has arrived.
#[derive(Debug)]
pub(super) struct Operations {
    /// The peer's memory; empty until the peer has sent its description.
    pub(super) remote: OnceLock<RemoteRegion>,
    /// The memory that the peer reads and writes.
    _open: Region,
    /// The local memory of this side's operations.
    own: Region,
    /// Whether a round is in progress.
    is_busy: AtomicBool,
}

impl Operations {
    /// Registers memory, and sends a description of it to the peer as the first message.
    pub(super) fn offer(endpoint: &Endpoint) -> Result<Self, Error> {
        let open = endpoint.one_sided().region(LEN, RemoteAccess::ALL)?;
        endpoint.send(&open.remote().to_bytes())?;
        Ok(Self {
            remote: OnceLock::new(),
            _open: open,
            own: endpoint.one_sided().region(2 * LEN, RemoteAccess::NONE)?,
            is_busy: AtomicBool::new(false),
        })
    }

    /// Stores the description of the peer's memory.
    pub(super) fn accept(&self, message: &Message) -> Result<(), String> {
        let bytes = message.as_ref().try_into();
        let bytes = bytes.map_err(|_| format!("no memory region in {} bytes", message.len()))?;
        // Only this thread sets the cell, and the caller has found it empty, so the call succeeds.
        let _ = self.remote.set(RemoteRegion::from_bytes(bytes));
        Ok(())
    }

    /// Starts a round, unless the peer's memory is unknown or a round is in progress. Calls `count`
    /// once for each posted operation.
    pub(super) fn begin(
        &self,
        endpoint: &Endpoint,
        round: u64,
        count: impl Fn(),
    ) -> Result<(), Error> {
        let Some(remote) = self.remote.get() else {
            return Ok(());
        };
        if self.is_busy.swap(true, Ordering::Acquire) {
            return Ok(());
        }
        let id = FIRST_ID + 2 * round;
        self.own.copy_in(0, &pattern(round, LEN));
        let operations = endpoint.one_sided();
        operations.write(&self.own, 0..LEN, remote, 0, id)?;
        count();
        operations.read(&self.own, LEN..2 * LEN, remote, 0, id + 1)?;
        count();
        Ok(())
    }

    /// Ends the round, and compares the bytes that were read back with the bytes that were written.
    pub(super) fn check_read(&self, id: u64) -> Result<(), String> {
        let round = (id - FIRST_ID) / 2;
        let mut bytes = vec![0; LEN];
        self.own.copy_out(LEN, &mut bytes);
        self.is_busy.store(false, Ordering::Release);
        if bytes != pattern(round, LEN) {
            return Err(format!("round {round} read other bytes than it wrote"));
        }
        Ok(())
    }
}
