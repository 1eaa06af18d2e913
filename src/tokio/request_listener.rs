use std::{
    future::poll_fn,
    net::SocketAddr,
    task::{Context, Poll},
};

use super::{endpoint::Endpoint, listener::bind, turn::cooperate};
use crate::{
    addresses::ToAddresses, connector::lookup::addresses, error::Error, listener::ListenerBuilder,
    poll::WaiterId, transport_choice::Transport,
};

/// An asynchronous listener that lets the program accept or reject each request.
///
/// For details, see its synchronous counterpart [`RequestListener`](crate::RequestListener).
///
/// # Examples
///
/// ```no_run
/// use rdmsg::tokio::RequestListener;
///
/// # async fn run() -> Result<(), rdmsg::Error> {
/// let listener = RequestListener::bind("0.0.0.0:7471").await?;
/// loop {
///     let request = listener.request().await?;
///     if request.private_data() != b"user 7" {
///         request.reject(b"unknown user")?;
///         continue;
///     }
///     // Accepting waits for the peer, so each request gets its own task.
///     tokio::spawn(async move {
///         let endpoint = request.accept().await?;
///         while endpoint.recv().await.is_ok() {}
///         Ok::<_, rdmsg::Error>(())
///     });
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct RequestListener {
    inner: crate::listener::RequestListener,
}

/// A peer's request for a connection, with asynchronous methods. Dropping this value rejects the
/// request.
///
/// Returned by a [`RequestListener`].
#[derive(Debug)]
pub struct Request {
    inner: crate::engine::Request,
}

/// The waiter id of a task that waits for a request. Dropping the task's future unregisters the
/// task.
struct Turn<'a> {
    listener: &'a crate::listener::RequestListener,
    waiter_id: WaiterId,
}

impl RequestListener {
    /// Listens on an address, with the default [`Config`](crate::Config) and engine. If `address`
    /// is a host name, a separate thread looks it up.
    ///
    /// To convert a synchronous [`RequestListener`](crate::RequestListener), use `From`.
    ///
    /// # Errors
    ///
    /// The errors of [`Listener::bind`](crate::Listener::bind).
    pub async fn bind(address: impl ToAddresses) -> Result<Self, Error> {
        Self::bind_with(&ListenerBuilder::default(), address).await
    }

    /// Listens with the settings of `builder`, such as a configuration or an engine.
    ///
    /// # Errors
    ///
    /// The errors of [`ListenerBuilder::bind_requests`].
    pub async fn bind_with(
        builder: &ListenerBuilder,
        address: impl ToAddresses,
    ) -> Result<Self, Error> {
        let addresses = addresses(address).await?;
        let bound = bind(builder, move |builder| builder.bind_requests(addresses)).await;
        bound.map(Self::from)
    }

    /// Returns the next request. Waits for a request without a time limit.
    ///
    /// Dropping the future loses no request.
    ///
    /// # Errors
    ///
    /// The errors of [`Listener::accept`](crate::Listener::accept).
    pub async fn request(&self) -> Result<Request, Error> {
        let listener = &self.inner;
        let turn = Turn {
            listener,
            waiter_id: listener.new_waiter_id(),
        };
        let request =
            poll_fn(|cx| cooperate(cx, |cx| listener.poll_request_as(cx, turn.waiter_id)));
        request.await.map(Request::from)
    }

    /// Returns the next request, like [`request`](Self::request), for use in a `poll` function. If
    /// several tasks poll, only the task that polled last is woken.
    ///
    /// # Errors
    ///
    /// The errors of [`request`](Self::request).
    pub fn poll_request(&self, cx: &mut Context<'_>) -> Poll<Result<Request, Error>> {
        let request = cooperate(cx, |cx| self.inner.poll_request(cx));
        request.map(|request| request.map(Request::from))
    }

    /// Returns the address of the listener. It contains the actual port if the program requested
    /// port 0.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.inner.local_addr()
    }

    /// Returns the transports over which the listener accepts requests.
    #[must_use]
    pub fn transports(&self) -> &'static [Transport] {
        self.inner.transports()
    }

    /// Stops listening, as [`close`](crate::RequestListener::close) does.
    ///
    /// Requests that [`request`](Self::request) has not returned yet are rejected. After that,
    /// `request` fails with [`Error::ListenerClosed`].
    pub fn close(&self) {
        self.inner.close();
    }

    /// Returns the listener, for methods that do not wait.
    #[must_use]
    pub fn get_ref(&self) -> &crate::listener::RequestListener {
        &self.inner
    }
}

impl From<crate::listener::RequestListener> for RequestListener {
    fn from(inner: crate::listener::RequestListener) -> Self {
        Self { inner }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.listener.unregister_waiter(self.waiter_id);
    }
}

impl Request {
    /// Accepts the request, and waits until the connection is established.
    ///
    /// Works like [`accept`](crate::Request::accept). If the future is dropped before the peer has
    /// received the answer, the request is rejected. If the future is dropped later, the connection
    /// is closed.
    ///
    /// # Errors
    ///
    /// The errors of [`accept`](crate::Request::accept), and [`Error::Os`] when the runtime cannot
    /// register the connection.
    ///
    /// # Panics
    ///
    /// Panics outside of a tokio runtime that has I/O enabled.
    pub async fn accept(self) -> Result<Endpoint, Error> {
        self.accept_with(&[]).await
    }

    /// Accepts the request with private data, and waits until the connection is established.
    ///
    /// Works like [`accept_with`](crate::Request::accept_with). Dropping the future has the same
    /// effect as for [`accept`](Self::accept).
    ///
    /// # Errors
    ///
    /// The errors of [`accept_with`](crate::Request::accept_with), and [`Error::Os`] when the
    /// runtime cannot register the connection.
    ///
    /// # Panics
    ///
    /// Panics outside of a tokio runtime that has I/O enabled.
    pub async fn accept_with(self, private_data: &[u8]) -> Result<Endpoint, Error> {
        let accepting = self.inner.start_accept(private_data)?;
        accepting.await.and_then(Endpoint::new)
    }

    /// Sets a name for the connection: see [`label`](crate::Request::label).
    #[must_use]
    pub fn label(self, label: &str) -> Self {
        Self::from(self.inner.label(label))
    }

    /// Rejects the request, with private data for the peer's program: see
    /// [`reject`](crate::Request::reject).
    ///
    /// # Errors
    ///
    /// The errors of [`reject`](crate::Request::reject).
    pub fn reject(self, private_data: &[u8]) -> Result<(), Error> {
        self.inner.reject(private_data)
    }

    /// Returns the peer's address.
    #[must_use]
    pub fn peer_addr(&self) -> SocketAddr {
        self.inner.peer_addr()
    }

    /// Returns the local address at which the request arrived.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.inner.local_addr()
    }

    /// Returns the private data that the peer's program sent with the request: see
    /// [`private_data`](crate::Request::private_data).
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        self.inner.private_data()
    }
}

impl From<crate::engine::Request> for Request {
    fn from(inner: crate::engine::Request) -> Self {
        Self { inner }
    }
}
