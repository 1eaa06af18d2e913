use std::{
    borrow::Borrow,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use super::{stream::Stream, stream_listener::StreamListener, turn::cooperate};
use crate::{error::Error, poll::WaiterId};

/// A [`futures` stream](futures_core::Stream) of the connections that a [`StreamListener`] accepts:
/// see [`StreamListener::incoming`] and [`StreamListener::into_incoming`].
///
/// If an error ends the listener, the stream yields this error and then ends. If the program
/// [closes](StreamListener::close) the listener, the stream ends without an error. If the runtime
/// cannot register a connection, the stream yields an error for this connection, and continues with
/// the next connection.
#[derive(Debug)]
pub struct Incoming<L: Borrow<StreamListener>> {
    listener: L,
    waiter_id: WaiterId,
    /// Whether the listener has ended.
    over: bool,
}

impl StreamListener {
    /// Returns a [`futures` stream](futures_core::Stream) of the accepted connections.
    ///
    /// Several tasks may each create such a stream. Dropping the stream loses no connection.
    ///
    /// # Panics
    ///
    /// Polling the stream panics outside of a tokio runtime that has I/O enabled.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use futures_util::StreamExt;
    ///
    /// # async fn run() -> std::io::Result<()> {
    /// let listener = rdmsg::tokio::StreamListener::bind("0.0.0.0:7471").await?;
    /// let mut incoming = listener.incoming();
    /// while let Some(stream) = incoming.next().await {
    ///     println!("connected to {}", stream?.peer_addr()?);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn incoming(&self) -> Incoming<&Self> {
        Incoming::new(self)
    }

    /// Converts the listener into a [`futures` stream](futures_core::Stream) of the accepted
    /// connections. Some servers need such a stream, for example tonic's `serve_with_incoming`.
    /// Dropping the stream drops the listener.
    ///
    /// # Panics
    ///
    /// Polling the stream panics outside of a tokio runtime that has I/O enabled.
    #[must_use]
    pub fn into_incoming(self) -> Incoming<Self> {
        Incoming::new(self)
    }
}

impl<L: Borrow<StreamListener>> Incoming<L> {
    fn new(listener: L) -> Self {
        let waiter_id = listener.borrow().inner.new_waiter_id();
        Self {
            listener,
            waiter_id,
            over: false,
        }
    }

    /// Returns the listener.
    #[must_use]
    pub fn get_ref(&self) -> &StreamListener {
        self.listener.borrow()
    }
}

// No field of the type is pinned.
impl<L: Borrow<StreamListener>> Unpin for Incoming<L> {}

impl<L: Borrow<StreamListener>> futures_core::Stream for Incoming<L> {
    type Item = io::Result<Stream>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.over {
            return Poll::Ready(None);
        }
        let (listener, waiter_id) = (self.get_ref(), self.waiter_id);
        let accept = |cx: &mut Context<'_>| listener.inner.poll_accept_as(cx, waiter_id);
        let item = match ready!(cooperate(cx, accept)) {
            Ok(endpoint) => Some(listener.stream(endpoint).map(|(stream, _)| stream)),
            Err(error) => {
                self.over = true;
                match error {
                    Error::ListenerClosed => None,
                    error => Some(Err(error.into())),
                }
            }
        };
        Poll::Ready(item)
    }
}

impl<L: Borrow<StreamListener>> Drop for Incoming<L> {
    fn drop(&mut self) {
        self.get_ref().inner.unregister_waiter(self.waiter_id);
    }
}
