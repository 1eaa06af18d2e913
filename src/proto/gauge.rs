use std::collections::VecDeque;

/// A bound on bytes that many connections use at a time, with a queue of those who wait for some.
///
/// A claim is granted whole or not at all, in the order of claims. A single one may exceed the
/// bound. A *bulky* claim, of more than half of the bound, does not hold up the others while much
/// is in use: they overtake it, into the half that it leaves to them. Otherwise one announcement
/// would stop everybody for as long as an application keeps its messages.
///
/// There is no deadlock, because a claimant waits for one thing at a time: after a grant it claims
/// more only from the end of the queue.
#[derive(Debug)]
pub(crate) struct Gauge {
    limit: u64,
    used: u64,
    /// Claimants with the bytes that they wait for, oldest claim first.
    waiting: VecDeque<(u64, u64)>,
    /// Claimants with the bytes that were granted and not fetched. These are in use.
    granted: Vec<(u64, u64)>,
}

impl Gauge {
    pub(crate) fn new(limit: u64) -> Self {
        Self {
            limit,
            used: 0,
            waiting: VecDeque::new(),
            granted: Vec::new(),
        }
    }

    /// Returns the number of bytes in use.
    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    /// Claims `bytes` for `who`, or fetches what was granted to it. Returns whether it has them
    /// now; otherwise it waits in the queue.
    pub(crate) fn claim(&mut self, who: u64, bytes: u64) -> bool {
        if let Some(at) = self.granted.iter().position(|(other, _)| *other == who) {
            let (_, given) = self.granted.swap_remove(at);
            debug_assert_eq!(given, bytes, "a claim changes only by `forget`");
            return true;
        }
        if self.waiting.iter().any(|(other, _)| *other == who) {
            return false;
        }
        let others = self.waiting.iter().map(|(_, bytes)| *bytes);
        let given = self.may_have(bytes, others);
        if given {
            self.used = self.used.saturating_add(bytes);
        } else {
            self.waiting.push_back((who, bytes));
        }
        given
    }

    /// Claims `bytes` of the first half of the bound for a claimant that does not wait. Returns
    /// whether it has them, which it has not while others wait.
    pub(crate) fn try_claim(&mut self, bytes: u64) -> bool {
        let used = self.used.saturating_add(bytes);
        let given = self.waiting.is_empty() && used <= self.limit / 2;
        if given {
            self.used = used;
        }
        given
    }

    /// Frees `bytes`. Returns the claimants that were granted theirs, which `claim` fetches.
    pub(crate) fn release(&mut self, bytes: u64) -> Vec<u64> {
        debug_assert!(bytes <= self.used, "no more comes back than was given");
        self.used = self.used.saturating_sub(bytes);
        self.serve()
    }

    /// Removes the claim of `who`, granted or not. Returns the claimants that were granted theirs
    /// because of that.
    pub(crate) fn forget(&mut self, who: u64) -> Vec<u64> {
        self.waiting.retain(|(other, _)| *other != who);
        let given = self.granted.iter().position(|(other, _)| *other == who);
        match given {
            Some(at) => {
                let (_, bytes) = self.granted.swap_remove(at);
                self.release(bytes)
            }
            None => self.serve(),
        }
    }

    /// Grants claims as far as the bound allows.
    fn serve(&mut self) -> Vec<u64> {
        let mut served = Vec::new();
        let mut at = 0;
        while let Some(&(who, bytes)) = self.waiting.get(at) {
            let before = self.waiting.iter().take(at).map(|(_, bytes)| *bytes);
            if self.may_have(bytes, before) {
                self.waiting.remove(at);
                self.used = self.used.saturating_add(bytes);
                self.granted.push((who, bytes));
                served.push(who);
            } else if self.is_bulky(bytes) {
                at += 1;
            } else {
                break;
            }
        }
        served
    }

    /// Whether a claim of `bytes` may be granted while the claims `before` it wait.
    fn may_have(&self, bytes: u64, before: impl Iterator<Item = u64>) -> bool {
        let mut limit = self.limit;
        for other in before {
            if !self.is_bulky(other) || self.is_bulky(bytes) {
                return false;
            }
            limit = self.limit / 2;
        }
        self.used == 0 || self.used.saturating_add(bytes) <= limit
    }

    fn is_bulky(&self, bytes: u64) -> bool {
        bytes > self.limit / 2
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use crate::proto::testing::cases;

    #[test]
    fn those_who_wait_are_served_in_the_order_of_asking() {
        let mut gauge = Gauge::new(100);
        assert!(gauge.claim(1, 50) && gauge.claim(2, 40));
        assert!(!gauge.claim(3, 40) && !gauge.claim(4, 40));
        assert!(!gauge.claim(5, 5), "it would fit, but is not its turn");
        assert!(!gauge.claim(3, 40), "asking again changes nothing");
        assert_eq!(gauge.release(40), [3]);
        assert!(
            gauge.claim(3, 40) && !gauge.claim(3, 40),
            "and now it is last"
        );
        assert_eq!(gauge.release(50), [4, 5]);
        assert_eq!(gauge.forget(4), [3], "what was not fetched is free");
        assert_eq!(gauge.used(), 40 + 5 + 40);
    }

    #[test]
    fn one_alone_may_have_more_than_there_is() {
        let mut gauge = Gauge::new(100);
        assert!(gauge.claim(1, 1000));
        assert!(!gauge.claim(2, 1));
        assert_eq!(gauge.release(1000), [2]);
        assert!(gauge.claim(2, 1) && !gauge.claim(1, 1000));
        assert_eq!(gauge.release(1), [1]);
    }

    /// An application keeps a message, and somebody announces one for which there will never be
    /// room.
    #[test]
    fn a_bulky_request_does_not_hold_up_the_others() {
        let mut gauge = Gauge::new(100);
        assert!(gauge.claim(1, 10));
        assert!(!gauge.claim(2, 200) && !gauge.claim(3, 95));
        for round in 0..10 {
            assert!(gauge.claim(4, 30), "round {round}");
            assert!(!gauge.claim(5, 30), "not more than half");
            assert_eq!(gauge.release(30), [5]);
            assert!(gauge.claim(5, 30));
            assert_eq!(gauge.release(30), []);
        }
        assert_eq!(gauge.release(10), [2], "in their order");
        assert!(gauge.claim(2, 200));
        assert_eq!(gauge.release(200), [3]);
    }

    #[test]
    fn claims_that_do_not_wait_have_half() {
        let mut gauge = Gauge::new(100);
        assert!(gauge.try_claim(30) && !gauge.try_claim(21) && gauge.try_claim(20));
        assert!(gauge.claim(1, 50) && !gauge.claim(2, 90));
        assert_eq!(gauge.release(70), []);
        assert!(!gauge.try_claim(10), "another waits");
        assert_eq!(gauge.used(), 30);
    }

    #[derive(Debug, Clone, Copy)]
    enum Op {
        Ask(u64, u64),
        Release(u64),
        Forget(u64),
    }

    fn op() -> impl Strategy<Value = Op> {
        let who = 0..6_u64;
        prop_oneof![
            4 => (who.clone(), 1..150_u64).prop_map(|(who, bytes)| Op::Ask(who, bytes)),
            4 => who.clone().prop_map(Op::Release),
            1 => who.prop_map(Op::Forget),
        ]
    }

    proptest! {
        #![proptest_config(cases(512))]

        /// Whatever is asked for and given back: never more than the bound but for one alone,
        /// nobody waits while there is nothing in use, and of those that are not bulky nobody is
        /// overtaken.
        #[test]
        fn the_bound_holds_and_everybody_gets_its_turn(ops in prop::collection::vec(op(), 1..200)) {
            const LIMIT: u64 = 100;
            let mut gauge = Gauge::new(LIMIT);
            let mut has: HashMap<u64, u64> = HashMap::new();
            let mut wants: Vec<(u64, u64)> = Vec::new();
            for op in ops {
                let served = match op {
                    Op::Ask(who, bytes) => {
                        if has.contains_key(&who) || wants.iter().any(|(other, _)| *other == who) {
                            continue;
                        }
                        let small = |(_, bytes): &&(u64, u64)| *bytes <= LIMIT / 2;
                        let line: Vec<_> = wants.iter().filter(small).collect();
                        if gauge.claim(who, bytes) {
                            prop_assert!(line.is_empty(), "nobody is overtaken");
                            has.insert(who, bytes);
                        } else {
                            wants.push((who, bytes));
                        }
                        Vec::new()
                    }
                    Op::Release(who) => match has.remove(&who) {
                        Some(bytes) => gauge.release(bytes),
                        None => continue,
                    },
                    Op::Forget(who) => {
                        wants.retain(|(other, _)| *other != who);
                        gauge.forget(who)
                    }
                };
                for who in served {
                    let at = wants.iter().position(|(other, _)| *other == who).expect("it waited");
                    let small = wants.iter().take(at).any(|(_, bytes)| *bytes <= LIMIT / 2);
                    prop_assert!(!small, "nobody is overtaken");
                    let (_, bytes) = wants.remove(at);
                    prop_assert!(gauge.claim(who, bytes), "it was given");
                    has.insert(who, bytes);
                }
                let used: u64 = has.values().sum();
                prop_assert_eq!(gauge.used(), used);
                prop_assert!(used <= LIMIT || has.len() == 1);
                prop_assert!(used > 0 || wants.is_empty(), "no deadlock");
            }
        }
    }
}
