use std::sync::{
    OnceLock,
    atomic::{AtomicBool, Ordering},
};

use rdmsg::{Endpoint, Error, Message, Region, RemoteAccess, RemoteRegion};
use toolbox::pattern;

/// The number of bytes that a round writes to the peer's memory. In this side's memory, the bytes
/// that are read back follow them.
const LEN: usize = 5000;

/// The first id of operations; ids count up, above those of all messages.
const FIRST_ID: u64 = 1 << 63;

/// One-sided operations on one connection, in rounds: a WRITE, and a READ of the same bytes.
///
/// There are no atomics: with many connections and repeated packets, those of software RoCE were
/// seen to succeed without an answer.
#[derive(Debug)]
pub(super) struct Operations {
    /// The peer's memory, once the peer has sent it.
    pub(super) remote: OnceLock<RemoteRegion>,
    /// The memory that the peer may read and write.
    _open: Region,
    /// The memory for the local side of the operations.
    own: Region,
    /// Whether a round is in progress.
    is_busy: AtomicBool,
}

impl Operations {
    /// Registers memory, and sends its description to the peer in the first message.
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

    /// Stores the peer's memory.
    pub(super) fn accept(&self, message: &Message) -> Result<(), String> {
        let bytes = message.as_ref().try_into();
        let bytes = bytes.map_err(|_| format!("no remote: {} bytes", message.len()))?;
        // The cell was empty, and no other thread sets it, so the call succeeds.
        let _ = self.remote.set(RemoteRegion::from_bytes(bytes));
        Ok(())
    }

    /// Starts a round if the peer's memory is known and no round is in progress. Calls `count` for
    /// each operation.
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

    /// Compares the bytes that were read back with the written ones, and ends the round.
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
