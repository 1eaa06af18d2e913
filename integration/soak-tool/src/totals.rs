use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

/// What this side has sent and received on all connections so far.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    messages: [AtomicU64; 2],
    bytes: [AtomicU64; 2],
    largest: AtomicU64,
    kept: AtomicU64,
}

/// Which way a message goes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    Sent,
    Received,
}

impl Totals {
    pub(crate) fn count(&self, way: Way, len: usize) {
        self.messages[way as usize].fetch_add(1, Relaxed);
        self.bytes[way as usize].fetch_add(len as u64, Relaxed);
        self.largest.fetch_max(len as u64, Relaxed);
    }

    pub(crate) fn keep(&self) {
        self.kept.fetch_add(1, Relaxed);
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let messages = |way| self.messages[way as usize].load(Relaxed);
        let bytes = |way| self.bytes[way as usize].load(Relaxed) as f64 / 1e6;
        write!(
            f,
            "{} messages ({:.1} MB) sent, {} ({:.1} MB) received, {} kept for a while, the largest of {} bytes",
            messages(Way::Sent),
            bytes(Way::Sent),
            messages(Way::Received),
            bytes(Way::Received),
            self.kept.load(Relaxed),
            self.largest.load(Relaxed),
        )
    }
}
