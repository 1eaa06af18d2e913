use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::proto::Activity;

/// Counts the signs of life of a peer's engine, on all connections between that engine and the
/// local engine.
///
/// In the network, frames of busy connections may delay the probe of an idle connection. Reads of
/// large messages may also wait behind the reads of other connections. A sign of life on any of the
/// connections therefore counts for all of them. Different processes on a host have different
/// engines, and their signs of life are counted separately.
#[derive(Clone, Debug, Default)]
pub(crate) struct PeerLiveness(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    signs: AtomicU64,
    chunks: AtomicU64,
}

impl PeerLiveness {
    /// Adds one sign of life if the number of signs has changed from `before` to `now`, and one
    /// chunk if the number of chunks has changed.
    pub(super) fn add(&self, before: Activity, now: Activity) {
        if now.signs != before.signs {
            self.0.signs.fetch_add(1, Ordering::Relaxed);
        }
        if now.chunks != before.chunks {
            self.0.chunks.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a sign of life.
    #[inline]
    pub(super) fn add_sign(&self) {
        self.0.signs.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the counts over all connections between the two engines.
    pub(super) fn activity(&self) -> Activity {
        Activity {
            signs: self.0.signs.load(Ordering::Relaxed),
            chunks: self.0.chunks.load(Ordering::Relaxed),
        }
    }
}

/// The signs of life of the peers' engines. The key of an engine consists of its IP address and the
/// identity in its hellos. The address is necessary, because a peer can claim any identity.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    liveness_of_engines: HashMap<(IpAddr, u64), Weak<Counts>>,
    /// Once the map has this number of entries, the next lookup removes the entries without
    /// connections.
    cleanup_threshold: usize,
}

impl Peers {
    /// Returns the counters that all connections to the engine with this key share.
    pub(crate) fn liveness_of(&mut self, addr: IpAddr, engine: u64) -> PeerLiveness {
        if self.liveness_of_engines.len() >= self.cleanup_threshold {
            self.liveness_of_engines
                .retain(|_, liveness| liveness.strong_count() > 0);
            self.cleanup_threshold = 2 * self.liveness_of_engines.len() + 16;
        }
        let liveness = self.liveness_of_engines.entry((addr, engine)).or_default();
        PeerLiveness(liveness.upgrade().unwrap_or_else(|| {
            let new = Arc::default();
            *liveness = Arc::downgrade(&new);
            new
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_of_one_engine_share_signs_of_life() {
        let mut peers = Peers::default();
        let here = IpAddr::from([10, 8, 0, 1]);
        let there = IpAddr::from([10, 8, 0, 2]);
        let one = peers.liveness_of(here, 1);
        let activity = |signs, chunks| Activity { signs, chunks };
        peers
            .liveness_of(here, 1)
            .add(activity(7, 3), activity(8, 3));
        peers
            .liveness_of(here, 2)
            .add(activity(0, 0), activity(1, 1));
        peers
            .liveness_of(there, 1)
            .add(activity(0, 0), activity(1, 1));
        assert_eq!(one.activity(), activity(1, 0));
        peers
            .liveness_of(here, 1)
            .add(activity(8, 3), activity(9, 4));
        assert_eq!(one.activity(), activity(2, 1));
    }

    #[test]
    fn engines_that_are_gone_leave_nothing() {
        let mut peers = Peers::default();
        let addr = IpAddr::from([10, 8, 0, 1]);
        let kept: Vec<PeerLiveness> = (0..100)
            .map(|engine| peers.liveness_of(addr, engine))
            .collect();
        for engine in 100..10_000 {
            peers.liveness_of(addr, engine);
        }
        assert!(
            peers.liveness_of_engines.len() <= 2 * (kept.len() + 16),
            "too many entries remain: {}",
            peers.liveness_of_engines.len()
        );
    }
}
