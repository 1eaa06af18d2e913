use std::{
    fmt,
    net::SocketAddr,
    os::fd::BorrowedFd,
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};

use crossbeam_channel::{Receiver, bounded};

use super::{Listener, accepting::Accepting, arrivals::Arrivals, socket::Socket};
use crate::{
    addresses::{Shown, ToAddresses},
    config::Config,
    connector::check_private_data,
    endpoint::Endpoint,
    engine::{Command, Engine, ListenerItem, Promise, Queue, Reply, Request, wait_for_reply},
    error::Error,
    local::Local,
    poll::WaiterId,
    proto::{REJECT_DATA_MAX, REPLY_DATA_MAX},
    transport_choice::Transport,
};

/// Listens on an address, and lets the program accept or reject each request.
///
/// The program first inspects the peer and its private data. The peer's `connect` waits for the
/// answer. If the program does not answer within the listener's
/// [`connect_timeout`](Config::connect_timeout) (default 5 s), the engine rejects the request. The
/// connector then gets [`PeerBusy`](crate::CloseReason::PeerBusy), and retries if
/// [`retry_refused`](crate::Connector::retry_refused) is set. Up to
/// [`backlog`](crate::ListenerBuilder::backlog) requests wait; further requests are rejected in the
/// same way.
///
/// Use a [`Listener`] to accept all requests. Dropping the listener closes it, as
/// [`close`](Self::close) does.
///
/// # Examples
///
/// ```no_run
/// use rdmsg::RequestListener;
///
/// # fn main() -> Result<(), rdmsg::Error> {
/// let listener = RequestListener::bind("0.0.0.0:7471")?;
/// for request in listener.requests() {
///     if request.private_data() != b"user 7" {
///         request.reject(b"unknown user")?;
///         continue;
///     }
///     // `accept` waits for the peer, so it runs in a separate thread.
///     std::thread::spawn(move || match request.accept() {
///         Ok(endpoint) => while endpoint.recv().is_ok() {},
///         Err(error) => eprintln!("{error}"),
///     });
/// }
/// # Ok(())
/// # }
/// ```
pub struct RequestListener {
    socket: Socket,
    arrivals: Local<Arrivals<Request>>,
}

impl RequestListener {
    /// Listens on an address with the default [`Config`], on the [shared engine](Engine::shared).
    ///
    /// # Errors
    ///
    /// The errors of [`Listener::bind`](crate::Listener::bind).
    pub fn bind(address: impl ToAddresses) -> Result<Self, Error> {
        Listener::builder().bind_requests(address)
    }

    pub(crate) fn bind_to(
        address: impl ToAddresses,
        config: &Config,
        engine: &Engine,
    ) -> Result<Self, Error> {
        let arrivals = Arc::new(Arrivals::new());
        let queue = Queue::new(Arc::<Arrivals<Request>>::clone(&arrivals));
        let listener_items = ListenerItem::Requests(queue);
        let socket = Socket::bind(address, config, engine, &listener_items)?;
        arrivals.listens(socket.name(&config.label));
        let arrivals = Local::new(arrivals);
        Ok(Self { socket, arrivals })
    }

    /// Returns the address of the listener. It contains the actual port if the program requested
    /// port 0.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.socket.local_addr()
    }

    /// Returns the transports over which the listener accepts requests: see
    /// [`Listener::transports`](crate::Listener::transports).
    #[must_use]
    pub fn transports(&self) -> &'static [Transport] {
        self.socket.transports()
    }

    /// Returns the requests as a channel, for [`crossbeam_channel::select!`].
    ///
    /// The channel ends when the listener ends.
    #[must_use]
    pub fn requests(&self) -> &Receiver<Request> {
        self.arrivals.items()
    }

    /// Takes the next request, if there is one. Does not wait.
    ///
    /// Event loops must use this method, because [`requests`](Self::requests) does not update the
    /// [`event_fd`](Self::event_fd).
    #[must_use]
    pub fn try_request(&self) -> Option<Request> {
        let request = self.arrivals.items().try_recv().ok();
        self.arrivals.update_readiness();
        request
    }

    /// Takes the next request, for a task.
    ///
    /// Works like [`Listener::poll_accept`](crate::Listener::poll_accept), for futures on any
    /// runtime: if there is no request, the task is woken when there may be one. Only one task at a
    /// time can wait in this way: a later call replaces the waker of an earlier call.
    ///
    /// # Errors
    ///
    /// The errors of [`Listener::accept`](crate::Listener::accept).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run() -> Result<(), rdmsg::Error> {
    /// let listener = rdmsg::RequestListener::bind("0.0.0.0:7471")?;
    /// let request = std::future::poll_fn(|cx| listener.poll_request(cx)).await?;
    /// let endpoint = request.start_accept(b"welcome")?.await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn poll_request(&self, cx: &mut Context<'_>) -> Poll<Result<Request, Error>> {
        self.poll_request_as(cx, WaiterId::common(1))
    }

    pub(crate) fn poll_request_as(
        &self,
        cx: &Context<'_>,
        waiter_id: WaiterId,
    ) -> Poll<Result<Request, Error>> {
        let take = || match self.try_request() {
            Some(request) => Some(Ok(request)),
            None => self.arrivals.ended().map(Err),
        };
        let mut taken = take();
        if taken.is_none() {
            self.arrivals.wait(waiter_id, cx.waker());
            taken = take();
            if taken.is_some() {
                self.arrivals.unregister(waiter_id);
            }
        }
        taken.map_or(Poll::Pending, Poll::Ready)
    }

    /// Returns a new waiter id for a future, so that its task waits independently of other tasks.
    /// The future must [unregister](Self::unregister_waiter) the id.
    #[cfg(feature = "tokio")]
    pub(crate) fn new_waiter_id(&self) -> WaiterId {
        self.arrivals.new_waiter_id()
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn unregister_waiter(&self, waiter_id: WaiterId) {
        self.arrivals.unregister(waiter_id);
    }

    /// Returns a file descriptor for event loops: `epoll`, `poll`, mio, tokio's `AsyncFd`.
    ///
    /// The fd is readable while [`try_request`](Self::try_request) has a request to return, and
    /// after the listener has ended. Register the fd for reading; never read from it yourself.
    /// After a request is taken from [`requests`](Self::requests), the fd may stay readable until
    /// the next `try_request`.
    ///
    /// # Errors
    ///
    /// [`Error::Os`] when the process has no free file descriptor.
    pub fn event_fd(&self) -> Result<BorrowedFd<'_>, Error> {
        self.arrivals.event_fd()
    }

    /// Stops listening. The address is free when this method returns.
    ///
    /// Requests that the program has not taken are rejected, including those in the kernel's queue.
    /// Their connectors get [`PeerBusy`](crate::CloseReason::PeerBusy). The program can still
    /// accept requests that it has taken.
    pub fn close(&self) {
        self.socket.close();
    }
}

impl fmt::Debug for RequestListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestListener")
            .field("local", &Shown(self.local_addr()))
            .finish_non_exhaustive()
    }
}

impl Drop for RequestListener {
    fn drop(&mut self) {
        self.socket.start_close();
    }
}

/// Accepts or rejects a request.
impl Request {
    /// The maximum length of private data in an acceptance, over every transport: 160 bytes.
    ///
    /// A connection can [resume](Config::resume) only if these data have at most 148 bytes, because
    /// the ID of its session occupies the other 12 bytes.
    pub const ACCEPT_DATA_MAX: usize = REPLY_DATA_MAX;
    /// The maximum length of private data in a rejection, over every transport: 124 bytes.
    pub const REJECT_DATA_MAX: usize = REJECT_DATA_MAX;

    /// Accepts the request, and waits until the connection is established.
    ///
    /// Waits no longer than the listener's [`connect_timeout`](Config::connect_timeout) (default 5
    /// s). This call restarts the time limit.
    ///
    /// # Errors
    ///
    /// * [`Error::Connect`] when the peer has withdrawn its request, the connection was not
    ///   established in time, or a system call failed.
    /// * [`Error::LockedMemory`] or [`Error::SharedReceivesExhausted`] when there is no memory for
    ///   the connection.
    /// * [`Error::InvalidConfig`] when the [`label`](Self::label) is too long.
    /// * [`Error::EngineShutDown`] when the engine was shut down.
    pub fn accept(self) -> Result<Endpoint, Error> {
        self.accept_with(&[])
    }

    /// Accepts the request with private data, and waits until the connection is established.
    ///
    /// The peer's program reads the data with [`Info::peer_data`](crate::Info::peer_data). The data
    /// are not encrypted, and have at most 160 bytes, or at most 148 bytes for a connection that
    /// can [resume](Config::resume): see [`ACCEPT_DATA_MAX`](Self::ACCEPT_DATA_MAX).
    ///
    /// Waits no longer than the listener's [`connect_timeout`](Config::connect_timeout) (default 5
    /// s). This call restarts the time limit.
    ///
    /// # Errors
    ///
    /// * [`Error::PrivateDataTooLong`] for more than [`Request::ACCEPT_DATA_MAX`] bytes.
    /// * [`Error::Connect`] when the peer has withdrawn its request, the connection was not
    ///   established in time, or a system call failed.
    /// * [`Error::LockedMemory`] or [`Error::SharedReceivesExhausted`] when there is no memory for
    ///   the connection.
    /// * [`Error::InvalidConfig`] when the [`label`](Self::label) is too long.
    /// * [`Error::EngineShutDown`] when the engine was shut down.
    pub fn accept_with(mut self, private_data: &[u8]) -> Result<Endpoint, Error> {
        check_private_data(private_data, REPLY_DATA_MAX, "an acceptance")?;
        let open = self.take_to_accept()?;
        let engine = Engine::of(Arc::clone(&open.engine));
        let (peer, deadline) = (self.peer_addr(), Instant::now() + open.timeout);
        let (reply, result) = bounded(1);
        open.engine.send(Command::Accept {
            link: open.link,
            data: private_data.to_vec(),
            at: Instant::now(),
            reply: Reply::Caller(reply),
        })?;
        let established = wait_for_reply(engine.handle(), &result, peer, deadline)?;
        Ok(Endpoint::new(established, engine))
    }

    /// Starts to accept the request with private data, for a task.
    ///
    /// Works like [`accept_with`](Self::accept_with), for futures on any runtime. The engine
    /// enforces the time limit. Dropping the future before the peer has received the answer rejects
    /// the request; dropping it later closes the connection.
    ///
    /// # Errors
    ///
    /// [`Error::PrivateDataTooLong`] for more than [`Request::ACCEPT_DATA_MAX`] bytes,
    /// [`Error::InvalidConfig`] when the [`label`](Self::label) is too long, and
    /// [`Error::EngineShutDown`] when the engine was shut down. The future returns the other errors
    /// of [`accept`](Self::accept).
    ///
    /// # Examples
    ///
    /// See [`RequestListener::poll_request`].
    pub fn start_accept(mut self, private_data: &[u8]) -> Result<Accepting, Error> {
        check_private_data(private_data, REPLY_DATA_MAX, "an acceptance")?;
        let open = self.take_to_accept()?;
        let (promise, promise_sender) = Promise::new();
        open.engine.send(Command::Accept {
            link: open.link,
            data: private_data.to_vec(),
            at: Instant::now(),
            reply: Reply::Task(promise_sender),
        })?;
        Ok(Accepting::new(Engine::of(open.engine), promise))
    }

    /// Rejects the request, with private data for the peer's program.
    ///
    /// The peer's connect fails with [`CloseReason::Rejected`](crate::CloseReason::Rejected), which
    /// contains these data (at most 124 bytes). Dropping a request rejects it without data.
    ///
    /// # Errors
    ///
    /// * [`Error::PrivateDataTooLong`] for more than [`Request::REJECT_DATA_MAX`] bytes.
    /// * [`Error::EngineShutDown`] when the engine was shut down.
    pub fn reject(mut self, private_data: &[u8]) -> Result<(), Error> {
        check_private_data(private_data, REJECT_DATA_MAX, "a rejection")?;
        match self.take() {
            Some(open) => open.engine.send(Command::Reject {
                key: open.link.key,
                data: private_data.to_vec(),
            }),
            None => Ok(()),
        }
    }
}
