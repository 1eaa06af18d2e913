//! What the handles and the engine's thread say to each other.

use std::{
    fmt,
    net::SocketAddr,
    sync::{Arc, Mutex},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};

use super::{backlog, statistics::EngineStatistics};
use crate::{
    config::Config,
    error::Error,
    link::{Completion, Link, Owner},
    proto::{CloseReason, Phase},
    sync::Mailbox,
};

/// How long after its deadline the engine has to say how far a connection had come.
const LAST_WORD: Duration = Duration::from_millis(100);

/// What the handles ask of the engine's thread.
#[derive(Debug)]
pub(crate) enum Command {
    /// Listen, and reply with where. Requests hold the engine, which so lasts as long as the
    /// listener.
    Listen {
        address: SocketAddr,
        config: Config,
        requests: Sender<Request>,
        backlog: Arc<Backlog>,
        engine: Arc<Handle>,
        reply: Sender<Result<Bound, Error>>,
    },
    /// The listener's handle has been dropped.
    Unlisten(u64),
    /// Connect, and reply once.
    Connect {
        address: SocketAddr,
        config: Config,
        data: Vec<u8>,
        deadline: Instant,
        reply: Reply,
    },
    /// Accept a request, and reply once.
    Accept {
        link: Arc<Link>,
        data: Vec<u8>,
        /// When the application did.
        at: Instant,
        reply: Reply,
    },
    /// Reject a request.
    Reject { key: u64, data: Vec<u8> },
    /// Add up what went through all connections.
    Statistics { reply: Sender<EngineStatistics> },
    /// The last handle of the engine has been dropped: end when all connections have.
    Retire,
    /// Close everything, then end.
    ShutDown,
    /// As `ShutDown`: the process ends, and nobody will ask any more what became of its
    /// connections.
    Exit,
}

/// The engine as its handles share it.
pub(crate) struct Handle {
    commands: Arc<Mailbox<Command>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What a listener's program may take.
pub(crate) type Backlog = backlog::Backlog<Request, Established>;

/// What the engine says of a listener that it made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    pub(crate) key: u64,
    pub(crate) local: SocketAddr,
}

/// A connection that was established. One that nobody takes is closed when it is dropped.
#[derive(Debug)]
pub(crate) struct Established {
    pub(crate) link: Owner,
    pub(crate) completions: Receiver<Completion>,
    pub(crate) local: Option<SocketAddr>,
}

/// Where an established connection, or the reason that there is none, is sent.
#[derive(Debug)]
pub(crate) enum Reply {
    /// To a thread that waits for it.
    Caller(Sender<Result<Established, Error>>),
    /// To the others of its listener.
    Backlog(Arc<Backlog>),
}

/// A peer's request for a connection. Dropping it rejects it.
pub struct Request {
    /// `None` once it is answered.
    open: Option<Open>,
    peer: SocketAddr,
    local: Option<SocketAddr>,
    private_data: Vec<u8>,
}

/// What a request that was not answered holds.
pub(crate) struct Open {
    pub(crate) link: Arc<Link>,
    pub(crate) engine: Arc<Handle>,
    /// How long accepting it may take.
    pub(crate) timeout: Duration,
}

impl Handle {
    pub(super) fn new(commands: Arc<Mailbox<Command>>, thread: JoinHandle<()>) -> Self {
        Self {
            commands,
            thread: Mutex::new(Some(thread)),
        }
    }

    /// Sends a command. Fails if the engine has ended.
    pub(crate) fn send(&self, command: Command) -> Result<(), Error> {
        if self.commands.send(command) {
            Ok(())
        } else {
            Err(Error::EngineShutDown)
        }
    }

    /// Whether the engine's thread still runs.
    pub(super) fn runs(&self) -> bool {
        self.commands.is_read()
    }

    /// The engine's thread, until one thread has waited for its end. To be locked while waiting:
    /// threads that shut it down at the same time wait as well.
    pub(super) fn thread(&self) -> &Mutex<Option<JoinHandle<()>>> {
        &self.thread
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.commands.send(Command::Retire);
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}

impl Reply {
    pub(super) fn send(self, result: Result<Established, Error>) {
        match self {
            Self::Caller(sender) => {
                // It fails when nobody waits any more.
                let _ = sender.send(result);
            }
            Self::Backlog(backlog) => backlog.bring_accepted(result),
        }
    }
}

/// Waits for what came of a connection. The engine has the same deadline, and drops what nobody
/// waits for; but it serves many, and the thread that waits for one does not wait for those.
pub(crate) fn wait_for_reply(
    result: &Receiver<Result<Established, Error>>,
    peer: SocketAddr,
    deadline: Instant,
) -> Result<Established, Error> {
    match result.recv_deadline(deadline + LAST_WORD) {
        Ok(result) => result,
        // The engine has ended.
        Err(RecvTimeoutError::Disconnected) => Err(Error::EngineShutDown),
        Err(RecvTimeoutError::Timeout) => {
            let reason = CloseReason::TimedOut(Phase::Waiting);
            Err(Error::Connect { peer, reason })
        }
    }
}

impl Request {
    pub(super) fn new(
        link: Arc<Link>,
        engine: Arc<Handle>,
        local: Option<SocketAddr>,
        timeout: Duration,
    ) -> Self {
        let (peer, private_data) = (link.peer_addr(), link.peer_data());
        Self {
            open: Some(Open {
                link,
                engine,
                timeout,
            }),
            peer,
            local,
            private_data,
        }
    }

    /// Returns the peer's address.
    #[must_use]
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    /// Returns the address on which the request came in.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.local
    }

    /// Returns what the peer's program gave to
    /// [`Connector::private_data`](crate::Connector::private_data).
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Takes what it is answered with, once.
    pub(crate) fn take(&mut self) -> Option<Open> {
        self.open.take()
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("peer", &self.peer)
            .field("local", &self.local)
            .finish_non_exhaustive()
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if let Some(open) = self.open.take() {
            open.link.reject();
        }
    }
}
