//! A tarpc service that stores values by their keys, and a tarpc transport over an endpoint of
//! rdmsg.
//!
//! The protocol needs no framing, because each request and each response is one message. serde_json
//! encodes the messages.
#![expect(
    clippy::exhaustive_enums,
    reason = "tarpc's macro generates these enums"
)]

use std::{
    collections::HashMap,
    io,
    marker::PhantomData,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
};

use futures_util::{Sink, Stream, StreamExt};
use rdmsg::tokio::{Endpoint, MessageSink, ReceiveHalf};
use serde::{Serialize, de::DeserializeOwned};
use tarpc::{
    context,
    server::{BaseChannel, Channel},
};

/// A store of values by their keys.
#[tarpc::service]
pub trait Store {
    /// Sets the value of a key, and returns the previous value.
    async fn set(key: String, value: String) -> Option<String>;
    /// Returns the value of a key.
    async fn get(key: String) -> Option<String>;
}

/// The values of all keys. All connections share them.
#[derive(Clone, Debug, Default)]
pub struct Values(Arc<Mutex<HashMap<String, String>>>);

impl Store for Values {
    async fn set(self, _: context::Context, key: String, value: String) -> Option<String> {
        let mut values = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        values.insert(key, value)
    }

    async fn get(self, _: context::Context, key: String) -> Option<String> {
        let values = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        values.get(&key).cloned()
    }
}

/// Serves a connection until the peer closes it. Each request runs in a task of its own.
pub async fn serve(endpoint: Endpoint, values: Values) {
    let requests = BaseChannel::with_defaults(Transport::new(endpoint)).execute(values.serve());
    requests
        .for_each(async |answering| drop(tokio::spawn(answering)))
        .await;
}

/// A tarpc transport that sends values of type `S` and receives values of type `R`.
#[derive(Debug)]
pub struct Transport<S, R> {
    receive: ReceiveHalf,
    send: MessageSink<Vec<u8>>,
    values: PhantomData<fn(S) -> R>,
}

impl<S, R> Transport<S, R> {
    /// Creates a transport over this endpoint.
    #[must_use]
    pub fn new(endpoint: Endpoint) -> Self {
        let (receive, send) = endpoint.into_split();
        Self {
            receive,
            send: send.into_sink(),
            values: PhantomData,
        }
    }

    fn send(self: Pin<&mut Self>) -> Pin<&mut MessageSink<Vec<u8>>> {
        Pin::new(&mut self.get_mut().send)
    }
}

impl<S, R: DeserializeOwned> Stream for Transport<S, R> {
    type Item = io::Result<R>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<R>>> {
        let received = ready!(self.receive.poll_next_unpin(cx));
        Poll::Ready(received.map(|message| Ok(serde_json::from_slice(&message?)?)))
    }
}

impl<S: Serialize, R> Sink<S> for Transport<S, R> {
    type Error = io::Error;

    fn poll_ready(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.send().poll_ready(cx).map_err(io::Error::from)
    }

    fn start_send(self: Pin<&mut Self>, value: S) -> io::Result<()> {
        Ok(self.send().start_send(serde_json::to_vec(&value)?)?)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.send().poll_flush(cx).map_err(io::Error::from)
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.send().poll_close(cx).map_err(io::Error::from)
    }
}
