//! A tarpc service that stores values by their keys, and tarpc transports over an endpoint of
//! rdmsg.
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

/// The number of requests of a connection that run at a time. Further requests wait in the
/// connection's window.
const RUNNING: usize = 64;

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
    let transport = ServerTransport::new(endpoint, RUNNING);
    let requests = BaseChannel::with_defaults(transport).execute(values.serve());
    requests
        .for_each(async |answering| drop(tokio::spawn(answering)))
        .await;
}
