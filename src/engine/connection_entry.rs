//! The engine's entry for a connection: the state with which the engine's thread establishes and
//! ends the connection.

use std::{
    mem,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    command::{Established, Handle, ListenerItem, Reply, Request},
    destroyers::Destroyers,
    listening::{HalfOpen, report_refusal},
};
use crate::{
    config::Config,
    error::Error,
    link::{Inbox, Inflow, Link, Owner, PeerPath, attachment},
    poll::{Epolls, Registration},
    proto::{
        CloseReason, CmCall, CmOp, Host, REPLY_DATA_MAX, SESSION_ID_LEN, SessionId, Statistics,
    },
    status::OsError,
    tally::Refusal,
    transport::{Budget, ConnectRequest, ConnectionId, ConnectionManager},
};

/// The engine's entry for a connection. Only the engine's thread accesses the fields. They are
/// dropped in the order of their declaration.
pub(super) struct Entry {
    pub(super) link: Arc<Link>,
    pub(super) id: ConnectionId,
    /// The configuration, which all connections of a listener share.
    pub(super) config: Arc<Config>,
    pub(super) role: Role,
    /// The recipient of the result, which is the established connection or the error.
    pub(super) reply: Option<Reply>,
    /// The parts of a request whose private data have not arrived completely.
    pub(super) incoming: Option<Box<IncomingRequest>>,
    /// This side's request, if the engine is to repeat it after a refusal.
    pub(super) repeated: Option<Box<OwnRequest>>,
    /// The receiver of the connection's completions, until an endpoint takes ownership of it.
    pub(super) receiver: Option<Inbox>,
    /// The unread bytes of a stream.
    pub(super) inflow: Option<Arc<Inflow>>,
    pub(super) peer: SocketAddr,
    /// The peer's request to resume the session. The request waits until the previous connection is
    /// released.
    pub(super) asked: Option<Box<ConnectRequest>>,
    /// The ID of the session, if this host accepted the connection.
    pub(super) session: Option<SessionId>,
    pub(super) destroyers: Destroyers,
}

/// A request that is not in its listener's queue yet.
pub(super) struct IncomingRequest {
    pub(super) listener_items: ListenerItem,
    pub(super) engine: Arc<Handle>,
    pub(super) local: SocketAddr,
    /// The time within which the program must accept the request.
    pub(super) timeout: Duration,
}

/// A connect request of this side.
pub(super) struct OwnRequest {
    /// Other paths over which the session can resume.
    pub(super) others: Vec<PeerPath>,
    /// The private data.
    pub(super) data: Vec<u8>,
    /// The time at which the engine stops repeating the request.
    pub(super) deadline: Instant,
    /// The number of times that the peer has refused the request after this side had sent the
    /// private data in a frame.
    pub(super) refused: u32,
}

/// The role of this side in the connection.
pub(super) enum Role {
    /// This side connects.
    Active,
    /// This side makes a trial connection over RDMA, to test RDMA for a session. The field is the
    /// key of the session's own connection.
    TryRdma(u64),
    /// The peer requested the connection. The connection counts as half-open until it is
    /// established.
    Passive(Option<HalfOpen>),
}

impl Role {
    /// Returns whether this side connects.
    pub(super) fn is_active(&self) -> bool {
        self.choose(true, false)
    }

    /// Returns `active` or `passive`, according to the role.
    pub(super) fn choose<T>(&self, active: T, passive: T) -> T {
        match self {
            Self::Active | Self::TryRdma(_) => active,
            Self::Passive(_) => passive,
        }
    }
}

impl Entry {
    /// Destroys the transport and the id. The connection can then use others. If the connection
    /// uses shared receives, they are free for other connections when this method returns.
    pub(super) fn discard_transport(&mut self) {
        self.link.end_watch();
        let transport = attachment::take(&self.link);
        let id = self.id.discard();
        // Only RDMA has ids to destroy. Without an id, there is no RDMA transport either.
        let has_id = id.is_some();
        let destroy = || {
            transport.destroy();
            drop(id);
        };
        if has_id {
            // The kernel may wait for the network, and other connections must not wait for that.
            self.destroyers.run(destroy);
        } else {
            destroy();
        }
    }

    /// If a caller waits for the connection, sends it the reason why the connection failed.
    pub(super) fn report_failure(&mut self, reason: CloseReason) {
        if let Some(reply) = self.reply.take() {
            let error = self
                .id
                .take_problem()
                .unwrap_or_else(|| Error::from_connect(self.peer, self.id.transport(), reason));
            reply.send(Err(error));
        }
    }

    /// Executes one operation of the connection manager that the state machine requested.
    pub(super) fn execute(
        &mut self,
        op: CmOp,
        manager: &mut ConnectionManager,
        epolls: &Arc<Epolls>,
        budget: &Arc<Budget>,
    ) -> Result<(), OsError> {
        let id = &mut self.id;
        match op {
            // The caller handles this operation.
            CmOp::AwaitSetupSlot => Ok(()),
            CmOp::CreateId => {
                id.create_id(manager, self.link.key, self.peer, &self.config)?;
                id.set_ack_timeout(self.link.key, &self.config);
                Ok(())
            }
            CmOp::ResolveAddr { timeout } => id.resolve_addr(self.peer, timeout),
            CmOp::CreateTransport => self.create_transport(manager, epolls, budget),
            CmOp::ResolveRoute { timeout } => id.resolve_route(timeout),
            CmOp::Connect { private_data } => id.connect(&private_data, &self.config),
            CmOp::Accept { private_data } => id.accept(&private_data, &self.config),
            CmOp::Reject { private_data } => id.reject(&private_data),
            CmOp::SetMinRnrTimer => match &self.link.core().queues {
                Some(queues) => queues.set_min_rnr_timer(),
                None => Ok(()),
            },
            CmOp::Disconnect => id.disconnect(),
            CmOp::Discard => {
                self.discard_transport();
                Ok(())
            }
        }
    }

    fn create_transport(
        &mut self,
        manager: &mut ConnectionManager,
        epolls: &Arc<Epolls>,
        budget: &Arc<Budget>,
    ) -> Result<(), OsError> {
        self.link.poller.prepare(self.id.take_reserve())?;
        // A thread that polled the session's previous connection may still own the poller. Make the
        // engine the owner, so that the engine polls the new connection.
        self.link.poller.expire();
        let key = self.link.key;
        let client = budget.client(self.link.notices(), key, Host::of(self.peer.ip()));
        let transport = self
            .id
            .create_transport(manager, key, &self.config, client)?;
        let events = transport.poll_side.events().cloned();
        let traits = transport.allocator.domain().traits();
        attachment::install(&self.link, transport);
        if let Some(events) = events {
            let registration = Registration::new(Arc::clone(epolls), events, key)?;
            self.link.poller.register(registration);
        }
        self.link
            .in_engine(|core| core.conn.handle_transport(traits));
        Ok(())
    }

    /// Returns whether an accept step failed because the peer has withdrawn its request.
    pub(super) fn is_withdrawn(&mut self, call: CmCall, error: OsError) -> bool {
        let accepting = matches!(call, CmCall::CreateTransport | CmCall::Accept);
        match self.role {
            Role::Passive(_) if accepting => self.id.is_withdrawn(error),
            Role::Active | Role::TryRdma(_) | Role::Passive(_) => false,
        }
    }

    /// Returns whether the connection was accepted for this listener and is not established yet.
    pub(super) fn is_accepted_for(&self, listener: &HalfOpen) -> bool {
        match (&self.role, &self.reply) {
            (Role::Passive(Some(half_open)), Some(Reply::Backlog(_))) => half_open.is(listener),
            _ => false,
        }
    }

    /// Returns whether this entry is a connection request to `listener` that still waits for its
    /// private data.
    pub(super) fn is_incoming_for(&self, listener: &HalfOpen) -> bool {
        match (&self.role, &self.incoming) {
            (Role::Passive(Some(half_open)), Some(_)) => half_open.is(listener),
            _ => false,
        }
    }

    /// If the private data of the request have just arrived completely, passes the request to its
    /// listener.
    pub(super) fn report_requested(&mut self) {
        if mem::take(&mut self.link.core().requested) {
            self.pass_to_listener();
        }
    }

    /// Passes the request to its listener, or rejects the request if the backlog is full or the
    /// listener is closed.
    fn pass_to_listener(&mut self) {
        let Some(incoming) = self.incoming.take() else {
            // The refusal was counted when the listener was closed.
            return self.link.reject_untaken();
        };
        let limit = self.config.listening.backlog;
        if incoming.listener_items.waiting() >= limit.into() {
            let reason = format_args!("the listener has reached its backlog limit of {limit}");
            report_refusal(Refusal::Backlog, self.peer, &reason);
            return self.link.reject_untaken();
        }
        match incoming.listener_items {
            ListenerItem::Connections(queue) => {
                self.reply = Some(Reply::Backlog(queue));
                self.link
                    .in_engine(|core| core.conn.accept(&[], Instant::now()));
            }
            ListenerItem::Requests(queue) => {
                let (link, engine) = (Arc::clone(&self.link), incoming.engine);
                queue.bring(Request::new(link, engine, incoming.local, incoming.timeout));
            }
        }
    }

    /// Asks the peer of an accepted connection to leave. Returns true if the notice was queued; the
    /// caller must then drive the connection.
    pub(super) fn ask_to_leave(&self) -> bool {
        !self.role.is_active() && self.link.in_engine(|core| core.ask_to_leave()).is_ok()
    }

    /// If `leaves` is true, asks the peer to leave. Then passes the established connection to its
    /// caller or listener. If the caller no longer waits, the connection is dropped and thereby
    /// closed. Later calls for the same connection have no further effect.
    pub(super) fn report_established(&mut self, leaves: bool) {
        match &mut self.role {
            Role::Active => {}
            // The peer must refuse the request of a trial, but has accepted this one. The trial is
            // over, so end its connection.
            Role::TryRdma(_) => self.link.abort(0),
            Role::Passive(half_open) => *half_open = None,
        }
        let (Some(reply), Some(completions)) = (self.reply.take(), self.receiver.take()) else {
            return;
        };
        if leaves {
            // This has no effect on a stream, whose peer cannot be asked to leave.
            self.ask_to_leave();
        }
        info!(
            Connection,
            "{}: established over {}",
            self.link,
            self.id.transport()
        );
        let resumes = self.link.negotiated().is_some_and(|both| both.resumes);
        if !resumes && !self.config.resume.is_zero() {
            info!(
                Connection,
                "{}: the session cannot resume if the connection is lost; to allow it, set \
                 `Config::resume` on both sides and accept with at most {} bytes of private data",
                self.link,
                REPLY_DATA_MAX - SESSION_ID_LEN
            );
        }
        reply.send(Ok(Established {
            link: Owner::new(Arc::clone(&self.link)),
            completions,
            inflow: self.inflow.take(),
        }));
    }

    /// Logs that a connection has ended, if messages that this side sent may be lost. Called only
    /// if no handle will report this loss.
    pub(super) fn report_undelivered(&self, reason: &CloseReason) {
        let delivered = self.link.ended().is_some_and(|ended| ended.delivered);
        let Statistics {
            messages_sent,
            operations,
            ..
        } = self.link.statistics();
        if delivered || messages_sent + operations == 0 {
            return;
        }
        let link = &self.link;
        match reason {
            // An application that aborts a connection does not expect its messages to arrive.
            CloseReason::LocallyAborted => {}
            CloseReason::LocallyClosed => warn_sparsely!(
                Connection,
                "{link}: closed without confirmation, sent messages may be lost: the peer did not \
                 confirm them within close_timeout ({:?})",
                self.config.close_timeout
            ),
            reason => {
                warn_sparsely!(
                    Connection,
                    "{link}: ended, and sent messages may be lost: {reason}"
                )
            }
        }
    }
}
