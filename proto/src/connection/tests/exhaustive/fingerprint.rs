//! Fingerprints: hashes that identify states.

use std::{
    collections::BTreeMap,
    hash::{Hash, Hasher},
};

use super::world::World;
use crate::{
    DrainSide, Work,
    connection::tests::side::{Completion, Kept, Side},
};

/// A 128-bit hash, which consists of two 64-bit hashes with different multipliers. The probability
/// that any two of 10⁸ states have the same hash is below 10⁻²².
struct Fingerprint([u64; 2]);

impl Fingerprint {
    fn mix(&mut self, word: u64) {
        let fold = |value: u64, by: u64| {
            let product = u128::from(value) * u128::from(by);
            product as u64 ^ (product >> 64) as u64
        };
        let [one, other] = self.0;
        self.0 = [
            fold(one ^ word, 0x9e37_79b9_7f4a_7c15),
            fold(
                other.rotate_left(23).wrapping_add(word),
                0xd6e8_feb8_6659_fd93,
            ),
        ];
    }
}

impl Hasher for Fingerprint {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, word: u8) {
        self.mix(word.into());
    }

    fn write_u16(&mut self, word: u16) {
        self.mix(word.into());
    }

    fn write_u32(&mut self, word: u32) {
        self.mix(word.into());
    }

    fn write_u64(&mut self, word: u64) {
        self.mix(word);
    }

    fn write_usize(&mut self, word: usize) {
        self.mix(word as u64);
    }

    fn finish(&self) -> u64 {
        self.0[0]
    }
}

/// Returns the fingerprint of a state.
pub(super) fn of(world: &World) -> u128 {
    let mut hasher = Fingerprint([0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344]);
    let World {
        pair,
        left,
        flushes,
        mistake: _,
        mistakes_left,
        done,
    } = world;
    (left, done, flushes, mistakes_left).hash(&mut hasher);
    pair.now.hash(&mut hasher);
    for side in &pair.sides {
        hash(side, &mut hasher);
    }
    // Mixes in one more word, so that the last word of the state also affects all bits of both
    // hashes.
    hasher.mix(1);
    u128::from(hasher.0[0]) << 64 | u128::from(hasher.0[1])
}

/// Hashes a side. Ignores differences that have no effect: the indices of buffers, the order of
/// completions in different queues, and most of the state of a side that has ended.
fn hash(side: &Side, state: &mut Fingerprint) {
    (side.sent, side.received, side.killed, &side.ended).hash(state);
    (side.control_sent, side.control_received).hash(state);
    if side.ended.is_some() {
        return;
    }
    (&side.conn, side.posted.len()).hash(state);
    (&side.sending, &side.unacknowledged, &side.slots, &side.cm).hash(state);
    (
        side.broken,
        side.disconnected,
        side.removed,
        side.established,
    )
        .hash(state);
    (&side.exposed, &side.reads, side.peer_finished).hash(state);
    (side.control_kept, side.leaves, side.peer_leaves).hash(state);
    side.requested.hash(state);
    (side.held, side.writable, side.answered, side.lacks_memory).hash(state);
    for queue in [DrainSide::Recv, DrainSide::Send] {
        let completions = side.cq.iter().filter(|it| it.queue() == queue);
        for completion in completions {
            match completion {
                Completion::Recv { frame, .. } => frame.hash(state),
                Completion::Failed(Work::Recv { .. }, status) => (1, status).hash(state),
                Completion::Failed(
                    Work::Send { .. } | Work::Read { .. } | Work::Invalidation,
                    _,
                )
                | Completion::Sent { .. }
                | Completion::Read { .. }
                | Completion::Drained(_) => completion.hash(state),
            }
        }
        queue.hash(state);
    }
    let mut shares = BTreeMap::new();
    for kept in &side.kept {
        match kept {
            Kept::Buffer(_) => state.mix(0),
            Kept::Part(buffer) => {
                let next = shares.len();
                (
                    1,
                    *shares.entry(buffer).or_insert(next),
                    side.batches[buffer],
                )
                    .hash(state);
            }
            Kept::Large(len) => (2, len).hash(state),
        }
    }
    state.mix(side.kept.len() as u64);
    if let Some(shared) = &side.shared {
        (shared.promised, shared.taken.len()).hash(state);
    }
}
