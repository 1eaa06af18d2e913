use std::{
    fmt,
    iter::{self, FusedIterator},
    net::SocketAddr,
    os::fd::BorrowedFd,
    sync::{Arc, Once},
    task::{Context, Poll},
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, TryRecvError, after, bounded, never, select};

use self::backlog::Backlog;
use crate::{
    Config, Endpoint, Engine, Error, ToAddresses, TransportKind,
    engine::{Bound, Command, Incoming, Open, Reply, Request, wait_for_reply},
    private_data::check_private_data,
    proto::{REJECT_DATA_MAX, REPLY_DATA_MAX},
    sync::Seat,
};

mod backlog;

/// Accepts connections on an address.
///
/// Either take established connections with [`accept`](Self::accept),
/// [`incoming`](Self::incoming), or from a channel with [`established`](Self::established), or
/// inspect requests before accepting them with [`requests`](Self::requests). Dropping the listener
/// closes it, as [`close`](Self::close) does; established connections go on.
///
/// # Examples
///
/// ```no_run
/// # fn main() -> Result<(), rdmsg::Error> {
/// let listener = rdmsg::Listener::bind("0.0.0.0:7471")?;
/// for endpoint in listener.incoming() {
///     let endpoint = endpoint?;
///     std::thread::spawn(move || {
///         while let Ok(message) = endpoint.recv() {
///             if endpoint.send(&message).is_err() {
///                 break;
///             }
///         }
///     });
/// }
/// # Ok(())
/// # }
/// ```
pub struct Listener {
    bound: Bound,
    engine: Engine,
    backlog: Arc<Backlog>,
    /// Tells the engine to accept all requests.
    accept_all: Once,
}

impl Listener {
    /// Listens on an address with the default [`Config`], on the [shared engine](Engine::shared).
    ///
    /// Port 0 takes a free one, which [`local_addr`](Self::local_addr) returns. `0.0.0.0` and
    /// `[::]` listen on all RDMA devices, also on those that come later.
    ///
    /// # Errors
    ///
    /// * [`Error::AddressLookup`] for an unknown name.
    /// * [`Error::Bind`] when the address is in use or belongs to no RDMA device.
    /// * [`Error::NoRdma`], [`Error::PermissionDenied`] or [`Error::Loopback`] when it must be
    ///   RDMA, and this machine has no connection manager, this process has no right to use it, or
    ///   no device serves the address.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use rdmsg::Listener;
    ///
    /// # fn main() -> Result<(), rdmsg::Error> {
    /// let listener = Listener::bind("10.8.0.1:0")?;
    /// println!("listening on {}", listener.local_addr());
    /// # Ok(())
    /// # }
    /// ```
    pub fn bind(address: impl ToAddresses) -> Result<Self, Error> {
        Self::bind_with(address, &Config::default(), &Engine::shared()?)
    }

    /// Listens on an address with a configuration and an engine.
    ///
    /// All connections of the listener have this configuration and belong to this engine.
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidConfig`] when a value of the configuration cannot work.
    /// * [`Error::AddressLookup`] for an unknown name.
    /// * [`Error::Bind`] when the address is in use or belongs to no RDMA device.
    /// * [`Error::PermissionDenied`] or [`Error::Loopback`] when this process has no right to use
    ///   RDMA devices, or no device serves the address.
    /// * [`Error::EngineShutDown`] when the engine was shut down.
    pub fn bind_with(
        address: impl ToAddresses,
        config: &Config,
        engine: &Engine,
    ) -> Result<Self, Error> {
        config.check()?;
        let addresses = address.to_addresses()?;
        let mut config = config.clone();
        config.transport = addresses.transport().unwrap_or(config.transport);
        let mut result = Err(Error::TimedOut);
        for address in addresses.as_slice() {
            result = Self::bind_one(*address, &config, engine);
            if result.is_ok() {
                break;
            }
        }
        result
    }

    fn bind_one(address: SocketAddr, config: &Config, engine: &Engine) -> Result<Self, Error> {
        let (backlog, requests) = Backlog::new(config.backlog.into(), engine);
        let (reply, result) = bounded(1);
        let command = Command::Listen {
            address,
            config: config.clone(),
            requests,
            backlog: incoming(&backlog),
            engine: Arc::clone(engine.handle()),
            reply,
        };
        engine.send(command)?;
        let bound = result.recv().unwrap_or(Err(Error::EngineShutDown))?;
        backlog.listens(bound.local);
        Ok(Self {
            bound,
            engine: engine.clone(),
            backlog,
            accept_all: Once::new(),
        })
    }

    /// Returns the address that this listens on, with the port that was chosen for port 0.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.bound.local
    }

    /// Returns the transports over which this listens.
    ///
    /// With [`Transport::Auto`](crate::Transport::Auto) one may be missing; the log says why. On
    /// iWARP, whose ports are those of TCP, it is TCP: a second listener on another port, with
    /// [`Transport::Tcp`](crate::Transport::Tcp), takes clients that have no RDMA.
    #[must_use]
    pub fn transports(&self) -> &'static [TransportKind] {
        self.bound.transports
    }

    /// Accepts the next connection, waiting for as long as it takes.
    ///
    /// Requests that come in while it waits are accepted concurrently, so that a peer that is slow
    /// to establish its connection delays no other. A connection that fails before it is
    /// established is skipped, and logged.
    ///
    /// # Errors
    ///
    /// * [`Error::ListenerEnded`] when the device or address of the listener was removed.
    /// * [`Error::ListenerClosed`] when the listener was closed.
    /// * [`Error::EngineShutDown`] when the engine was shut down.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use rdmsg::Listener;
    ///
    /// # fn main() -> Result<(), rdmsg::Error> {
    /// let listener = Listener::bind("0.0.0.0:7471")?;
    /// loop {
    ///     let endpoint = listener.accept()?;
    ///     println!("connected to {}", endpoint.peer_addr());
    ///     std::thread::spawn(move || while endpoint.recv().is_ok() {});
    /// }
    /// # }
    /// ```
    pub fn accept(&self) -> Result<Endpoint, Error> {
        self.accept_until(&never())
    }

    /// Accepts the next connection, waiting no longer than `timeout`.
    ///
    /// # Errors
    ///
    /// * [`Error::TimedOut`] when no connection was established. The listener goes on.
    /// * [`Error::ListenerEnded`] when the device or address of the listener was removed.
    /// * [`Error::ListenerClosed`] when the listener was closed.
    /// * [`Error::EngineShutDown`] when the engine was shut down.
    pub fn accept_timeout(&self, timeout: Duration) -> Result<Endpoint, Error> {
        self.accept_until(&after(timeout))
    }

    fn accept_until(&self, deadline: &Receiver<Instant>) -> Result<Endpoint, Error> {
        let accepted = loop {
            select! {
                recv(deadline) -> _ => break Err(Error::TimedOut),
                recv(self.backlog.requests()) -> request => match request {
                    Ok(request) => self.start(request)?,
                    // What was established before the end is not lost.
                    Err(_) => {
                        let last = self.backlog.accepted().try_recv();
                        break last.unwrap_or_else(|_| Err(self.backlog.end()));
                    }
                },
                recv(self.backlog.accepted()) -> accepted => {
                    break accepted.unwrap_or_else(|_| Err(self.backlog.end()));
                }
            }
        };
        self.backlog.update_readiness();
        accepted
    }

    /// Accepts the next connection if one is established, and never waits.
    ///
    /// Returns `None` when there is none yet. Requests that have come in are accepted meanwhile, so
    /// that a later call returns their connections.
    ///
    /// # Errors
    ///
    /// * [`Error::ListenerEnded`] when the device or address of the listener was removed.
    /// * [`Error::ListenerClosed`] when the listener was closed.
    /// * [`Error::EngineShutDown`] when the engine was shut down.
    pub fn try_accept(&self) -> Result<Option<Endpoint>, Error> {
        while let Ok(request) = self.backlog.requests().try_recv() {
            self.start(request)?;
        }
        let accepted = self.backlog.accepted().try_recv();
        self.backlog.update_readiness();
        match accepted {
            Ok(accepted) => accepted.map(Some),
            // The engine may be about to say it in the channel.
            Err(TryRecvError::Empty) => self.backlog.ended().map_or(Ok(None), Err),
            Err(TryRecvError::Disconnected) => Err(self.backlog.end()),
        }
    }

    /// Accepts the next connection, for a task.
    ///
    /// As [`accept`](Self::accept), for futures on any runtime: where there is none, the task is
    /// woken when there may be. One task at a time waits so; of several, the one that called last.
    ///
    /// # Errors
    ///
    /// Those of [`accept`](Self::accept).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run() -> Result<(), rdmsg::Error> {
    /// let listener = rdmsg::Listener::bind("0.0.0.0:7471")?;
    /// let endpoint = std::future::poll_fn(|cx| listener.poll_accept(cx)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<Result<Endpoint, Error>> {
        self.poll_accept_seated(cx, Seat::common(1))
    }

    pub(crate) fn poll_accept_seated(
        &self,
        cx: &Context<'_>,
        seat: Seat,
    ) -> Poll<Result<Endpoint, Error>> {
        let mut accepted = self.try_accept().transpose();
        if accepted.is_none() {
            self.backlog.wait(seat, cx.waker());
            accepted = self.try_accept().transpose();
            if accepted.is_some() {
                self.backlog.leave(seat);
            }
        }
        accepted.map_or(Poll::Pending, Poll::Ready)
    }

    /// A seat for a task that waits in a future of its own, which it [leaves](Self::leave_seat).
    #[cfg(feature = "tokio")]
    pub(crate) fn seat(&self) -> Seat {
        self.backlog.seat()
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn leave_seat(&self, seat: Seat) {
        self.backlog.leave(seat);
    }

    /// Starts accepting a request. The result comes through the backlog.
    fn start(&self, mut request: Request) -> Result<(), Error> {
        match request.take() {
            Some(open) => start_accepting(open, &[], Reply::Backlog(incoming(&self.backlog))),
            None => Ok(()),
        }
    }

    /// Returns the connections as a channel, as they are accepted and established.
    ///
    /// It is for [`crossbeam_channel::select!`]: nothing blocks, however slow a peer is to
    /// establish its connection. From the first call on the [`Engine`]'s thread accepts each
    /// request as it comes in, so that [`requests`](Self::requests) returns no more. It accepts as
    /// long as fewer than [`backlog`](Config::backlog) connections wait here or to be established;
    /// further requests are rejected as busy. Connections that fail before they are established
    /// are skipped, and logged.
    ///
    /// The error with which the listener ends comes once, as the last item; then the channel ends.
    /// After a [`close`](Self::close) it ends without an error.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// use rdmsg::{Listener, crossbeam_channel::{select, tick}};
    ///
    /// # fn main() -> Result<(), rdmsg::Error> {
    /// let listener = Listener::bind("0.0.0.0:7471")?;
    /// let seconds = tick(Duration::from_secs(1));
    /// let mut endpoints = Vec::new();
    /// loop {
    ///     select! {
    ///         recv(listener.established()) -> endpoint => match endpoint {
    ///             Ok(endpoint) => endpoints.push(endpoint?),
    ///             Err(_) => break, // it was closed
    ///         },
    ///         recv(seconds) -> _ => println!("{} connections", endpoints.len()),
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn established(&self) -> &Receiver<Result<Endpoint, Error>> {
        self.accept_all.call_once(|| {
            let (reply, done) = bounded(1);
            let key = self.bound.key;
            // Where the engine has ended, so has the channel.
            if self.engine.send(Command::AcceptAll { key, reply }).is_ok() {
                let _ = done.recv();
            }
            while let Ok(request) = self.backlog.requests().try_recv() {
                let _ = self.start(request);
            }
        });
        self.backlog.accepted()
    }

    /// Stops listening. Its address is free when this returns.
    ///
    /// What waits to be accepted or established is rejected; its connectors get
    /// [`PeerBusy`](crate::CloseReason::PeerBusy), and try again if
    /// [`retry_refused`](Config::retry_refused) is set. What was established is returned by
    /// [`accept`](Self::accept), [`incoming`](Self::incoming) and
    /// [`established`](Self::established) before they end: `incoming` and `established` without an
    /// error, `accept` with [`Error::ListenerClosed`], also where threads wait in them. Established
    /// connections go on, and [`Engine::drain`] waits for their ends; one that is accepted, but
    /// established a moment too late, is closed.
    pub fn close(&self) {
        let (reply, done) = bounded(1);
        let key = self.bound.key;
        if self.engine.send(Command::Unlisten { key, reply }).is_ok() {
            // It fails where the engine ends meanwhile, and the listener with it.
            let _ = done.recv();
        }
    }

    /// Returns an iterator over the connections as they are accepted.
    ///
    /// It waits for each. The error with which the listener ends comes once, as the last item.
    /// After a [`close`](Self::close) it ends without an error.
    pub fn incoming(&self) -> impl FusedIterator<Item = Result<Endpoint, Error>> + '_ {
        let mut ended = false;
        iter::from_fn(move || {
            if ended {
                return None;
            }
            let accepted = self.accept();
            // An error of `accept` is final.
            ended = accepted.is_err();
            Some(accepted).filter(|accepted| !matches!(accepted, Err(Error::ListenerClosed)))
        })
        .fuse()
    }

    /// Returns the requests for connections as a channel.
    ///
    /// It is for [`crossbeam_channel::select!`], and to inspect the peer and its private data
    /// before accepting. Requests that are taken here are not accepted by [`accept`](Self::accept).
    /// After a call of [`established`](Self::established), which accepts them all, none come.
    /// A request waits for at most the listener's [`connect_timeout`](Config::connect_timeout)
    /// (default 5 s) to be answered.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use rdmsg::Listener;
    ///
    /// # fn main() -> Result<(), rdmsg::Error> {
    /// let listener = Listener::bind("0.0.0.0:7471")?;
    /// for request in listener.requests() {
    ///     if request.private_data() != b"user 7" {
    ///         request.reject(b"unknown user")?;
    ///         continue;
    ///     }
    ///     // Accepting waits for the peer, so it has a thread of its own.
    ///     std::thread::spawn(move || match request.accept() {
    ///         Ok(endpoint) => while endpoint.recv().is_ok() {},
    ///         Err(error) => eprintln!("{error}"),
    ///     });
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn requests(&self) -> &Receiver<Request> {
        self.backlog.requests()
    }

    /// Takes the next request if there is one, and never waits.
    ///
    /// It is for event loops that inspect requests before they accept them:
    /// [`requests`](Self::requests) does not update the [`event_fd`](Self::event_fd).
    #[must_use]
    pub fn try_request(&self) -> Option<Request> {
        let request = self.backlog.requests().try_recv().ok();
        self.backlog.update_readiness();
        request
    }

    /// Returns a file descriptor for event loops: `epoll`, `poll`, mio, tokio's `AsyncFd`.
    ///
    /// It is readable while [`try_accept`](Self::try_accept) has something to do or to return: a
    /// request, an established connection, or the listener's end, which lasts. Register it for
    /// reading; never read it yourself. After an event call `try_accept` until it returns `None`.
    /// Level-triggered and edge-triggered loops both work: each arrival is a new edge.
    ///
    /// Programs that inspect requests before they accept them call
    /// [`try_request`](Self::try_request) instead. What is taken from [`requests`](Self::requests)
    /// is not noticed at once: the fd may stay readable until the next `try_accept` or
    /// `try_request`.
    ///
    /// # Errors
    ///
    /// [`Error::Os`] when the process has no file descriptor left.
    pub fn event_fd(&self) -> Result<BorrowedFd<'_>, Error> {
        self.backlog.event_fd()
    }
}

impl<'a> IntoIterator for &'a Listener {
    type Item = Result<Endpoint, Error>;
    type IntoIter = Box<dyn FusedIterator<Item = Self::Item> + 'a>;

    /// As [`incoming`](Listener::incoming).
    fn into_iter(self) -> Self::IntoIter {
        Box::new(self.incoming())
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener")
            .field("local", &self.bound.local)
            .finish_non_exhaustive()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Nobody waits for the reply.
        let (reply, _) = bounded(1);
        let key = self.bound.key;
        let _ = self.engine.send(Command::Unlisten { key, reply });
    }
}

/// Answering a request.
impl Request {
    /// The longest private data in bytes that fits an acceptance.
    pub const ACCEPT_DATA_MAX: usize = REPLY_DATA_MAX;
    /// The longest private data in bytes that fits a rejection.
    pub const REJECT_DATA_MAX: usize = REJECT_DATA_MAX;

    /// Accepts the request, and waits until the connection is established.
    ///
    /// It waits no longer than the listener's [`connect_timeout`](Config::connect_timeout) (default
    /// 5 s), which begins again with this call.
    ///
    /// # Errors
    ///
    /// * [`Error::Connect`] when the peer has withdrawn, or the connection was not established in
    ///   time.
    /// * [`Error::LockedMemory`], [`Error::SharedReceivesExhausted`] or [`Error::Os`] when there is
    ///   no memory or another resource for the connection.
    /// * [`Error::EngineShutDown`] when the engine was shut down.
    pub fn accept(self) -> Result<Endpoint, Error> {
        self.accept_with(&[])
    }

    /// Accepts the request with private data, and waits until the connection is established.
    ///
    /// The peer's program reads the data with [`Endpoint::peer_data`]. It waits no longer than the
    /// listener's [`connect_timeout`](Config::connect_timeout) (default 5 s), which begins again
    /// with this call.
    ///
    /// # Errors
    ///
    /// * [`Error::PrivateDataTooLong`] above [`Request::ACCEPT_DATA_MAX`] bytes.
    /// * [`Error::Connect`] when the peer has withdrawn, or the connection was not established in
    ///   time.
    /// * [`Error::LockedMemory`], [`Error::SharedReceivesExhausted`] or [`Error::Os`] when there is
    ///   no memory or another resource for the connection.
    /// * [`Error::EngineShutDown`] when the engine was shut down.
    pub fn accept_with(mut self, private_data: &[u8]) -> Result<Endpoint, Error> {
        check_private_data(private_data, REPLY_DATA_MAX, "an acceptance")?;
        // Answering takes the request, so it is open.
        let open = self.take().ok_or(Error::EngineShutDown)?;
        let engine = Engine::of(Arc::clone(&open.engine));
        let (peer, deadline) = (self.peer_addr(), Instant::now() + open.timeout);
        let (reply, result) = bounded(1);
        start_accepting(open, private_data, Reply::Caller(reply))?;
        let established = wait_for_reply(&result, peer, deadline)?;
        Ok(Endpoint::new(established, engine))
    }

    /// Rejects the request, with private data for the peer's program.
    ///
    /// The peer's connect fails with [`CloseReason::Rejected`](crate::CloseReason::Rejected), which
    /// has the data. Dropping a request rejects it without data.
    ///
    /// # Errors
    ///
    /// * [`Error::PrivateDataTooLong`] above [`Request::REJECT_DATA_MAX`] bytes.
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

/// The backlog as the engine knows it.
fn incoming(backlog: &Arc<Backlog>) -> Arc<dyn Incoming> {
    Arc::clone(backlog) as Arc<dyn Incoming>
}

/// Has the engine accept a request. The result is sent as a reply.
fn start_accepting(open: Open, data: &[u8], reply: Reply) -> Result<(), Error> {
    let Open { link, engine, .. } = open;
    engine.send(Command::Accept {
        link,
        data: data.to_vec(),
        at: Instant::now(),
        reply,
    })
}
