use std::{net::SocketAddr, sync::Arc};

use crossbeam_channel::bounded;

use crate::{
    addresses::ToAddresses,
    config::{Config, Label},
    engine::{Bound, Command, Engine, ListenerItem, ListenerName},
    error::Error,
    transport_choice::Transport,
};

/// A listener in the engine. Callers must end it with [`close`](Self::close) or
/// [`start_close`](Self::start_close).
pub(super) struct Socket {
    bound: Bound,
    engine: Engine,
}

impl Socket {
    /// Listens on the first address that can be bound.
    pub(super) fn bind(
        address: impl ToAddresses,
        config: &Config,
        engine: &Engine,
        listener_items: &ListenerItem,
    ) -> Result<Self, Error> {
        config.check()?;
        let addresses = address.to_addresses()?;
        let mut config = config.clone();
        config.transport = addresses.transport().unwrap_or(config.transport);
        let mut result = Err(Error::TimedOut);
        for address in addresses.as_slice() {
            result = Self::bind_one(*address, &config, engine, listener_items);
            if result.is_ok() {
                break;
            }
        }
        result
    }

    fn bind_one(
        address: SocketAddr,
        config: &Config,
        engine: &Engine,
        listener_items: &ListenerItem,
    ) -> Result<Self, Error> {
        let (reply, result) = bounded(1);
        let command = Command::Listen {
            address,
            config: config.clone(),
            listener_items: listener_items.clone(),
            engine: Arc::clone(engine.handle()),
            reply,
        };
        engine.send(command)?;
        let bound = result.recv().unwrap_or(Err(Error::EngineShutDown))?;
        Ok(Self {
            bound,
            engine: engine.clone(),
        })
    }

    /// Returns the listener's name for the log.
    pub(super) fn name(&self, label: &Label) -> String {
        ListenerName(self.bound.key, label, self.bound.local).to_string()
    }

    pub(super) fn local_addr(&self) -> SocketAddr {
        self.bound.local
    }

    pub(super) fn transports(&self) -> &'static [Transport] {
        self.bound.transports
    }

    /// Stops listening. The address is free when this method returns.
    pub(super) fn close(&self) {
        let (reply, done) = bounded(1);
        let key = self.bound.key;
        if self.engine.send(Command::Unlisten { key, reply }).is_ok() {
            // The receive fails only if the engine ends before it replies. The listener has then
            // ended, too.
            let _ = done.recv();
        }
    }

    /// Starts to close the listener, without waiting. The address becomes free shortly afterwards.
    pub(super) fn start_close(&self) {
        // The reply is ignored.
        let (reply, _) = bounded(1);
        let key = self.bound.key;
        let _ = self.engine.send(Command::Unlisten { key, reply });
    }
}
