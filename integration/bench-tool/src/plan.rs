use crate::{
    manner::{Manner, Wait},
    program::{Program, Run},
    target::Target,
    traffic::Test,
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

impl Plan {
    pub(crate) fn new(quick: bool) -> Self {
        let mut plan = Self::default();
        let sizes: &[usize] = if quick { &SIZES } else { &MORE_SIZES };
        for test in [Test::Latency, Test::Bandwidth] {
            for &size in sizes {
                plan.add_all(test, size, quick);
            }
        }
        plan
    }

    /// Ours against each of theirs, at one size.
    fn add_all(&mut self, test: Test, size: usize, quick: bool) {
        let count = count(test, size) * if quick { 1 } else { 3 };
        let target = perftest_target(test, size);
        // Where there is no target, perftest takes time and tells nothing that is asked.
        if target != Target::None || !quick {
            self.add_group(Program::Perftest, test, size, count, target);
        }
        let ahead = match test {
            Test::Latency => Target::Below(1.0),
            Test::Bandwidth => Target::Above(1.0),
        };
        self.add_group(Program::Rstream, test, size, count, ahead);
    }

    fn add_group(&mut self, theirs: Program, test: Test, size: usize, count: u64, target: Target) {
        let theirs = self.add(theirs, test, size, count);
        for manner in manners(test, size) {
            let ours = self.add(Program::Rdmsg(manner), test, size, count);
            self.pairs.push(Pair {
                theirs,
                ours,
                target,
            });
        }
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
}

fn perftest_target(test: Test, size: usize) -> Target {
    match (test, size) {
        (Test::Latency, 64) => Target::AtMost(1.15),
        (Test::Bandwidth, 64) => Target::AtLeast(0.8),
        (Test::Bandwidth, 0x1_0000 | MIB) => Target::AtLeast(0.95),
        _ => Target::None,
    }
}

/// As it is by default, and polling all the time as the stock programs do; long messages also
/// without a copy, and with buffers that take them whole.
fn manners(test: Test, size: usize) -> Vec<Manner> {
    let default = Manner::default();
    let busy = Manner {
        wait: Wait::Busy,
        ..default
    };
    let owned = Manner {
        owned: true,
        ..default
    };
    let eager = Manner {
        eager_size: Some(size as u32),
        ..default
    };
    match (test, size) {
        (_, 0..=DEFAULT_EAGER) => vec![busy, default],
        (Test::Latency, _) => vec![busy, default, eager],
        (Test::Bandwidth, _) => vec![busy, default, owned, eager],
    }
}

/// So many that a run takes some tenths of a second on a device in software.
fn count(test: Test, size: usize) -> u64 {
    match (test, size) {
        (Test::Latency, 0..KIB) => 2000,
        (Test::Latency, KIB..=DEFAULT_EAGER) => 1000,
        (Test::Latency, 0x4001..=0x1_0000) => 200,
        (Test::Latency, _) => 20,
        (Test::Bandwidth, 0..KIB) => 20_000,
        (Test::Bandwidth, KIB..=DEFAULT_EAGER) => 5000,
        (Test::Bandwidth, 0x4001..=0x1_0000) => 500,
        (Test::Bandwidth, _) => 40,
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
        assert_eq!(
            targets(Program::Perftest, Test::Latency, 64),
            [Target::AtMost(1.15); 2]
        );
        assert_eq!(
            targets(Program::Perftest, Test::Bandwidth, 64),
            [Target::AtLeast(0.8); 2]
        );
        for size in [64 * KIB, MIB] {
            assert_eq!(
                targets(Program::Perftest, Test::Bandwidth, size),
                [Target::AtLeast(0.95); 4]
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
