//! Listeners, and what they are asked for.

use std::{net::SocketAddr, sync::Arc, time::Instant};

use crossbeam_channel::Sender;

use super::{
    super::{
        Engine,
        backlog::Backlog,
        entry::{Role, set_ack_timeout},
        listening::{self, Listening},
    },
    Reactor,
    events::read_depth,
};
use crate::{
    cm::{CmEvent, CmId},
    config::Config,
    error::Error,
    listener::{Bound, Request},
    proto::{CloseReason, Connection, Reject},
    status::CmEventType,
};

impl Reactor {
    pub(super) fn listen(
        &mut self,
        address: SocketAddr,
        config: Config,
        requests: Sender<Request>,
        backlog: Arc<Backlog>,
        engine: Engine,
    ) -> Result<Bound, Error> {
        let key = self.new_key();
        let id = listening::bind(&self.channel, key, address, config.backlog)
            .map_err(|error| Error::from_bind(address, error))?;
        if !id.has_device() {
            Error::from_bound_to_none(address)?;
        }
        let local = id.local_addr().unwrap_or(address);
        log::info!("listener {key} on {local}");
        let listening = Listening::new(id, local, config, requests, backlog, engine);
        self.listeners.insert(key, listening);
        Ok(Bound { key, local })
    }

    /// What befalls a listener's device befalls the listener.
    pub(super) fn take_listener_event(&mut self, key: u64, event: &CmEvent) {
        let reason = match event.event() {
            CmEventType::DEVICE_REMOVAL => CloseReason::DeviceRemoved,
            CmEventType::ADDR_CHANGE => CloseReason::AddressChanged,
            other => return log::warn!("listener {key}: {other}: ignored"),
        };
        let Some(listener) = self.listeners.get_mut(&key) else {
            return;
        };
        let address = listener.local;
        if listener.config.rebind {
            log::warn!("listener {key} on {address}: {reason}; it is bound again when it can be");
            let at = Instant::now() + listener.lose();
            return self.timers.set(key, Some(at));
        }
        log::error!("listener {key} on {address} has ended: {reason}");
        listener
            .backlog
            .finish(Error::ListenerEnded { address, reason });
        // With its id, which the device waits for.
        self.listeners.remove(&key);
    }

    /// It may be time to bind a listener again.
    pub(super) fn listen_again(&mut self, key: u64) {
        if let Some(listener) = self.listeners.get_mut(&key)
            && let Some(wait) = listener.try_again(&self.channel, key)
        {
            self.timers.set(key, Some(Instant::now() + wait));
        }
    }

    pub(super) fn take_request(&mut self, mut id: CmId, event: &CmEvent) {
        let Some(listener) = event
            .listen_context()
            .and_then(|key| self.listeners.get(&key))
        else {
            log::debug!("engine: connect request for a listener that is gone");
            return;
        };
        let (config, requests, backlog, engine) = (
            listener.config.clone(),
            listener.requests.clone(),
            Arc::clone(&listener.backlog),
            listener.engine.clone(),
        );
        let Some(peer) = id.peer_addr() else {
            log::warn!("engine: connect request without an address");
            return;
        };
        let full = if requests.is_full() {
            Some(("backlog", config.backlog))
        } else if listener.half_open.count() >= config.half_open.into() {
            Some(("half_open", config.half_open))
        } else {
            None
        };
        if let Some((field, limit)) = full {
            self.tell_refusal(peer, &format_args!("{field} is {limit}, and as many wait"));
            return refuse(&mut id, &Reject::BUSY.emit(&[]));
        }
        let role = Role::Passive(Some(listener.half_open.clone()));
        let key = self.new_key();
        match Connection::requested(
            self.params(&config),
            event.private_data(),
            read_depth(event),
            Instant::now(),
        ) {
            Ok(conn) => {
                id.set_context(key);
                set_ack_timeout(&mut id, &config);
                let local = id.local_addr();
                let timeout = config.connect_timeout;
                let link = self.adopt(key, conn, peer, config, Some(id), role);
                self.drive(key);
                log::debug!(target: "rdmsg::cm", "{link}: {}", event.event());
                let request = Request::new(link, engine, local, timeout);
                backlog.bring_request(&requests, request);
            }
            Err(refusal) => {
                self.tell_refusal(peer, &refusal.reason);
                refuse(&mut id, &refusal.private_data);
            }
        }
    }

    fn tell_refusal(&mut self, peer: SocketAddr, reason: &dyn std::fmt::Display) {
        if let Some(others) = self.refusals.tell(Instant::now()) {
            log::warn!(
                "engine: rejected a connect request of {peer} ({others} others before it): {reason}"
            );
        }
    }
}

/// Rejects a request of which nothing was made.
fn refuse(id: &mut CmId, private_data: &[u8]) {
    if let Err(error) = id.reject(private_data) {
        log::debug!("engine: {error}");
    }
}
