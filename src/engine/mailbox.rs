use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use nix::sys::eventfd::EventFd;

use super::{Engine, EngineStatistics, Link, backlog::Backlog, link::lock, signal::eventfd};
use crate::{
    config::Config,
    endpoint::Endpoint,
    error::Error,
    listener::{Bound, Request},
    proto::{CloseReason, Phase},
    status::OsError,
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
    /// Do what a connection's state machine has queued, and look at its timer.
    Service(u64),
    /// The memory that this connection waits for is there, or may be.
    Feed(u64),
    /// Threads of the application poll this connection's queue: keep away until they stop.
    Hot(u64),
    /// Nobody polls this connection's queue any more.
    Watch(u64),
    /// The last handle of the engine is gone: end when all connections have.
    Retire,
    /// Close everything, then end.
    ShutDown,
    /// As `ShutDown`: the process ends, and nobody will ask any more what became of its
    /// connections.
    Exit,
}

/// The engine's command queue and the fd that wakes its thread. The queue keeps the memory that it once needed, so that waking the thread
/// allocates nothing.
#[derive(Debug)]
pub(crate) struct Mailbox {
    /// `None` when the engine's thread has ended.
    queue: Mutex<Option<VecDeque<Command>>>,
    bell: EventFd,
}

impl Mailbox {
    pub(super) fn new() -> Result<Arc<Self>, OsError> {
        Ok(Arc::new(Self {
            queue: Mutex::new(Some(VecDeque::with_capacity(64))),
            bell: eventfd()?,
        }))
    }

    /// Queues a command and wakes the thread. Says `false` where the engine has ended.
    pub(crate) fn send(&self, command: Command) -> bool {
        match &mut *lock(&self.queue) {
            Some(queue) => queue.push_back(command),
            None => return false,
        }
        // It fails only when the counter is full, and then the thread is awake anyway.
        let _ = self.bell.write(1);
        true
    }

    /// Takes the next command.
    pub(super) fn take(&self) -> Option<Command> {
        lock(&self.queue).as_mut()?.pop_front()
    }

    /// Whether there is still somebody who reads it.
    pub(super) fn is_read(&self) -> bool {
        lock(&self.queue).is_some()
    }

    /// Nobody reads it any more. Whoever waits for a reply learns it from that.
    pub(super) fn abandon(&self) {
        let left = lock(&self.queue).take();
        drop(left);
    }

    pub(super) fn bell(&self) -> &EventFd {
        &self.bell
    }
}
