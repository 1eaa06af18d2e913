use std::{
    collections::{BTreeMap, VecDeque},
    net::{IpAddr, Ipv6Addr},
};

/// Limits the total memory, in bytes, of a group of connections, and queues the claims of
/// connections that must wait.
///
/// A connection claims the memory of a message chunk by chunk, so a message that does not arrive
/// occupies little memory. Each host may use at most three quarters of the limit: this is its
/// share.
///
/// A later chunk is any chunk of a message except the first. Claims for later chunks precede all
/// other claims. If several hosts wait, the next grant goes to the host whose previous grant is the
/// oldest. Apart from these two rules, claims are granted in the order in which they were queued.
///
/// If the limit had no exceptions, messages that have partly arrived could deadlock: all of them
/// would wait for memory, and none would become complete and be released. Therefore a claim for a
/// later chunk is granted while at most nine eighths of the limit are in use. Above this amount,
/// only one message may claim further memory, until that message is complete and the application
/// can release it. The same rules apply to the share of each host. If no bytes are in use,
/// [`claim`](Self::claim) grants any number of bytes.
#[derive(Debug)]
pub struct Gauge {
    total: Level,
    hosts: BTreeMap<Host, Share>,
    /// The number of waiting claims of all hosts.
    waiting: usize,
    /// Granted claims that their claimants have not fetched yet. The bytes of these claims already
    /// count as in use.
    granted: Vec<Claim>,
    /// The claimants whose waiting claims were granted since the previous call to
    /// [`served`](Self::served).
    served: Vec<u64>,
    /// The ticket of the next claim that is queued.
    next_ticket: u64,
    /// The number of claims that were granted after waiting in the queue.
    turns: u64,
}

/// The part of a message for which a claim is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The whole message.
    Whole,
    /// The first chunk of a message with several chunks.
    First,
    /// A chunk that is neither the first nor the last of its message.
    Middle,
    /// The last chunk of a message with several chunks.
    Last,
}

impl Part {
    /// Classifies the bytes from `offset` to `end` (exclusive) of a message of `len` bytes.
    pub fn of(len: usize, offset: usize, end: usize) -> Self {
        match (offset == 0, end == len) {
            (true, true) => Self::Whole,
            (true, false) => Self::First,
            (false, false) => Self::Middle,
            (false, true) => Self::Last,
        }
    }

    /// Returns true if this part is not the first part of its message. The claims for the earlier
    /// parts were already granted.
    fn is_later(self) -> bool {
        matches!(self, Self::Middle | Self::Last)
    }
}

#[derive(Clone, Copy, Debug)]
struct Claim {
    claimant: u64,
    /// The sequence number of the claim. Claims are numbered in the order in which they are queued.
    ticket: u64,
    bytes: u64,
    part: Part,
}

/// The number of bytes that a host uses, and the host's waiting claims.
#[derive(Debug)]
struct Share {
    level: Level,
    /// The waiting claims. Claims for later parts of messages precede all other claims. Within each
    /// of these two groups, older claims precede newer ones.
    waiting: VecDeque<Claim>,
    /// The value of [`Gauge::turns`] when a waiting claim of the host was last granted.
    turn: u64,
}

/// A limit in bytes, and the number of bytes in use.
#[derive(Debug)]
struct Level {
    limit: u64,
    used: u64,
    /// The claimant that may exceed the limit until the last chunk of its message is granted.
    exceeding: Option<u64>,
}

impl Level {
    fn new(limit: u64) -> Self {
        Self {
            limit,
            used: 0,
            exceeding: None,
        }
    }

    fn has_room_for(&self, claim: &Claim) -> bool {
        self.used == 0
            || self.used.saturating_add(claim.bytes) <= self.limit
            || (claim.part.is_later()
                && (self.exceeding == Some(claim.claimant) || self.used <= self.most()))
    }

    /// Returns nine eighths of the limit. Claims for later chunks are granted while at most this
    /// number of bytes is in use.
    fn most(&self) -> u64 {
        self.limit.saturating_add(self.limit / 8)
    }

    fn take(&mut self, claim: &Claim) {
        self.used = self.used.saturating_add(claim.bytes);
        match claim.part {
            Part::Middle if self.used > self.limit => self.exceeding = Some(claim.claimant),
            Part::Last => self.forget(claim.claimant),
            Part::Middle | Part::Whole | Part::First => {}
        }
    }

    fn release(&mut self, bytes: u64) {
        debug_assert!(bytes <= self.used, "only bytes in use may be released");
        self.used = self.used.saturating_sub(bytes);
    }

    /// Revokes this claimant's permission to exceed the limit.
    fn forget(&mut self, claimant: u64) {
        self.exceeding.take_if(|exceeding| *exceeding == claimant);
    }
}

impl Share {
    /// Returns the index of this host's next claim to grant. This is the first claim, if the share
    /// has room for it. Otherwise it is the claim of the message that may exceed the share. Returns
    /// `None` if there is no such claim.
    fn next(&self) -> Option<usize> {
        let front = self.waiting.front()?;
        if self.level.has_room_for(front) {
            return Some(0);
        }
        self.index_of(self.level.exceeding?)
    }

    fn index_of(&self, claimant: u64) -> Option<usize> {
        self.waiting
            .iter()
            .position(|claim| claim.claimant == claimant)
    }

    fn wait(&mut self, claim: Claim) {
        let at = if claim.part.is_later() {
            let first = self.waiting.iter().position(|other| !other.part.is_later());
            first.unwrap_or(self.waiting.len())
        } else {
            self.waiting.len()
        };
        self.waiting.insert(at, claim);
    }
}

impl Gauge {
    /// Creates a gauge that limits all hosts together to `limit` bytes.
    pub fn new(limit: u64) -> Self {
        Self {
            total: Level::new(limit),
            hosts: BTreeMap::new(),
            waiting: 0,
            granted: Vec::new(),
            served: Vec::new(),
            next_ticket: 0,
            turns: 0,
        }
    }

    /// Returns the claimants whose waiting claims were granted since the previous call to this
    /// function. Each of these claimants must then fetch its grant with [`claim`](Self::claim).
    pub fn served(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.served)
    }

    /// Returns the number of bytes in use by all hosts.
    pub fn used(&self) -> u64 {
        self.total.used
    }

    /// Claims `bytes` for `claimant` on this host, or fetches a grant that the claimant has not
    /// fetched yet.
    ///
    /// Returns true if the claimant has the bytes now. Otherwise the claim is queued, and
    /// [`served`](Self::served) returns the claimant once the claim is granted. A queued claim
    /// cannot be changed, only removed with [`forget`](Self::forget).
    pub fn claim(&mut self, claimant: u64, host: Host, bytes: u64, part: Part) -> bool {
        if self.fetch(claimant) {
            return true;
        }
        let claim = Claim {
            claimant,
            ticket: self.next_ticket,
            bytes,
            part,
        };
        let share = self.host(host);
        if share.index_of(claimant).is_some() {
            return false;
        }
        let fits = share.level.has_room_for(&claim);
        if self.waiting == 0 && fits && self.total.has_room_for(&claim) {
            self.take(host, &claim);
            return true;
        }
        self.host(host).wait(claim);
        self.waiting += 1;
        self.next_ticket += 1;
        self.serve();
        self.served.retain(|served| *served != claimant);
        self.fetch(claimant)
    }

    /// Claims `bytes`, but does not queue the claim. Returns true if the bytes are granted. They
    /// are granted only if no claim waits, the host's share has room, and the bytes in use,
    /// including these, exceed neither `limit` nor the limit of the gauge.
    pub fn try_claim(&mut self, host: Host, bytes: u64, limit: u64) -> bool {
        let claim = Claim {
            claimant: u64::MAX,
            ticket: u64::MAX,
            bytes,
            part: Part::Whole,
        };
        let fits = self.waiting == 0
            && self.total.used.saturating_add(bytes) <= limit.min(self.total.limit)
            && self.host(host).level.has_room_for(&claim);
        if fits {
            self.take(host, &claim);
        } else {
            self.clean(host);
        }
        fits
    }

    /// Returns whether this claimant has a waiting claim, or a grant that it has not fetched yet.
    pub fn knows(&self, claimant: u64, host: Host) -> bool {
        let waits = |share: &Share| share.index_of(claimant).is_some();
        self.granted.iter().any(|claim| claim.claimant == claimant)
            || self.hosts.get(&host).is_some_and(waits)
    }

    /// Returns whether a waiting claim could be granted if this host released bytes.
    pub fn is_contended_at(&self, host: Host) -> bool {
        self.waiting > 0
            && self.hosts.iter().any(|(other, share)| {
                !share.waiting.is_empty() && (*other == host || share.next().is_some())
            })
    }

    /// Releases `bytes` of this host, and grants waiting claims.
    pub fn release(&mut self, host: Host, bytes: u64) {
        self.total.release(bytes);
        if let Some(share) = self.hosts.get_mut(&host) {
            share.level.release(bytes);
        }
        self.clean(host);
        self.serve();
    }

    /// Removes the claim of `claimant`, and revokes the claimant's permission to exceed the limit.
    /// If the claim was granted but not fetched, its bytes are released.
    pub fn forget(&mut self, claimant: u64, host: Host) {
        self.served.retain(|served| *served != claimant);
        self.total.forget(claimant);
        if let Some(share) = self.hosts.get_mut(&host) {
            share.level.forget(claimant);
            if let Some(at) = share.index_of(claimant) {
                share.waiting.remove(at);
                self.waiting -= 1;
            }
        }
        let given = self
            .granted
            .iter()
            .position(|claim| claim.claimant == claimant);
        match given.map(|at| self.granted.swap_remove(at)) {
            Some(claim) => self.release(host, claim.bytes),
            None => {
                self.clean(host);
                self.serve();
            }
        }
    }

    fn fetch(&mut self, claimant: u64) -> bool {
        let given = self
            .granted
            .iter()
            .position(|claim| claim.claimant == claimant);
        given.map(|at| self.granted.swap_remove(at)).is_some()
    }

    /// Grants waiting claims until the limits allow no further claim.
    fn serve(&mut self) {
        while let Some((host, at)) = self.next() {
            let share = self.host(host);
            let Some(claim) = share.waiting.remove(at) else {
                break;
            };
            self.waiting -= 1;
            self.turns += 1;
            let turn = self.turns;
            self.host(host).turn = turn;
            self.take(host, &claim);
            self.granted.push(claim);
            self.served.push(claim.claimant);
        }
    }

    /// Returns the next claim to grant: its host, and its index in the host's queue.
    fn next(&self) -> Option<(Host, usize)> {
        if self.waiting == 0 {
            return None;
        }
        let waiting = || {
            let hosts = self.hosts.iter();
            hosts.filter_map(|(host, share)| Some((host, share, share.next()?)))
        };
        let (host, share, at) = waiting().min_by_key(|(_, share, at)| {
            let claim = &share.waiting[*at];
            (!claim.part.is_later(), share.turn, claim.ticket)
        })?;
        if self.total.has_room_for(&share.waiting[at]) {
            return Some((*host, at));
        }
        // The claim that is next in order cannot be granted yet. If a message may exceed the limit,
        // only a claim for that message can be granted instead.
        let claimant = self.total.exceeding?;
        waiting().find_map(|(host, share, _)| {
            let at = share.index_of(claimant)?;
            let has_room = share.level.has_room_for(&share.waiting[at]);
            has_room.then_some((*host, at))
        })
    }

    fn take(&mut self, host: Host, claim: &Claim) {
        self.total.take(claim);
        self.host(host).level.take(claim);
    }

    fn host(&mut self, host: Host) -> &mut Share {
        let limit = self.total.limit - self.total.limit / 4;
        self.hosts.entry(host).or_insert_with(|| Share {
            level: Level::new(limit),
            waiting: VecDeque::new(),
            turn: 0,
        })
    }

    /// Removes the host if it has no bytes in use and no waiting claims.
    fn clean(&mut self, host: Host) {
        let idle = |share: &Share| share.level.used == 0 && share.waiting.is_empty();
        if self.hosts.get(&host).is_some_and(idle) {
            self.hosts.remove(&host);
        }
    }
}

/// A host on which peers run. All connections to the peers on a host share the limit for one host.
///
/// A host can use any number of IPv6 addresses in its /64 network, so all addresses of a /64
/// network are treated as one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Host(IpAddr);

impl Host {
    /// Returns the host that has this address.
    pub fn of(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V4(v4) => v4.into(),
            IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & (u128::MAX << 64)).into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use crate::testing::cases;

    fn host(number: u8) -> Host {
        Host::of([10, 8, 0, number].into())
    }

    /// Releases `bytes` of the host with this number. Returns the claimants whose waiting claims
    /// were granted as a result.
    fn release(gauge: &mut Gauge, number: u8, bytes: u64) -> Vec<u64> {
        gauge.release(host(number), bytes);
        gauge.served()
    }

    /// Claims bytes for a whole message of `claimant`. The number of the claimant is also the
    /// number of its host.
    fn whole(gauge: &mut Gauge, claimant: u64, bytes: u64) -> bool {
        gauge.claim(claimant, host(claimant as u8), bytes, Part::Whole)
    }

    #[test]
    fn claims_are_granted_in_their_order() {
        let mut gauge = Gauge::new(100);
        assert!(whole(&mut gauge, 1, 50) && whole(&mut gauge, 2, 40));
        assert!(!whole(&mut gauge, 3, 40) && !whole(&mut gauge, 4, 40));
        assert!(!whole(&mut gauge, 5, 5), "earlier claims are granted first");
        assert!(
            !whole(&mut gauge, 3, 40),
            "a repeated claim changes nothing"
        );
        assert_eq!(release(&mut gauge, 2, 40), [3]);
        assert_eq!(release(&mut gauge, 1, 50), [4, 5]);
        assert_eq!(gauge.used(), 40 + 40 + 5);
    }

    #[test]
    fn a_claim_is_granted_if_nothing_is_in_use() {
        let mut gauge = Gauge::new(100);
        assert!(whole(&mut gauge, 1, 1000));
        assert!(!whole(&mut gauge, 2, 1));
        assert_eq!(release(&mut gauge, 1, 1000), [2]);
        assert!(whole(&mut gauge, 2, 1) && !whole(&mut gauge, 1, 1000));
        assert_eq!(release(&mut gauge, 2, 1), [1]);
        gauge.forget(1, host(1));
        assert_eq!(gauge.used(), 0, "an unfetched grant is released");
    }

    #[test]
    fn a_host_leaves_a_quarter_to_others() {
        let mut gauge = Gauge::new(100);
        for claimant in 1..=7 {
            assert!(gauge.claim(claimant, host(1), 10, Part::Whole));
        }
        assert!(!gauge.claim(8, host(1), 10, Part::Whole));
        assert!(gauge.is_contended_at(host(1)) && !gauge.is_contended_at(host(2)));
        assert!(gauge.claim(9, host(2), 25, Part::Whole));
        assert!(!gauge.claim(10, host(2), 25, Part::Whole));
        assert!(gauge.is_contended_at(host(1)) && gauge.is_contended_at(host(2)));
        assert_eq!(release(&mut gauge, 1, 10), [8]);
        assert_eq!(release(&mut gauge, 1, 20), [10]);
    }

    #[test]
    fn hosts_that_wait_take_turns() {
        let mut gauge = Gauge::new(100);
        assert!(gauge.claim(1, host(1), 50, Part::Whole));
        assert!(gauge.claim(2, host(2), 50, Part::Whole));
        for (claimant, number) in [(3, 1), (4, 1), (5, 1), (6, 2), (7, 2)] {
            assert!(!gauge.claim(claimant, host(number), 10, Part::Whole));
        }
        assert_eq!(release(&mut gauge, 2, 20), [3, 6]);
        assert_eq!(release(&mut gauge, 1, 30), [4, 7, 5]);
    }

    #[test]
    fn a_message_that_does_not_arrive_blocks_nobody() {
        let mut gauge = Gauge::new(100);
        for claimant in 1..=6 {
            assert!(gauge.claim(claimant, host(1), 10, Part::First));
        }
        for round in 0..10 {
            assert!(gauge.claim(7, host(1), 15, Part::Whole), "round {round}");
            assert_eq!(release(&mut gauge, 1, 15), []);
        }
    }

    #[test]
    fn one_message_is_complete_before_others_go_on() {
        let mut gauge = Gauge::new(100);
        for claimant in 1..=4 {
            assert!(gauge.claim(claimant, host(claimant as u8), 25, Part::First));
        }
        for claimant in 1..=2 {
            assert!(
                gauge.claim(claimant, host(claimant as u8), 10, Part::Middle),
                "a later chunk may exceed the limit by an eighth"
            );
        }
        assert!(!gauge.claim(3, host(3), 10, Part::Middle));
        assert!(gauge.claim(2, host(2), 10, Part::Middle));
        assert!(gauge.claim(2, host(2), 10, Part::Last));
        assert_eq!(release(&mut gauge, 2, 55), [3]);
    }

    /// A message that arrives in several chunks.
    #[derive(Clone, Copy, Debug)]
    struct Message {
        len: usize,
        arrived: usize,
        waits: bool,
    }

    const PART: usize = 20;
    const LIMIT: u64 = 100;
    const LONGEST: usize = 150;

    impl Message {
        fn next(&self) -> (u64, Part) {
            let end = self.len.min(self.arrived + PART);
            let part = Part::of(self.len, self.arrived, end);
            ((end - self.arrived) as u64, part)
        }
    }

    /// A gauge, and the messages of claimants on three hosts.
    struct Model {
        gauge: Gauge,
        messages: HashMap<u64, Message>,
    }

    impl Model {
        fn go(&mut self, claimant: u64) {
            self.claim(claimant);
            self.fetch();
        }

        fn claim(&mut self, claimant: u64) {
            let message = self.messages.get_mut(&claimant).unwrap();
            let (bytes, part) = message.next();
            message.waits = !self.gauge.claim(claimant, host_of(claimant), bytes, part);
            if !message.waits {
                message.arrived += bytes as usize;
            }
        }

        fn fetch(&mut self) {
            for claimant in self.gauge.served() {
                assert!(
                    self.messages[&claimant].waits,
                    "only waiting claims are served"
                );
                self.claim(claimant);
                assert!(!self.messages[&claimant].waits, "a served claim is granted");
            }
        }

        fn drop(&mut self, claimant: u64) {
            let Some(message) = self.messages.remove(&claimant) else {
                return;
            };
            self.gauge.forget(claimant, host_of(claimant));
            self.gauge
                .release(host_of(claimant), message.arrived as u64);
            self.fetch();
        }

        fn check(&self) {
            let used: usize = self.messages.values().map(|message| message.arrived).sum();
            assert_eq!(self.gauge.used(), used as u64);
            assert!(used as u64 <= LIMIT + LIMIT / 8 + LONGEST as u64);
            for number in 0..3 {
                let of_host = self
                    .messages
                    .iter()
                    .filter(|(claimant, _)| **claimant % 3 == number);
                let used: usize = of_host.map(|(_, message)| message.arrived).sum();
                assert!(used as u64 <= 75 + 75 / 8 + LONGEST as u64);
            }
        }

        fn finish_all(&mut self) {
            while !self.messages.is_empty() {
                let whole = |message: &Message| message.arrived == message.len;
                let mut all: Vec<_> = self.messages.iter().collect();
                all.sort_by_key(|(claimant, _)| **claimant);
                let complete = all.iter().find(|(_, message)| whole(message));
                let ready = all
                    .iter()
                    .find(|(_, message)| !message.waits && !whole(message));
                match (
                    complete.map(|(claimant, _)| **claimant),
                    ready.map(|(claimant, _)| **claimant),
                ) {
                    (_, Some(claimant)) => self.go(claimant),
                    (Some(claimant), None) => self.drop(claimant),
                    (None, None) => panic!("all messages wait: {:?}", self.gauge),
                }
                self.check();
            }
        }
    }

    fn host_of(claimant: u64) -> Host {
        host((claimant % 3) as u8)
    }

    #[derive(Debug, Clone, Copy)]
    enum Op {
        Go(u64, usize),
        Drop(u64),
    }

    fn op() -> impl Strategy<Value = Op> {
        let claimant = 0..12_u64;
        prop_oneof![
            6 => (claimant.clone(), 1..LONGEST).prop_map(|(claimant, len)| Op::Go(claimant, len)),
            1 => claimant.prop_map(Op::Drop),
        ]
    }

    proptest! {
        #![proptest_config(cases(2048))]

        /// Checks the limits after each step of a random sequence of claims and releases. Then
        /// checks that every message becomes complete if the application releases complete
        /// messages.
        #[test]
        fn the_bounds_hold_and_every_message_becomes_complete(
            ops in prop::collection::vec(op(), 1..200)
        ) {
            let mut model = Model { gauge: Gauge::new(LIMIT), messages: HashMap::new() };
            for op in ops {
                match op {
                    Op::Go(claimant, len) => {
                        let new = Message { len, arrived: 0, waits: false };
                        let message = *model.messages.entry(claimant).or_insert(new);
                        if !message.waits && message.arrived < message.len {
                            model.go(claimant);
                        }
                    }
                    Op::Drop(claimant) => model.drop(claimant),
                }
                model.check();
            }
            model.finish_all();
            prop_assert_eq!(model.gauge.used(), 0);
            prop_assert!(model.gauge.hosts.is_empty() && model.gauge.waiting == 0);
        }
    }

    #[test]
    fn host_is_the_network_of_an_ipv6_address() {
        let host = |text: &str| Host::of(text.parse().unwrap()).0.to_string();
        assert_eq!(host("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!(host("2001:db8:1:3::1"), "2001:db8:1:3::");
        assert_eq!(host("fe80::1"), host("fe80::ffff:2"));
        assert_eq!(host("10.0.0.1"), "10.0.0.1");
        assert_eq!(host("::ffff:10.0.0.1"), "10.0.0.1");
    }
}
