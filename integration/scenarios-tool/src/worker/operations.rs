use std::sync::{
    OnceLock,
    atomic::{AtomicBool, Ordering},
};

use anyhow::{Context, Result, ensure};
use rdmsg::{Endpoint, Error, Message, Region, RemoteAccess, RemoteRegion};
use toolbox::pattern;

/// The number of bytes that a round writes to the peer's memory. The bytes are at the beginning of
/// the region `own`. A READ fetches them back into the next `LEN` bytes of this region.
const LEN: usize = 5000;

/// The lowest id of operations. It is higher than every id of a message.
const FIRST_ID: u64 = 1 << 63;

/// One-sided operations on one connection, in rounds. A round writes bytes to the peer's memory and
/// reads them back.
///
/// Atomic operations are not used: with many connections and retransmitted packets, software RoCE
/// sometimes reports success for an atomic operation that the peer has not answered.
#[derive(Debug)]
pub(super) struct Operations {
    /// The peer's memory. Empty until the description of this memory has arrived.
    pub(super) remote: OnceLock<RemoteRegion>,
    /// This side's memory that the peer writes and reads.
    _open: Region,
    /// The source and destination of this side's own operations.
    own: Region,
    /// Whether a round is in progress.
    is_busy: AtomicBool,
}

impl Operations {
    /// Registers memory for the peer, and sends the description of this memory as the first
    /// message.
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
    pub(super) fn accept(&self, message: &Message) -> Result<()> {
        let bytes = message.as_ref().try_into();
        let bytes = bytes.context("the first message describes no memory region")?;
        // The call succeeds: only this thread sets the cell, and the caller has checked that the
        // cell is empty.
        let _ = self.remote.set(RemoteRegion::from_bytes(bytes));
        Ok(())
    }

    /// Starts a round. Does nothing if the peer's memory is unknown or a round is in progress.
    /// Calls `count` once for each posted operation.
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

    /// Ends the round. Compares the bytes that were read back with the bytes that were written.
    pub(super) fn check_read(&self, id: u64) -> Result<()> {
        let round = (id - FIRST_ID) / 2;
        let mut bytes = vec![0; LEN];
        self.own.copy_out(LEN, &mut bytes);
        self.is_busy.store(false, Ordering::Release);
        let is_equal = bytes == pattern(round, LEN);
        ensure!(is_equal, "the bytes of operation {id} differ");
        Ok(())
    }
}
