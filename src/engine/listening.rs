//! The state of a listener in the engine's thread.

use std::{fmt, net::SocketAddr, sync::Arc, time::Duration};

use super::{
    command::{Handle, ListenerItem},
    local_listeners::Claim,
};
use crate::{
    addresses::Shown,
    config::{Config, Label},
    error::Error,
    proto::CloseReason,
    tally::{Refusal, count_refusal},
    transport::{ConnectionManager, ListenId},
    transport_choice::Transport,
};

/// The delay before the first attempt to bind a listener again after it lost its device. For a new
/// listener whose address is in use, `listener/builder.rs` defines other delays.
const FIRST_WAIT: Duration = Duration::from_millis(100);
/// The longest delay between two attempts to bind a listener that lost its device.
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// A listener. Dropping this value closes the listener. The queue of the listener ends when all
/// connections that were accepted for the listener are established or have failed.
pub(super) struct Listening {
    pub(super) local: SocketAddr,
    pub(super) config: Arc<Config>,
    pub(super) listener_items: ListenerItem,
    pub(super) engine: Arc<Handle>,
    /// Counts the connections of the listener that are not established yet.
    pub(super) half_open: HalfOpen,
    /// The binding over RDMA, if there is one.
    rdma: Option<RdmaBinding>,
    /// The binding over TCP or in memory, if there is one.
    tcp: Option<ListenId>,
    /// The address claim of an in-memory listener.
    pub(super) claim: Option<Claim>,
}

/// Formats a listener for the log: its number, its label and its address.
pub(crate) struct ListenerName<'a>(pub(crate) u64, pub(crate) &'a Label, pub(crate) SocketAddr);

impl fmt::Display for ListenerName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(key, label, local) = self;
        write!(f, "listener {key}{label} on {}", Shown(*local))
    }
}

/// The binding of a listener over RDMA.
enum RdmaBinding {
    /// This id is bound and listening.
    Bound { _id: ListenId },
    /// The listener's device or address was removed. `wait` is the delay before the next attempt to
    /// bind.
    Lost { wait: Duration },
}

/// The in-memory binding of an ended listener. It is kept so that the listener's connections can
/// resume.
pub(super) struct ClosedBinding {
    _id: Option<ListenId>,
    _claim: Option<Claim>,
}

/// Counts a listener's connections that are not established yet. Each of these connections owns a
/// clone.
#[derive(Clone, Default)]
pub(super) struct HalfOpen(Arc<()>);

impl HalfOpen {
    /// Returns the number of connections that own a clone. The listener owns the original.
    pub(super) fn count(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }

    /// Returns true if `other` belongs to the same listener.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Listening {
    pub(super) fn new(
        (rdma, tcp): (Option<ListenId>, Option<ListenId>),
        local: SocketAddr,
        mut config: Config,
        listener_items: ListenerItem,
        engine: Arc<Handle>,
    ) -> Self {
        // Connections share this configuration, and may outlive the listener. They must not keep
        // the inherited socket open.
        config.listening.inherited = None;
        Self {
            local,
            config: Arc::new(config),
            listener_items,
            engine,
            half_open: HalfOpen::default(),
            rdma: rdma.map(|id| RdmaBinding::Bound { _id: id }),
            tcp,
            claim: None,
        }
    }

    /// Returns a value that formats the listener's name for the log.
    pub(super) fn name(&self, key: u64) -> ListenerName<'_> {
        ListenerName(key, &self.config.label, self.local)
    }

    /// Removes the in-memory binding from the listener.
    pub(super) fn take_binding(&mut self) -> ClosedBinding {
        ClosedBinding {
            _id: self.tcp.take(),
            _claim: self.claim.take(),
        }
    }

    /// Returns true if the listener survives the removal of its device, because the engine will
    /// bind it again or because it also listens over TCP.
    pub(super) fn outlives_device(&self) -> bool {
        self.config.listening.rebind || self.tcp.is_some()
    }

    /// Returns whether the backlog is full.
    pub(super) fn is_full(&self) -> bool {
        self.listener_items.waiting() >= self.config.listening.backlog.into()
    }

    /// Drops the RDMA binding after the listener's device or address was removed, so that the
    /// kernel can complete the removal. Returns the delay before the first attempt to bind again.
    pub(super) fn lose(&mut self) -> Duration {
        self.rdma = Some(RdmaBinding::Lost { wait: FIRST_WAIT });
        FIRST_WAIT
    }

    /// Tries to bind a listener that lost its device. If the attempt fails, returns the delay
    /// before the next attempt.
    pub(super) fn try_again(&mut self, manager: &ConnectionManager, key: u64) -> Option<Duration> {
        let Some(RdmaBinding::Lost { wait }) = &mut self.rdma else {
            return None;
        };
        *wait = (*wait * 2).min(LONGEST_WAIT);
        let wait = *wait;
        match ListenId::bind(Transport::Rdma, manager, key, self.local, &self.config) {
            // If the id has no device, no device currently has the address.
            Ok(id) if id.has_device() => {
                info!(Listener, "{}: listens over RDMA again", self.name(key));
                self.rdma = Some(RdmaBinding::Bound { _id: id });
                return None;
            }
            Ok(_) => debug!(
                Listener,
                "{}: no RDMA device has the listener's address yet; retrying the bind in {wait:?}",
                self.name(key)
            ),
            Err(no) => debug!(
                Listener,
                "{}: cannot bind over RDMA yet: {}; retrying in {wait:?}",
                self.name(key),
                no.error
            ),
        }
        Some(wait)
    }
}

impl Listening {
    /// Ends the listener and its queue for this reason.
    pub(super) fn end(self, reason: CloseReason) {
        let address = self.local;
        self.listener_items
            .finish(Error::ListenerEnded { address, reason });
    }

    /// Ends the listener and its queue because the engine was shut down.
    pub(super) fn shut_down(self) {
        self.listener_items.finish(Error::EngineShutDown);
    }
}

/// Counts and logs a rejected request.
pub(super) fn report_refusal(refusal: Refusal, peer: SocketAddr, reason: &dyn fmt::Display) {
    count_refusal(refusal);
    warn_sparsely!(
        Listener,
        "engine: rejected a connect request from {}: {reason}",
        Shown(peer)
    );
}
