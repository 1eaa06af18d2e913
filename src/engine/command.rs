//! The messages between the handles and the engine's thread.

use std::{
    fmt,
    net::SocketAddr,
    sync::{Arc, Weak},
    thread,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};

use super::{
    engine::EngineStatistics, promise::PromiseSender, relief::Custody, threadless::Threadless,
};
use crate::{
    addresses::Shown,
    config::{Config, Label},
    error::Error,
    link::{Completion, Deadline, Inflow, Link, Owner, Way},
    os::{Process, leak},
    poll::Mailbox,
    proto::{CloseReason, Phase},
    tally::{Refusal, count_refusal},
    transport::DeviceEvent,
    transport_choice::Transport,
};

/// How long after a deadline the engine may still reply with the phase that timed out.
const REPLY_GRACE: Duration = Duration::from_millis(100);

/// A request of a handle to the engine's thread.
#[derive(Debug)]
pub(crate) enum Command {
    /// Listen, and reply with the address. Requests hold the engine, which therefore outlives the
    /// listener.
    Listen {
        address: SocketAddr,
        config: Config,
        listener_items: ListenerItem,
        engine: Arc<Handle>,
        reply: Sender<Result<Bound, Error>>,
    },
    /// Close a listener, because its program has closed or dropped it. Reply when its address is
    /// free.
    Unlisten { key: u64, reply: Sender<()> },
    /// Connect, and reply once.
    Connect {
        way: Way,
        /// Further ways of the session.
        others: Vec<Way>,
        config: Config,
        data: Vec<u8>,
        deadline: Instant,
        reply: Reply,
    },
    /// Cancel the connection attempt with this key.
    GiveUp { key: u64 },
    /// Accept a request, and reply once.
    Accept {
        link: Arc<Link>,
        data: Vec<u8>,
        /// The time at which the application accepted.
        at: Instant,
        reply: Reply,
    },
    /// Reject a request.
    Reject { key: u64, data: Vec<u8> },
    /// Add up the statistics of all connections.
    Statistics { reply: Sender<EngineStatistics> },
    /// Another engine has read this event of a device.
    Device(DeviceEvent),
    /// Ask the peers of all accepted connections to leave, and those of later ones. Reply with the
    /// number of connections that are asked at once.
    AskToLeave { reply: Sender<u64> },
    /// End all listeners, and reply when there is no connection left, if the caller still waits.
    Drain { reply: Sender<()>, caller: Weak<()> },
    /// The last handle of the engine has been dropped: end when all connections have ended.
    Retire,
    /// Close everything, then end.
    ShutDown,
    /// Close everything, then end, since the process ends: no handle will report the ends of its
    /// connections.
    Exit,
}

/// The handles' common access to the engine's thread.
pub(crate) struct Handle {
    commands: Arc<Mailbox<Command>>,
    /// The object to wait on for the engine's end. `None` after a fork: a child has no thread to
    /// wait for.
    custody: Option<Arc<Custody>>,
    /// Keeps an engine without a thread.
    threadless: Option<Arc<Threadless>>,
    process: Process,
}

/// The queue of items that a listener's program takes and the engine's thread adds.
#[derive(Clone, Debug)]
pub(crate) enum ListenerItem {
    /// The engine accepts each request at once. The program takes established connections.
    Connections(Arc<Queue<Result<Established, Error>>>),
    /// The program takes requests and answers them.
    Requests(Arc<Queue<Request>>),
}

/// The engine's access to a listener's queue.
///
/// The listener has an `Arc` of it, and so has each connection that was accepted for the listener
/// and is not established yet. The drop of the last one ends the queue as closed. So a closed
/// listener still returns the connections whose peers have the acceptance already.
#[derive(Debug)]
pub(crate) struct Queue<T>(Arc<dyn Incoming<T>>);

/// A listener's queue, as the engine's thread uses it.
pub(crate) trait Incoming<T>: fmt::Debug + Send + Sync {
    /// Appends an item.
    fn bring(&self, item: T);

    /// Returns the number of items that the program has not taken.
    fn waiting(&self) -> usize;

    /// Ends the queue. Only the reason of the first call counts. Peers whose items can no longer be
    /// taken are rejected as busy.
    fn finish(&self, why: Error);
}

/// The reply for a listener that was created.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    pub(crate) key: u64,
    pub(crate) local: SocketAddr,
    pub(crate) transports: &'static [Transport],
}

/// A connection that was established. Dropping it closes the connection.
#[derive(Debug)]
pub(crate) struct Established {
    pub(crate) link: Owner,
    pub(crate) completions: Receiver<Completion>,
    /// The unread bytes of a stream.
    pub(crate) inflow: Option<Arc<Inflow>>,
}

/// The destination of an established connection, or of the error if it was not established.
#[derive(Debug)]
pub(crate) enum Reply {
    /// The thread that waits for the reply.
    Caller(Sender<Result<Established, Error>>),
    /// The task that awaits the reply.
    Task(PromiseSender<Established>),
    /// The listener's queue of established connections.
    Backlog(Arc<Queue<Result<Established, Error>>>),
}

/// A peer's request for a connection. Dropping it rejects it.
///
/// A [`RequestListener`](crate::RequestListener) returns them.
pub struct Request {
    /// `None` after the answer.
    open: Option<Open>,
    peer: SocketAddr,
    local: SocketAddr,
    private_data: Vec<u8>,
    /// The label for the connection; `None` for that of the listener.
    label: Option<Label>,
}

/// The content of a request that was not answered yet.
pub(crate) struct Open {
    pub(crate) link: Arc<Link>,
    pub(crate) engine: Arc<Handle>,
    /// The time limit for accepting the request.
    pub(crate) timeout: Duration,
}

impl Handle {
    pub(super) fn new(commands: Arc<Mailbox<Command>>, custody: Arc<Custody>) -> Self {
        Self {
            commands,
            custody: Some(custody),
            threadless: None,
            process: Process::this(),
        }
    }

    pub(super) fn threadless(commands: Arc<Mailbox<Command>>, engine: Arc<Threadless>) -> Self {
        Self {
            commands,
            custody: None,
            threadless: Some(engine),
            process: Process::this(),
        }
    }

    /// Returns the handle of an engine that does not exist, for stand-ins of inherited objects.
    pub(super) fn forked() -> Self {
        Self {
            commands: Mailbox::closed(),
            custody: None,
            threadless: None,
            process: Process::this(),
        }
    }

    /// Returns whether another process started the engine. If so, the caller must not take the
    /// engine's locks.
    pub(crate) fn is_inherited(&self) -> bool {
        !self.process.is_this()
    }

    /// Sends a command. Fails if the engine has ended.
    pub(crate) fn send(&self, command: Command) -> Result<(), Error> {
        if self.is_inherited() {
            // The drop of the command is safe, because its objects belong to this process.
            Err(Error::Forked)
        } else if self.commands.send(command) {
            self.commands.serve();
            Ok(())
        } else {
            Err(Error::EngineShutDown)
        }
    }

    /// Waits for a reply of the engine, until the deadline at most. While it waits, the calling
    /// thread handles the deadlines of an engine without a thread.
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

    /// Whether the engine has a thread of its own.
    pub(super) fn has_thread(&self) -> bool {
        self.threadless.is_none()
    }

    /// Returns whether the engine's thread still runs.
    pub(super) fn runs(&self) -> bool {
        !self.is_inherited() && self.commands.is_read()
    }

    /// Waits for the engine's end, which it was asked for. Fails if its thread panicked.
    pub(super) fn join(&self) -> thread::Result<()> {
        if let Some(engine) = &self.threadless {
            engine.join();
        }
        self.custody
            .as_ref()
            .map_or(Ok(()), |custody| custody.join())
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.is_inherited() {
            // The engine's threads belong to the parent and cannot be joined or detached here.
            let commands = Arc::clone(&self.commands);
            leak((self.custody.take(), self.threadless.take(), commands));
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

    /// Records that the attempt of connection `key` begins. Returns whether the caller still waits
    /// for it.
    pub(super) fn begin(&self, key: u64) -> bool {
        match self {
            Self::Task(promise_sender) => promise_sender.begin(key),
            Self::Caller(_) | Self::Backlog(_) => true,
        }
    }
}

/// Waits for the reply about a connection. The engine has the same deadline, and closes a
/// connection whose caller no longer waits. The caller also enforces the deadline, because an
/// engine that serves many connections may reply late.
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

    /// Returns the number of items that the program has not taken.
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
    /// Returns the number of items that the program has not taken.
    pub(super) fn waiting(&self) -> usize {
        match self {
            Self::Connections(queue) => queue.waiting(),
            Self::Requests(queue) => queue.waiting(),
        }
    }

    /// Ends the queue at once.
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

    /// Returns the address on which the request came in.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Returns the private data that the peer's program sent with the request.
    ///
    /// The peer gave it to [`Connector::private_data`](crate::Connector::private_data). Up to 4096
    /// bytes, empty if it gave none. The request is shown when all of them have arrived. The peer
    /// chooses them: compare a secret in constant time.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Names the connection.
    ///
    /// The name replaces the [label](crate::ListenerBuilder::label) of the listener. The log,
    /// [`Info::label`](crate::Info::label), the values for Prometheus and `rdmsg top` show it from
    /// the acceptance on, also after the connection has [resumed](Config::resume). The peer does
    /// not see it. Up to 64 bytes; a longer one is an error of the acceptance, which rejects the
    /// request. An empty text removes the listener's label. Control characters are escaped wherever
    /// the label is shown.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(request: rdmsg::Request, user: &str) -> Result<(), rdmsg::Error> {
    /// let endpoint = request.label(user).accept()?; // such as "alice", whose token was right
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

    /// Takes the parts that a rejection needs, once.
    pub(crate) fn take(&mut self) -> Option<Open> {
        self.open.take()
    }

    /// Takes the parts that an acceptance needs, once, and names the connection.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] if the label is too long. Then the request stays open.
    pub(crate) fn take_to_accept(&mut self) -> Result<Open, Error> {
        if let Some(label) = &self.label {
            label.check()?;
        }
        // Answering takes the request, so it is open.
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
