//! The commands from an engine's handles to the engine's thread, and the replies of the thread.

use std::{
    fmt, mem,
    net::SocketAddr,
    sync::{Arc, Weak},
    thread,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};

use super::{
    destroyers::Destroyers, engine::EngineStatistics, promise::PromiseSender, reactor::Threadless,
    relief_thread::Custody,
};
use crate::{
    addresses::Shown,
    config::{Config, Label},
    error::Error,
    link::{Deadline, Inbox, Inflow, Link, Owner, PeerPath},
    os::{Process, leak},
    poll::Mailbox,
    proto::{CloseReason, Phase},
    tally::{Refusal, count_refusal},
    transport::DeviceEvent,
    transport_choice::Transport,
};

/// The time that a caller waits for the engine's reply after the caller's deadline. The reply is
/// more useful than the caller's own error, because the reply names the phase that timed out.
const REPLY_GRACE: Duration = Duration::from_millis(100);

/// A request from a handle to the engine's thread.
#[derive(Debug)]
pub(crate) enum Command {
    /// Listen, and reply with the address. The listener and its requests own the `engine` handle,
    /// which keeps the engine running.
    Listen {
        address: SocketAddr,
        config: Config,
        listener_items: ListenerItem,
        engine: Arc<Handle>,
        reply: Sender<Result<Bound, Error>>,
    },
    /// Close a listener, because the program has closed or dropped it. Reply when the listener's
    /// address is free.
    Unlisten { key: u64, reply: Sender<()> },
    /// Connect, and reply with the established connection or the error.
    Connect {
        path: PeerPath,
        /// Other paths over which the session can resume.
        others: Vec<PeerPath>,
        config: Config,
        data: Vec<u8>,
        deadline: Instant,
        reply: Reply,
    },
    /// Cancel the connection attempt with this key.
    GiveUp { key: u64 },
    /// Accept a request, and reply when the connection is established or has failed.
    Accept {
        link: Arc<Link>,
        data: Vec<u8>,
        /// The time at which the program accepted the request.
        at: Instant,
        reply: Reply,
    },
    /// Reject a request.
    Reject { key: u64, data: Vec<u8> },
    /// Reply with the sum of the statistics of all connections.
    Statistics { reply: Sender<EngineStatistics> },
    /// Handle a device's event that another engine has read.
    Device(DeviceEvent),
    /// Ask the peers of all accepted connections to leave, and reply with the number of peers that
    /// were asked. After this command, ask the peer of each newly accepted connection as well.
    AskToLeave { reply: Sender<u64> },
    /// Close all listeners, and reply when no connection is left. The `caller` reference can be
    /// upgraded only while the caller waits.
    Drain { reply: Sender<()>, caller: Weak<()> },
    /// All handles of the engine were dropped: end the engine when no connection is left.
    Retire,
    /// Close all listeners and connections, and then end the engine.
    ShutDown,
    /// The process exits: close all listeners and connections, and then end the engine. Log which
    /// connections may lose messages, because no handle will report how its connection ended.
    Exit,
}

/// The maximum time for which an engine's end waits for the destruction of the objects of ended
/// connections. Usually it takes milliseconds. After a fault of the kernel, it may never end.
const DESTRUCTION_LIMIT: Duration = Duration::from_secs(10);

/// The maximum time for which a shutdown waits for wakers and the logger that the engine's threads
/// still call. Usually they return at once, but they may block forever.
const CALLS_LIMIT: Duration = Duration::from_secs(1);

/// Sends commands to an engine. The clones of the [`Engine`](super::Engine), the listeners and the
/// endpoints share one `Handle`.
pub(crate) struct Handle {
    commands: Arc<Mailbox<Command>>,
    /// The engine's threads, whose end [`join`](Self::join) awaits. `None` if the engine has no
    /// thread, and in a handle that was created for a forked child.
    custody: Option<Arc<Custody>>,
    /// The state of an engine without a thread; `None` in all other handles.
    threadless: Option<Arc<Threadless>>,
    destroyers: Destroyers,
    process: Process,
}

/// A listener's queue. The variants differ in the type of the queue's items. The engine's thread
/// adds items, and the listener's program removes them.
#[derive(Clone, Debug)]
pub(crate) enum ListenerItem {
    /// Established connections. The engine accepts each request immediately.
    Connections(Arc<Queue<Result<Established, Error>>>),
    /// Requests, which the program accepts or rejects.
    Requests(Arc<Queue<Request>>),
}

/// The engine's reference to a listener's queue.
///
/// The listener owns an `Arc` of this reference. Each connection that was accepted for the listener
/// owns another `Arc` until it is established or has failed. When all of these `Arc`s are dropped,
/// the queue reports that the listener is closed. Until then, a closed listener still returns these
/// connections, because their peers may already have received the acceptance.
#[derive(Debug)]
pub(crate) struct Queue<T>(Arc<dyn Incoming<T>>);

/// The queue of a listener, which the engine fills.
pub(crate) trait Incoming<T>: fmt::Debug + Send + Sync {
    /// Appends an item.
    fn bring(&self, item: T);

    /// Returns the number of items that the program has not yet removed.
    fn waiting(&self) -> usize;

    /// Ends the queue for this reason; later calls have no effect. Items that the program can no
    /// longer remove are rejected as busy.
    fn finish(&self, why: Error);
}

/// The reply to a [`Command::Listen`] that has created a listener.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    pub(crate) key: u64,
    pub(crate) local: SocketAddr,
    pub(crate) transports: &'static [Transport],
}

/// An established connection. Dropping it closes the connection.
#[derive(Debug)]
pub(crate) struct Established {
    pub(crate) link: Owner,
    pub(crate) completions: Inbox,
    /// The unread bytes of a stream.
    pub(crate) inflow: Option<Arc<Inflow>>,
}

/// The recipient of an established connection, or of the error if the attempt failed.
#[derive(Debug)]
pub(crate) enum Reply {
    /// The thread that waits for the reply.
    Caller(Sender<Result<Established, Error>>),
    /// The task that awaits the reply.
    Task(PromiseSender<Established>),
    /// The listener's queue of established connections.
    Backlog(Arc<Queue<Result<Established, Error>>>),
}

/// A peer's request for a connection. Dropping this value rejects the request.
///
/// Returned by a [`RequestListener`](crate::RequestListener).
pub struct Request {
    /// The parts of the request; `None` once the request has been answered.
    open: Option<Open>,
    peer: SocketAddr,
    local: SocketAddr,
    private_data: Vec<u8>,
    /// The label for the connection; `None` if the listener's label applies.
    label: Option<Label>,
}

/// The parts of a request that has not been answered yet.
pub(crate) struct Open {
    pub(crate) link: Arc<Link>,
    pub(crate) engine: Arc<Handle>,
    /// The time within which the program must accept the request.
    pub(crate) timeout: Duration,
}

impl Handle {
    pub(super) fn new(
        commands: Arc<Mailbox<Command>>,
        custody: Arc<Custody>,
        destroyers: Destroyers,
    ) -> Self {
        Self {
            commands,
            custody: Some(custody),
            threadless: None,
            destroyers,
            process: Process::this(),
        }
    }

    pub(super) fn threadless(commands: Arc<Mailbox<Command>>, engine: Arc<Threadless>) -> Self {
        Self {
            commands,
            custody: None,
            threadless: Some(engine),
            destroyers: Destroyers::default(),
            process: Process::this(),
        }
    }

    /// Returns a handle without an engine. In a forked child it replaces inherited handles.
    pub(super) fn forked() -> Self {
        Self {
            commands: Mailbox::closed(),
            custody: None,
            threadless: None,
            destroyers: Destroyers::default(),
            process: Process::this(),
        }
    }

    /// Returns true if a parent process started the engine before a fork. The caller must then not
    /// lock the engine's mutexes.
    pub(crate) fn is_inherited(&self) -> bool {
        !self.process.is_this()
    }

    /// Sends a command. Fails if the engine has ended.
    pub(crate) fn send(&self, command: Command) -> Result<(), Error> {
        if self.is_inherited() {
            // Dropping the command is safe, because its objects belong to this process.
            Err(Error::Forked)
        } else if self.commands.send(command) {
            self.commands.serve();
            Ok(())
        } else {
            Err(Error::EngineShutDown)
        }
    }

    /// Waits for a reply from the engine, at most until the deadline. If the engine has no thread,
    /// the calling thread handles the engine's deadlines during the wait.
    pub(super) fn receive_until<T>(
        &self,
        replies: &Receiver<T>,
        deadline: &Deadline,
    ) -> Result<T, RecvTimeoutError> {
        loop {
            let left = deadline.left();
            let result = match self.commands.shorten(left) {
                Some(shorter) => replies.recv_timeout(shorter),
                None => replies.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match result {
                Err(RecvTimeoutError::Timeout) if left != Some(Duration::ZERO) => {
                    self.commands.serve_due();
                }
                result => return result,
            }
        }
    }

    /// Returns whether the engine has its own thread.
    pub(super) fn has_thread(&self) -> bool {
        self.threadless.is_none()
    }

    /// Returns true if this process started the engine and the engine still reads its commands.
    pub(super) fn runs(&self) -> bool {
        !self.is_inherited() && self.commands.is_read()
    }

    /// Waits until the engine has ended. The caller must have sent a command that ends the engine.
    /// Fails if a thread of the engine panicked.
    pub(super) fn join(&self) -> thread::Result<()> {
        if let Some(engine) = &self.threadless {
            engine.join();
        }
        let ended = self
            .custody
            .as_ref()
            .map_or(Ok(()), |custody| custody.join(CALLS_LIMIT));
        self.destroyers.join(DESTRUCTION_LIMIT);
        ended
    }

    /// Waits until the objects of the ended connections are destroyed, for at most the time `left`
    /// and at most [`DESTRUCTION_LIMIT`].
    pub(super) fn wait_for_destructions(&self, left: Option<Duration>) {
        let limit = left.map_or(DESTRUCTION_LIMIT, |left| left.min(DESTRUCTION_LIMIT));
        self.destroyers.wait(limit);
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.is_inherited() {
            // The engine's threads belong to the parent process. A child can neither join nor
            // detach them.
            let commands = Arc::clone(&self.commands);
            let destroyers = mem::take(&mut self.destroyers);
            leak((
                self.custody.take(),
                self.threadless.take(),
                commands,
                destroyers,
            ));
            return;
        }
        self.commands.send(Command::Retire);
        self.commands.serve();
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
                // The send fails if the caller no longer waits.
                let _ = sender.send(result);
            }
            Self::Task(promise_sender) => {
                let link = match &result {
                    Ok(established) => Some(Arc::clone(&established.link)),
                    Err(_) => None,
                };
                promise_sender.keep(result, move || {
                    link.iter().for_each(Link::handle_waker_panic)
                });
            }
            Self::Backlog(backlog) => backlog.bring(result),
        }
    }

    /// Records that the connection with this `key` is being established, so that a task can cancel
    /// the attempt. Returns false if the task has already cancelled it.
    pub(super) fn begin(&self, key: u64) -> bool {
        match self {
            Self::Task(promise_sender) => promise_sender.begin(key),
            Self::Caller(_) | Self::Backlog(_) => true,
        }
    }
}

/// Waits for the engine's reply about a connection. The engine enforces the same deadline, and
/// closes a connection whose caller no longer waits. The caller enforces the deadline too, because
/// an engine with many connections may reply late.
pub(crate) fn wait_for_reply(
    engine: &Handle,
    result: &Receiver<Result<Established, Error>>,
    peer: SocketAddr,
    deadline: Instant,
) -> Result<Established, Error> {
    let left = deadline.saturating_duration_since(Instant::now());
    match engine.receive_until(result, &Deadline::after(left + REPLY_GRACE)) {
        Ok(result) => result,
        // The engine has ended.
        Err(RecvTimeoutError::Disconnected) => Err(Error::EngineShutDown),
        Err(RecvTimeoutError::Timeout) => {
            let reason = CloseReason::TimedOut(Phase::Waiting);
            Err(Error::Connect { peer, reason })
        }
    }
}

impl<T> Queue<T> {
    pub(crate) fn new(queue: Arc<dyn Incoming<T>>) -> Arc<Self> {
        Arc::new(Self(queue))
    }

    /// Appends an item.
    pub(super) fn bring(&self, item: T) {
        self.0.bring(item);
    }

    /// Returns the number of items that the program has not yet removed.
    pub(super) fn waiting(&self) -> usize {
        self.0.waiting()
    }
}

impl<T> Drop for Queue<T> {
    fn drop(&mut self) {
        self.0.finish(Error::ListenerClosed);
    }
}

impl ListenerItem {
    /// Returns the number of items that the program has not yet removed.
    pub(super) fn waiting(&self) -> usize {
        match self {
            Self::Connections(queue) => queue.waiting(),
            Self::Requests(queue) => queue.waiting(),
        }
    }

    /// Ends the queue, without waiting for connections that are being established.
    pub(super) fn finish(&self, why: Error) {
        match self {
            Self::Connections(queue) => queue.0.finish(why),
            Self::Requests(queue) => queue.0.finish(why),
        }
    }
}

impl Request {
    pub(super) fn new(
        link: Arc<Link>,
        engine: Arc<Handle>,
        local: SocketAddr,
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
            label: None,
        }
    }

    /// Returns the peer's address.
    #[must_use]
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    /// Returns the local address at which the request arrived.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Returns the private data that the peer's program sent with the request.
    ///
    /// The peer sets them with [`Connector::private_data`](crate::Connector::private_data): up to
    /// 4096 bytes, by default none. The listener returns the request only after all bytes have
    /// arrived. Any peer can send any bytes. If the program compares the bytes with a secret, the
    /// comparison must take constant time.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Sets a name for the connection.
    ///
    /// The name replaces the [label](crate::ListenerBuilder::label) of the listener. The log,
    /// [`Info::label`](crate::Info::label), Prometheus metrics and `rdmsg top` show the name once
    /// the request is accepted, and also after the connection has [resumed](Config::resume). The
    /// log escapes control characters. The peer does not see the name. The maximum length is 64
    /// bytes; with a longer name, accepting fails and the request is rejected. An empty text
    /// removes the listener's label.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(request: rdmsg::Request, user: &str) -> Result<(), rdmsg::Error> {
    /// let endpoint = request.label(user).accept()?; // for instance "alice"
    /// assert_eq!(endpoint.info().label.as_deref(), Some(user));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn label(mut self, label: &str) -> Self {
        self.label = Some(Label::new(label));
        self
    }

    /// Rejects the request because the listener has ended.
    pub(crate) fn reject_untaken(mut self) {
        if let Some(open) = self.open.take() {
            count_refusal(Refusal::Closed);
            open.link.reject_untaken();
        }
    }

    /// Removes the parts that a rejection needs. Returns `None` if the request was already
    /// answered.
    pub(crate) fn take(&mut self) -> Option<Open> {
        self.open.take()
    }

    /// Removes the parts that an acceptance needs, and sets the connection's label.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] if the label is too long. The request then remains unanswered.
    pub(crate) fn take_to_accept(&mut self) -> Result<Open, Error> {
        if let Some(label) = &self.label {
            label.check()?;
        }
        // Each method that answers a request consumes it, so `open` is always present here.
        let open = self.open.take().ok_or(Error::EngineShutDown)?;
        if let Some(label) = self.label.take() {
            open.link.set_label(label);
        }
        Ok(open)
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("peer", &Shown(self.peer))
            .field("local", &Shown(self.local))
            .finish_non_exhaustive()
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        let Some(open) = self.open.take() else { return };
        if open.engine.is_inherited() {
            leak(open);
        } else {
            count_refusal(Refusal::Program);
            open.link.reject();
        }
    }
}
