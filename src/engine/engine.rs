use std::{
    fmt, ptr,
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use crossbeam_channel::{RecvTimeoutError, bounded};

use super::{
    command::{Command, Handle},
    destroyers::Destroyers,
    exit,
    reactor::{Reactor, Threadless},
    relief_thread::Custody,
};
use crate::{
    error::Error,
    link::Deadline,
    os::{PerProcess, failed, lock},
    poll::Mailbox,
    proto::Statistics,
    transport::{Budget, ConnectionManager, EngineLimits},
};

/// A handle to the thread that serves connections.
///
/// Every [`Endpoint`](crate::Endpoint) and [`Listener`](crate::Listener) belongs to one engine.
/// Programs rarely need to create an engine: [`Engine::shared`] starts with the first connection
/// and ends with the last one. Use [`Engine::new`] to separate groups of connections, or to [shut
/// down a group](Engine::shutdown) and be sure that all its resources are released. Clones are
/// handles to the same engine.
///
/// The thread handles connection events and timers (deadlines, keepalive). It also polls the
/// completion queues of connections on which no other thread waits. It sleeps while there is no
/// work. When all handles, listeners and endpoints have been dropped, the thread completes the
/// closes in progress and ends. A process that exits normally waits for these closes: see [the
/// guide](crate::guide::ending).
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Handle>,
}

/// The default engine. The reference is weak, so the engine ends when the last handle is dropped.
static SHARED: PerProcess<Mutex<Weak<Handle>>> = PerProcess::new(Mutex::default);

impl Engine {
    /// Starts an engine, with the default [`EngineLimits`].
    ///
    /// # Errors
    ///
    /// [`Error::Os`] when the thread or its file descriptors cannot be created. On a host without
    /// RDMA this call succeeds, but connects and binds that require RDMA fail.
    pub fn new() -> Result<Self, Error> {
        Self::start(Budget::shared())
    }

    /// Starts an engine with its own limits for the peers' large messages.
    ///
    /// The limits apply to the total of this engine's connections. No other engine shares these
    /// limits.
    ///
    /// # Errors
    ///
    /// [`Error::Os`] when the thread or its file descriptors cannot be created. On a host without
    /// RDMA this call succeeds, but connects and binds that require RDMA fail.
    pub fn with_limits(limits: EngineLimits) -> Result<Self, Error> {
        Self::start(Budget::new(limits))
    }

    /// Returns an engine without a thread, for in-memory connections.
    ///
    /// Each thread that calls a method of the engine, of its listeners or of its connections also
    /// does the engine's pending work. When a call returns, its effects on both sides of a
    /// connection are therefore complete, and waiting threads and tasks have been woken. Listeners
    /// on `memory://name` and [`Endpoint::pair`](crate::Endpoint::pair) use such an engine by
    /// default. A connect or bind over another transport fails with [`Error::InvalidConfig`] on
    /// this engine.
    ///
    /// Only threads that wait in a call handle the library's deadlines, such as
    /// [`close_timeout`](crate::Config::close_timeout). A waiting thread handles a deadline at most
    /// 20 ms after the deadline has expired. Tasks that wait do not handle these deadlines. The
    /// timeouts of the calls themselves work as usual.
    ///
    /// # Errors
    ///
    /// [`Error::Os`] when the process has no free file descriptor.
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
        let destroyers = Destroyers::default();
        let served = destroyers.clone();
        let reactor = exit::register(Arc::clone(&commands))
            .and_then(|registration| {
                let commands = Arc::clone(&commands);
                Reactor::new(manager, commands, notices, budget, served, registration)
            })
            .map_err(Error::from_os)?;
        let custody = Custody::start(Box::new(reactor))
            .map_err(failed("pthread_create"))
            .map_err(Error::Os)?;
        Ok(Self {
            inner: Arc::new(Handle::new(commands, custody, destroyers)),
        })
    }

    /// Returns the default engine. Starts it if it is not running.
    ///
    /// [`Endpoint::connect`](crate::Endpoint::connect), [`Listener::bind`](crate::Listener::bind)
    /// and a [`Connector`](crate::Connector) without an engine use it.
    ///
    /// A child of fork(2) starts its own default engine: see [the
    /// guide](crate::guide::installing#fork).
    ///
    /// The engine ends in the background when all its handles, listeners and endpoints have been
    /// dropped. The next call of this function starts another engine. A handle keeps the engine
    /// running and preserves its [`statistics`](Self::statistics). The [`drain`](Self::drain)
    /// method of a handle waits for connections that are being closed in the background.
    ///
    /// # Errors
    ///
    /// [`Error::Os`] when the thread or its file descriptors cannot be created. On a host without
    /// RDMA this call succeeds, but connects and binds that require RDMA fail.
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

    /// Closes all listeners and connections of this engine, and waits until all resources are
    /// released.
    ///
    /// The resources are queue pairs, completion queues, memory, file descriptors and the thread.
    /// Connections are closed as if by [`Endpoint::close`](crate::Endpoint::close), each within its
    /// own [`close_timeout`](crate::Config::close_timeout). Later calls on any handle of this
    /// engine fail. If the application still holds messages, dropping them releases their memory.
    /// If a driver does not complete the destruction of a connection, the call logs a warning and
    /// returns after 10 s. If the engine's thread is calling a waker or the logger, which may
    /// block, the shutdown waits for it for at most 1 s.
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
    /// engine.shutdown(); // delivers the message, and releases all resources
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
                "engine: the engine's thread panicked, so all connections of the engine have ended"
            );
        }
    }

    /// Asks the peers of this engine's accepted connections to leave, because this side wants to
    /// end the connections soon.
    ///
    /// Use this method in a server that stops and has no list of its endpoints. The engine sends
    /// the notice of [`Endpoint::ask_to_leave`](crate::Endpoint::ask_to_leave) on each connection
    /// that its listeners have accepted. After this call, it sends the notice on each newly
    /// accepted connection as soon as the connection is established. A peer that reconnects to this
    /// server would therefore be asked again, so close the listeners first. The engine does not ask
    /// the peers of connections that a [`Connector`](crate::Connector) established. This method
    /// never waits for a peer.
    ///
    /// Returns the number of established connections whose peers were asked. This number includes
    /// neither streams nor peers whose version of this crate does not support the notice. Peers do
    /// not answer the notice: use [`drain`](Self::drain) to wait until they have left.
    ///
    /// [The cookbook](crate::guide::cookbook#a-rolling-restart) shows a rolling restart.
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

    /// Closes the listeners, and waits until all connections of this engine have ended.
    ///
    /// Waits at most `timeout`. Returns the number of connections that are still open; 0 means that
    /// all connections have ended and their resources are released, unless a driver does not
    /// release them within 10 s. Each listener of the engine is closed, as if
    /// by [`Listener::close`](crate::Listener::close). A connection ends when the program on either
    /// side closes it. The call also waits for connections that are closed in the background after
    /// their last handle was dropped. Accepted connections that are suspended
    /// ([`Config::resume`](crate::Config::resume)) end immediately, because no listener is left at
    /// which their peers could resume. The engine itself continues to run;
    /// [`shutdown`](Self::shutdown) closes the remaining connections.
    ///
    /// [The guide](crate::guide::ending) shows a server that drains its engine on a signal.
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
        // The engine has a weak reference to this value. While the value exists, the drain is
        // pending, and the engine ends suspended sessions that this host accepted.
        let waits = Arc::new(());
        let caller = Arc::downgrade(&waits);
        self.send(Command::Drain { reply, caller })?;
        let deadline = Deadline::after(timeout);
        match self.inner.receive_until(&drained, &deadline) {
            Ok(()) => {
                self.inner.wait_for_destructions(deadline.left());
                Ok(0)
            }
            Err(RecvTimeoutError::Disconnected) => Err(Error::EngineShutDown),
            Err(RecvTimeoutError::Timeout) => Ok(self.statistics()?.connections),
        }
    }

    /// Returns the sum of the counters of this engine's connections.
    ///
    /// The sum includes connections that have ended since the start of the engine. The [shared
    /// engine](Self::shared) ends with its last connection, listener and handle. The next call of
    /// `shared` starts another engine, which counts from 0. To count all connections, keep a handle
    /// from the start of the program. The engine's thread adds up the counters, so the call waits
    /// for the next iteration of the thread's loop.
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

    /// Returns this engine, or an error if the engine does not support the transport. In-memory
    /// connections (`is_in_memory`) can use any engine. Connections over RDMA and TCP need an
    /// engine that has a thread.
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

    /// Returns an engine that refuses all commands. In a forked child it replaces the inherited
    /// engine.
    pub(crate) fn forked() -> Self {
        Self::of(Arc::new(Handle::forked()))
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}

/// The counters of an [`Engine`], and the connections and memory that the engine uses now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineStatistics {
    /// The current number of connections, including those still being established or closed.
    pub connections: u64,
    /// The number of connections that have ended, or could not be established.
    pub ended: u64,
    /// The sum of the statistics of all connections, past and present.
    pub all: Statistics,
    /// The number of bytes that are currently pinned or reserved for transfers of large messages.
    ///
    /// The value covers all engines that share the limit
    /// [`EngineLimits::pinned`](crate::EngineLimits::pinned).
    pub pinned: u64,
    /// The number of bytes that large messages and copied stream bytes currently occupy.
    ///
    /// A large message is included from the start of its transfer until the application drops it.
    /// Stream bytes are included if they were copied out of receive buffers and the application has
    /// not read them yet.
    ///
    /// The value covers all engines that share the limit
    /// [`EngineLimits::held`](crate::EngineLimits::held).
    pub held: u64,
}
