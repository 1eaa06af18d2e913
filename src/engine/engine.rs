use std::{
    fmt, ptr,
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use crossbeam_channel::{RecvTimeoutError, bounded};

use super::{
    command::{Command, Handle},
    exit,
    reactor::Reactor,
    relief::Custody,
    threadless::Threadless,
};
use crate::{
    error::Error,
    link::Deadline,
    os::{PerProcess, failed, lock},
    poll::Mailbox,
    proto::Statistics,
    transport::{Budget, ConnectionManager, EngineLimits},
};

/// A handle of the thread that serves connections.
///
/// Every [`Endpoint`](crate::Endpoint) and [`Listener`](crate::Listener) belongs to one engine.
/// Programs seldom need to name it: [`Engine::shared`] is started with the first connection and
/// ends with the last one. Create one with [`Engine::new`] to keep groups of connections apart, or
/// to [shut all of them down](Engine::shutdown) and know that everything was released. Clones are
/// handles of the same engine.
///
/// The thread handles connection events, timers (deadlines, keepalive), and the completion queues
/// of connections on which no thread waits. It sleeps while there is nothing to do. When the last
/// handle, listener and endpoint have been dropped, it finishes the closes in progress, and ends. A
/// process that ends normally waits for that: see [the guide](crate::guide::ending).
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Handle>,
}

/// The engine that is used by default. A weak reference: the engine ends with its last user.
static SHARED: PerProcess<Mutex<Weak<Handle>>> = PerProcess::new(Mutex::default);

impl Engine {
    /// Starts an engine, with the default [`EngineLimits`].
    ///
    /// # Errors
    ///
    /// [`Error::Os`] when the thread or its file descriptors cannot be created. Without RDMA it
    /// succeeds: connects and binds that require RDMA then fail.
    pub fn new() -> Result<Self, Error> {
        Self::start(Budget::shared())
    }

    /// Starts an engine with limits of its own for the peers' large messages.
    ///
    /// The limits hold for all connections of this engine together, and are shared with no other
    /// engine.
    ///
    /// # Errors
    ///
    /// [`Error::Os`] when the thread or its file descriptors cannot be created. Without RDMA it
    /// succeeds: connects and binds that require RDMA then fail.
    pub fn with_limits(limits: EngineLimits) -> Result<Self, Error> {
        Self::start(Budget::new(limits))
    }

    /// Returns an engine without a thread, for connections within this process.
    ///
    /// The threads that call it, its listeners and its connections do its work. So when a call
    /// returns, its effects on both sides of a connection have happened, and the waiting threads
    /// and tasks were woken. Listeners on `memory://name` and
    /// [`Endpoint::pair`](crate::Endpoint::pair) use such an engine by default. Over other
    /// transports a connect or a bind with it fails with [`Error::InvalidConfig`].
    ///
    /// Threads that wait in a call handle the library's deadlines, such as
    /// [`close_timeout`](crate::Config::close_timeout), up to 20 ms late. Tasks do not. The
    /// timeouts of calls end their waits as always.
    ///
    /// # Errors
    ///
    /// [`Error::Os`] when the process has no file descriptor left.
    ///
    /// # Examples
    ///
    /// ```
    /// use rdmsg::{Engine, Listener};
    ///
    /// # fn main() -> Result<(), rdmsg::Error> {
    /// let engine = Engine::in_memory()?;
    /// let listener = Listener::builder().engine(&engine).bind("memory://counted")?;
    /// let near = rdmsg::Endpoint::connect("memory://counted")?;
    /// let far = listener.accept()?;
    /// assert_eq!(engine.statistics()?.connections, 2);
    /// # drop((near, far));
    /// # Ok(())
    /// # }
    /// ```
    pub fn in_memory() -> Result<Self, Error> {
        let (engine, commands) = Threadless::start().map_err(Error::from_os)?;
        Ok(Self {
            inner: Arc::new(Handle::threadless(commands, engine)),
        })
    }

    fn start(budget: Arc<Budget>) -> Result<Self, Error> {
        let notices = Mailbox::new().map_err(Error::from_os)?;
        let manager = ConnectionManager::new(&notices).map_err(Error::from_os)?;
        let commands = Mailbox::new().map_err(Error::from_os)?;
        let reactor = exit::register(Arc::clone(&commands))
            .and_then(|registration| {
                let commands = Arc::clone(&commands);
                Reactor::new(manager, commands, notices, budget, registration)
            })
            .map_err(Error::from_os)?;
        let custody = Custody::start(Box::new(reactor))
            .map_err(failed("pthread_create"))
            .map_err(Error::Os)?;
        Ok(Self {
            inner: Arc::new(Handle::new(commands, custody)),
        })
    }

    /// Returns the engine that is used by default, and starts it when there is none.
    ///
    /// [`Endpoint::connect`](crate::Endpoint::connect), [`Listener::bind`](crate::Listener::bind)
    /// and a [`Connector`](crate::Connector) without an engine use it.
    ///
    /// A child of fork(2) has a shared engine of its own: see [the
    /// guide](crate::guide::installing#fork).
    ///
    /// When everything that uses the engine is gone it ends, in the background, and the next call
    /// starts another one. A handle that is kept from the start keeps its
    /// [`statistics`](Self::statistics), and can wait for connections that are being closed in the
    /// background: with [`drain`](Self::drain).
    ///
    /// # Errors
    ///
    /// [`Error::Os`] when the thread or its file descriptors cannot be created. Without RDMA it
    /// succeeds: connects and binds that require RDMA then fail.
    pub fn shared() -> Result<Self, Error> {
        let mut shared = lock(SHARED.get());
        // An engine whose thread has ended cannot serve a connection.
        if let Some(inner) = shared.upgrade().filter(|inner| inner.runs()) {
            return Ok(Self { inner });
        }
        let engine = Self::new()?;
        *shared = Arc::downgrade(&engine.inner);
        Ok(engine)
    }

    /// Closes all listeners and connections of this engine and waits until everything is released.
    ///
    /// That is: queue pairs, completion queues, memory, file descriptors and the thread.
    /// Connections are closed as by [`Endpoint::close`](crate::Endpoint::close), each within its
    /// own [`close_timeout`](crate::Config::close_timeout). Later calls on any handle of this
    /// engine fail. Memory of messages that the application still holds is released when they are
    /// dropped.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use rdmsg::{Connector, Engine};
    ///
    /// # fn main() -> Result<(), rdmsg::Error> {
    /// let engine = Engine::new()?;
    /// let endpoint = Connector::new().engine(&engine).connect("10.8.0.1:7471")?;
    /// endpoint.send(b"hello")?;
    /// engine.shutdown(); // delivers the message, and releases all that the connection had
    /// assert!(endpoint.send(b"too late").is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn shutdown(self) {
        if self.inner.is_inherited() {
            return;
        }
        let mut shared = lock(SHARED.get());
        if ptr::eq(shared.as_ptr(), Arc::as_ptr(&self.inner)) {
            // The next call of `shared` starts a new engine.
            *shared = Weak::new();
        }
        drop(shared);
        // The send fails if the engine has already ended.
        let _ = self.inner.send(Command::ShutDown);
        if self.inner.join().is_err() {
            error!(
                Engine,
                "engine: the engine's thread panicked, which ended all of its connections"
            );
        }
    }

    /// Tells the peers of all connections that the listeners of this engine accepted that this side
    /// wants to end them soon.
    ///
    /// It is [`Endpoint::ask_to_leave`](crate::Endpoint::ask_to_leave) on each of them, for a
    /// server that stops and keeps no list of its endpoints. From then on the engine also asks on
    /// each connection that a listener accepts, as soon as it is established. A peer that connects
    /// again to this server is therefore asked again: close the listeners first. The engine does
    /// not ask on connections that a [`Connector`](crate::Connector) made. It never waits for a
    /// peer.
    ///
    /// Returns the number of established connections that were asked. Those of streams, and of
    /// peers with an earlier version of this crate, do not know the notice and are not counted.
    /// The notice has no answer: [`drain`](Self::drain) waits until the peers have left.
    ///
    /// [The cookbook](crate::guide::cookbook#a-rolling-restart) has a restart.
    ///
    /// # Errors
    ///
    /// * [`Error::EngineShutDown`] when the engine was shut down.
    /// * [`Error::Forked`] in a child of the process that started the engine.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use rdmsg::{Completion, Endpoint, Engine, Listener};
    ///
    /// # fn main() -> Result<(), rdmsg::Error> {
    /// let engine = Engine::in_memory()?;
    /// let listener = Listener::builder().engine(&engine).bind("memory://stopping")?;
    /// let client = Endpoint::connect("memory://stopping")?;
    /// let server = listener.accept()?;
    /// listener.close();
    /// assert_eq!(engine.ask_to_leave()?, 1);
    /// assert!(matches!(client.next_completion()?, Completion::PeerLeaving));
    /// client.close()?;
    /// assert_eq!(engine.drain(Duration::from_secs(10))?, 0);
    /// # drop(server);
    /// # Ok(())
    /// # }
    /// ```
    pub fn ask_to_leave(&self) -> Result<u64, Error> {
        let (reply, asked) = bounded(1);
        self.send(Command::AskToLeave { reply })?;
        asked.recv().map_err(|_| Error::EngineShutDown)
    }

    /// Stops listening, and waits until all connections of this engine have ended.
    ///
    /// The call waits for at most `timeout`, and returns the number of connections that were still
    /// open then; 0 means that all have ended and all their resources were released. Each listener
    /// of the engine is closed, as by [`Listener::close`](crate::Listener::close). Connections end
    /// when their users on either side close them. The call also waits for connections that are
    /// being closed in the background because their last handle was dropped. Accepted connections
    /// that are suspended ([`Config::resume`](crate::Config::resume)) end at once, because their
    /// peers have no listener to resume at. The engine continues;
    /// [`shutdown`](Self::shutdown) closes the remaining connections.
    ///
    /// [The guide](crate::guide::ending) has a server that ends in this way on a signal.
    ///
    /// # Errors
    ///
    /// * [`Error::EngineShutDown`] when the engine was shut down.
    /// * [`Error::Forked`] in a child of the process that started the engine.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// # fn main() -> Result<(), rdmsg::Error> {
    /// # let engine = rdmsg::Engine::new()?;
    /// match engine.drain(Duration::from_secs(10))? {
    ///     0 => println!("all have ended"),
    ///     left => println!("{left} connections are closed by force"),
    /// }
    /// engine.shutdown();
    /// # Ok(())
    /// # }
    /// ```
    pub fn drain(&self, timeout: Duration) -> Result<u64, Error> {
        let (reply, drained) = bounded(1);
        // The engine ends sessions for the drain until this is dropped.
        let waits = Arc::new(());
        let caller = Arc::downgrade(&waits);
        self.send(Command::Drain { reply, caller })?;
        match self
            .inner
            .receive_until(&drained, &Deadline::after(timeout))
        {
            Ok(()) => Ok(0),
            Err(RecvTimeoutError::Disconnected) => Err(Error::EngineShutDown),
            Err(RecvTimeoutError::Timeout) => Ok(self.statistics()?.connections),
        }
    }

    /// Returns the counters of this engine's connections.
    ///
    /// They include connections that have ended, from the start of the engine. A program that keeps
    /// a handle from the start gets all of them. The [shared engine](Self::shared) ends with its
    /// last connection, listener and handle, and the next call of `shared` starts another one,
    /// which counts from 0. The engine's thread adds the counters up, so the call waits for its
    /// next round.
    ///
    /// # Errors
    ///
    /// * [`Error::EngineShutDown`] when the engine was shut down.
    /// * [`Error::Forked`] in a child of the process that started the engine.
    pub fn statistics(&self) -> Result<EngineStatistics, Error> {
        let (reply, statistics) = bounded(1);
        self.send(Command::Statistics { reply })?;
        statistics.recv().map_err(|_| Error::EngineShutDown)
    }

    pub(crate) fn send(&self, command: Command) -> Result<(), Error> {
        self.inner.send(command)
    }

    /// Returns this engine if it serves connections over a transport: within the process, or over
    /// RDMA and TCP.
    pub(crate) fn for_transport(&self, is_in_memory: bool) -> Result<Self, Error> {
        if is_in_memory || self.inner.has_thread() {
            return Ok(self.clone());
        }
        Err(Error::InvalidConfig {
            field: "engine",
            value: "Engine::in_memory()".to_owned(),
            allowed: "Engine::new() for transports other than memory".to_owned(),
        })
    }

    pub(crate) fn handle(&self) -> &Arc<Handle> {
        &self.inner
    }

    pub(crate) fn of(inner: Arc<Handle>) -> Self {
        Self { inner }
    }

    /// Returns the engine for stand-ins of inherited objects. It has no thread.
    pub(crate) fn forked() -> Self {
        Self::of(Arc::new(Handle::forked()))
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}

/// The counters of an [`Engine`], and the connections and memory that it holds now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineStatistics {
    /// The number of connections now: being established, established, or being closed.
    pub connections: u64,
    /// The number of connections that have ended, or were never established.
    pub ended: u64,
    /// The sum of the statistics of all connections, past and present.
    pub all: Statistics,
    /// The number of bytes that are pinned now, or reserved, for reading large messages.
    ///
    /// Engines that share the budget are counted together. See
    /// [`EngineLimits::pinned`](crate::EngineLimits::pinned).
    pub pinned: u64,
    /// The number of bytes of large messages that are being read now, or held by the application,
    /// and of the copies of a stream's unread bytes.
    ///
    /// Engines that share the budget are counted together. See
    /// [`EngineLimits::held`](crate::EngineLimits::held).
    pub held: u64,
}
