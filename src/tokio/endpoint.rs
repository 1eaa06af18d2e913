use std::{io::IoSlice, net::SocketAddr};

use super::turn::take_turn;
use crate::{
    addresses::ToAddresses,
    connector::Connector,
    error::Error,
    link::{Completion, Message},
    outgoing::Outgoing,
};

/// A handle to an established connection that carries whole messages, for tasks.
///
/// Clones are handles to the same connection, and several tasks may use them concurrently. When the
/// last handle is dropped, the connection is closed in the background.
///
/// [`get_ref`](Self::get_ref) returns an [`Endpoint`](crate::Endpoint) with further methods that do
/// not wait, such as statistics, `try_recv`, `try_send`, `abort`, and one-sided operations such as
/// `try_read` and `try_write`. Do not call the waiting methods of that endpoint, because they would
/// block the runtime.
///
/// # Examples
///
/// ```no_run
/// # async fn run() -> Result<(), rdmsg::Error> {
/// let endpoint = rdmsg::tokio::Endpoint::connect("10.8.0.1:7471").await?;
/// endpoint.send(b"hello").await?;
/// let answer = endpoint.recv().await?;
/// println!("{} bytes", answer.len());
/// drop(answer);
/// endpoint.close().await
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Endpoint {
    inner: crate::endpoint::Endpoint,
}

impl Endpoint {
    /// Connects to a listener, with the default [`Config`](crate::Config) and engine.
    ///
    /// If `address` is a host name, a separate thread looks it up. Several addresses are tried one
    /// after the other. Dropping the future cancels the connection attempt.
    ///
    /// # Errors
    ///
    /// The errors of [`Endpoint::connect`](crate::Endpoint::connect).
    ///
    /// # Panics
    ///
    /// Panics outside of a tokio runtime that has I/O enabled.
    pub async fn connect(address: impl ToAddresses) -> Result<Self, Error> {
        let connecting = Connector::new().start(address)?;
        Self::new(connecting.await?)
    }

    /// Connects with the settings of `connector`, such as a configuration, private data or an
    /// engine.
    ///
    /// # Errors
    ///
    /// The errors of [`Connector::connect`].
    ///
    /// # Panics
    ///
    /// Panics outside of a tokio runtime that has I/O enabled.
    pub async fn connect_with(
        connector: &Connector,
        address: impl ToAddresses,
    ) -> Result<Self, Error> {
        let endpoint = connector.start(address)?.await?;
        Self::new(endpoint)
    }

    /// Registers an existing connection with the runtime.
    ///
    /// # Errors
    ///
    /// [`Error::Os`] when the runtime cannot register the connection.
    ///
    /// # Panics
    ///
    /// Panics outside of a tokio runtime that has I/O enabled.
    #[track_caller]
    pub fn new(endpoint: crate::endpoint::Endpoint) -> Result<Self, Error> {
        endpoint.enter_runtime()?;
        Ok(Self { inner: endpoint })
    }

    /// Receives the next message.
    ///
    /// Works like [`recv`](crate::Endpoint::recv). Dropping the future loses no message.
    ///
    /// # Errors
    ///
    /// The errors of [`recv`](crate::Endpoint::recv).
    pub async fn recv(&self) -> Result<Message, Error> {
        let inner = &self.inner;
        take_turn(inner, |cx, waiter_id| inner.poll_recv_as(cx, waiter_id)).await
    }

    /// Returns the next completion of any kind.
    ///
    /// Works like [`next_completion`](crate::Endpoint::next_completion). Dropping the future loses
    /// no completion.
    ///
    /// # Errors
    ///
    /// The errors of [`next_completion`](crate::Endpoint::next_completion).
    pub async fn next_completion(&self) -> Result<Completion, Error> {
        let inner = &self.inner;
        take_turn(inner, |cx, waiter_id| {
            inner.poll_next_completion_as(cx, waiter_id)
        })
        .await
    }

    /// Sends one message, waiting while the peer's window is full.
    ///
    /// Works like [`send`](crate::Endpoint::send). If the future is dropped before it is ready,
    /// nothing was sent. In this case, a [`SendBuffer`](crate::SendBuffer) that was passed by value
    /// is dropped, and a buffer that was passed by reference keeps its content.
    ///
    /// # Errors
    ///
    /// The errors of [`send`](crate::Endpoint::send). [`Error::CompletionsNotTaken`] is returned
    /// even if another task takes completions.
    pub async fn send<'a>(&self, message: impl Into<Outgoing<'a>>) -> Result<(), Error> {
        let inner = &self.inner;
        let mut message = message.into();
        take_turn(inner, |cx, waiter_id| {
            inner.poll_send_as(cx, waiter_id, message.reborrow())
        })
        .await
    }

    /// Waits while the peer's window is full. Then sends messages in order until all are sent or
    /// the window is full again. Returns the number of messages sent.
    ///
    /// Works like [`send_batch`](crate::Endpoint::send_batch), except that it does not wait until
    /// all messages are sent. If the future is dropped before it is ready, nothing was sent.
    ///
    /// # Errors
    ///
    /// The errors of [`send_batch`](crate::Endpoint::send_batch).
    pub async fn send_batch(&self, messages: &[IoSlice<'_>]) -> Result<usize, Error> {
        let inner = &self.inner;
        take_turn(inner, |cx, waiter_id| {
            inner.poll_send_batch_as(cx, waiter_id, messages)
        })
        .await
    }

    /// Waits until everything that was sent so far has arrived at the peer's library.
    ///
    /// Works like [`flush`](crate::Endpoint::flush).
    ///
    /// # Errors
    ///
    /// The errors of [`flush`](crate::Endpoint::flush).
    pub async fn flush(&self) -> Result<(), Error> {
        self.inner.flushed().await
    }

    /// Ends this side's sending direction (half-close). This side can still receive messages.
    ///
    /// Does not wait. See [`finish`](crate::Endpoint::finish).
    ///
    /// # Errors
    ///
    /// The errors of [`finish`](crate::Endpoint::finish).
    pub fn finish(&self) -> Result<(), Error> {
        self.inner.finish()
    }

    /// Closes the connection, and waits until the peer has acknowledged everything that was sent.
    ///
    /// Works like [`close`](crate::Endpoint::close). If the future is dropped, the close continues
    /// in the background.
    ///
    /// # Errors
    ///
    /// The errors of [`close`](crate::Endpoint::close).
    pub async fn close(&self) -> Result<(), Error> {
        let inner = &self.inner;
        take_turn(inner, |cx, waiter_id| inner.poll_close_as(cx, waiter_id)).await
    }

    /// Returns the peer's address.
    #[must_use]
    pub fn peer_addr(&self) -> SocketAddr {
        self.inner.peer_addr()
    }

    /// Returns the endpoint, for methods that do not wait, such as
    /// [`info`](crate::Endpoint::info).
    #[must_use]
    pub fn get_ref(&self) -> &crate::endpoint::Endpoint {
        &self.inner
    }

    /// Deregisters the connection from the runtime, and returns the endpoint for synchronous use.
    #[must_use]
    pub fn into_inner(self) -> crate::endpoint::Endpoint {
        self.inner.leave_runtime();
        self.inner
    }
}
