use std::{
    collections::BTreeMap,
    fmt,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use crate::{
    engine::{DeviceEvents, device_events},
    link::Link,
    os::{PerProcess, lock},
    proto::Statistics,
    transport_choice::Transport,
};

/// The statistics of the connections of this process, at one moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Snapshot {
    /// The connections that have handles now.
    pub connections: Vec<ConnectionSnapshot>,
    /// The number of connections whose last handle was dropped.
    pub ended: u64,
    /// The sum of the statistics of all connections, past and present.
    pub all: Statistics,
    /// The events that devices reported, by device and event: lost links and failures.
    pub device_events: Vec<DeviceEvents>,
}

/// A connection at one moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConnectionSnapshot {
    /// Its number in this process, which no other connection ever has.
    pub id: u64,
    /// The peer's address.
    pub peer: SocketAddr,
    /// This side's address.
    pub local: SocketAddr,
    /// The transport.
    pub transport: Transport,
    /// The time since it was established.
    pub age: Duration,
    /// Whether it has ended, and only its handles are left.
    pub is_closed: bool,
    /// Whether it is lost and its session waits for the next connection: see
    /// [`Config::resume`](crate::Config::resume).
    pub is_suspended: bool,
    /// The statistics of the connection.
    pub statistics: Statistics,
}

/// Whether connections are kept track of.
static ENABLED: AtomicBool = AtomicBool::new(false);

static REGISTRY: PerProcess<Mutex<Registry>> = PerProcess::new(|| Mutex::new(Registry::new()));

/// The connections of this process that have handles, and the sum of earlier ones.
struct Registry {
    next: u64,
    connections: BTreeMap<u64, Entry>,
    ended: u64,
    sum_of_ended: Statistics,
}

struct Entry {
    link: Arc<Link>,
    since: Instant,
}

/// Keeps a connection in the registry. It leaves when this is dropped.
pub(crate) struct Registered(Option<u64>);

/// Starts to keep track of connections.
///
/// Earlier connections are not listed. [`Export`](super::Export) does the same.
pub fn enable() {
    ENABLED.store(true, Ordering::Relaxed);
}

/// Returns the statistics of the connections of this process since [`enable`].
#[must_use]
pub fn snapshot() -> Snapshot {
    lock(REGISTRY.get()).snapshot()
}

impl Registry {
    const fn new() -> Self {
        Self {
            next: 1,
            connections: BTreeMap::new(),
            ended: 0,
            sum_of_ended: Statistics::ZERO,
        }
    }

    fn snapshot(&self) -> Snapshot {
        let mut all = self.sum_of_ended;
        let connections = self.connections.iter().map(|(id, entry)| {
            let statistics = entry.link.statistics();
            all += statistics;
            ConnectionSnapshot {
                id: *id,
                peer: entry.link.peer_addr(),
                local: entry.link.local_addr(),
                transport: entry.link.transport(),
                age: entry.since.elapsed(),
                is_closed: entry.link.ended().is_some(),
                is_suspended: entry.link.is_suspended(),
                statistics,
            }
        });
        let connections = connections.collect();
        Snapshot {
            connections,
            ended: self.ended,
            all,
            device_events: device_events(),
        }
    }
}

impl Registered {
    /// Returns the place of a connection that is not counted.
    pub(crate) fn nowhere() -> Self {
        Self(None)
    }

    /// Enters a new connection, if connections are kept track of.
    pub(crate) fn enter(link: &Arc<Link>) -> Self {
        if !ENABLED.load(Ordering::Relaxed) {
            return Self(None);
        }
        let mut registry = lock(REGISTRY.get());
        let id = registry.next;
        registry.next += 1;
        let entry = Entry {
            link: Arc::clone(link),
            since: Instant::now(),
        };
        registry.connections.insert(id, entry);
        Self(Some(id))
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let Some(id) = self.0 else {
            return;
        };
        let mut registry = lock(REGISTRY.get());
        let entry = registry.connections.remove(&id);
        if let Some(entry) = &entry {
            let mut last = entry.link.statistics();
            // The sum has no memory of connections that have ended.
            last.buffers_held = 0;
            last.large_bytes_held = 0;
            last.large_bytes_exposed = 0;
            registry.sum_of_ended += last;
            registry.ended += 1;
        }
        // The link may go with it, outside the lock.
        drop(registry);
        drop(entry);
    }
}

impl fmt::Debug for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Registered").field(&self.0).finish()
    }
}
