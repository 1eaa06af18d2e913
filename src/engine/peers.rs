use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::proto::Heard;

/// The signs of life that one engine of a peer's has given on all of its connections with this one.
///
/// The probe of an idle connection may wait in the network behind what busy ones send. As long as
/// they hear of the peer, so does the idle one; and a read may wait behind the reads of others.
/// Another process on the same host is another engine.
#[derive(Clone, Debug, Default)]
pub(super) struct Life(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    heard: AtomicU64,
    pieces: AtomicU64,
}

impl Life {
    /// Counts what a connection has heard more than before.
    pub(super) fn add(&self, before: Heard, now: Heard) {
        if now.signs != before.signs {
            self.0.heard.fetch_add(1, Ordering::Relaxed);
        }
        if now.pieces != before.pieces {
            self.0.pieces.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How much was heard.
    pub(super) fn heard(&self) -> Heard {
        Heard {
            signs: self.0.heard.load(Ordering::Relaxed),
            pieces: self.0.pieces.load(Ordering::Relaxed),
        }
    }
}

/// The peers' engines to which there are connections, by address and by the identity in their
/// hellos. The address goes with it because the identity is what a peer claims.
#[derive(Debug, Default)]
pub(super) struct Peers {
    lives: HashMap<(IpAddr, u64), Weak<Counts>>,
    /// With so many entries those without a connection are removed.
    crowded: usize,
}

impl Peers {
    /// What all connections with this engine share.
    pub(super) fn life_of(&mut self, addr: IpAddr, engine: u64) -> Life {
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
        let heard = |signs, pieces| Heard { signs, pieces };
        peers.life_of(here, 1).add(heard(7, 3), heard(8, 3));
        peers.life_of(here, 2).add(heard(0, 0), heard(1, 1));
        peers.life_of(there, 1).add(heard(0, 0), heard(1, 1));
        assert_eq!(one.heard(), heard(1, 0));
        peers.life_of(here, 1).add(heard(8, 3), heard(9, 4));
        assert_eq!(one.heard(), heard(2, 1));
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
