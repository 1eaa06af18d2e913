//! What is run and what is compared, with the targets.

use crate::{
    manner::{Manner, Wait},
    measure::Measure,
    program::{Program, Run},
    row::{Part, Target},
};

/// What to run in a round, and what to compare in the end.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// In this order, so that what is compared runs close together.
    pub(crate) runs: Vec<Run>,
    pub(crate) pairs: Vec<Pair>,
}

/// Two runs that are compared, by their places in the plan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair {
    pub(crate) ours: usize,
    pub(crate) theirs: usize,
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

/// What the default configuration takes as one frame, over RDMA.
const DEFAULT_EAGER: usize = 16 * KIB;

/// What may be one with `Config::eager_size`.
const LARGEST_EAGER: usize = MIB;

/// How much more of anything the default configuration may take than `Polling::Event`.
const MORE_THAN_EVENT: f64 = 1.3;

/// How much longer it may take than `Polling::Busy`, on free processors.
const MORE_THAN_BUSY: f64 = 1.1;

/// How many messages are sent where one may take a time slice of a processor.
const FEW: u64 = 50;

/// The number of round trips of each program beside `Polling::Busy`, measured by the clock. If
/// the kernel starts both ends on one processor, it takes about 30 ms, or 2000 round trips, until
/// it moves one of them.
const MOVED: u64 = 30_000;

/// Connections of one process.
const MANY: [u32; 2] = [100, 1000];

const DEFAULT: Manner = Manner::DEFAULT;
const EVENT: Manner = DEFAULT.with(Wait::Event);
const OWNED: Manner = Manner {
    owned: true,
    ..EVENT
};
const TCP: Manner = Manner {
    tcp: true,
    ..DEFAULT
};

const PERFTEST: Program = Program::Perftest;
const RSTREAM_TCP: Program = Program::Rstream { tcp: true };

impl Plan {
    /// Everything sleeps until something comes: where one processor has both ends, what polls
    /// holds up what it polls for.
    pub(crate) fn counted(quick: bool) -> Self {
        let mut plan = Self::default();
        let tcp = TCP.with(Wait::Event);
        for measure in [Measure::HalfRoundTrip, Measure::OneWay] {
            let sizes: &[usize] = match (quick, measure) {
                (false, _) => &SIZES,
                (true, Measure::HalfRoundTrip) => &[64, 4 * KIB, 64 * KIB],
                (true, _) => &[64, 64 * KIB, MIB],
            };
            for &size in sizes {
                let group = Group::new(measure, size);
                for manner in manners(measure, size, quick) {
                    let target = perftest_target(measure, size, manner);
                    group.pair(&mut plan, manner, PERFTEST, target);
                }
                if !quick || size == 64 {
                    group.pair(&mut plan, tcp, RSTREAM_TCP, Target::None);
                }
                if size == 64 {
                    group.default_beside_event(&mut plan, DEFAULT);
                    group.default_beside_event(&mut plan, TCP);
                }
                if !quick {
                    let target = rstream_target(measure, size);
                    group.pair(&mut plan, EVENT, Program::Rstream { tcp: false }, target);
                }
            }
        }
        let one_way = Group::new(Measure::OneWay, 64);
        let batches = Manner { batch: 16, ..EVENT };
        one_way.pair(&mut plan, batches, PERFTEST, Target::AtLeast(5.0));
        one_way.pair(&mut plan, batches, RSTREAM_TCP, Target::AtLeast(1.0));
        // Beside perftest's where its server keeps up: it has no flow control, and so no end where
        // that does not.
        let hold_back = |manner| Manner {
            hold_back: true,
            ..manner
        };
        let pressed = Group::new(Measure::Pressed, 64);
        let ours = pressed.run(Program::Rdmsg(hold_back(EVENT)));
        plan.compare(ours, one_way.run(PERFTEST), Target::AtLeast(2.0));
        one_way.pair(&mut plan, hold_back(tcp), RSTREAM_TCP, Target::AtLeast(1.0));
        let sizes: &[usize] = if quick { &[64] } else { &[64, 64 * KIB] };
        for &size in sizes {
            Group::new(Measure::Read, size).pair(&mut plan, EVENT, PERFTEST, Target::None);
            // perftest cannot sleep until a WRITE is done. A SEND is what one competes with.
            let theirs = Group::new(Measure::OneWay, size).run(PERFTEST);
            let write = Group::new(Measure::Write, size).run(Program::Rdmsg(EVENT));
            plan.compare(write, theirs, Target::None);
        }
        plan.add_many(quick);
        plan
    }

    /// A server that waits with epoll, its receives of two kinds, and many connections.
    fn add_many(&mut self, quick: bool) {
        let group = Group::new(Measure::HalfRoundTrip, 64);
        let blocking = Manner {
            small: true,
            ..EVENT
        };
        let own = Manner {
            epoll: true,
            ..blocking
        };
        let shared = Manner {
            shared: true,
            ..own
        };
        group.pair(self, own, Program::Rdmsg(blocking), Target::AtMost(1.15));
        group.pair(self, shared, Program::Rdmsg(own), Target::AtMost(1.1));
        for connections in MANY.into_iter().filter(|_| !quick) {
            for one in [own, shared] {
                let many = Manner { connections, ..one };
                group.pair(self, many, Program::Rdmsg(one), Target::AtMost(1.1));
            }
        }
    }

    /// How the default configuration waits, beside the other ways. `device` is false where there is
    /// none.
    pub(crate) fn polling(part: Part, device: bool) -> Self {
        let mut plan = Self::default();
        let (round_trips, sparse): (&[Manner], &[Manner]) = match (part, device) {
            (Part::Counted, _) => (&[TCP, DEFAULT], &[DEFAULT]),
            (Part::Free, true) => (&[], &[DEFAULT]),
            (Part::Free, false) => (&[TCP], &[TCP]),
            _ => (&[TCP], &[]),
        };
        for manner in round_trips {
            let mut group = Group::new(Measure::HalfRoundTrip, 64);
            if part == Part::Free {
                group.count = MOVED;
            }
            group.by_waiting(&mut plan, part, *manner);
        }
        for manner in sparse {
            Group::new(Measure::Sparse, 64).by_waiting(&mut plan, part, *manner);
        }
        plan
    }

    fn compare(&mut self, ours: Run, theirs: Run, target: Target) {
        let (theirs, ours) = (self.add(theirs), self.add(ours));
        self.pairs.push(Pair {
            ours,
            theirs,
            target,
        });
    }

    /// The place of this run, which is one however often it is compared.
    fn add(&mut self, run: Run) -> usize {
        let known = self.runs.iter().position(|other| *other == run);
        known.unwrap_or_else(|| {
            self.runs.push(run);
            self.runs.len() - 1
        })
    }
}

/// What runs that are compared have in common.
#[derive(Clone, Copy)]
struct Group {
    measure: Measure,
    size: usize,
    count: u64,
}

impl Group {
    fn new(measure: Measure, size: usize) -> Self {
        let count = count(measure, size);
        Self {
            measure,
            size,
            count,
        }
    }

    /// One way to use the library, by each way to wait.
    fn by_waiting(self, plan: &mut Plan, part: Part, default: Manner) {
        let event = default.with(Wait::Event);
        let busy = default.with(Wait::Busy);
        if default.tcp {
            let socket = Manner {
                socket: true,
                ..default
            };
            self.pair(plan, event, Program::Rdmsg(socket), Target::None);
        }
        self.default_beside_event(plan, default);
        match (part, self.measure) {
            // What polls is not compared where instructions are counted.
            (Part::Counted, _) => {}
            (Part::Free, Measure::HalfRoundTrip) => {
                let target = Target::AtMost(MORE_THAN_BUSY);
                self.pair(plan, default, Program::Rdmsg(busy), target);
            }
            _ => Self { count: FEW, ..self }.pair(plan, busy, Program::Rdmsg(event), Target::None),
        }
    }

    fn default_beside_event(self, plan: &mut Plan, default: Manner) {
        let event = Program::Rdmsg(default.with(Wait::Event));
        let target = if self.measure.is_rate() {
            // With digits enough for a table.
            Target::AtLeast((100.0 / MORE_THAN_EVENT).round() / 100.0)
        } else {
            Target::AtMost(MORE_THAN_EVENT)
        };
        self.pair(plan, default, event, target);
    }

    fn run(self, program: Program) -> Run {
        let Self {
            measure,
            size,
            count,
        } = self;
        Run {
            program,
            measure,
            size,
            count,
        }
    }

    fn pair(self, plan: &mut Plan, ours: Manner, theirs: Program, target: Target) {
        plan.compare(self.run(Program::Rdmsg(ours)), self.run(theirs), target);
    }
}

/// The ways to use the library, of which some are for long messages only.
fn manners(measure: Measure, size: usize, quick: bool) -> Vec<Manner> {
    let mut manners = vec![EVENT];
    if !quick || (measure == Measure::HalfRoundTrip && size == 64) {
        manners.push(Manner {
            stream: true,
            ..EVENT
        });
        manners.push(Manner {
            tasks: true,
            ..EVENT
        });
    }
    if measure == Measure::OneWay && size > DEFAULT_EAGER {
        manners.push(OWNED);
    }
    if !quick && (DEFAULT_EAGER + 1..=LARGEST_EAGER).contains(&size) {
        let eager_size = Some(size as u32);
        manners.push(Manner {
            eager_size,
            ..EVENT
        });
    }
    manners
}

/// Counted, of the way that messages go by default, and with memory that is lent.
fn perftest_target(measure: Measure, size: usize, manner: Manner) -> Target {
    match (measure, size, manner) {
        (Measure::HalfRoundTrip, 64, EVENT) => Target::AtMost(0.9),
        (Measure::HalfRoundTrip, 0x1000 | 0x4000, EVENT) => Target::AtMost(1.03),
        (Measure::HalfRoundTrip, 0x1_0000, EVENT) => Target::AtMost(1.05),
        (Measure::OneWay, 64 | 0x1_0000, EVENT) => Target::AtLeast(1.0),
        (Measure::OneWay, 0x1_0000, OWNED) | (Measure::OneWay, MIB, EVENT | OWNED) => {
            Target::AtLeast(1.02)
        }
        _ => Target::None,
    }
}

fn rstream_target(measure: Measure, size: usize) -> Target {
    match (measure, size) {
        (Measure::HalfRoundTrip, 0..=0x1_0000) => Target::AtMost(0.91),
        (Measure::HalfRoundTrip, _) => Target::AtMost(1.0),
        (_, 0..=0x1_0000) => Target::AtLeast(1.1),
        _ => Target::AtLeast(1.0),
    }
}

/// So many that what the first ones and the last ones cost more changes the mean by a percent. With
/// fewer than five perftest tells nothing.
fn count(measure: Measure, size: usize) -> u64 {
    if measure == Measure::Sparse {
        return 500;
    }
    match (measure.is_rate(), size) {
        (false, 0..=KIB) => 1000,
        (false, 0..=DEFAULT_EAGER) => 300,
        (false, 0..=0x1_0000) => 100,
        (false, _) => 12,
        (true, 0..=KIB) => 5000,
        (true, 0..=DEFAULT_EAGER) => 2000,
        (true, 0..=0x1_0000) => 500,
        (true, ..=MIB) => 60,
        (true, _) => 10,
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
    fn pairs_are_of_a_kind_and_run_once_a_round() {
        for plan in all() {
            for pair in &plan.pairs {
                let (ours, theirs) = (&plan.runs[pair.ours], &plan.runs[pair.theirs]);
                assert_eq!((ours.size, ours.count), (theirs.size, theirs.count));
                assert_eq!(ours.measure.is_rate(), theirs.measure.is_rate());
                assert!(matches!(ours.program, Program::Rdmsg(_)));
            }
            for (at, run) in plan.runs.iter().enumerate() {
                assert!(!plan.runs[..at].contains(run), "{run:?} twice");
                if let Program::Rdmsg(Manner { batch: 2.., .. }) = run.program {
                    assert_eq!(run.measure, Measure::OneWay);
                }
            }
        }
    }

    #[test]
    fn counted_programs_sleep() {
        let plans = [Plan::counted(false), Plan::polling(Part::Counted, true)];
        for run in plans.into_iter().flat_map(|plan| plan.runs) {
            // The default never spins where there is one processor.
            let spins = |manner: Manner| manner.wait == Wait::Busy;
            assert!(
                !matches!(run.program, Program::Rdmsg(manner) if spins(manner)),
                "{run}"
            );
        }
    }

    #[test]
    fn quick_plan_has_a_dozen_paths_and_their_targets() {
        let plan = Plan::counted(true);
        let count = plan.pairs.len();
        assert!((12..=24).contains(&count), "{count}");
        let targets = plan.pairs.iter().filter(|pair| pair.target != Target::None);
        assert!(targets.count() >= 9);
        let target = perftest_target(Measure::OneWay, MIB, OWNED);
        assert_eq!(target, Target::AtLeast(1.02));
    }
}
