use std::collections::VecDeque;

use crate::proto::Proof;

/// Orders the `Sent` completions. The peer's library delivers a message only after all earlier
/// large messages. So a message is reported as `Sent` only after the peer has read the large
/// messages before it. If the connection ends before that, the message is lost even if the peer's
/// device has acknowledged it.
///
/// The order contains all large messages, and those small messages that have an id.
#[derive(Debug, Default)]
pub(super) struct SentOrder {
    /// Unconfirmed messages, oldest first.
    waiting: VecDeque<Unsent>,
    /// The number of small messages in `waiting`, counted from the oldest, that the peer's device
    /// has acknowledged.
    acknowledged: usize,
    /// The number of large messages in `waiting`, counted from the oldest, that the peer has read.
    taken: usize,
    /// The number of messages in `waiting` that have an id.
    ids: usize,
}

#[derive(Debug)]
enum Unsent {
    Small(u64),
    Large(Option<u64>),
}

impl Unsent {
    fn id(&self) -> Option<u64> {
        match self {
            Self::Small(id) => Some(*id),
            Self::Large(id) => *id,
        }
    }
}

impl SentOrder {
    /// Records that a small message was posted.
    pub(super) fn small(&mut self, id: u64) {
        self.push(Unsent::Small(id));
    }

    /// Records that a large message was announced to the peer.
    pub(super) fn large(&mut self, id: Option<u64>) {
        self.push(Unsent::Large(id));
    }

    fn push(&mut self, waiting: Unsent) {
        self.ids += usize::from(waiting.id().is_some());
        self.waiting.push_back(waiting);
    }

    /// Records that the peer's device has acknowledged the next small message.
    pub(super) fn acknowledge(&mut self) {
        self.acknowledged += 1;
    }

    /// Records that the peer has read `count` more large messages.
    pub(super) fn take(&mut self, count: u32) {
        self.taken += count as usize;
    }

    /// Removes the oldest messages that are known to have arrived, up to and including the first
    /// message with an id. Returns this id, or `None` if no such message has an id.
    pub(super) fn next_sent(&mut self) -> Option<u64> {
        loop {
            let known = match self.waiting.front()? {
                Unsent::Small(_) => &mut self.acknowledged,
                Unsent::Large(_) => &mut self.taken,
            };
            *known = known.checked_sub(1)?;
            if let Some(id) = self.waiting.pop_front()?.id() {
                self.ids -= 1;
                return Some(id);
            }
        }
    }

    /// Removes the small message whose send the device reported as failed, and returns its id.
    /// `done` is the number of small messages that the device has completed, but that are not
    /// acknowledged yet. The failed message is the next small message after these.
    pub(super) fn fail(&mut self, done: usize) -> Option<u64> {
        let small = |(_, unsent): &(usize, &Unsent)| matches!(unsent, Unsent::Small(_));
        let (at, _) = self
            .waiting
            .iter()
            .enumerate()
            .filter(small)
            .nth(self.acknowledged + done)?;
        let id = self.waiting.remove(at)?.id();
        self.ids -= usize::from(id.is_some());
        id
    }

    /// Returns the number of unconfirmed messages with ids.
    pub(super) fn ids(&self) -> usize {
        self.ids
    }

    /// Removes all messages at the end of the connection, and returns their ids, oldest first.
    pub(super) fn abandon(&mut self) -> impl Iterator<Item = u64> + use<> {
        std::mem::take(self)
            .waiting
            .into_iter()
            .filter_map(|waiting| waiting.id())
    }
}

/// Sends and writes that the device has completed, but whose arrival is not proven.
///
/// An iWARP device completes a send or write when TCP has accepted the bytes, which may never reach
/// the peer's host. A later pong from the peer's library proves that they have arrived.
#[derive(Debug, Default)]
pub(super) struct Unproven {
    /// The sends and writes, oldest first, each with the pong that proves its arrival. The pong is
    /// `None` if only the close of the connection can prove the arrival.
    waiting: VecDeque<(Option<Proof>, CompletedSend)>,
    /// The number of writes in `waiting`.
    writes: usize,
}

/// A completed send or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CompletedSend {
    /// The oldest unacknowledged small message in the [order](SentOrder).
    Message,
    /// The one-sided write with this id.
    Write(u64),
}

impl Unproven {
    pub(super) fn put(&mut self, proof: Option<Proof>, gone: CompletedSend) {
        self.writes += usize::from(matches!(gone, CompletedSend::Write(_)));
        self.waiting.push_back((proof, gone));
    }

    /// Returns the number of writes whose arrival is not proven.
    pub(super) fn writes(&self) -> usize {
        self.writes
    }

    /// Returns the number of messages whose arrival is not proven.
    pub(super) fn messages(&self) -> usize {
        self.waiting.len() - self.writes
    }

    /// Removes and returns the oldest entry if `is_proven` returns true for its proof. The proof is
    /// `None` if only the close of the connection can prove the arrival.
    pub(super) fn pop(
        &mut self,
        is_proven: impl FnOnce(Option<Proof>) -> bool,
    ) -> Option<CompletedSend> {
        let (proof, _) = self.waiting.front()?;
        if is_proven(*proof) { self.take() } else { None }
    }

    /// Removes and returns the oldest entry.
    pub(super) fn take(&mut self) -> Option<CompletedSend> {
        let (_, gone) = self.waiting.pop_front()?;
        self.writes -= usize::from(matches!(gone, CompletedSend::Write(_)));
        Some(gone)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sent(order: &mut SentOrder) -> Vec<u64> {
        std::iter::from_fn(|| order.next_sent()).collect()
    }

    #[test]
    fn a_small_message_waits_for_the_large_one_before_it() {
        let mut order = SentOrder::default();
        order.small(1);
        order.large(Some(2));
        order.small(3);
        order.large(None);
        order.small(4);
        assert_eq!(order.ids(), 4);
        for _ in 0..3 {
            order.acknowledge();
        }
        assert_eq!(sent(&mut order), [1]);
        order.take(1);
        assert_eq!(sent(&mut order), [2, 3]);
        assert_eq!(order.ids(), 1);
        order.take(1);
        assert_eq!(sent(&mut order), [4]);
        assert_eq!(order.ids(), 0);
        order.small(5);
        order.acknowledge();
        assert_eq!(
            sent(&mut order),
            [5],
            "counts of earlier messages must not remain"
        );
    }

    #[test]
    fn a_large_message_waits_for_the_small_one_before_it() {
        let mut order = SentOrder::default();
        order.small(1);
        order.large(Some(2));
        order.take(1);
        assert!(sent(&mut order).is_empty());
        order.acknowledge();
        assert_eq!(sent(&mut order), [1, 2]);
    }

    #[test]
    fn failed_send_is_the_oldest_unacknowledged() {
        let mut order = SentOrder::default();
        order.large(Some(1));
        order.small(2);
        order.small(3);
        order.small(4);
        order.acknowledge();
        order.small(5);
        assert_eq!(
            order.fail(1),
            Some(4),
            "the failed message must follow message 3"
        );
        assert_eq!(order.fail(0), Some(3));
        assert_eq!(order.ids(), 3);
        assert_eq!(order.abandon().collect::<Vec<_>>(), [1, 2, 5]);
        assert_eq!((order.ids(), order.fail(0)), (0, None));
    }

    proptest! {
        /// For any order of confirmations, each id is reported exactly once, in the order of the
        /// sends, and as soon as all earlier messages are confirmed.
        #[test]
        fn ids_are_reported_in_send_order(ops in prop::collection::vec(0_u8..5, 1..200)) {
            let mut order = SentOrder::default();
            // For each message: whether it is large, its id, and whether it is confirmed.
            let mut all: Vec<(bool, Option<u64>, bool)> = Vec::new();
            let mut reported = Vec::new();
            for (id, op) in (0..).zip(ops) {
                let mut finish = |large: bool| {
                    let next = all.iter_mut().find(|(is, _, done)| *is == large && !*done);
                    next.map(|(_, _, done)| *done = true).is_some()
                };
                match op {
                    0 => { order.small(id); all.push((false, Some(id), false)); }
                    1 => { order.large(Some(id)); all.push((true, Some(id), false)); }
                    2 => { order.large(None); all.push((true, None, false)); }
                    3 => if finish(false) { order.acknowledge(); }
                    _ => if finish(true) { order.take(1); }
                }
                reported.extend(sent(&mut order));
                let done = all.iter().take_while(|(_, _, done)| *done);
                let done: Vec<u64> = done.filter_map(|(_, id, _)| *id).collect();
                prop_assert_eq!(&reported, &done);
            }
            let left: Vec<u64> = order.abandon().collect();
            reported.extend(left);
            let every: Vec<u64> = all.iter().filter_map(|(_, id, _)| *id).collect();
            prop_assert_eq!(reported, every);
        }
    }

    #[test]
    fn proven_messages_are_reported_in_order() {
        let mut unproven = Unproven::default();
        let proofs = [1, 2, 2].map(Proof::after);
        unproven.put(Some(proofs[0]), CompletedSend::Message);
        unproven.put(Some(proofs[1]), CompletedSend::Write(7));
        unproven.put(None, CompletedSend::Message);
        assert_eq!((unproven.writes(), unproven.messages()), (1, 2));
        let first = |proof| proof == Some(proofs[0]);
        assert_eq!(unproven.pop(first), Some(CompletedSend::Message));
        assert_eq!(unproven.pop(first), None);
        let second = |proof| proof == Some(proofs[2]);
        assert_eq!(unproven.pop(second), Some(CompletedSend::Write(7)));
        assert_eq!((unproven.writes(), unproven.pop(second)), (0, None));
        assert_eq!(unproven.take(), Some(CompletedSend::Message));
        assert_eq!(unproven.take(), None);
    }
}
