//! The compared programs, with the targets.

use crate::{
    manner::{Manner, Way},
    measure::Measure,
    program::{Program, Run},
    row::{Part, Target},
};

/// Comparisons.
#[derive(Debug, Default)]
pub(crate) struct Plan(pub(crate) Vec<Pair>);

/// Two runs of a kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair {
    pub(crate) ours: Run,
    pub(crate) theirs: Run,
    /// Of the ratio ours/theirs.
    pub(crate) target: Target,
}

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

const SIZES: [usize; 9] = [
    1,
    64,
    KIB,
    4 * KIB,
    16 * KIB,
    64 * KIB,
    256 * KIB,
    MIB,
    8 * MIB,
];

/// The eager size of the default configuration, over RDMA.
const DEFAULT_EAGER: usize = 16 * KIB;

/// The largest eager size of the comparison.
const LARGEST_EAGER: usize = MIB;

/// The limit of the default configuration, in multiples of `Polling::Event`.
const MORE_THAN_EVENT: f64 = 1.3;

/// Its limit on free processors, in multiples of the time of `Polling::Busy`.
const MORE_THAN_BUSY: f64 = 1.1;

/// The number of messages of a program that may take a time slice for each.
const FEW: u64 = 50;

/// The number of round trips of each program beside `Polling::Busy`, measured by the clock. If
/// the kernel starts both ends on one processor, it takes about 30 ms, or 2000 round trips, until
/// it moves one of them.
const MOVED: u64 = 30_000;

/// Connections of one process.
const MANY: [u32; 2] = [100, 1000];

const DEFAULT: Manner = Manner::DEFAULT;
const EVENT: Manner = DEFAULT.with(Way::Event);
const OWNED: Manner = EVENT.with(Way::Owned);
const TCP: Manner = DEFAULT.with(Way::Tcp);

const PERFTEST: Program = Program::Perftest;
const RSTREAM: Program = Program::Rstream { tcp: false };
const RSTREAM_TCP: Program = Program::Rstream { tcp: true };

impl Plan {
    /// All programs sleep for events: a program that spins would take the processor of its peer.
    pub(crate) fn counted(quick: bool) -> Self {
        let mut plan = Self::default();
        let tcp = TCP.with(Way::Event);
        for measure in [Measure::HalfRoundTrip, Measure::OneWay] {
            let sizes: &[usize] = match (quick, measure) {
                (false, _) => &SIZES,
                (true, Measure::HalfRoundTrip) => &[64, 4 * KIB, 64 * KIB],
                (true, _) => &[64, 64 * KIB, MIB],
            };
            for &size in sizes {
                let kind = kind(measure, size);
                for manner in manners(measure, size, quick) {
                    plan.pair(kind, manner, PERFTEST, perftest_target(kind, manner));
                }
                if !quick || size == 64 {
                    plan.pair(kind, tcp, RSTREAM_TCP, Target::None);
                }
                if size == 64 {
                    plan.pair_with_event(kind, DEFAULT);
                    plan.pair_with_event(kind, TCP);
                }
                if !quick {
                    plan.pair(kind, EVENT, RSTREAM, rstream_target(kind));
                }
            }
        }
        let one_way = kind(Measure::OneWay, 64);
        let batches = Manner { batch: 16, ..EVENT };
        plan.pair(one_way, batches, PERFTEST, Target::AtLeast(5.0));
        plan.pair(one_way, batches, RSTREAM_TCP, Target::AtLeast(1.0));
        let sizes: &[usize] = if quick { &[64] } else { &[64, 64 * KIB] };
        for &size in sizes {
            plan.pair(kind(Measure::Read, size), EVENT, PERFTEST, Target::None);
            // perftest cannot sleep until a WRITE is done, so a WRITE is compared with a SEND.
            let theirs = kind(Measure::OneWay, size).by(PERFTEST);
            let write = kind(Measure::Write, size).by(Program::Rdmsg(EVENT));
            plan.compare(write, theirs, Target::None);
        }
        plan.add_many(quick);
        plan
    }

    /// A server that waits with epoll, its receives of two kinds, and many connections.
    fn add_many(&mut self, quick: bool) {
        let kind = kind(Measure::HalfRoundTrip, 64);
        let blocking = EVENT.with(Way::Small);
        let own = blocking.with(Way::EventFd);
        let shared = own.with(Way::Shared);
        self.pair(kind, own, Program::Rdmsg(blocking), Target::AtMost(1.15));
        self.pair(kind, shared, Program::Rdmsg(own), Target::AtMost(1.1));
        for connections in MANY.into_iter().filter(|_| !quick) {
            for one in [own, shared] {
                let many = Manner { connections, ..one };
                self.pair(kind, many, Program::Rdmsg(one), Target::AtMost(1.1));
            }
        }
    }

    /// The default way to wait, compared with the others. `device` is false on a host without one.
    pub(crate) fn polling(part: Part, device: bool) -> Self {
        let mut plan = Self::default();
        let (round_trips, sparse): (&[Manner], &[Manner]) = match (part, device) {
            (Part::Counted, _) => (&[TCP, DEFAULT], &[DEFAULT]),
            (Part::Free, true) => (&[], &[DEFAULT]),
            (Part::Free, false) => (&[TCP], &[TCP]),
            _ => (&[TCP], &[]),
        };
        for manner in round_trips {
            let mut kind = kind(Measure::HalfRoundTrip, 64);
            if part == Part::Free {
                kind.count = MOVED;
            }
            plan.pair_by_waiting(part, kind, *manner);
        }
        for manner in sparse {
            plan.pair_by_waiting(part, kind(Measure::Sparse, 64), *manner);
        }
        plan
    }

    /// Returns all runs of a round, each once. The two of a pair run close together.
    pub(crate) fn runs(&self) -> Vec<Run> {
        let mut runs = Vec::new();
        for run in self.0.iter().flat_map(|pair| [pair.theirs, pair.ours]) {
            if !runs.contains(&run) {
                runs.push(run);
            }
        }
        runs
    }

    fn compare(&mut self, ours: Run, theirs: Run, target: Target) {
        self.0.push(Pair {
            ours,
            theirs,
            target,
        });
    }

    fn pair(&mut self, kind: Run, ours: Manner, theirs: Program, target: Target) {
        self.compare(kind.by(Program::Rdmsg(ours)), kind.by(theirs), target);
    }

    /// One way to use the library, by each way to wait.
    fn pair_by_waiting(&mut self, part: Part, kind: Run, default: Manner) {
        let [event, busy] = [Way::Event, Way::Busy].map(|way| default.with(way));
        if default.has(Way::Tcp) {
            let socket = Program::Rdmsg(default.with(Way::Socket));
            self.pair(kind, event, socket, Target::None);
        }
        self.pair_with_event(kind, default);
        match (part, kind.measure) {
            // Spinning programs cannot be counted.
            (Part::Counted, _) => {}
            (Part::Free, Measure::HalfRoundTrip) => {
                let target = Target::AtMost(MORE_THAN_BUSY);
                self.pair(kind, default, Program::Rdmsg(busy), target);
            }
            _ => {
                let few = Run { count: FEW, ..kind };
                self.pair(few, busy, Program::Rdmsg(event), Target::None);
            }
        }
    }

    fn pair_with_event(&mut self, kind: Run, default: Manner) {
        let event = Program::Rdmsg(default.with(Way::Event));
        let target = if kind.measure.is_rate() {
            // With digits enough for a table.
            Target::AtLeast((100.0 / MORE_THAN_EVENT).round() / 100.0)
        } else {
            Target::AtMost(MORE_THAN_EVENT)
        };
        self.pair(kind, default, event, target);
    }
}

/// The ways to use the library, of which some are for long messages only.
fn manners(measure: Measure, size: usize, quick: bool) -> Vec<Manner> {
    let mut manners = vec![EVENT];
    if !quick || (measure == Measure::HalfRoundTrip && size == 64) {
        manners.extend([Way::Stream, Way::Tasks].map(|way| EVENT.with(way)));
    }
    if measure == Measure::OneWay && size > DEFAULT_EAGER {
        manners.push(OWNED);
    }
    if !quick && (DEFAULT_EAGER + 1..=LARGEST_EAGER).contains(&size) {
        manners.push(EVENT.with(Way::Eager));
    }
    manners
}

/// Counted, of the way that messages go by default, and with memory that is lent.
fn perftest_target(Run { measure, size, .. }: Run, manner: Manner) -> Target {
    match (measure, size, manner) {
        (Measure::HalfRoundTrip, 64, EVENT) => Target::AtMost(0.9),
        (Measure::HalfRoundTrip, 0x1000 | 0x4000, EVENT) => Target::AtMost(1.03),
        (Measure::HalfRoundTrip, 0x1_0000, EVENT) => Target::AtMost(1.05),
        (Measure::OneWay, 64 | 0x1_0000, EVENT) => Target::AtLeast(1.0),
        (Measure::OneWay, 0x1_0000, OWNED) => Target::AtLeast(1.02),
        (Measure::OneWay, MIB, EVENT | OWNED) => Target::AtLeast(1.02),
        _ => Target::None,
    }
}

fn rstream_target(Run { measure, size, .. }: Run) -> Target {
    match (measure, size) {
        (Measure::HalfRoundTrip, 0..=0x1_0000) => Target::AtMost(0.91),
        (Measure::HalfRoundTrip, _) => Target::AtMost(1.0),
        (_, 0..=0x1_0000) => Target::AtLeast(1.1),
        _ => Target::AtLeast(1.0),
    }
}

/// Returns a kind with a number of messages of which the first and the last ones change the mean by
/// at most 1 %. perftest needs five.
fn kind(measure: Measure, size: usize) -> Run {
    let count = match (measure.is_rate(), size) {
        _ if measure == Measure::Sparse => 500,
        (false, 0..=KIB) => 1000,
        (false, 0..=DEFAULT_EAGER) => 300,
        (false, 0..=0x1_0000) => 100,
        (false, _) => 12,
        (true, 0..=KIB) => 5000,
        (true, 0..=DEFAULT_EAGER) => 2000,
        (true, 0..=0x1_0000) => 500,
        (true, ..=MIB) => 60,
        (true, _) => 10,
    };
    Run {
        program: PERFTEST,
        measure,
        size,
        count,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Plan> {
        vec![
            Plan::counted(true),
            Plan::counted(false),
            Plan::polling(Part::Counted, true),
            Plan::polling(Part::OneProcessor, false),
            Plan::polling(Part::Loaded, false),
            Plan::polling(Part::Free, false),
            Plan::polling(Part::Free, true),
        ]
    }

    #[test]
    fn pairs_are_of_a_kind() {
        for pair in all().iter().flat_map(|plan| &plan.0) {
            let (ours, theirs) = (&pair.ours, &pair.theirs);
            assert_eq!((ours.size, ours.count), (theirs.size, theirs.count));
            assert_eq!(ours.measure.is_rate(), theirs.measure.is_rate());
            let Program::Rdmsg(manner) = ours.program else {
                panic!("{ours}")
            };
            assert!(manner.batch == 1 || ours.measure == Measure::OneWay);
        }
    }

    #[test]
    fn counted_programs_sleep() {
        let plans = [Plan::counted(false), Plan::polling(Part::Counted, true)];
        for run in plans.into_iter().flat_map(|plan| plan.runs()) {
            // The default does not spin on a host with one processor.
            let spins = |manner: Manner| manner.has(Way::Busy);
            assert!(
                !matches!(run.program, Program::Rdmsg(manner) if spins(manner)),
                "{run}"
            );
        }
    }

    #[test]
    fn quick_plan_has_a_dozen_paths_and_their_targets() {
        let plan = Plan::counted(true);
        let count = plan.0.len();
        assert!((12..=24).contains(&count), "{count}");
        let targets = plan.0.iter().filter(|pair| pair.target != Target::None);
        assert!(targets.count() >= 9);
        let target = perftest_target(kind(Measure::OneWay, MIB), OWNED);
        assert_eq!(target, Target::AtLeast(1.02));
    }
}
