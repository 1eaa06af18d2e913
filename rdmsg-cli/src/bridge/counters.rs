use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// The counters of a bridge.
#[derive(Debug, Default)]
pub(super) struct Counters {
    open: AtomicU64,
    total: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
    /// The number of bytes forwarded from the listening end to the target.
    to_target: AtomicU64,
    /// The number of bytes forwarded from the target to the listening end.
    back: AtomicU64,
}

/// Counts the bytes of a connection. `plain_is_target` is true if the plain end is the target, and
/// false if the plain end is the listening end.
#[derive(Clone, Debug)]
pub(super) struct Flow {
    counters: Arc<Counters>,
    plain_is_target: bool,
}

/// An open connection. Dropping this value decrements the counter of open connections.
#[derive(Debug)]
pub(super) struct Open(Arc<Counters>);

impl Counters {
    /// Counts a new connection as open. If `most` connections are already open, counts a refusal
    /// instead and returns `None`.
    pub(super) fn open(self: &Arc<Self>, most: u64) -> Option<Open> {
        // Only one task opens connections. Therefore the load and the increment can be separate
        // operations.
        if self.open.load(Ordering::Relaxed) >= most {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        self.open.fetch_add(1, Ordering::Relaxed);
        self.total.fetch_add(1, Ordering::Relaxed);
        Some(Open(Arc::clone(self)))
    }

    pub(super) fn failed(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }
}

impl Flow {
    pub(super) fn new(counters: &Arc<Counters>, plain_is_target: bool) -> Self {
        Self {
            counters: Arc::clone(counters),
            plain_is_target,
        }
    }

    /// Counts bytes that were forwarded from the plain end to the stream.
    pub(super) fn count_from_plain(&self, bytes: usize) {
        self.count(bytes, !self.plain_is_target);
    }

    /// Counts bytes that were forwarded from the stream to the plain end.
    pub(super) fn count_to_plain(&self, bytes: usize) {
        self.count(bytes, self.plain_is_target);
    }

    fn count(&self, bytes: usize, to_target: bool) {
        let Counters {
            to_target: to,
            back,
            ..
        } = &*self.counters;
        let counter = if to_target { to } else { back };
        counter.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        write!(
            f,
            "connections: {} open, {} total, {} refused, {} failed; bytes: {} to the target, {} \
             back",
            get(&self.open),
            get(&self.total),
            get(&self.refused),
            get(&self.failed),
            get(&self.to_target),
            get(&self.back),
        )
    }
}
