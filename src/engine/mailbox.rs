use std::{net::SocketAddr, sync::Arc};

use crossbeam_channel::Sender;
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::{Engine, EngineStatistics};
use crate::{
    config::Config,
    endpoint::Endpoint,
    error::Error,
    listener::{Bound, Request},
    status::OsError,
};

/// Where an established connection, or the reason that there is none, is to be sent.
pub(crate) type Reply = Sender<Result<Endpoint, Error>>;

/// What the handles ask of the engine's thread.
#[derive(Debug)]
pub(crate) enum Command {
    /// Listen, and say where. The engine handle keeps the engine alive as long as the listener.
    Listen {
        address: SocketAddr,
        config: Config,
        requests: Sender<Request>,
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
        engine: Engine,
        reply: Reply,
    },
    /// Accept a request, and reply once.
    Accept {
        key: u64,
        data: Vec<u8>,
        engine: Engine,
        reply: Reply,
    },
    /// Reject a request.
    Reject { key: u64, data: Vec<u8> },
    /// Say what went through all connections.
    Statistics { reply: Sender<EngineStatistics> },
    /// Do what a connection's state machine has queued, and look at its timer.
    Service(u64),
    /// Threads of the application poll this connection's queue: keep away until they stop.
    Hot(u64),
    /// Nobody polls this connection's queue any more.
    Watch(u64),
    /// The last handle of the engine is gone: end when all connections have.
    Retire,
    /// Close everything, then end.
    ShutDown,
}

/// The engine's command queue and the fd that wakes its thread.
#[derive(Debug)]
pub(crate) struct Mailbox {
    commands: Sender<Command>,
    bell: EventFd,
}

impl Mailbox {
    pub(super) fn new(commands: Sender<Command>) -> Result<Arc<Self>, OsError> {
        let bell = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(|errno| OsError::new("eventfd", errno as i32))?;
        Ok(Arc::new(Self { commands, bell }))
    }

    /// Queues a command and wakes the thread. Says `false` where the engine has ended.
    pub(crate) fn send(&self, command: Command) -> bool {
        if self.commands.send(command).is_err() {
            return false;
        }
        // It fails only when the counter is full, and then the thread is awake anyway.
        let _ = self.bell.write(1);
        true
    }

    pub(super) fn bell(&self) -> &EventFd {
        &self.bell
    }
}
