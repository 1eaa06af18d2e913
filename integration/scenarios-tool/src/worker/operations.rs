use std::sync::{
    OnceLock,
    atomic::{AtomicBool, Ordering},
};

use rdmsg::{Endpoint, Error, Message, Region, RemoteAccess, RemoteRegion};
use toolbox::pattern;

/// The bytes that are written to the peer's memory in a round. The bytes that are read back come
/// behind them in the memory of this side.
const LEN: usize = 5000;

/// The ids of operations, in turn. They count up from here, behind those of all messages.
const FIRST_ID: u64 = 1 << 63;

/// One-sided operations on one connection, in rounds: a WRITE, and a READ of the same bytes.
///
/// No atomic ones: among many connections, where packets have to be repeated, those of software
/// RoCE were seen to succeed without their answer.
#[derive(Debug)]
pub(super) struct Operations {
    /// The peer's memory, after the peer has named it.
    pub(super) remote: OnceLock<RemoteRegion>,
    /// The memory that the peer may write to and read.
    _open: Region,
    /// The memory that this side writes from and reads into.
    own: Region,
    /// Whether a round has begun and not ended.
    is_busy: AtomicBool,
}

impl Operations {
    /// Has memory for it, and tells the peer where: in the first message.
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

    /// Takes the peer's offer.
    pub(super) fn accept(&self, message: &Message) -> Result<(), String> {
        let bytes = message.as_ref().try_into();
        let bytes = bytes.map_err(|_| format!("no remote: {} bytes", message.len()))?;
        // It was empty, and no other thread sets it.
        let _ = self.remote.set(RemoteRegion::from_bytes(bytes));
        Ok(())
    }

    /// Begins a round if there is an offer and the last one has ended, and calls `count` for each
    /// operation.
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

    /// Compares the bytes that came back with those that were written, and ends the round.
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
