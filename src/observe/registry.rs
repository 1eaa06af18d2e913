use std::{
    collections::BTreeMap,
    fmt,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use crate::{
    engine::{DeviceEvents, device_events},
    link::Link,
    os::{PerProcess, lock},
    proto::Statistics,
    tally::{self, tally},
    transport_choice::Transport,
};

/// A snapshot of the statistics of this process's connections.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Snapshot {
    /// The connections that currently have handles.
    pub connections: Vec<ConnectionSnapshot>,
    /// The number of established connections that have ended, even if they still have handles.
    pub ended: u64,
    /// The number of ended connections by the [name](crate::CloseReason::name) of the reason. The
    /// map has an entry for every name.
    pub ended_by_reason: BTreeMap<&'static str, u64>,
    /// The number of connect calls that failed, by reason.
    ///
    /// For [`Error::Connect`](crate::Error::Connect) the key is the
    /// [name](crate::CloseReason::name) of its reason. For other errors the key is
    /// `address_lookup`, `engine_shut_down`, `invalid_config`, `locked_memory`, `loopback`,
    /// `no_rdma`, `permission_denied`, `shared_receives`, `source` or `other`. The key `given_up`
    /// means that the program dropped the future. A call for several addresses, or over RDMA and
    /// then TCP, is counted once.
    pub connects_failed: BTreeMap<&'static str, u64>,
    /// The number of connection requests that this process refused, by reason:
    ///
    /// * `backlog`, `half_open`: the listener had reached this limit;
    /// * `hello`: the peer is incompatible, or does not use rdmsg;
    /// * `session`: the peer tried to resume an unknown session;
    /// * `program`: the program rejected or dropped the [`Request`](crate::Request);
    /// * `closed`: the listener was closed before the connection was established.
    pub requests_refused: BTreeMap<&'static str, u64>,
    /// The round-trip times of pings.
    pub round_trips: RoundTrips,
    /// The sum of the statistics of all connections, current and ended.
    pub all: Statistics,
    /// The number of events that devices reported, such as lost links and failures, by device and
    /// event.
    pub device_events: Vec<DeviceEvents>,
}

/// The round-trip times on all connections, from a ping to its pong. Pings are sent by keepalive
/// and by flushes.
///
/// A round trip ends when a thread reads the pong from the completion queue. On a connection that
/// the program polls, this may be up to 10 ms after the pong arrived.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RoundTrips {
    /// The upper bounds of the buckets, from 10 µs to 5 s, each with the number of round trips that
    /// took at most this time.
    pub buckets: Vec<(Duration, u64)>,
    /// The number of round trips.
    pub count: u64,
    /// The total time of all round trips.
    pub sum: Duration,
}

/// A snapshot of one connection.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConnectionSnapshot {
    /// The number of the connection in this process, as in the log and in
    /// [`Info::id`](crate::Info::id).
    pub id: u64,
    /// The program's name for the connection: see [`Connector::label`](crate::Connector::label).
    pub label: Option<String>,
    /// The peer's address.
    pub peer: SocketAddr,
    /// This side's address.
    pub local: SocketAddr,
    /// The transport.
    pub transport: Transport,
    /// The time since the connection was established.
    pub age: Duration,
    /// Whether the connection has ended, and only its handles remain.
    pub is_closed: bool,
    /// Whether the connection was lost and has not resumed yet: see
    /// [`Config::resume`](crate::Config::resume).
    pub is_suspended: bool,
    /// The statistics of the connection.
    pub statistics: Statistics,
}

static REGISTRY: PerProcess<Mutex<Registry>> = PerProcess::new(|| Mutex::new(Registry::new()));

/// The connections of this process that have handles, by number. Also contains the sum of the
/// statistics of all connections whose last handle was dropped.
struct Registry {
    connections: BTreeMap<u64, Entry>,
    sum_of_ended: Statistics,
}

struct Entry {
    link: Arc<Link>,
    since: Instant,
}

/// The registration of a connection. Dropping it removes the connection from the registry.
pub(crate) struct Registered(Option<u64>);

/// Enables the statistics.
///
/// Existing connections are not listed. [`Export`](super::Export) enables the statistics, too.
pub fn enable() {
    tally::enable();
}

/// Returns the statistics of this process's connections. The statistics begin with the call of
/// [`enable`].
#[must_use]
pub fn snapshot() -> Snapshot {
    lock(REGISTRY.get()).snapshot()
}

impl Registry {
    const fn new() -> Self {
        Self {
            connections: BTreeMap::new(),
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
                label: entry.link.label().to_text(),
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
        let tally = tally();
        let ended_by_reason = tally.ended.counts();
        let (buckets, count, sum) = tally.round_trips.counts();
        Snapshot {
            connections,
            ended: ended_by_reason.values().sum(),
            ended_by_reason,
            connects_failed: tally.connects_failed.counts(),
            requests_refused: tally.requests_refused.counts(),
            round_trips: RoundTrips {
                buckets,
                count,
                sum,
            },
            all,
            device_events: device_events(),
        }
    }
}

impl Registered {
    /// Returns a value for a connection that is not in the registry. Dropping the value has no
    /// effect.
    pub(crate) fn nowhere() -> Self {
        Self(None)
    }

    /// Adds a new connection to the registry if statistics are enabled.
    pub(crate) fn enter(link: &Arc<Link>) -> Self {
        if !link.is_counted() {
            return Self(None);
        }
        let mut registry = lock(REGISTRY.get());
        let id = link.key;
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
            // The sum must not include memory of connections that have ended.
            last.buffers_held = 0;
            last.large_bytes_held = 0;
            last.large_bytes_exposed = 0;
            registry.sum_of_ended += last;
        }
        // The entry may own the last reference to its link. Therefore the entry is dropped after
        // the lock is released.
        drop(registry);
        drop(entry);
    }
}

impl fmt::Debug for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Registered").field(&self.0).finish()
    }
}
