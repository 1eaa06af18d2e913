//! Establishes outgoing connections, and repeats requests that the peer refuses.

use std::{sync::Arc, time::Instant};

use super::{Reactor, new_key, random};
use crate::{
    config::Config,
    engine::{
        command::Reply,
        connection_entry::{Entry, OwnRequest, Role},
    },
    error::Error,
    link::PeerPath,
    proto::{CloseReason, Connection},
    transport::ConnectionId,
    transport_choice::Transport,
};

impl Reactor {
    /// Starts a connection attempt. If the peer has already refused the request, `refusal` is the
    /// reason for the last refusal, and the attempt starts after a wait.
    pub(super) fn connect(
        &mut self,
        path: PeerPath,
        config: Arc<Config>,
        request: Box<OwnRequest>,
        refusal: Option<CloseReason>,
        reply: Reply,
    ) {
        let key = new_key();
        if !reply.begin(key) {
            return;
        }
        let id = match ConnectionId::new(path.transport, &self.manager, key) {
            Ok(id) => id,
            Err(error) => return reply.send(Err(Error::from_os(error))),
        };
        let now = Instant::now();
        let mut params = self.params(key, &config, path.transport);
        // The attempt gets the time that remains until the deadline.
        params.connect_timeout = request.deadline.saturating_duration_since(now);
        // A task's attempt over the in-memory transport is not retried, because an engine without a
        // thread has no timer that could wake the task for the next attempt.
        params.retry_refused &=
            path.transport != Transport::Memory || !matches!(reply, Reply::Task(_));
        let retries = params.retry_refused;
        let data = &request.data;
        let conn = match refusal {
            None => Connection::connect(params, random(), data, now),
            Some(reason) => {
                let refused = (request.refused, reason);
                Connection::connect_again(params, random(), data, refused, now)
            }
        };
        let is_repeated = retries && conn.has_long_request();
        let link = self.adopt(key, conn, path.address, config, id, Role::Active);
        link.core().recovery().add_paths(request.others.clone());
        if let Some(entry) = self.links.get_mut(&key) {
            entry.reply = Some(reply);
            entry.repeated = is_repeated.then_some(request);
        }
        self.drive(key);
    }

    /// Removes the request of an ended connection from its entry. Returns the request if the engine
    /// has to repeat the request. The engine repeats only requests with private data in a separate
    /// frame: the state machine itself retries all other requests.
    pub(super) fn request_to_repeat(
        &self,
        entry: &mut Entry,
        reason: &CloseReason,
    ) -> Option<Box<OwnRequest>> {
        let request = entry.repeated.take()?;
        let may = entry.link.core().conn.may_connect_again(reason);
        let has_time = Instant::now() < request.deadline;
        (may && has_time && entry.reply.is_some() && !self.refusing).then_some(request)
    }

    /// Repeats the request of an ended connection. `reason` is the reason for the refusal.
    pub(super) fn connect_again(
        &mut self,
        entry: &mut Entry,
        mut request: Box<OwnRequest>,
        reason: CloseReason,
    ) {
        let Some(reply) = entry.reply.take() else {
            return;
        };
        debug!(
            Connection,
            "{}: the peer refused the request: {reason}; connecting again", entry.link
        );
        request.refused += 1;
        let path = PeerPath::new(entry.peer, entry.id.transport());
        let config = Arc::clone(&entry.config);
        self.connect(path, config, request, Some(reason), reply);
    }

    /// Cancels a connection attempt. Does nothing if the caller already has the connection.
    pub(super) fn give_up(&mut self, key: u64) {
        let Some(entry) = self.links.get_mut(&key) else {
            return;
        };
        if !entry.role.is_active() {
            // If the acceptance was already sent, the peer may consider the connection established.
            // The rejection then has no effect, and the connection closes when its unclaimed result
            // is dropped.
            self.reject(key, &[]);
        } else if entry.reply.take().is_some() {
            entry.link.in_engine(|core| core.conn.close(Instant::now()));
            self.drive(key);
        }
    }
}
