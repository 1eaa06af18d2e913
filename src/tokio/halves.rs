use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use super::{endpoint::Endpoint, turn::cooperate};
use crate::{error::Error, link::Message, outgoing::Outgoing};

/// The receiving half of an [`Endpoint`], created by [`Endpoint::into_split`].
///
/// The half is a [`futures` stream](futures_core::Stream) of messages. The stream ends when the
/// peer has finished, or when the connection was closed cleanly. If the connection ends in another
/// way, the stream yields the error and then ends.
#[derive(Debug)]
pub struct ReceiveHalf {
    endpoint: Endpoint,
    /// True if the stream yields no more items, because it has ended or has yielded an error.
    over: bool,
}

/// The sending half of an [`Endpoint`], created by [`Endpoint::into_split`].
///
/// Dropping the half [finishes](Endpoint::finish) the sending direction.
#[derive(Debug)]
pub struct SendHalf {
    endpoint: Endpoint,
}

/// Splits an endpoint into halves.
impl Endpoint {
    /// Splits the endpoint into a receiving half and a sending half, for use by two tasks.
    ///
    /// The receiving half is a [`futures` stream](futures_core::Stream) of messages, and the
    /// sending half can be converted into a [`Sink`](futures_sink::Sink). Dropping the sending half
    /// [finishes](Self::finish) the sending direction.
    #[must_use]
    pub fn into_split(self) -> (ReceiveHalf, SendHalf) {
        let sending = SendHalf::new(self.clone());
        (ReceiveHalf::new(self), sending)
    }
}

impl ReceiveHalf {
    pub(super) fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            over: false,
        }
    }

    /// Receives the next message.
    ///
    /// # Errors
    ///
    /// The errors of [`Endpoint::recv`].
    pub async fn recv(&mut self) -> Result<Message, Error> {
        self.endpoint.recv().await
    }

    /// Returns the endpoint, for methods that concern both directions.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }
}

impl futures_core::Stream for ReceiveHalf {
    type Item = Result<Message, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.over {
            return Poll::Ready(None);
        }
        let inner = self.endpoint.get_ref();
        let received = ready!(cooperate(cx, |cx| inner.poll_recv(cx)));
        self.over = received.is_err();
        Poll::Ready(match received {
            Err(Error::PeerFinished) => None,
            Err(Error::Disconnected(reason)) if reason.is_clean() => None,
            received => Some(received),
        })
    }
}

impl SendHalf {
    pub(super) fn new(endpoint: Endpoint) -> Self {
        Self { endpoint }
    }

    /// Sends one message, waiting while the peer's window is full.
    ///
    /// # Errors
    ///
    /// The errors of [`Endpoint::send`].
    pub async fn send<'a>(&mut self, message: impl Into<Outgoing<'a>>) -> Result<(), Error> {
        self.endpoint.send(message).await
    }

    /// Returns the endpoint, for methods that concern both directions.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }
}

impl Drop for SendHalf {
    fn drop(&mut self) {
        if let Err(error) = self.endpoint.finish() {
            let name = self.endpoint.get_ref().name();
            debug!(Connection, "{name}: cannot finish sending: {error}");
        }
    }
}
