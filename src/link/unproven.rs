use std::collections::VecDeque;

use crate::proto::Proof;

/// What the device is done with, and may not have arrived.
///
/// To an iWARP device a message is sent, and memory written, when TCP has taken the bytes: the
/// peer's host may never see them. That they have arrived is known from the peer's library, by a
/// pong behind them.
#[derive(Debug, Default)]
pub(super) struct Unproven {
    /// Oldest first, each with what proves it; `None` for what only the close can.
    waiting: VecDeque<(Option<Proof>, Gone)>,
    /// How many in it are writes.
    writes: usize,
}

/// What the device is done with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gone {
    /// The oldest small message of the [order](super::sent_order::SentOrder) that is not
    /// acknowledged.
    Message,
    /// The one-sided write of this id.
    Write(u64),
}

impl Unproven {
    pub(super) fn put(&mut self, proof: Option<Proof>, gone: Gone) {
        self.writes += usize::from(matches!(gone, Gone::Write(_)));
        self.waiting.push_back((proof, gone));
    }

    /// How many writes wait here.
    pub(super) fn writes(&self) -> usize {
        self.writes
    }

    /// How many messages wait here.
    pub(super) fn messages(&self) -> usize {
        self.waiting.len() - self.writes
    }

    /// Takes the oldest, if that is proven. What only the close can prove has no proof of its own.
    pub(super) fn pop(&mut self, is_proven: impl FnOnce(Option<Proof>) -> bool) -> Option<Gone> {
        let (proof, _) = self.waiting.front()?;
        if is_proven(*proof) { self.take() } else { None }
    }

    /// Takes the oldest.
    pub(super) fn take(&mut self) -> Option<Gone> {
        let (_, gone) = self.waiting.pop_front()?;
        self.writes -= usize::from(matches!(gone, Gone::Write(_)));
        Some(gone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_proven_comes_in_its_order() {
        let mut unproven = Unproven::default();
        let proofs = [1, 2, 2].map(Proof::after);
        unproven.put(Some(proofs[0]), Gone::Message);
        unproven.put(Some(proofs[1]), Gone::Write(7));
        unproven.put(None, Gone::Message);
        assert_eq!((unproven.writes(), unproven.messages()), (1, 2));
        let first = |proof| proof == Some(proofs[0]);
        assert_eq!(unproven.pop(first), Some(Gone::Message));
        assert_eq!(unproven.pop(first), None);
        let second = |proof| proof == Some(proofs[2]);
        assert_eq!(unproven.pop(second), Some(Gone::Write(7)));
        assert_eq!((unproven.writes(), unproven.pop(second)), (0, None));
        assert_eq!(unproven.take(), Some(Gone::Message));
        assert_eq!(unproven.take(), None);
    }
}
