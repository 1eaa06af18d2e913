use std::time::Duration;

use fastrand::Rng;
use rdmsg::{Config, Polling};
use toolbox::{Side, check, pattern, random};

use crate::scenario::{Fault, Reading, Scenario, Traffic};

/// The length of the longest message in bytes.
const LONGEST: u64 = 8 << 20;

/// The minimum length in bytes of the final message that a side sends. A shorter final message
/// could have the same bytes as another message.
const LAST: usize = 8;

/// The number of listeners for connections with [`Traffic::Any`]. The listeners have different
/// configurations.
pub(crate) const LISTENERS: u64 = 8;

/// The plan of one connection. Both sides derive the same plan from the scenario, the seed and the
/// connection's number.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) traffic: Traffic,
    /// The index of the listener to which the client connects.
    pub(crate) listener: usize,
    pub(crate) ending: Ending,
    halves: [Half; 2],
}

/// One side's part of a plan.
#[derive(Debug)]
pub(crate) struct Half {
    pub(crate) config: Config,
    /// The number of messages to send, unless the connection ends earlier. If `None`, the side
    /// sends messages until it receives the order `stop`.
    pub(crate) messages: Option<u64>,
    pub(crate) reading: Reading,
}

/// How the connection ends. A side sends all its messages before it closes or aborts the
/// connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// One side closes after it has received all messages of the other side.
    Close(Side),
    /// One side closes, probably while the other side still sends.
    CloseEarly(Side),
    CloseBoth,
    /// One side drops its handles after it has received the given number of messages.
    Drop(Side, u64),
    /// One side aborts the connection with the given code.
    Abort(Side, u32),
    /// The server drops its handles after it has sent its messages, and its process exits.
    Leave,
}

impl Plan {
    pub(crate) fn new(scenario: &Scenario, seed: u64, connection: u32) -> Self {
        let (_, traffic, server) = scenario.group(connection);
        if traffic == Traffic::Any {
            return Self::any(scenario, seed, connection);
        }
        let leaves = scenario.fault == Fault::ProcessLeaves;
        let half = |messages, reading| Half {
            config: scenario.config(),
            messages: leaves.then_some(messages),
            reading,
        };
        let close = Ending::Close(Side::Client);
        Self {
            traffic,
            listener: 0,
            ending: if leaves { Ending::Leave } else { close },
            halves: [half(0, Reading::Prompt), half(20, server)],
        }
    }

    fn any(scenario: &Scenario, seed: u64, connection: u32) -> Self {
        let mut rng = random(&[seed, connection.into(), u64::from(b'p')]);
        let listener = rng.u64(..LISTENERS);
        let mut halves = [
            config(scenario, &mut rng),
            listener_config(scenario, seed, listener),
        ]
        .map(|config| Half {
            config,
            messages: Some(match rng.u32(..10) {
                0..3 => rng.u64(1..=10),
                3..8 => rng.u64(10..=60),
                _ => rng.u64(60..=300),
            }),
            reading: one_of(
                &mut rng,
                &[Reading::Receiving, Reading::Selecting, Reading::Trying],
            ),
        });
        let by = one_of(&mut rng, &Side::BOTH);
        let roll = rng.u32(..100);
        // If the side `by` ends the connection early, give more messages to the other side, so that
        // the other side is probably still sending at that time.
        let factor = match roll {
            35..55 => 4,
            65.. => 2,
            _ => 1,
        };
        let others = &mut halves[by.other() as usize].messages;
        *others = others.map(|count| count * factor);
        let ending = match roll {
            0..35 => Ending::Close(by),
            35..55 => Ending::CloseEarly(by),
            55..65 => Ending::CloseBoth,
            65..80 => Ending::Drop(by, rng.u64(1..=others.unwrap_or(1))),
            _ => Ending::Abort(by, rng.u32(..)),
        };
        Self {
            traffic: Traffic::Any,
            listener: listener as usize,
            ending,
            halves,
        }
    }

    pub(crate) fn half(&self, side: Side) -> &Half {
        &self.halves[side as usize]
    }

    /// Returns the eager size of the connection in bytes, which is the minimum of both sides'
    /// values. If neither side sets a value, returns `u32::MAX`.
    pub(crate) fn eager_size(&self) -> u32 {
        let sizes = self.halves.iter().filter_map(|half| half.config.eager_size);
        sizes.min().unwrap_or(u32::MAX)
    }
}

/// Returns the configurations of all listeners of the server.
pub(crate) fn listener_configs(scenario: &Scenario, seed: u64) -> Vec<Config> {
    if scenario.is_endless() {
        (0..LISTENERS)
            .map(|listener| listener_config(scenario, seed, listener))
            .collect()
    } else {
        vec![scenario.config()]
    }
}

fn listener_config(scenario: &Scenario, seed: u64, listener: u64) -> Config {
    config(scenario, &mut random(&[seed, listener, u64::from(b'l')]))
}

/// Returns a random valid configuration that includes the scenario's changes. Its receive window
/// and send queue can be small. Its timeouts are long, because an emulated peer can be very slow.
fn config(scenario: &Scenario, rng: &mut Rng) -> Config {
    let millis = Duration::from_millis;
    let mut config = Config::default();
    config.receive_window = Some(one_of(rng, &[1, 2, 3, 8, 16, 64, 128]));
    config.send_depth = Some(one_of(rng, &[1, 2, 5, 16, 64]));
    config.eager_size = Some(one_of(rng, &[64, 256, 1024, 4096, 16 << 10, 64 << 10]));
    // 550 shared receives suffice for the 17 receives that each connection reserves, even while
    // closing connections exist. The full windows of all connections can need more receives.
    if rng.bool() {
        config.shared_receive = Some(550);
        config.eager_size = Some(one_of(rng, &[256, 4096]));
    }
    config.max_message = one_of(rng, &[16 << 10, 1 << 20, 1 << 30, 1 << 30]);
    config.large_memory = one_of(rng, &[64 << 10, 1 << 20, 16 << 20]);
    config.registration_cache = one_of(rng, &[0, 1 << 20, 16 << 20]);
    config.rdma.max_inline = one_of(rng, &[0, 64, 256]);
    let spins = Polling::default();
    config.polling = one_of(
        rng,
        &[Polling::Event, spins, Polling::Event, spins, Polling::Busy],
    );
    config.keepalive_interval = one_of(rng, &[None, Some(millis(100)), Some(millis(2000))]);
    config.keepalive_timeout = Duration::from_secs(60);
    config.close_timeout = Duration::from_secs(60);
    config.connect_timeout = Duration::from_secs(60);
    (scenario.change)(&mut config);
    config
}

/// Returns a random element of `values`, which must not be empty.
pub(crate) fn one_of<T: Copy>(rng: &mut Rng, values: &[T]) -> T {
    values[rng.usize(..values.len())]
}

/// The lengths and bytes of all messages that one side of a connection sends. The receiver
/// generates the same messages and compares them with the received ones. The comparison detects
/// lost, repeated, reordered, truncated and changed messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Content {
    /// The seed of this side's messages.
    seed: u64,
    traffic: Traffic,
    /// The length in bytes of the longest message that the receiver accepts.
    limit: u64,
    eager: u64,
}

impl Content {
    pub(crate) fn new(seed: u64, connection: u32, from: Side, plan: &Plan) -> Self {
        let receiver = &plan.half(from.other()).config;
        Self {
            seed: random(&[seed, connection.into(), from as u64]).u64(..),
            traffic: plan.traffic,
            limit: receiver.max_message.min(LONGEST),
            eager: plan.eager_size().into(),
        }
    }

    pub(crate) fn message(&self, number: u64, last: bool) -> Vec<u8> {
        let id = self.id(number, last);
        pattern(id, self.len(id, last))
    }

    /// Compares the received message `number` with the two messages that the sender may have sent:
    /// an ordinary message and a final message. Returns false if it equals the ordinary message,
    /// true if it equals the final message, and an error if it differs from both.
    pub(crate) fn check(&self, number: u64, message: &[u8]) -> Result<bool, String> {
        let as_one = |last| {
            let id = self.id(number, last);
            check(id, self.len(id, last), message)
        };
        match as_one(false) {
            Ok(()) => Ok(false),
            Err(_) if as_one(true).is_ok() => Ok(true),
            Err(problem) => Err(format!("message {number}: {problem}")),
        }
    }

    /// Returns a random number generator that is seeded with the message's number and `purpose`.
    pub(crate) fn random(&self, number: u64, purpose: u8) -> Rng {
        random(&[self.seed, number, purpose.into()])
    }

    fn id(&self, number: u64, last: bool) -> u64 {
        self.random(number, last.into()).u64(..)
    }

    fn len(&self, id: u64, last: bool) -> usize {
        let mut rng = Rng::with_seed(id);
        let small = |rng: &mut Rng| match rng.u32(..3) {
            0 => rng.u64(..200),
            1 => rng.u64(..4 << 10),
            _ => rng.u64(..=16 << 10),
        };
        let large = |rng: &mut Rng| rng.u64(20 << 10..1 << 20);
        let len = match self.traffic {
            Traffic::Idle | Traffic::Small => small(&mut rng),
            Traffic::Large => large(&mut rng),
            Traffic::Mixed | Traffic::Operations => match rng.u32(..16) {
                0 => large(&mut rng),
                1..4 => rng.u64(16 << 10..64 << 10),
                _ => small(&mut rng),
            },
            Traffic::Any => match rng.u32(..1000) {
                0..50 => 0,
                50..80 => self.eager + rng.u64(..2),
                80..500 => rng.u64(1..=256),
                500..800 => rng.u64(..=16 << 10),
                800..940 => rng.u64(..=128 << 10),
                940..990 => rng.u64(..=1 << 20),
                _ => rng.u64(..=LONGEST),
            },
        };
        let len = len.min(self.limit) as usize;
        if last { len.max(LAST) } else { len }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::scenario::EVERY_END;

    /// Returns a plan whose ending satisfies `ending`.
    pub(crate) fn planned(ending: impl Fn(Ending) -> bool) -> Plan {
        let scenario = Scenario::named(EVERY_END).unwrap();
        let mut plans = (0..1000).map(|connection| Plan::new(&scenario, 1, connection));
        plans.find(|plan| ending(plan.ending)).unwrap()
    }

    #[test]
    fn decide_all_by_the_seed() {
        let scenario = Scenario::named(EVERY_END).unwrap();
        let plan = |seed, connection| format!("{:?}", Plan::new(&scenario, seed, connection));
        for connection in 0..100 {
            assert_eq!(plan(9, connection), plan(9, connection));
            assert_ne!(plan(9, connection), plan(10, connection));
        }
    }

    #[test]
    fn plan_every_ending() {
        for side in Side::BOTH {
            planned(|ending| ending == Ending::Close(side));
            planned(|ending| ending == Ending::CloseEarly(side));
            planned(|ending| matches!(ending, Ending::Drop(by, _) if by == side));
            planned(|ending| matches!(ending, Ending::Abort(by, _) if by == side));
        }
        planned(|ending| ending == Ending::CloseBoth);
    }

    #[test]
    fn drop_after_messages_that_come() {
        let scenario = Scenario::named(EVERY_END).unwrap();
        for connection in 0..1000 {
            let plan = Plan::new(&scenario, 11, connection);
            if let Ending::Drop(by, after) = plan.ending {
                let sent = plan.half(by.other()).messages.unwrap();
                assert!((1..=sent).contains(&after));
            }
        }
    }

    fn content(scenario: &str, from: Side) -> Content {
        let plan = Plan::new(&Scenario::named(scenario).unwrap(), 7, 3);
        Content::new(7, 3, from, &plan)
    }

    #[test]
    fn know_a_message_by_its_bytes() {
        for scenario in [EVERY_END, "calm"] {
            let sent = content(scenario, Side::Client);
            let other = content(scenario, Side::Server);
            for (number, last) in (0..50).flat_map(|number| [(number, false), (number, true)]) {
                let message = sent.message(number, last);
                assert_eq!(sent.check(number, &message), Ok(last));
                if !message.is_empty() {
                    sent.check(number + 1, &message).unwrap_err();
                    other.check(number, &message).unwrap_err();
                }
            }
        }
    }

    #[test]
    fn find_a_changed_a_dropped_and_an_added_byte() {
        let content = content(EVERY_END, Side::Server);
        let number = (0..).find(|at| content.message(*at, false).len() > 5000);
        let number = number.unwrap();
        let good = content.message(number, false);
        let mut changed = good.clone();
        changed[4999] ^= 1;
        let problem = content.check(number, &changed).unwrap_err();
        assert!(problem.contains("1 bytes of the"), "{problem}");
        let mut shorter = good.clone();
        shorter.remove(100);
        let problem = content.check(number, &shorter).unwrap_err();
        assert!(problem.contains("instead of"), "{problem}");
        let longer = [&good[..], &[0]].concat();
        content.check(number, &longer).unwrap_err();
    }
}
