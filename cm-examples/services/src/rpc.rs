//! A tarpc service that stores values by key, and the tarpc transports over an rdmsg endpoint.
#![expect(
    clippy::exhaustive_enums,
    reason = "tarpc's macro generates these enums"
)]

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use futures_util::StreamExt;
use rdmsg::tokio::Endpoint;
use tarpc::{
    context,
    server::{BaseChannel, Channel},
};

pub use self::transport::{ClientTransport, ServerTransport};

mod transport;

/// The maximum number of requests that run concurrently on one connection. Further requests wait in
/// the receive buffers of the connection.
const RUNNING: usize = 64;

/// A key-value store.
#[tarpc::service]
pub trait Store {
    /// Sets the value of a key, and returns the previous value.
    async fn set(key: String, value: String) -> Option<String>;
    /// Returns the value of a key.
    async fn get(key: String) -> Option<String>;
}

/// The values of all keys, shared by all connections.
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

/// Serves a connection until the peer closes it. Runs each request in its own task.
pub async fn serve(endpoint: Endpoint, values: Values) {
    let transport = ServerTransport::new(endpoint, RUNNING);
    let requests = BaseChannel::with_defaults(transport).execute(values.serve());
    requests
        .for_each(async |answering| drop(tokio::spawn(answering)))
        .await;
}
