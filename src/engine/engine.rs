use std::{
    fmt, ptr,
    sync::{Arc, Mutex, Weak},
    thread,
};

use crossbeam_channel::bounded;

use super::{
    command::{Command, Handle},
    reactor::Reactor,
    statistics::EngineStatistics,
};
use crate::{
    error::Error,
    status::OsError,
    sync::{Mailbox, lock},
    transport::{Budget, EngineLimits, rdma::Manager},
};

/// The thread that serves connections. Every [`Endpoint`](crate::Endpoint) and
/// [`Listener`](crate::Listener) belongs to one.
///
/// Programs seldom need to name it: [`Engine::shared`] is there when a connection is made and goes
/// away with the last one. Make one with [`Engine::new`] to keep groups of connections apart, or to
/// [shut all of them down](Engine::shutdown) and know that everything was given back. Clones are
/// handles of the same engine.
///
/// The thread handles connection events, timers (deadlines, keepalive), and the completion queues
/// of connections on which no thread waits. It sleeps while there is none of that. When the last
/// handle, listener and endpoint are gone it finishes closing what is still being closed, and ends.
/// A process that ends normally has all engines do so first, and waits for them: see [the crate's
/// documentation](crate#when-the-process-ends).
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Handle>,
}

/// The engine of those who do not name one. Held weakly: it lives as long as somebody uses it.
static SHARED: Mutex<Weak<Handle>> = Mutex::new(Weak::new());

impl Engine {
    /// Starts an engine of its own, with the default [`EngineLimits`].
    ///
    /// # Errors
    ///
    /// [`Error::NoRdma`] where the kernel offers no RDMA connection manager
    /// (`rdma_create_event_channel(3)`), [`Error::Os`] where the thread or its file descriptors
    /// cannot be made.
    pub fn new() -> Result<Self, Error> {
        Self::start(Budget::shared())
    }

    /// Starts an engine of its own whose connections have this much memory for the peers' large
    /// messages, and share it with no other engine's.
    ///
    /// # Errors
    ///
    /// As [`Engine::new`].
    pub fn with_limits(limits: EngineLimits) -> Result<Self, Error> {
        Self::start(Budget::new(limits))
    }

    fn start(budget: Arc<Budget>) -> Result<Self, Error> {
        let manager = Manager::new().map_err(Error::from_os)?;
        let commands = Mailbox::new().map_err(Error::from_os)?;
        let reactor =
            Reactor::new(manager, Arc::clone(&commands), budget).map_err(Error::from_os)?;
        let thread = thread::Builder::new()
            .name("rdmsg-engine".into())
            .spawn(move || reactor.run())
            .map_err(|error| {
                Error::Os(OsError::new(
                    "pthread_create",
                    error.raw_os_error().unwrap_or(0),
                ))
            })?;
        Ok(Self {
            inner: Arc::new(Handle::new(commands, thread)),
        })
    }

    /// The engine that everybody uses who does not name one. It is started when it is first needed.
    ///
    /// # Errors
    ///
    /// As [`Engine::new`].
    pub fn shared() -> Result<Self, Error> {
        let mut shared = lock(&SHARED);
        // One whose thread has ended, for whatever reason, serves nobody any more.
        if let Some(inner) = shared.upgrade().filter(|inner| inner.runs()) {
            return Ok(Self { inner });
        }
        let engine = Self::new()?;
        *shared = Arc::downgrade(&engine.inner);
        Ok(engine)
    }

    /// Closes all listeners and connections of this engine and waits until everything was given
    /// back: queue pairs, completion queues, memory, file descriptors.
    ///
    /// Connections are closed as by [`Endpoint::close`](crate::Endpoint::close), each within its
    /// own [`close_timeout`](crate::Config::close_timeout). Later calls on any handle of this
    /// engine fail. Memory of messages that the application still holds stays until they are
    /// dropped.
    pub fn shutdown(self) {
        let mut shared = lock(&SHARED);
        if ptr::eq(shared.as_ptr(), Arc::as_ptr(&self.inner)) {
            // Whoever asks for the shared engine from now on gets one that works.
            *shared = Weak::new();
        }
        drop(shared);
        // It fails where it has ended already.
        let _ = self.inner.send(Command::ShutDown);
        let mut thread = lock(self.inner.thread());
        if let Some(thread) = thread.take()
            && thread.join().is_err()
        {
            log::error!("the engine's thread panicked");
        }
    }

    /// What went through this engine's connections, those that have ended included. The engine's
    /// thread adds it up.
    ///
    /// # Errors
    ///
    /// [`Error::EngineShutDown`].
    pub fn statistics(&self) -> Result<EngineStatistics, Error> {
        let (reply, statistics) = bounded(1);
        self.send(Command::Statistics { reply })?;
        statistics.recv().map_err(|_| Error::EngineShutDown)
    }

    pub(crate) fn send(&self, command: Command) -> Result<(), Error> {
        self.inner.send(command)
    }

    pub(crate) fn handle(&self) -> &Arc<Handle> {
        &self.inner
    }

    pub(crate) fn of(inner: Arc<Handle>) -> Self {
        Self { inner }
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}
