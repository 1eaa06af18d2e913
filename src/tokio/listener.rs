use std::{
    future::{pending, poll_fn},
    net::SocketAddr,
    panic::resume_unwind,
    task::{Context, Poll},
};

use ::tokio::task::spawn_blocking;

use super::{endpoint::Endpoint, turn::cooperate};
use crate::{
    addresses::ToAddresses, connector::lookup::addresses, error::Error, listener::ListenerBuilder,
    poll::WaiterId, transport_choice::Transport,
};

/// Calls `bind`. If the builder may retry, the call runs on a blocking thread of the runtime,
/// because the builder sleeps between its attempts.
pub(super) async fn bind<T: Send + 'static>(
    builder: &ListenerBuilder,
    bind: impl FnOnce(&ListenerBuilder) -> T + Send + 'static,
) -> T {
    if !builder.may_wait() {
        return bind(builder);
    }
    let builder = builder.clone();
    match spawn_blocking(move || bind(&builder)).await {
        Ok(bound) => bound,
        // The runtime is shutting down, and will drop this task as well.
        Err(error) if error.is_cancelled() => pending().await,
        Err(error) => resume_unwind(error.into_panic()),
    }
}

/// An asynchronous listener that accepts connections on an address.
///
/// # Examples
///
/// See [the module](super).
#[derive(Debug)]
pub struct Listener {
    inner: crate::listener::Listener,
}

impl Listener {
    /// Listens on an address, with the default [`Config`](crate::Config) and engine. If `address`
    /// is a host name, a separate thread looks it up.
    ///
    /// To convert a synchronous [`Listener`](crate::Listener), use `From`.
    ///
    /// # Errors
    ///
    /// The errors of [`Listener::bind`](crate::Listener::bind).
    pub async fn bind(address: impl ToAddresses) -> Result<Self, Error> {
        crate::listener::Listener::bind(addresses(address).await?).map(Self::from)
    }

    /// Listens with the settings of `builder`, such as a configuration or an engine.
    ///
    /// # Errors
    ///
    /// The errors of [`ListenerBuilder::bind`].
    pub async fn bind_with(
        builder: &ListenerBuilder,
        address: impl ToAddresses,
    ) -> Result<Self, Error> {
        let addresses = addresses(address).await?;
        let bound = bind(builder, move |builder| builder.bind(addresses)).await;
        bound.map(Self::from)
    }

    /// Accepts the next connection.
    ///
    /// Works like [`accept`](crate::Listener::accept). Dropping the future loses no connection.
    ///
    /// # Errors
    ///
    /// The errors of [`accept`](crate::Listener::accept), and [`Error::Os`] when the runtime cannot
    /// register the connection.
    ///
    /// # Panics
    ///
    /// Panics outside of a tokio runtime that has I/O enabled.
    pub async fn accept(&self) -> Result<Endpoint, Error> {
        accept(&self.inner).await.and_then(Endpoint::new)
    }

    /// Accepts the next connection, like [`accept`](Self::accept), for use in a `poll` function.
    /// Only one task at a time can wait in this way.
    ///
    /// # Errors
    ///
    /// The errors of [`accept`](Self::accept).
    ///
    /// # Panics
    ///
    /// Panics outside of a tokio runtime that has I/O enabled.
    pub fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<Result<Endpoint, Error>> {
        let accepted = cooperate(cx, |cx| self.inner.poll_accept(cx));
        accepted.map(|accepted| accepted.and_then(Endpoint::new))
    }

    /// Returns the address of the listener. It contains the actual port if the program requested
    /// port 0.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.inner.local_addr()
    }

    /// Returns the transports over which the listener accepts connections.
    #[must_use]
    pub fn transports(&self) -> &'static [Transport] {
        self.inner.transports()
    }

    /// Stops listening, as [`close`](crate::Listener::close) does.
    ///
    /// [`accept`](Self::accept) still returns the connections that were accepted before, and then
    /// [`Error::ListenerClosed`]. Established connections stay open.
    pub fn close(&self) {
        self.inner.close();
    }

    /// Returns the listener, for methods that do not wait.
    #[must_use]
    pub fn get_ref(&self) -> &crate::listener::Listener {
        &self.inner
    }
}

impl From<crate::listener::Listener> for Listener {
    fn from(inner: crate::listener::Listener) -> Self {
        Self { inner }
    }
}

/// The waiter id of a task that waits to accept. Dropping the task's future unregisters the task.
struct Turn<'a> {
    listener: &'a crate::listener::Listener,
    waiter_id: WaiterId,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.listener.unregister_waiter(self.waiter_id);
    }
}

pub(super) async fn accept(
    listener: &crate::listener::Listener,
) -> Result<crate::endpoint::Endpoint, Error> {
    let turn = Turn {
        listener,
        waiter_id: listener.new_waiter_id(),
    };
    poll_fn(|cx| cooperate(cx, |cx| listener.poll_accept_as(cx, turn.waiter_id))).await
}
