use std::sync::atomic::{AtomicU64, Ordering};

use device::pattern;
use rdmsg::{Endpoint, Error, Message, Region, RemoteAccess, Token};

/// How many bytes are written to the peer's memory in a round. They are behind the number that is added to.
const LEN: usize = 5000;

/// Where the written bytes are in the peer's region, and in this side's own; what is read back comes behind them here.
const PLACE: usize = 8;

/// The ids of operations, in turn. They count up from here, behind those of all messages.
const FIRST_ID: u64 = 1 << 63;

/// One-sided operations on one connection, in rounds: write, read what was written, add one to a number.
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
        let open = endpoint.region(PLACE + LEN, RemoteAccess::ALL)?;
        endpoint.send(&open.token().to_bytes())?;
        Ok(Self {
            _open: open,
            own: endpoint.region(PLACE + 2 * LEN, RemoteAccess::NONE)?,
            begun: AtomicU64::new(0),
            done: AtomicU64::new(0),
        })
    }

    /// The peer's offer.
    pub(super) fn token(message: &Message) -> Result<Token, String> {
        let bytes = message.as_ref().try_into();
        let bytes = bytes.map_err(|_| format!("no token: {} bytes", message.len()))?;
        Ok(Token::from_bytes(bytes))
    }

    /// Begins a round if the last one is done, and calls `count` for each operation that is begun.
    pub(super) fn begin(
        &self,
        endpoint: &Endpoint,
        token: &Token,
        count: impl Fn(),
    ) -> Result<(), Error> {
        let round = self.begun.load(Ordering::Relaxed);
        if self.done.load(Ordering::Acquire) < round {
            return Ok(());
        }
        self.begun.store(round + 1, Ordering::Relaxed);
        let id = FIRST_ID + 3 * round;
        let written = PLACE..PLACE + LEN;
        let read = PLACE + LEN..PLACE + 2 * LEN;
        self.own.copy_in(PLACE, &pattern(round, LEN));
        endpoint.write(&self.own, written, token, PLACE as u64, id)?;
        count();
        endpoint.read(&self.own, read, token, PLACE as u64, id + 1)?;
        count();
        endpoint.fetch_add(&self.own, 0, token, 0, 1, id + 2)?;
        count();
        Ok(())
    }

    /// The bytes came back: whether they are those that were written.
    pub(super) fn check_read(&self, id: u64) -> Result<(), String> {
        let round = (id - FIRST_ID) / 3;
        let mut bytes = vec![0; LEN];
        self.own.copy_out(PLACE + LEN, &mut bytes);
        if bytes == pattern(round, LEN) {
            Ok(())
        } else {
            Err(format!("round {round} read other bytes than it wrote"))
        }
    }

    /// The number before the round: whether each round before has added one. The round is done.
    pub(super) fn check_fetched(&self, id: u64, value: u64) -> Result<(), String> {
        let round = (id - FIRST_ID) / 3;
        self.done.store(round + 1, Ordering::Release);
        if value == round {
            Ok(())
        } else {
            Err(format!("round {round} found {value} rounds before it"))
        }
    }
}
