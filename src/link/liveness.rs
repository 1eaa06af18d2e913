use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::proto::Activity;

/// The signs of life of one peer engine on all of its connections with this engine.
///
/// The probe of an idle connection may wait in the network behind frames of busy ones. So signs of
/// life on busy connections count for idle ones, and for a read that waits behind the reads of
/// others. Another process on the same host is another engine.
#[derive(Clone, Debug, Default)]
pub(crate) struct Life(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    signs: AtomicU64,
    chunks: AtomicU64,
}

impl Life {
    /// Counts a sign, and a chunk, if a connection has seen any since `before`.
    pub(super) fn add(&self, before: Activity, now: Activity) {
        if now.signs != before.signs {
            self.0.signs.fetch_add(1, Ordering::Relaxed);
        }
        if now.chunks != before.chunks {
            self.0.chunks.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the signs of life on all of them.
    pub(super) fn activity(&self) -> Activity {
        Activity {
            signs: self.0.signs.load(Ordering::Relaxed),
            chunks: self.0.chunks.load(Ordering::Relaxed),
        }
    }
}

/// The peers' engines to which there are connections, by address and by the identity in their
/// hellos. The key includes the address, because a peer can claim any identity.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    lives: HashMap<(IpAddr, u64), Weak<Counts>>,
    /// The number of entries at which entries without a connection are removed.
    crowded: usize,
}

impl Peers {
    /// Returns the record that all connections with this engine share.
    pub(crate) fn life_of(&mut self, addr: IpAddr, engine: u64) -> Life {
        if self.lives.len() >= self.crowded {
            self.lives.retain(|_, life| life.strong_count() > 0);
            self.crowded = 2 * self.lives.len() + 16;
        }
        let life = self.lives.entry((addr, engine)).or_default();
        Life(life.upgrade().unwrap_or_else(|| {
            let new = Arc::default();
            *life = Arc::downgrade(&new);
            new
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_with_the_same_engine_share_its_signs_of_life() {
        let mut peers = Peers::default();
        let here = IpAddr::from([10, 8, 0, 1]);
        let there = IpAddr::from([10, 8, 0, 2]);
        let one = peers.life_of(here, 1);
        let activity = |signs, chunks| Activity { signs, chunks };
        peers.life_of(here, 1).add(activity(7, 3), activity(8, 3));
        peers.life_of(here, 2).add(activity(0, 0), activity(1, 1));
        peers.life_of(there, 1).add(activity(0, 0), activity(1, 1));
        assert_eq!(one.activity(), activity(1, 0));
        peers.life_of(here, 1).add(activity(8, 3), activity(9, 4));
        assert_eq!(one.activity(), activity(2, 1));
    }

    #[test]
    fn engines_that_are_gone_leave_nothing() {
        let mut peers = Peers::default();
        let addr = IpAddr::from([10, 8, 0, 1]);
        let kept: Vec<Life> = (0..100).map(|engine| peers.life_of(addr, engine)).collect();
        for engine in 100..10_000 {
            peers.life_of(addr, engine);
        }
        assert!(
            peers.lives.len() <= 2 * (kept.len() + 16),
            "{}",
            peers.lives.len()
        );
    }
}
