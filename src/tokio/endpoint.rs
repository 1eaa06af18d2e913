use std::{io::IoSlice, net::SocketAddr};

use super::turn::take_turn;
use crate::{
    addresses::ToAddresses,
    connector::Connector,
    error::Error,
    link::{Completion, Message},
    outgoing::Outgoing,
    transport_choice::Transport,
};

/// A handle of an established connection that carries whole messages, for tasks.
///
/// Clones are handles of the same connection and may be used by several tasks at once. When the
/// last one is dropped, the connection is closed in the background.
///
/// Calls that do not wait are methods of the [`Endpoint`](crate::Endpoint) that
/// [`get_ref`](Self::get_ref) returns: statistics, `try_recv`, `try_send`, `abort`, and one-sided
/// operations by `try_read` and `try_write`. Its waiting calls would block the runtime.
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
    /// Another thread looks a name up, and its addresses are tried one after the other. Dropping
    /// the future cancels the connection attempt.
    ///
    /// # Errors
    ///
    /// Those of [`Endpoint::connect`](crate::Endpoint::connect).
    ///
    /// # Panics
    ///
    /// Outside of a runtime with I/O enabled.
    pub async fn connect(address: impl ToAddresses) -> Result<Self, Error> {
        let connecting = Connector::new().start(address)?;
        Self::new(connecting.await?)
    }

    /// Connects with a configuration, private data or an engine of its own.
    ///
    /// # Errors
    ///
    /// Those of [`Connector::connect`].
    ///
    /// # Panics
    ///
    /// Outside of a runtime with I/O enabled.
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
    /// [`Error::Os`] when the runtime cannot watch it.
    ///
    /// # Panics
    ///
    /// Outside of a runtime with I/O enabled.
    #[track_caller]
    pub fn new(endpoint: crate::endpoint::Endpoint) -> Result<Self, Error> {
        endpoint.enter_runtime()?;
        Ok(Self { inner: endpoint })
    }

    /// Receives the next message.
    ///
    /// As [`recv`](crate::Endpoint::recv). A future that is dropped loses no message.
    ///
    /// # Errors
    ///
    /// Those of [`recv`](crate::Endpoint::recv).
    pub async fn recv(&self) -> Result<Message, Error> {
        let inner = &self.inner;
        take_turn(inner, |cx, seat| inner.poll_recv_seated(cx, seat)).await
    }

    /// Takes the next completion of any kind.
    ///
    /// As [`next_completion`](crate::Endpoint::next_completion). A future that is dropped loses
    /// none.
    ///
    /// # Errors
    ///
    /// Those of [`next_completion`](crate::Endpoint::next_completion).
    pub async fn next_completion(&self) -> Result<Completion, Error> {
        let inner = &self.inner;
        take_turn(inner, |cx, seat| {
            inner.poll_next_completion_seated(cx, seat)
        })
        .await
    }

    /// Sends one message, waiting while the peer's window is full.
    ///
    /// As [`send`](crate::Endpoint::send). A future that is dropped before it is ready has sent
    /// nothing; a [`SendBuffer`](crate::SendBuffer) is lost then if it was given by value, and
    /// remains if it was borrowed.
    ///
    /// # Errors
    ///
    /// Those of [`send`](crate::Endpoint::send). A task gets [`Error::CompletionsNotTaken`] even if
    /// another task takes completions.
    pub async fn send<'a>(&self, message: impl Into<Outgoing<'a>>) -> Result<(), Error> {
        let inner = &self.inner;
        let mut message = message.into();
        take_turn(inner, |cx, seat| {
            inner.poll_send_seated(cx, seat, message.reborrow())
        })
        .await
    }

    /// Waits for room, sends the messages that fit, in their order, and returns their number.
    ///
    /// As [`send_batch`](crate::Endpoint::send_batch), without waiting for room for all. A future
    /// that is dropped before it is ready has sent nothing.
    ///
    /// # Errors
    ///
    /// Those of [`send_batch`](crate::Endpoint::send_batch).
    pub async fn send_batch(&self, messages: &[IoSlice<'_>]) -> Result<usize, Error> {
        let inner = &self.inner;
        take_turn(inner, |cx, seat| {
            inner.poll_send_batch_seated(cx, seat, messages)
        })
        .await
    }

    /// Waits until everything that was sent so far has arrived at the peer's library.
    ///
    /// As [`flush`](crate::Endpoint::flush).
    ///
    /// # Errors
    ///
    /// Those of [`flush`](crate::Endpoint::flush).
    pub async fn flush(&self) -> Result<(), Error> {
        self.inner.flushed().await
    }

    /// Sends Finish, the end of the messages of this side: half close.
    ///
    /// It does not wait. See [`finish`](crate::Endpoint::finish).
    ///
    /// # Errors
    ///
    /// Those of [`finish`](crate::Endpoint::finish).
    pub fn finish(&self) -> Result<(), Error> {
        self.inner.finish()
    }

    /// Closes the connection and waits until everything that was sent is acknowledged.
    ///
    /// As [`close`](crate::Endpoint::close). The close continues in the background if the future is
    /// dropped.
    ///
    /// # Errors
    ///
    /// Those of [`close`](crate::Endpoint::close).
    pub async fn close(&self) -> Result<(), Error> {
        let inner = &self.inner;
        take_turn(inner, |cx, seat| inner.poll_close_seated(cx, seat)).await
    }

    /// Returns the peer's address.
    #[must_use]
    pub fn peer_addr(&self) -> SocketAddr {
        self.inner.peer_addr()
    }

    /// Returns this side's address.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.inner.local_addr()
    }

    /// Returns the transport of the connection.
    #[must_use]
    pub fn transport(&self) -> Transport {
        self.inner.transport()
    }

    /// Returns the connection, for calls that do not wait.
    #[must_use]
    pub fn get_ref(&self) -> &crate::endpoint::Endpoint {
        &self.inner
    }

    /// Returns the connection, for threads. The runtime stops watching it.
    #[must_use]
    pub fn into_inner(self) -> crate::endpoint::Endpoint {
        self.inner.leave_runtime();
        self.inner
    }
}
