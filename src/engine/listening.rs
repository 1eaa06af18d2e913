//! A listener's state in the engine's thread.

use std::{fmt, net::SocketAddr, sync::Arc, time::Duration};

use super::{
    command::{Handle, ListenerItem},
    names::Claim,
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

/// The wait before a listener that lost its device is first bound again, and the longest wait
/// between two tries. `listener/builder.rs` waits for an address that is in use.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// A listener. Its drop closes it: the queue ends as closed when the last connection that was
/// accepted for the listener is established or has failed.
pub(super) struct Listening {
    pub(super) local: SocketAddr,
    pub(super) config: Arc<Config>,
    pub(super) listener_items: ListenerItem,
    pub(super) engine: Arc<Handle>,
    /// Counts the requests whose connections are not established yet.
    pub(super) half_open: HalfOpen,
    /// The listener over RDMA, if there is one.
    rdma: Option<Place>,
    /// The listener over TCP, or within the process, if there is one.
    tcp: Option<ListenId>,
    /// The claim of a listener within the process.
    pub(super) claim: Option<Claim>,
}

/// The name of a listener in the log: its number, its label and its address.
pub(crate) struct ListenerName<'a>(pub(crate) u64, pub(crate) &'a Label, pub(crate) SocketAddr);

impl fmt::Display for ListenerName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(key, label, local) = self;
        write!(f, "listener {key}{label} on {}", Shown(*local))
    }
}

/// The binding of a listener.
enum Place {
    /// The listener listens on this id.
    Bound { _id: ListenId },
    /// The listener's device or address was removed. `wait` is the time between the last try to
    /// bind and the next one.
    Lost { wait: Duration },
}

/// The binding within the process of a listener that has ended. Its connections can still resume.
pub(super) struct ClosedPlace {
    _id: Option<ListenId>,
    _claim: Option<Claim>,
}

/// Counts a listener's connections that are not established yet: each of them has a clone.
#[derive(Clone, Default)]
pub(super) struct HalfOpen(Arc<()>);

impl HalfOpen {
    /// Returns the number of clones, except the listener's own.
    pub(super) fn count(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }

    /// Whether both belong to the same listener.
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
        // Connections have copies of the configuration, and must not keep the socket open.
        config.listening.inherited = None;
        Self {
            local,
            config: Arc::new(config),
            listener_items,
            engine,
            half_open: HalfOpen::default(),
            rdma: rdma.map(|id| Place::Bound { _id: id }),
            tcp,
            claim: None,
        }
    }

    /// Returns the listener's name for the log.
    pub(super) fn name(&self, key: u64) -> ListenerName<'_> {
        ListenerName(key, &self.config.label, self.local)
    }

    /// Takes the binding within the process.
    pub(super) fn take_place(&mut self) -> ClosedPlace {
        ClosedPlace {
            _id: self.tcp.take(),
            _claim: self.claim.take(),
        }
    }

    /// Whether the listener continues when its device is removed: the engine binds it again, or it
    /// listens over TCP as well.
    pub(super) fn outlives_device(&self) -> bool {
        self.config.listening.rebind || self.tcp.is_some()
    }

    /// Whether the backlog is full.
    pub(super) fn is_full(&self) -> bool {
        self.listener_items.waiting() >= self.config.listening.backlog.into()
    }

    /// Drops the id of a removed device or address. The removal of the device waits for that.
    /// Returns the wait before the next try.
    pub(super) fn lose(&mut self) -> Duration {
        self.rdma = Some(Place::Lost { wait: FIRST_WAIT });
        FIRST_WAIT
    }

    /// Binds a listener again that lost its device. Returns the wait before the next try.
    pub(super) fn try_again(&mut self, manager: &ConnectionManager, key: u64) -> Option<Duration> {
        let Some(Place::Lost { wait }) = &mut self.rdma else {
            return None;
        };
        *wait = (*wait * 2).min(LONGEST_WAIT);
        let wait = *wait;
        match ListenId::bind(Transport::Rdma, manager, key, self.local, &self.config) {
            // An id without a device means that at present no device has the address.
            Ok(id) if id.has_device() => {
                info!(Listener, "{}: listens over RDMA again", self.name(key));
                self.rdma = Some(Place::Bound { _id: id });
                return None;
            }
            Ok(_) => debug!(
                Listener,
                "{}: no RDMA device has the listener's address yet; retries the bind in {wait:?}",
                self.name(key)
            ),
            Err(no) => debug!(
                Listener,
                "{}: cannot bind yet; retries in {wait:?}: {}",
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

    /// Ends the listener and its queue, because the engine ends.
    pub(super) fn shut_down(self) {
        self.listener_items.finish(Error::EngineShutDown);
    }
}

/// Counts and logs a request that was rejected.
pub(super) fn report_refusal(refusal: Refusal, peer: SocketAddr, reason: &dyn fmt::Display) {
    count_refusal(refusal);
    warn_sparsely!(
        Listener,
        "engine: rejected a connect request from {}: {reason}",
        Shown(peer)
    );
}
