//! What is run and what is compared, with the targets.

use crate::{
    manner::{Manner, Wait},
    measure::Measure,
    part::Part,
    program::{Program, Run},
    target::Target,
};

/// What to run in a round, and what to compare in the end.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// In this order, so that what is compared runs close together.
    pub(crate) runs: Vec<Run>,
    pub(crate) pairs: Vec<Pair>,
    /// What somebody may look for in vain, and why.
    pub(crate) missing: Vec<&'static str>,
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

/// Of UCX's active messages with a copy.
const LARGEST_ACTIVE: usize = 4 * KIB;

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
const EVENT: Manner = Manner {
    wait: Wait::Event,
    ..DEFAULT
};
const BUSY: Manner = Manner {
    wait: Wait::Busy,
    ..DEFAULT
};
const TCP: Manner = Manner {
    tcp: true,
    ..DEFAULT
};
/// Where a wire takes long, the rate is what is under way by how long that takes.
const DEEP: Manner = Manner { deep: true, ..BUSY };

impl Plan {
    /// Everything sleeps until something comes: where one processor has both ends, what polls
    /// holds up what it polls for.
    pub(crate) fn counted(quick: bool) -> Self {
        let mut plan = Self::default();
        let perftest = Program::Perftest { event: true };
        let rstream = |tcp| Program::Rstream { event: true, tcp };
        let tcp = TCP.with(Wait::Event);
        for measure in [Measure::HalfRoundTrip, Measure::OneWay] {
            let sizes: &[usize] = match (quick, measure) {
                (false, _) => &SIZES,
                (true, Measure::HalfRoundTrip) => &[64, 4 * KIB, 64 * KIB],
                (true, _) => &[64, 64 * KIB, MIB],
            };
            for &size in sizes {
                let add = Group::new(measure, size);
                for manner in manners(measure, size, quick) {
                    let target = perftest_target(measure, size, manner);
                    add.pair(&mut plan, Program::Rdmsg(manner), perftest, target);
                }
                if !quick || size == 64 {
                    let tcp_target = Target::None;
                    add.pair(&mut plan, Program::Rdmsg(tcp), rstream(true), tcp_target);
                }
                if size == 64 {
                    for manner in [DEFAULT, TCP] {
                        add.default_beside_event(&mut plan, manner);
                    }
                }
                if !quick {
                    let target = rstream_target(measure, size);
                    add.pair(&mut plan, Program::Rdmsg(EVENT), rstream(false), target);
                    let ucx = Program::Ucx { event: true };
                    add.pair(&mut plan, Program::Rdmsg(EVENT), ucx, Target::None);
                }
            }
        }
        let batches = Group::new(Measure::OneWay, 64);
        for (theirs, target) in [
            (perftest, Target::AtLeast(5.0)),
            (rstream(true), Target::Above(1.0)),
        ] {
            let ours = Program::Rdmsg(Manner { batch: 16, ..EVENT });
            batches.pair(&mut plan, ours, theirs, target);
        }
        let pressed = Group::new(Measure::Pressed, 64);
        // Beside perftest's where its server keeps up: it has no flow control, and so no end where
        // that does not.
        let hold_back = true;
        let ours = pressed.run(Program::Rdmsg(Manner { hold_back, ..EVENT }));
        plan.compare(ours, batches.run(perftest), Target::AtLeast(2.0));
        let ours = Program::Rdmsg(Manner { hold_back, ..tcp });
        batches.pair(&mut plan, ours, rstream(true), Target::Above(1.0));
        let sizes: &[usize] = if quick { &[64] } else { &[64, 64 * KIB] };
        for &size in sizes {
            let ours = Program::Rdmsg(EVENT);
            let read = Group::new(Measure::Read, size);
            read.pair(&mut plan, ours, perftest, Target::None);
            // perftest cannot sleep until a WRITE is done. A SEND is what one competes with.
            let theirs = Group::new(Measure::OneWay, size).run(perftest);
            let write = Group::new(Measure::Write, size).run(ours);
            plan.compare(write, theirs, Target::None);
        }
        plan.add_many(quick);
        if !quick {
            plan.missing = vec![
                "libfabric: fi_pingpong only polls",
                "qperf: beside perftest, it tells nothing that is not told where it polls",
            ];
        }
        plan
    }

    /// A server that waits with epoll, its receives of two kinds, and many connections.
    fn add_many(&mut self, quick: bool) {
        let add = Group::new(Measure::HalfRoundTrip, 64);
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
        for (ours, theirs, limit) in [(own, blocking, 1.15), (shared, own, 1.1)] {
            let target = Target::AtMost(limit);
            add.pair(self, Program::Rdmsg(ours), Program::Rdmsg(theirs), target);
        }
        for connections in MANY.into_iter().filter(|_| !quick) {
            for one in [own, shared] {
                let many = Manner { connections, ..one };
                let target = Target::AtMost(1.1);
                add.pair(self, Program::Rdmsg(many), Program::Rdmsg(one), target);
            }
        }
    }

    /// As programs run where processors are free. Between hosts it takes longer and tells less.
    pub(crate) fn clock(quick: bool, hosts: u8) -> Self {
        let mut plan = Self::default();
        let sizes: &[usize] = match (quick, hosts) {
            (true, _) => &[64],
            (false, 1) => &SIZES[1..8],
            (false, _) => &[64, 4 * KIB, 64 * KIB],
        };
        for measure in [Measure::HalfRoundTrip, Measure::OneWay] {
            for &size in sizes {
                Group::new(measure, size).by_clock(&mut plan, quick);
            }
        }
        if quick {
            Group::new(Measure::OneWay, 64 * KIB).by_clock(&mut plan, quick);
        }
        plan
    }

    /// How the default configuration waits, beside the other ways. `device` is false where there is
    /// none.
    pub(crate) fn polling(part: Part, device: bool) -> Self {
        let mut plan = Self::default();
        let (round_trips, sparse): (&[Manner], &[Manner]) = match (part, device) {
            (Part::Counted, _) => (&[TCP, DEFAULT], &[DEFAULT]),
            (Part::Clock, true) => (&[], &[DEFAULT]),
            (Part::Clock, false) => (&[TCP], &[TCP]),
            (Part::OneProcessor | Part::Loaded | Part::Instructions, _) => (&[TCP], &[]),
        };
        for (measure, manners) in [
            (Measure::HalfRoundTrip, round_trips),
            (Measure::Sparse, sparse),
        ] {
            for manner in manners {
                let mut group = Group::new(measure, 64);
                if (part, measure) == (Part::Clock, Measure::HalfRoundTrip) {
                    group.count = MOVED;
                }
                group.by_waiting(&mut plan, part, *manner);
            }
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
    fn by_clock(self, plan: &mut Plan, quick: bool) {
        let perftest = Program::Perftest { event: false };
        let rstream = |tcp| Program::Rstream { event: false, tcp };
        let round_trip = self.measure == Measure::HalfRoundTrip;
        if round_trip && self.size == 64 {
            // What a ring that the peer writes into would win, beside what it would replace.
            let ring = Self {
                measure: Measure::Ring,
                ..self
            };
            let busy = Program::Rdmsg(BUSY);
            ring.pair(plan, busy, perftest, Target::None);
            plan.compare(ring.run(busy), self.run(busy), Target::None);
        }
        let mut add = |ours, theirs, target| self.pair(plan, Program::Rdmsg(ours), theirs, target);
        if round_trip && self.size == 64 {
            add(BUSY, perftest, Target::AtMost(0.9));
            for fixed in [BUSY, EVENT] {
                add(
                    DEFAULT,
                    Program::Rdmsg(fixed),
                    Target::AtMost(MORE_THAN_BUSY),
                );
            }
        } else {
            add(BUSY, perftest, Target::None);
        }
        if !round_trip {
            add(DEEP, perftest, Target::None);
        }
        if quick {
            return;
        }
        let ahead = if round_trip {
            add(BUSY, Program::Libfabric, Target::Below(1.0));
            Target::Below(1.0)
        } else {
            Target::Above(1.0)
        };
        add(BUSY, Program::Ucx { event: false }, ahead);
        if self.size <= LARGEST_ACTIVE {
            add(BUSY, Program::UcxActive, ahead);
        }
        add(BUSY, rstream(false), ahead);
        add(BUSY, Program::Qperf, Target::None);
        add(DEFAULT, perftest, Target::None);
        if !round_trip && self.size > DEFAULT_EAGER {
            let owned = Manner {
                owned: true,
                ..BUSY
            };
            add(owned, perftest, Target::None);
        }
        add(TCP, rstream(true), Target::None);
    }

    /// One way to use the library, by each way to wait.
    fn by_waiting(self, plan: &mut Plan, part: Part, default: Manner) {
        let [event, busy] =
            [Wait::Event, Wait::Busy].map(|wait| Program::Rdmsg(default.with(wait)));
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
            (Part::Clock, Measure::HalfRoundTrip) => {
                let target = Target::AtMost(MORE_THAN_BUSY);
                self.pair(plan, Program::Rdmsg(default), busy, target);
            }
            _ => Self { count: FEW, ..self }.pair(plan, busy, event, Target::None),
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
        self.pair(plan, Program::Rdmsg(default), event, target);
    }

    fn new(measure: Measure, size: usize) -> Self {
        let count = count(measure, size);
        Self {
            measure,
            size,
            count,
        }
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

    fn pair(self, plan: &mut Plan, ours: Program, theirs: Program, target: Target) {
        plan.compare(self.run(ours), self.run(theirs), target);
    }
}

/// The ways to use the library, of which some are for long messages only.
fn manners(measure: Measure, size: usize, quick: bool) -> Vec<Manner> {
    let mut manners = vec![EVENT];
    let owned = Manner {
        owned: true,
        ..EVENT
    };
    let stream = Manner {
        stream: true,
        ..EVENT
    };
    let tasks = Manner {
        tasks: true,
        ..EVENT
    };
    if !quick || (measure == Measure::HalfRoundTrip && size == 64) {
        manners.extend([stream, tasks]);
    }
    if measure == Measure::OneWay && size > DEFAULT_EAGER {
        manners.push(owned);
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
    const OWNED: Manner = Manner {
        owned: true,
        ..EVENT
    };
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
        (Measure::HalfRoundTrip, _) => Target::Below(1.0),
        (_, 0..=0x1_0000) => Target::AtLeast(1.1),
        _ => Target::Above(1.0),
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

    #[test]
    fn what_is_compared_is_of_a_kind_and_runs_once_a_round() {
        for plan in [
            Plan::counted(true),
            Plan::counted(false),
            Plan::clock(true, 1),
            Plan::clock(false, 1),
            Plan::clock(false, 2),
            Plan::polling(Part::Counted, true),
            Plan::polling(Part::OneProcessor, false),
            Plan::polling(Part::Loaded, false),
            Plan::polling(Part::Clock, false),
            Plan::polling(Part::Clock, true),
        ] {
            for pair in &plan.pairs {
                let (ours, theirs) = (&plan.runs[pair.ours], &plan.runs[pair.theirs]);
                assert_eq!((ours.size, ours.count), (theirs.size, theirs.count));
                assert_eq!(ours.measure.is_rate(), theirs.measure.is_rate());
                assert!(matches!(ours.program, Program::Rdmsg(_)));
            }
            for (at, run) in plan.runs.iter().enumerate() {
                assert!(!plan.runs[..at].contains(run), "{run:?} twice");
            }
        }
    }

    #[test]
    fn what_is_counted_sleeps() {
        let runs = [Plan::counted(false), Plan::polling(Part::Counted, true)]
            .into_iter()
            .flat_map(|plan| plan.runs);
        for run in runs {
            let sleeps = match run.program {
                Program::Perftest { event }
                | Program::Rstream { event, .. }
                | Program::Ucx { event } => event,
                // The default never spins where there is one processor.
                Program::Rdmsg(manner) => manner.wait != Wait::Busy,
                Program::UcxActive | Program::Libfabric | Program::Qperf => false,
            };
            assert!(sleeps, "{run}");
        }
    }

    #[test]
    fn a_quick_plan_has_a_dozen_paths_and_the_targets_at_their_sizes() {
        let plan = Plan::counted(true);
        assert!(
            (12..=24).contains(&plan.pairs.len()),
            "{}",
            plan.pairs.len()
        );
        let targets = plan.pairs.iter().filter(|pair| pair.target != Target::None);
        assert!(targets.count() >= 9);
        assert_eq!(
            perftest_target(
                Measure::OneWay,
                MIB,
                Manner {
                    owned: true,
                    ..EVENT
                }
            ),
            Target::AtLeast(1.02)
        );
    }
}
