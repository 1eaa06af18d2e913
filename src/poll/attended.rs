use std::{
    collections::{HashMap, HashSet},
    time::{Duration, Instant},
};

use super::{
    poller::Poller,
    word::{Look, Owner},
};

/// How long after the last poll by a thread or a loop of the application the engine polls again. A
/// program that mixes `recv` with `select!` may see a message twice this much late, where the
/// notice lay as long; one that polls often enough costs the engine one look in this time instead
/// of one interrupt a message.
const ROUND: Duration = Duration::from_millis(10);

/// The same for connections that hold something back, which nobody else may send when there is
/// room.
const PRESSED_ROUND: Duration = Duration::from_millis(1);

/// The connections that threads or loops of the application poll, and that the engine's thread
/// looks after: one table, and one timer.
///
/// Of those that threads poll, all whose leader does not sleep in the kernel: only that is certain
/// to wake up. Of those that loops poll, the ones that had events at the last look, and the ones
/// that hold something back.
#[derive(Debug, Default)]
pub(crate) struct Attended {
    /// With the count of visits at the last look.
    seen: HashMap<u64, u32>,
    /// Those of them that hold something back.
    pressed: HashSet<u64>,
    /// Whether events are pending for loops.
    loops: bool,
    /// When to look at all of them.
    round: Option<Instant>,
    /// When to look at those that hold something back.
    soon: Option<Instant>,
}

/// What [`Attended`] needs to know of a connection.
pub(crate) trait Attendee {
    fn poller(&self) -> &Poller;

    /// Whether it holds something back.
    fn holds_back(&self) -> bool;
}

impl Attended {
    /// Threads or a loop polled, and ended the engine's watch.
    pub(crate) fn attend(&mut self, key: u64, who: &impl Attendee) {
        let poller = who.poller();
        let pressed = poller.is_pressed();
        match poller.owner() {
            // It expired since, or a thread told that did not know.
            Owner::Engine => return,
            Owner::Loop if !pressed => return,
            Owner::Threads | Owner::Loop => {}
        }
        self.seen.insert(key, poller.visits());
        let now = Instant::now();
        self.round.get_or_insert(now + ROUND);
        if pressed {
            self.pressed.insert(key);
            self.soon.get_or_insert(now + PRESSED_ROUND);
        }
    }

    /// Events are pending for a loop, the first in a while.
    pub(crate) fn expect_loops(&mut self) {
        self.loops = true;
        self.round.get_or_insert_with(|| Instant::now() + ROUND);
    }

    /// The engine polls this connection, or it has ended.
    pub(crate) fn forget(&mut self, key: u64) {
        self.seen.remove(&key);
        self.pressed.remove(&key);
    }

    /// Whether it looks after this connection.
    pub(crate) fn has(&self, key: u64) -> bool {
        self.seen.contains_key(&key)
    }

    /// When to look.
    pub(crate) fn next(&self) -> Option<Instant> {
        [self.round, self.soon].into_iter().flatten().min()
    }

    /// Looks after those that are due. Returns those that nobody polled, which are the engine's
    /// from now on: it arms and polls them. `pending` returns the keys of the connections that have
    /// events for loops; it is called only if there may be some.
    pub(crate) fn look<'a, A: Attendee + 'a>(
        &mut self,
        now: Instant,
        find: impl Fn(u64) -> Option<&'a A>,
        pending: impl FnOnce() -> Vec<u64>,
    ) -> Vec<u64> {
        let mut expired = Vec::new();
        if self.soon.is_some_and(|at| at <= now) {
            self.look_at_pressed(&find, &mut expired);
            self.soon = (!self.pressed.is_empty()).then(|| now + PRESSED_ROUND);
        }
        if self.round.is_some_and(|at| at <= now) {
            let pending = if self.loops { pending() } else { Vec::new() };
            self.look_at_all(&find, &pending, &mut expired);
            let more = self.loops || !self.seen.is_empty();
            self.round = more.then(|| now + ROUND);
        }
        expired
    }

    /// Whether events are pending for loops, as far as is known. While that is not so, whoever
    /// [expects](Self::expect_loops) them has to be told of the next one.
    pub(crate) fn expects_loops(&self) -> bool {
        self.loops
    }

    /// The engine's thread comes once more, in any case.
    pub(crate) fn come_again(&mut self) {
        self.round.get_or_insert_with(|| Instant::now() + ROUND);
    }

    fn look_at_pressed<'a, A: Attendee + 'a>(
        &mut self,
        find: impl Fn(u64) -> Option<&'a A>,
        expired: &mut Vec<u64>,
    ) {
        let seen = &mut self.seen;
        self.pressed.retain(|key| {
            let (Some(who), Some(count)) = (find(*key), seen.get_mut(key)) else {
                return false;
            };
            // In this order: what is held back after the look finds that it is to be told.
            who.poller().relax();
            if !who.holds_back() {
                return false;
            }
            who.poller().press_again();
            match who.poller().look(*count) {
                Look::Visited(now) => {
                    *count = now;
                    return true;
                }
                Look::Expired => expired.push(*key),
                Look::Left | Look::Owned => {}
            }
            seen.remove(key);
            false
        });
    }

    fn look_at_all<'a, A: Attendee + 'a>(
        &mut self,
        find: impl Fn(u64) -> Option<&'a A>,
        pending: &[u64],
        expired: &mut Vec<u64>,
    ) {
        let pressed = &self.pressed;
        let is_pending: HashSet<u64> = pending.iter().copied().collect();
        self.seen.retain(|key, count| {
            let Some(poller) = find(*key).map(Attendee::poller) else {
                return false;
            };
            if poller.owner() == Owner::Loop && !is_pending.contains(key) {
                return pressed.contains(key);
            }
            match poller.look(*count) {
                Look::Visited(now) => {
                    *count = now;
                    true
                }
                Look::Expired => {
                    expired.push(*key);
                    false
                }
                Look::Left | Look::Owned => false,
            }
        });
        for key in pending {
            if let Some(poller) = find(*key).map(Attendee::poller)
                && poller.owner() == Owner::Loop
            {
                self.seen.entry(*key).or_insert_with(|| poller.visits());
            }
        }
        self.loops = !pending.is_empty();
    }
}
