use std::sync::atomic::{AtomicU64, Ordering};

use rdmsg::{Endpoint, Error, Message, Region, RemoteAccess, RemoteRegion};
use toolbox::pattern;

/// How many bytes are written to the peer's memory in a round. In this side's own, what is read
/// back comes behind them.
const LEN: usize = 5000;

/// The ids of operations, in turn. They count up from here, behind those of all messages.
const FIRST_ID: u64 = 1 << 63;

/// One-sided operations on one connection, in rounds: write, and read what was written.
///
/// No atomic ones: among many connections, where packets have to be repeated, those of software
/// RoCE were seen to succeed without their answer.
#[derive(Debug)]
pub(super) struct Operations {
    /// What the peer may write to and read, for as long as this is there.
    _open: Region,
    /// What this side writes from and reads into.
    own: Region,
    /// How many rounds were begun, and how many of them are done.
    begun: AtomicU64,
    done: AtomicU64,
}

impl Operations {
    /// Has memory for it, and tells the peer where: in the first message.
    pub(super) fn offer(endpoint: &Endpoint) -> Result<Self, Error> {
        let open = endpoint.region(LEN, RemoteAccess::ALL)?;
        endpoint.send(&open.remote().to_bytes())?;
        Ok(Self {
            _open: open,
            own: endpoint.region(2 * LEN, RemoteAccess::NONE)?,
            begun: AtomicU64::new(0),
            done: AtomicU64::new(0),
        })
    }

    /// The peer's offer.
    pub(super) fn remote(message: &Message) -> Result<RemoteRegion, String> {
        let bytes = message.as_ref().try_into();
        let bytes = bytes.map_err(|_| format!("no remote: {} bytes", message.len()))?;
        Ok(RemoteRegion::from_bytes(bytes))
    }

    /// Begins a round if the last one is done, and calls `count` for each operation that is begun.
    pub(super) fn begin(
        &self,
        endpoint: &Endpoint,
        remote: &RemoteRegion,
        count: impl Fn(),
    ) -> Result<(), Error> {
        let round = self.begun.load(Ordering::Relaxed);
        let id = FIRST_ID + 2 * round;
        if self.done.load(Ordering::Acquire) < round {
            return Ok(());
        }
        self.begun.store(round + 1, Ordering::Relaxed);
        let written = 0..LEN;
        let read = LEN..2 * LEN;
        self.own.copy_in(0, &pattern(round, LEN));
        endpoint.write(&self.own, written, remote, 0, id)?;
        count();
        endpoint.read(&self.own, read, remote, 0, id + 1)?;
        count();
        Ok(())
    }

    /// The bytes came back, and the round is done: whether they are those that were written.
    pub(super) fn check_read(&self, id: u64) -> Result<(), String> {
        let round = (id - FIRST_ID) / 2;
        let mut bytes = vec![0; LEN];
        self.own.copy_out(LEN, &mut bytes);
        self.done.store(round + 1, Ordering::Release);
        if bytes == pattern(round, LEN) {
            Ok(())
        } else {
            Err(format!("round {round} read other bytes than it wrote"))
        }
    }
}
