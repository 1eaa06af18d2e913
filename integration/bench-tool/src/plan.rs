use crate::{
    program::{Program, Run},
    target::Target,
    traffic::{Test, Wait},
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
    pub(crate) theirs: usize,
    pub(crate) ours: usize,
    /// Of the ratio ours/theirs.
    pub(crate) target: Target,
}

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

const SIZES: [usize; 4] = [64, 4 * KIB, 64 * KIB, MIB];
const MORE_SIZES: [usize; 8] = [64, 256, KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB];

/// What the default configuration takes as one frame.
const DEFAULT_EAGER: usize = 16 * KIB;

const ADAPTIVE: Program = Program::Rdmsg {
    wait: Wait::Adaptive,
    eager_size: None,
};
const BUSY: Program = Program::Rdmsg {
    wait: Wait::Busy,
    eager_size: None,
};

impl Plan {
    pub(crate) fn new(quick: bool) -> Self {
        let mut plan = Self::default();
        let sizes: &[usize] = if quick { &SIZES } else { &MORE_SIZES };
        let stretch = if quick { 1 } else { 3 };
        for &size in sizes {
            let count = latency_count(size) * stretch;
            let add = |plan: &mut Self, program| plan.add(program, Test::Latency, size, count);
            if size == 64 || !quick {
                let theirs = add(&mut plan, Program::Perftest);
                let target = match size {
                    64 => Target::AtMost(1.15),
                    _ => Target::None,
                };
                for program in perftest_rivals(size) {
                    let ours = add(&mut plan, program);
                    plan.compare(theirs, ours, target);
                }
            }
            let theirs = add(&mut plan, Program::Rstream);
            for program in rstream_rivals(size) {
                let ours = add(&mut plan, program);
                plan.compare(theirs, ours, Target::Below(1.0));
            }
        }
        for &size in sizes {
            let count = bandwidth_count(size) * stretch;
            let add = |plan: &mut Self, program| plan.add(program, Test::Bandwidth, size, count);
            let target = match size {
                64 => Target::AtLeast(0.8),
                size if size == 64 * KIB || size == MIB => Target::AtLeast(0.95),
                _ => Target::None,
            };
            if target != Target::None || !quick {
                let theirs = add(&mut plan, Program::Perftest);
                for program in rstream_rivals(size) {
                    let ours = add(&mut plan, program);
                    plan.compare(theirs, ours, target);
                }
            }
            let theirs = add(&mut plan, Program::Rstream);
            for program in rstream_rivals(size) {
                let ours = add(&mut plan, program);
                plan.compare(theirs, ours, Target::Above(1.0));
            }
        }
        plan
    }

    /// The place of this run, which is one however often it is compared.
    fn add(&mut self, program: Program, test: Test, size: usize, count: u64) -> usize {
        let run = Run {
            program,
            test,
            size,
            count,
        };
        let known = self.runs.iter().position(|other| *other == run);
        known.unwrap_or_else(|| {
            self.runs.push(run);
            self.runs.len() - 1
        })
    }

    fn compare(&mut self, theirs: usize, ours: usize, target: Target) {
        self.pairs.push(Pair {
            theirs,
            ours,
            target,
        });
    }
}

/// The stock programs of perftest poll all the time. Ours is compared as it is by default, too.
fn perftest_rivals(size: usize) -> Vec<Program> {
    if size > DEFAULT_EAGER {
        rstream_rivals(size)
    } else {
        vec![BUSY, ADAPTIVE]
    }
}

/// Ours as it is by default; for long messages with buffers that take them whole, too.
fn rstream_rivals(size: usize) -> Vec<Program> {
    if size > DEFAULT_EAGER {
        let raised = Program::Rdmsg {
            wait: Wait::Adaptive,
            eager_size: Some(size as u32),
        };
        vec![raised, ADAPTIVE]
    } else {
        vec![ADAPTIVE]
    }
}

/// About a second on a device in software between two virtual machines.
fn latency_count(size: usize) -> u64 {
    match size {
        0..KIB => 2000,
        KIB..=DEFAULT_EAGER => 1000,
        0x4001..=0x1_0000 => 200,
        _ => 20,
    }
}

/// As [`latency_count`].
fn bandwidth_count(size: usize) -> u64 {
    match size {
        0..KIB => 20_000,
        KIB..=DEFAULT_EAGER => 5000,
        0x4001..=0x1_0000 => 500,
        _ => 40,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets(program: Program, test: Test, size: usize) -> Vec<Target> {
        let plan = Plan::new(true);
        let of = |pair: &&Pair| {
            let theirs = &plan.runs[pair.theirs];
            (theirs.program, theirs.test, theirs.size) == (program, test, size)
        };
        plan.pairs
            .iter()
            .filter(of)
            .map(|pair| pair.target)
            .collect()
    }

    #[test]
    fn a_quick_plan_has_every_target() {
        let latency = Target::AtMost(1.15);
        assert_eq!(
            targets(Program::Perftest, Test::Latency, 64),
            [latency, latency],
            "busy and adaptive"
        );
        assert_eq!(
            targets(Program::Perftest, Test::Bandwidth, 64),
            [Target::AtLeast(0.8)]
        );
        for size in [64 * KIB, MIB] {
            let bandwidth = Target::AtLeast(0.95);
            assert_eq!(
                targets(Program::Perftest, Test::Bandwidth, size),
                [bandwidth, bandwidth],
                "eager and as by default"
            );
        }
        for size in SIZES {
            assert_eq!(
                targets(Program::Rstream, Test::Latency, size)[0],
                Target::Below(1.0)
            );
            assert_eq!(
                targets(Program::Rstream, Test::Bandwidth, size)[0],
                Target::Above(1.0)
            );
        }
    }

    #[test]
    fn what_is_compared_is_of_a_kind_and_runs_once_a_round() {
        for quick in [true, false] {
            let plan = Plan::new(quick);
            for pair in &plan.pairs {
                let (theirs, ours) = (&plan.runs[pair.theirs], &plan.runs[pair.ours]);
                assert_eq!(
                    (theirs.test, theirs.size, theirs.count),
                    (ours.test, ours.size, ours.count)
                );
            }
            for (at, run) in plan.runs.iter().enumerate() {
                assert!(!plan.runs[..at].contains(run), "{run:?} twice");
            }
        }
    }
}
