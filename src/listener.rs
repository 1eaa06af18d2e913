use std::{
    fmt,
    iter::{self, FusedIterator},
    net::SocketAddr,
    os::fd::BorrowedFd,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use crossbeam_channel::{Receiver, RecvTimeoutError, TryRecvError};

use self::{
    arrivals::{Accepted, Arrivals, Connections},
    socket::Socket,
};
use crate::{
    addresses::{Shown, ToAddresses},
    config::Config,
    endpoint::Endpoint,
    engine::{Engine, ListenerItem, Queue},
    error::Error,
    local::Local,
    poll::WaiterId,
    transport_choice::Transport,
};

mod accepting;
mod arrivals;
mod builder;
mod requests;
mod socket;

pub use self::{accepting::Accepting, builder::ListenerBuilder, requests::RequestListener};

/// Accepts connections on an address.
///
/// Once the listener is [bound](Self::bind), the [`Engine`]'s thread accepts each request
/// immediately. Established connections wait in the backlog until the program takes them with
/// [`accept`](Self::accept) or [`incoming`](Self::incoming), or from the channel
/// [`accepted`](Self::accepted). So a peer can connect and send its first messages while the
/// program does other work. A peer that is slow to establish its connection does not delay other
/// peers. If a connection fails before it is established, the listener logs the error and continues
/// with other connections.
///
/// Use a [`RequestListener`] to inspect requests before they are accepted.
///
/// Dropping the listener closes it, as [`close`](Self::close) does. The drop also rejects the
/// connections that the program has not taken, including connections whose establishment is still
/// in progress. The peers of these connections get [`PeerBusy`](crate::CloseReason::PeerBusy),
/// because the program has not seen any of their messages. Connections that the program has taken
/// stay open.
///
/// A child that inherits the listener through fork(2) cannot use it: calls fail with
/// [`Error::Forked`]. Bind after the fork: see [the guide](crate::guide::installing#fork).
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
    socket: Socket,
    connections: Local<Connections>,
}

impl Listener {
    /// Listens on an address with the default [`Config`], on the [shared engine](Engine::shared).
    ///
    /// Port 0 requests a free port, which [`local_addr`](Self::local_addr) returns. `0.0.0.0` and
    /// `[::]` listen on all RDMA devices, including devices that are added later.
    ///
    /// # Errors
    ///
    /// * [`Error::AddressLookup`] for an unknown host name.
    /// * [`Error::Bind`] when the address is in use or belongs to no RDMA device, or when the
    ///   system refuses to bind it over TCP.
    /// * If the transport must be RDMA: [`Error::NoRdma`] when the machine has no RDMA connection
    ///   manager, [`Error::PermissionDenied`] when this process may not use RDMA, and
    ///   [`Error::Loopback`] for a loopback address, which no RDMA device serves.
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
        Self::builder().bind(address)
    }

    pub(crate) fn bind_to(
        address: impl ToAddresses,
        config: &Config,
        engine: &Engine,
    ) -> Result<Self, Error> {
        let connections = Connections::new(engine);
        let queue = Queue::new(Arc::<Connections>::clone(&connections));
        let listener_items = ListenerItem::Connections(queue);
        let socket = Socket::bind(address, config, engine, &listener_items)?;
        connections.arrivals.listens(socket.name(&config.label));
        Ok(Self {
            socket,
            connections: Local::new(connections),
        })
    }

    /// Returns the address of the listener. It contains the actual port if the program requested
    /// port 0.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.socket.local_addr()
    }

    /// Returns the transports over which the listener accepts connections.
    ///
    /// With [`TransportChoice::Auto`](crate::TransportChoice::Auto), either RDMA or TCP may be
    /// missing; the log contains the reason. On iWARP, TCP is missing, because iWARP itself
    /// occupies the TCP port.
    /// To also accept clients without RDMA in this case, create a second listener on another port
    /// with [`TransportChoice::Tcp`](crate::TransportChoice::Tcp).
    #[must_use]
    pub fn transports(&self) -> &'static [Transport] {
        self.socket.transports()
    }

    /// Accepts the next connection. Waits for it without a time limit.
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
        let accepted = self.arrivals().items().recv();
        self.finish_accept(accepted.ok())
    }

    /// Accepts the next connection, waiting no longer than `timeout`.
    ///
    /// # Errors
    ///
    /// * [`Error::TimedOut`] when no connection was established in time. The listener stays open.
    /// * [`Error::ListenerEnded`] when the device or address of the listener was removed.
    /// * [`Error::ListenerClosed`] when the listener was closed.
    /// * [`Error::EngineShutDown`] when the engine was shut down.
    pub fn accept_timeout(&self, timeout: Duration) -> Result<Endpoint, Error> {
        match self.arrivals().items().recv_timeout(timeout) {
            Err(RecvTimeoutError::Timeout) => Err(Error::TimedOut),
            accepted => self.finish_accept(accepted.ok()),
        }
    }

    /// Accepts the next established connection, if there is one. Does not wait.
    ///
    /// Returns `None` if no connection is established yet.
    ///
    /// # Errors
    ///
    /// * [`Error::ListenerEnded`] when the device or address of the listener was removed.
    /// * [`Error::ListenerClosed`] when the listener was closed.
    /// * [`Error::EngineShutDown`] when the engine was shut down.
    pub fn try_accept(&self) -> Result<Option<Endpoint>, Error> {
        match self.arrivals().items().try_recv() {
            // When a listener ends, the engine stores the error before it sends the final item. So
            // the error may already be stored while the channel is empty.
            Err(TryRecvError::Empty) => {
                self.arrivals().update_readiness();
                self.arrivals().ended().map_or(Ok(None), Err)
            }
            accepted => self.finish_accept(accepted.ok()).map(Some),
        }
    }

    /// Converts an item of the channel to the result of an accept. `None` means that the channel
    /// has ended.
    fn finish_accept(&self, accepted: Option<Accepted>) -> Accepted {
        self.arrivals().update_readiness();
        accepted.unwrap_or_else(|| Err(self.arrivals().end()))
    }

    fn arrivals(&self) -> &Arrivals<Accepted> {
        &self.connections.arrivals
    }

    /// Accepts the next connection, for a task.
    ///
    /// Works like [`accept`](Self::accept), for futures on any runtime: if there is no connection,
    /// the task is woken when there may be one. Only one task at a time can wait in this way: a
    /// later call replaces the waker of an earlier call.
    ///
    /// # Errors
    ///
    /// The errors of [`accept`](Self::accept).
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
        self.poll_accept_as(cx, WaiterId::common(1))
    }

    pub(crate) fn poll_accept_as(
        &self,
        cx: &Context<'_>,
        waiter_id: WaiterId,
    ) -> Poll<Result<Endpoint, Error>> {
        let mut accepted = self.try_accept().transpose();
        if accepted.is_none() {
            self.arrivals().wait(waiter_id, cx.waker());
            accepted = self.try_accept().transpose();
            if accepted.is_some() {
                self.arrivals().unregister(waiter_id);
            }
        }
        accepted.map_or(Poll::Pending, Poll::Ready)
    }

    /// Returns the error that ended the listener. Returns `None` if the listener is open or was
    /// closed by [`close`](Self::close).
    pub(crate) fn end(&self) -> Option<Error> {
        let ended = self.arrivals().ended();
        ended.filter(|error| !matches!(error, Error::ListenerClosed))
    }

    /// Returns a new waiter id for a future, so that its task waits independently of other tasks.
    /// The future must [unregister](Self::unregister_waiter) the id.
    #[cfg(feature = "tokio")]
    pub(crate) fn new_waiter_id(&self) -> WaiterId {
        self.arrivals().new_waiter_id()
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn unregister_waiter(&self, waiter_id: WaiterId) {
        self.arrivals().unregister(waiter_id);
    }

    /// Returns the established connections as a channel, for [`crossbeam_channel::select!`].
    ///
    /// If an error ends the listener, this error is the last item of the channel. After a
    /// [`close`](Self::close) the channel ends without an error.
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
    ///         recv(listener.accepted()) -> endpoint => match endpoint {
    ///             Ok(endpoint) => endpoints.push(endpoint?),
    ///             Err(_) => break, // the listener was closed
    ///         },
    ///         recv(seconds) -> _ => println!("{} connections", endpoints.len()),
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn accepted(&self) -> &Receiver<Result<Endpoint, Error>> {
        self.arrivals().items()
    }

    /// Stops listening. The address is free when this method returns.
    ///
    /// No client loses a connection that it considers established. Requests that the engine has not
    /// accepted are rejected. Their connectors get [`PeerBusy`](crate::CloseReason::PeerBusy), and
    /// retry if [`retry_refused`](crate::Connector::retry_refused) is set. Requests that the engine
    /// has accepted still become connections.
    ///
    /// [`accept`](Self::accept), [`incoming`](Self::incoming) and [`accepted`](Self::accepted)
    /// first return the remaining connections. Then `incoming` and `accepted` end without an error,
    /// and `accept` fails with [`Error::ListenerClosed`], even in threads that are already waiting.
    /// The end is usually reported immediately. The maximum delay after this call is
    /// [`connect_timeout`](Config::connect_timeout) (default 5 s). Take all remaining connections
    /// before you drop the listener, because a dropped listener rejects them.
    /// Connections that the program has accepted stay open, and [`Engine::drain`] waits until they
    /// end.
    ///
    /// If the socket was [inherited](ListenerBuilder::inherit), requests that the engine has not
    /// read stay in the socket's queue, for the next program that listens on the socket.
    ///
    /// # Examples
    ///
    /// ```
    /// use rdmsg::{Endpoint, Error, Listener};
    ///
    /// # fn main() -> Result<(), Error> {
    /// let listener = Listener::bind("tcp://127.0.0.1:0")?;
    /// let client = Endpoint::connect(format!("tcp://{}", listener.local_addr()))?;
    /// client.send(b"before the close")?;
    /// listener.close();
    /// for endpoint in listener.incoming() {
    ///     assert_eq!(endpoint?.recv()?, b"before the close");
    /// } // ends after the last connection
    /// # Ok(())
    /// # }
    /// ```
    pub fn close(&self) {
        self.socket.close();
    }

    /// Returns an iterator over the connections as they are accepted.
    ///
    /// The iterator blocks until there is a connection. If an error ends the listener, this error
    /// is the last item. After a [`close`](Self::close) the iterator ends without an error.
    pub fn incoming(&self) -> impl FusedIterator<Item = Result<Endpoint, Error>> + '_ {
        let mut ended = false;
        iter::from_fn(move || {
            if ended {
                return None;
            }
            let accepted = self.accept();
            // `accept` fails only after the listener has ended.
            ended = accepted.is_err();
            Some(accepted).filter(|accepted| !matches!(accepted, Err(Error::ListenerClosed)))
        })
        .fuse()
    }

    /// Returns a file descriptor for event loops: `epoll`, `poll`, mio, tokio's `AsyncFd`.
    ///
    /// It is readable while [`try_accept`](Self::try_accept) has a result to return: an established
    /// connection, or the error of an ended listener. Once the listener has ended, the fd stays
    /// readable. Register the fd for reading; never read from it yourself. After an event, call
    /// `try_accept` until it returns `None`. Both level-triggered and edge-triggered loops work:
    /// each arrival is a new edge.
    ///
    /// # Errors
    ///
    /// [`Error::Os`] when the process has no free file descriptor.
    pub fn event_fd(&self) -> Result<BorrowedFd<'_>, Error> {
        self.arrivals().event_fd()
    }
}

impl<'a> IntoIterator for &'a Listener {
    type Item = Result<Endpoint, Error>;
    type IntoIter = Box<dyn FusedIterator<Item = Self::Item> + 'a>;

    /// Works like [`incoming`](Listener::incoming).
    fn into_iter(self) -> Self::IntoIter {
        Box::new(self.incoming())
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener")
            .field("local", &Shown(self.local_addr()))
            .finish_non_exhaustive()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.socket.start_close();
        // `abandon` also rejects connections whose establishment is still in progress. In a forked
        // child it has no effect, because `self.connections` then refers to a stand-in without
        // connections.
        self.connections.abandon();
    }
}
