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
    /// The connections that have handles now.
    pub connections: Vec<ConnectionSnapshot>,
    /// The number of established connections that have ended, with handles or without.
    pub ended: u64,
    /// The number of ended connections for each [name](crate::CloseReason::name) of a reason. All
    /// names are listed.
    pub ended_by_reason: BTreeMap<&'static str, u64>,
    /// The number of connects that failed, by reason.
    ///
    /// The reason is the [name](crate::CloseReason::name) of that of
    /// [`Error::Connect`](crate::Error::Connect). Of other errors it is `address_lookup`,
    /// `engine_shut_down`, `invalid_config`, `locked_memory`, `loopback`, `no_rdma`,
    /// `permission_denied`, `shared_receives`, `source` or `other`; `given_up` if the program
    /// dropped the future. A connect to several addresses, or over RDMA and then TCP, counts once.
    pub connects_failed: BTreeMap<&'static str, u64>,
    /// The number of requests of peers that this process refused, by reason.
    ///
    /// `backlog` and `half_open`: the listener had reached that limit. `hello`: the peer is
    /// incompatible, or no peer. `session`: it wanted to resume an unknown session. `program`: the
    /// program rejected or dropped the [`Request`](crate::Request). `closed`: the listener was
    /// closed before the connection was established.
    pub requests_refused: BTreeMap<&'static str, u64>,
    /// The times from pings to their pongs.
    pub round_trips: RoundTrips,
    /// The sum of the statistics of all connections, past and present.
    pub all: Statistics,
    /// The events that devices reported, by device and event: lost links and failures.
    pub device_events: Vec<DeviceEvents>,
}

/// The times from a ping of keepalive, or of a flush, to its pong, on all connections.
///
/// The pong is counted when it is taken out of the completion queue. On a connection that the
/// program polls, that may be up to 10 ms after its arrival.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RoundTrips {
    /// The upper bounds of the buckets, from 10 µs to 5 s, each with the number of all times that
    /// are at most this bound.
    pub buckets: Vec<(Duration, u64)>,
    /// The number of all times.
    pub count: u64,
    /// The sum of all times.
    pub sum: Duration,
}

/// A snapshot of one connection.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConnectionSnapshot {
    /// Its number in this process, which the log and [`Info::id`](crate::Info::id) have as well.
    pub id: u64,
    /// The program's name for it: see [`Connector::label`](crate::Connector::label).
    pub label: Option<String>,
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

static REGISTRY: PerProcess<Mutex<Registry>> = PerProcess::new(|| Mutex::new(Registry::new()));

/// The connections of this process that have handles, by their numbers, and the sum of earlier
/// ones.
struct Registry {
    connections: BTreeMap<u64, Entry>,
    sum_of_ended: Statistics,
}

struct Entry {
    link: Arc<Link>,
    since: Instant,
}

/// Keeps a connection in the registry until this is dropped.
pub(crate) struct Registered(Option<u64>);

/// Enables the statistics.
///
/// Earlier connections are not listed. [`Export`](super::Export) does the same.
pub fn enable() {
    tally::enable();
}

/// Returns the statistics of the connections of this process since [`enable`].
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
    /// Returns the registration of a connection that is not counted.
    pub(crate) fn nowhere() -> Self {
        Self(None)
    }

    /// Registers a new connection, if statistics are enabled.
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
            // The sum has no memory of connections that have ended.
            last.buffers_held = 0;
            last.large_bytes_held = 0;
            last.large_bytes_exposed = 0;
            registry.sum_of_ended += last;
        }
        // The entry may hold the last reference to its link, whose drop must not run under the
        // lock.
        drop(registry);
        drop(entry);
    }
}

impl fmt::Debug for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Registered").field(&self.0).finish()
    }
}
