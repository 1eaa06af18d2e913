use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use super::{halves::SendHalf, turn::cooperate};
use crate::error::Error;

/// A [`Sink`](futures_sink::Sink) whose items are messages, created by [`SendHalf::into_sink`].
///
/// The sink stores at most one item. A flush passes this item to the connection, and does not wait
/// until the item arrives at the peer. To wait, use [`Endpoint::flush`](super::Endpoint::flush).
/// Closing the sink passes a stored item to the connection, and then
/// [finishes](super::Endpoint::finish) the sending direction. Dropping the sink drops a stored
/// item, and finishes the sending direction.
#[derive(Debug)]
pub struct MessageSink<T> {
    half: SendHalf,
    held: Option<T>,
}

impl SendHalf {
    /// Converts this half into a [`Sink`](futures_sink::Sink) of messages.
    #[must_use]
    pub fn into_sink<T>(self) -> MessageSink<T> {
        MessageSink::new(self)
    }
}

impl<T> MessageSink<T> {
    pub(super) fn new(half: SendHalf) -> Self {
        Self { half, held: None }
    }

    /// Returns the half from which the sink was created.
    #[must_use]
    pub fn get_ref(&self) -> &SendHalf {
        &self.half
    }
}

impl<T: AsRef<[u8]>> MessageSink<T> {
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        if let Some(message) = &self.held {
            let inner = self.half.endpoint().get_ref();
            let sent = ready!(cooperate(cx, |cx| inner.poll_send(cx, message.as_ref())));
            self.held = None;
            sent?;
        }
        Poll::Ready(Ok(()))
    }
}

// No field of the type is pinned.
impl<T> Unpin for MessageSink<T> {}

impl<T: AsRef<[u8]>> futures_sink::Sink<T> for MessageSink<T> {
    type Error = Error;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.poll_send(cx)
    }

    fn start_send(mut self: Pin<&mut Self>, item: T) -> Result<(), Error> {
        debug_assert!(
            self.held.is_none(),
            "`poll_ready` must return `Ready` before each `start_send`"
        );
        self.held = Some(item);
        Ok(())
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.poll_send(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        ready!(self.poll_send(cx))?;
        Poll::Ready(self.half.endpoint().finish())
    }
}
