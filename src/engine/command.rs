use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};

use super::{Engine, EngineStatistics, backlog::Backlog};
use crate::{
    config::Config,
    endpoint::Endpoint,
    error::Error,
    link::Link,
    listener::{Bound, Request},
    proto::{CloseReason, Phase},
};

/// Where an established connection, or the reason that there is none, is to be sent.
#[derive(Debug)]
pub(crate) enum Reply {
    /// To a thread that waits for it.
    Caller(Sender<Result<Endpoint, Error>>),
    /// To the others of its listener.
    Backlog(Arc<Backlog>),
}

impl Reply {
    /// An endpoint that nobody takes closes itself when dropped.
    pub(super) fn send(self, result: Result<Endpoint, Error>) {
        match self {
            Self::Caller(sender) => {
                // It fails when nobody waits any more.
                let _ = sender.send(result);
            }
            Self::Backlog(backlog) => backlog.bring_accepted(result),
        }
    }
}

/// How long after its deadline the engine has to say how far a connection had come.
const LAST_WORD: Duration = Duration::from_millis(100);

/// Waits for what came of a connection. The engine has the same deadline, and drops what nobody
/// waits for; but it serves many, and who waits for one is not to wait for those.
pub(crate) fn wait_for_reply(
    result: &Receiver<Result<Endpoint, Error>>,
    peer: SocketAddr,
    deadline: Instant,
) -> Result<Endpoint, Error> {
    match result.recv_deadline(deadline + LAST_WORD) {
        Ok(result) => result,
        // It is gone without a word.
        Err(RecvTimeoutError::Disconnected) => Err(Error::EngineShutDown),
        Err(RecvTimeoutError::Timeout) => {
            let reason = CloseReason::TimedOut(Phase::Waiting);
            Err(Error::Connect { peer, reason })
        }
    }
}

/// What the handles ask of the engine's thread.
#[derive(Debug)]
pub(crate) enum Command {
    /// Listen, and say where. The engine handle keeps the engine alive as long as the listener.
    Listen {
        address: SocketAddr,
        config: Config,
        requests: Sender<Request>,
        backlog: Arc<Backlog>,
        engine: Engine,
        reply: Sender<Result<Bound, Error>>,
    },
    /// The listener's handle is gone.
    Unlisten(u64),
    /// Connect, and reply once.
    Connect {
        address: SocketAddr,
        config: Config,
        data: Vec<u8>,
        deadline: Instant,
        engine: Engine,
        reply: Reply,
    },
    /// Accept a request, and reply once.
    Accept {
        link: Arc<Link>,
        data: Vec<u8>,
        /// When the application did.
        at: Instant,
        engine: Engine,
        reply: Reply,
    },
    /// Reject a request.
    Reject { key: u64, data: Vec<u8> },
    /// Say what went through all connections.
    Statistics { reply: Sender<EngineStatistics> },
    /// The last handle of the engine is gone: end when all connections have.
    Retire,
    /// Close everything, then end.
    ShutDown,
    /// As `ShutDown`: the process ends, and nobody will ask any more what became of its
    /// connections.
    Exit,
}
